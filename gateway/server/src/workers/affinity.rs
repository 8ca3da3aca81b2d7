//! What ties a request to others or to a worker, besides the cached beginning of its prompt.

use smg_api::Routing;

/// Hashes of what a client sent, and the worker it asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Affinity {
    pub routing_key: Option<u64>,
    /// The place of a worker among those of the model.
    pub target: Option<u32>,
}

impl Affinity {
    pub fn of(routing: &Routing) -> Self {
        Self {
            routing_key: routing.routing_key.as_deref().map(smg_routing::routing_key),
            target: routing.target_worker,
        }
    }
}
