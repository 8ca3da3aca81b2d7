//! What of a prompt the choice of a worker depends on.

use smg_kv_index::PromptKeys;
use smg_routing::{Query, Role, RouteRequest, WorkerId};
use tokio::time::Instant;

use super::Affinity;

/// What routing looks at in a prompt. Made once per prompt: its pages are hashed.
#[derive(Default)]
pub struct Routable {
    prompt_tokens: usize,
    /// What of the prompt a cache can serve; `None`: what stands before the prompt is not known here.
    pub(super) reusable: Option<PromptKeys>,
    only: Option<WorkerId>,
    expected_output_tokens: usize,
    affinity: Affinity,
    prefix_key: Option<u64>,
}

impl Routable {
    /// `namespace` is of [`cache_namespace`]. A cache can serve `num_reusable` tokens and no more.
    pub fn new(tokens: &[u32], num_reusable: usize, namespace: &str, expected_output_tokens: usize) -> Self {
        Self {
            prompt_tokens: tokens.len(),
            reusable: Some(PromptKeys::new(&tokens[..num_reusable], namespace)),
            expected_output_tokens,
            ..Self::default()
        }
    }

    /// The continuation of what `worker` alone has.
    pub fn bound(tokens: &[u32], expected_output_tokens: usize, worker: WorkerId) -> Self {
        Self {
            prompt_tokens: tokens.len(),
            only: Some(worker),
            expected_output_tokens,
            ..Self::default()
        }
    }

    /// A session that has no tokens yet.
    pub fn opening() -> Self {
        Self::default()
    }

    /// The same prompt with what ties it to others; `prefix_key` is of [`super::Fleet::prefix_key`].
    pub fn tied(mut self, affinity: Affinity, prefix_key: Option<u64>) -> Self {
        self.affinity = affinity;
        self.prefix_key = prefix_key;
        self
    }

    pub(super) fn query<'a>(
        &'a self,
        model: &'a str,
        cached: &'a [(WorkerId, usize)],
        avoid: &'a [WorkerId],
    ) -> Query<'a> {
        Query {
            model: Some(model),
            role: Role::Regular,
            request: self.request(),
            cached,
            avoid,
            only: self.only,
        }
    }

    /// What a policy may know of it now.
    fn request(&self) -> RouteRequest {
        RouteRequest {
            routing_key: self.affinity.routing_key,
            prefix_key: self.prefix_key,
            target: self.affinity.target,
            ..RouteRequest::new(
                Instant::now().into_std(),
                self.prompt_tokens,
                self.expected_output_tokens,
            )
        }
    }
}

/// What keeps prompts of equal tokens apart in a worker's cache: its namespace and an adapter; empty for neither.
pub fn cache_namespace(salt: Option<&str>, adapter: &str) -> String {
    match (salt, adapter) {
        (None, "") => String::new(),
        _ => format!("{salt:?}{adapter:?}"),
    }
}
