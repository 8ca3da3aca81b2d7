//! Adapters (LoRA) of all workers as one answer.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Map, Value, json};

use crate::{
    context::Context,
    workers::{Member, Served},
};

/// A worker that tells nothing for so long is taken to have none.
const LIST_LIMIT: Duration = Duration::from_secs(1);

/// What the workers said about loading or unloading, as one of them would say it: it has failed where one has, and
/// those are loaded that every worker has.
pub fn merged(results: &[(&str, Value)]) -> (StatusCode, Value) {
    let failures: Vec<(&str, &str)> = results
        .iter()
        .filter(|(_, result)| result["success"] != true)
        .map(|(worker, result)| {
            (
                *worker,
                result["error_message"].as_str().unwrap_or("it does not say why"),
            )
        })
        .collect();
    let message = match failures.as_slice() {
        [] => None,
        [(_, message)] if results.len() == 1 => Some((*message).to_owned()),
        failures => {
            let all: Vec<String> = failures
                .iter()
                .map(|(worker, message)| format!("{worker}: {message}"))
                .collect();
            Some(all.join("; "))
        }
    };
    let status = if failures.is_empty() {
        StatusCode::OK
    } else {
        StatusCode::BAD_REQUEST
    };
    let body =
        json!({"success": failures.is_empty(), "error_message": message, "loaded_adapters": common(results)});
    (status, body)
}

fn common(results: &[(&str, Value)]) -> Map<String, Value> {
    let (first, others) = match results {
        [] => return Map::new(),
        [(_, first), others @ ..] => (first, others),
    };
    let mut found = first["loaded_adapters"].as_object().cloned().unwrap_or_default();
    found.retain(|name, _| {
        others
            .iter()
            .all(|(_, result)| result["loaded_adapters"].get(name).is_some())
    });
    found
}

/// Path by name. Engines without adapters have none.
pub async fn of(member: &Member) -> Map<String, Value> {
    let told = tokio::time::timeout(LIST_LIMIT, member.client.control("lora_adapters", &Value::Null)).await;
    match told {
        Ok(Ok(Value::Object(mut result))) => match result.remove("loaded_adapters") {
            Some(Value::Object(adapters)) => adapters,
            _ => Map::new(),
        },
        _ => Map::new(),
    }
}

/// The model that has an adapter of this name, where a worker knows one.
pub async fn model_with(cx: &Context, adapter: &str) -> Option<Arc<Served>> {
    for member in cx.fleet.ready() {
        if of(&member).await.contains_key(adapter) {
            return member.served();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(success: bool, message: Option<&str>, loaded: &[&str]) -> Value {
        let loaded: Map<String, Value> = loaded
            .iter()
            .map(|name| ((*name).to_owned(), json!("/p")))
            .collect();
        json!({"success": success, "error_message": message, "loaded_adapters": loaded})
    }

    #[test]
    fn one_worker_speaks_for_itself() {
        let (status, body) = merged(&[("w", told(false, Some("no"), &["a"]))]);
        assert_eq!(
            (status, body),
            (StatusCode::BAD_REQUEST, told(false, Some("no"), &["a"]))
        );
    }

    #[test]
    fn all_workers_have_to_succeed_and_to_have_it() {
        let both = [
            ("v", told(true, None, &["a", "b"])),
            ("w", told(true, None, &["b"])),
        ];
        assert_eq!(merged(&both), (StatusCode::OK, told(true, None, &["b"])));
        let one = [
            ("v", told(true, None, &["a"])),
            ("w", told(false, Some("no"), &[])),
        ];
        assert_eq!(
            merged(&one),
            (StatusCode::BAD_REQUEST, told(false, Some("w: no"), &[]))
        );
    }
}
