//! What a request asks admission for: whose it is, how urgent it is, and what it will cost.

use std::collections::HashMap;

use axum::extract::Request;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, header};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use smg_admission::{Ask, Class, TenantId};
use smg_api::{ApiError, clip};
use smg_config::{LimitOptions, PriorityClass, TenantKey};

use crate::{error::Failure, layers::body::ReadBody};

/// Names a request's class.
const PRIORITY_HEADER: &str = "x-smg-priority";

/// Bytes of a request's body for each token that it is believed to cost.
const BYTES_PER_TOKEN: usize = 4;

/// Larger bodies are not read for their priority alone.
const MAX_PEEKED_BYTES: usize = 1 << 20;

const ANONYMOUS: TenantId = TenantId(0);

/// Reads what admission needs. Keys are known by their digests only.
pub struct Asking {
    /// Believed where it is set.
    tenant_header: Option<HeaderName>,
    /// The most urgent class of each tenant, where there are classes.
    classes: Option<Classes>,
}

struct Classes {
    most_urgent: Class,
    of_tenants: HashMap<TenantId, Class>,
}

// === impl Asking ===

impl Asking {
    pub fn new(options: &LimitOptions) -> Self {
        let of_tenants = options.limits_of_tenants().into_iter();
        let classes = options.priority_scheduler_enabled.then(|| Classes {
            most_urgent: class_of(options.default_limits().max_class),
            of_tenants: of_tenants
                .map(|(key, limits)| (tenant_of(&key), class_of(limits.max_class)))
                .collect(),
        });
        // The name was checked with the options.
        let header = options.tenant_header_name.parse().ok();
        Self {
            tenant_header: header.filter(|_| options.trust_tenant_header),
            classes,
        }
    }

    pub fn ask(&self, request: &Request) -> Result<Ask, Failure> {
        let body = request.extensions().get::<ReadBody>().map(|body| &body.bytes);
        let tenant = self.tenant(request.headers());
        let class = match &self.classes {
            Some(classes) => classes.class(tenant, request.headers(), body)?,
            None => Class::Default,
        };
        let tokens = body.map_or(0, Bytes::len).div_ceil(BYTES_PER_TOKEN).max(1);
        Ok(Ask {
            tenant,
            class,
            tokens: tokens as u64,
        })
    }

    fn tenant(&self, headers: &HeaderMap) -> TenantId {
        let named = self.tenant_header.as_ref().and_then(|name| headers.get(name));
        if let Some(name) = named.filter(|name| !name.is_empty()) {
            return named_tenant(name.as_bytes());
        }
        match headers.get(header::AUTHORIZATION) {
            Some(value) => keyed_tenant(&Sha256::digest(key_of(value.as_bytes())).into()),
            None => ANONYMOUS,
        }
    }
}

impl Classes {
    /// The class that was asked for, as far as the tenant may have it.
    fn class(&self, tenant: TenantId, headers: &HeaderMap, body: Option<&Bytes>) -> Result<Class, Failure> {
        let asked = match headers.get(PRIORITY_HEADER) {
            Some(name) => class_of_header(name.as_bytes())?,
            None => body.map_or(Class::Default, class_of_body),
        };
        let most_urgent = self.of_tenants.get(&tenant).unwrap_or(&self.most_urgent);
        Ok(asked.max(*most_urgent))
    }
}

fn class_of_header(name: &[u8]) -> Result<Class, Failure> {
    let name = String::from_utf8_lossy(name);
    Class::of_name(&name).ok_or_else(|| {
        let allowed = Class::ALL.map(Class::name).join(", ");
        let message = format!(
            "the header {PRIORITY_HEADER} must be one of {allowed}, got `{}`",
            clip(&name)
        );
        ApiError::bad_request(PRIORITY_HEADER, message).into()
    })
}

/// What is wrong with a body is told by its endpoint.
fn class_of_body(body: &Bytes) -> Class {
    #[derive(Deserialize)]
    struct Peeked {
        priority: Option<i32>,
    }
    if body.len() > MAX_PEEKED_BYTES {
        return Class::Default;
    }
    let peeked = serde_json::from_slice::<Peeked>(body).ok();
    let priority = peeked.and_then(|peeked| peeked.priority);
    priority.map_or(Class::Default, Class::of_priority)
}

pub fn tenant_of(key: &TenantKey) -> TenantId {
    match key {
        TenantKey::Auth(digest) => keyed_tenant(digest),
        TenantKey::Header(name) => named_tenant(name.as_bytes()),
        TenantKey::Anonymous => ANONYMOUS,
    }
}

fn named_tenant(name: &[u8]) -> TenantId {
    // No key begins with a line break, so that no name is taken for one.
    let digest = Sha256::new().chain_update(b"\nheader:").chain_update(name);
    keyed_tenant(&digest.finalize().into())
}

fn keyed_tenant(digest: &[u8; 32]) -> TenantId {
    let half = digest.iter().take(16);
    TenantId(half.fold(0, |id, byte| id << 8 | u128::from(*byte)))
}

/// The key in the value of an `Authorization` header.
fn key_of(value: &[u8]) -> &[u8] {
    match value.split_at_checked("Bearer ".len()) {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case(b"Bearer ") => key,
        _ => value,
    }
}

fn class_of(class: PriorityClass) -> Class {
    match class {
        PriorityClass::System => Class::System,
        PriorityClass::Interactive => Class::Interactive,
        PriorityClass::Default => Class::Default,
        PriorityClass::Bulk => Class::Bulk,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::body::Body;
    use serde_json::json;
    use smg_config::from_map;

    use super::*;
    use crate::layers::body::BodyMemory;

    fn asking(options: serde_json::Value) -> Asking {
        Asking::new(&from_map(options.as_object().unwrap()).unwrap().limits)
    }

    fn request(headers: &[(&str, &str)], body: &str) -> Request {
        let mut request = Request::new(Body::empty());
        for (name, value) in headers {
            let name: HeaderName = name.parse().unwrap();
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        request.extensions_mut().insert(ReadBody {
            bytes: Bytes::copy_from_slice(body.as_bytes()),
            space: Arc::new(BodyMemory::new(0).space()),
        });
        request
    }

    fn tenant(asking: &Asking, headers: &[(&str, &str)]) -> TenantId {
        asking.ask(&request(headers, "{}")).unwrap().tenant
    }

    #[test]
    fn tenants_are_known_by_a_trusted_header_else_their_key() {
        let plain = asking(json!({}));
        let (named, keyed) = (("x-smg-tenant-id", "gold"), ("authorization", "Bearer secret"));
        assert_eq!(tenant(&plain, &[named]), ANONYMOUS);
        let digest = Sha256::digest("secret").into();
        assert_eq!(
            tenant(&plain, &[named, keyed]),
            tenant_of(&TenantKey::Auth(digest))
        );
        assert_eq!(
            tenant(&plain, &[("authorization", "bearer secret")]),
            tenant(&plain, &[keyed])
        );
        assert_ne!(
            tenant(&plain, &[("authorization", "Bearer other")]),
            tenant(&plain, &[keyed])
        );
        let trusting = asking(json!({"trust_tenant_header": true, "tenant_header_name": "X-Team"}));
        let team = ("x-team", "gold");
        let gold = tenant_of(&TenantKey::Header("gold".to_owned()));
        assert_eq!(tenant(&trusting, &[team, keyed]), gold);
        assert_eq!(
            tenant(&trusting, &[("x-team", ""), keyed]),
            tenant(&plain, &[keyed])
        );
        assert_ne!(gold, tenant(&plain, &[("authorization", "gold")]));
    }

    #[test]
    fn classes_count_only_where_they_are_wanted_and_up_to_the_most_urgent_one() {
        let class = |options: &serde_json::Value, headers: &[(&str, &str)], body: &str| {
            let ask = asking(options.clone()).ask(&request(headers, body));
            ask.map(|ask| ask.class.name())
        };
        let off = json!({});
        let on = json!({"priority_scheduler_enabled": true});
        let all = json!({
            "priority_scheduler_enabled": true, "priority_scheduler_default_max_class": "system",
        });
        let (urgent, patient) = (("x-smg-priority", "system"), ("x-smg-priority", "bulk"));
        for (options, headers, body, expected) in [
            (&off, &[patient][..], r#"{"priority": -1}"#, "default"),
            (&on, &[urgent], "{}", "default"),
            (&on, &[patient], r#"{"priority": 5}"#, "bulk"),
            (&on, &[], r#"{"priority": -5}"#, "bulk"),
            (&on, &[], r#"{"priority": 5}"#, "default"),
            (&all, &[urgent], "{}", "system"),
            (&all, &[], r#"{"text": "a", "priority": 5}"#, "interactive"),
            (&all, &[], r#"{"priority": "high"}"#, "default"),
            (&all, &[], "{", "default"),
        ] {
            assert_eq!(
                class(options, headers, body).unwrap(),
                expected,
                "{headers:?} {body}"
            );
        }
        let refused = class(&all, &[("x-smg-priority", "top")], "{}").unwrap_err().0;
        assert_eq!(refused.param.as_deref(), Some(PRIORITY_HEADER));
        assert!(
            refused.message.contains("system, interactive, default, bulk"),
            "{refused}"
        );
        assert_eq!(
            class(&off, &[("x-smg-priority", "top")], "{}").unwrap(),
            "default"
        );
    }

    #[test]
    fn the_cost_is_judged_by_the_length_of_the_body() {
        let tokens = |body: &str| asking(json!({})).ask(&request(&[], body)).unwrap().tokens;
        assert_eq!((tokens(""), tokens("{}"), tokens(&"x".repeat(401))), (1, 1, 101));
    }
}
