//! Operations that every worker runs by itself. One table says their routes, what their bodies may hold, and what is
//! answered; the workers say the rest.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    response::{IntoResponse, Response},
    routing::{MethodFilter, on},
};
use futures::future::join_all;
use http::StatusCode;
use serde_json::{Map, Value, json};
use smg_api::{ApiError, clip};

use super::adapters;
use crate::{
    context::Context,
    endpoints::{Incoming, json},
    error::Failure,
    workers::Member,
};

/// One operation.
pub struct Operation {
    path: &'static str,
    method: MethodFilter,
    /// What the workers call it.
    name: &'static str,
    fields: &'static [Field],
    answer: Answer,
}

/// What is answered when no worker has refused.
enum Answer {
    /// A message.
    Done(&'static str),
    /// What the workers say.
    AsTold,
    /// What they say in one, a failure of any as a bad request.
    Adapters,
}

/// One field of a body.
struct Field {
    name: &'static str,
    kind: Kind,
    is_required: bool,
}

enum Kind {
    Bool,
    Text,
    OneOf(&'static [&'static str]),
}

/// Operations of whoever may administrate.
pub const TABLE: &[Operation] = &[
    Operation {
        path: "/pause_generation",
        method: MethodFilter::POST,
        name: "pause_generation",
        fields: &[optional("mode", Kind::OneOf(&["abort", "retract", "in_place"]))],
        answer: Answer::Done("Generation paused successfully."),
    },
    Operation {
        path: "/continue_generation",
        method: MethodFilter::POST,
        name: "continue_generation",
        fields: &[optional("torch_empty_cache", Kind::Bool)],
        answer: Answer::Done("Generation continued successfully."),
    },
    Operation {
        path: "/load_lora_adapter",
        method: MethodFilter::POST,
        name: "load_lora_adapter",
        fields: &[
            required("lora_name", Kind::Text),
            required("lora_path", Kind::Text),
            optional("pinned", Kind::Bool),
        ],
        answer: Answer::Adapters,
    },
    Operation {
        path: "/unload_lora_adapter",
        method: MethodFilter::POST,
        name: "unload_lora_adapter",
        fields: &[required("lora_name", Kind::Text)],
        answer: Answer::Adapters,
    },
];

/// Operations that name places outside of the server, which need a key of their own.
pub const GUARDED_TABLE: &[Operation] = &[
    Operation {
        path: "/hicache/storage-backend",
        method: MethodFilter::GET,
        name: "hicache_storage_status",
        fields: &[],
        answer: Answer::AsTold,
    },
    Operation {
        path: "/hicache/storage-backend",
        method: MethodFilter::PUT,
        name: "hicache_storage_attach",
        fields: &[
            required("hicache_storage_backend", Kind::Text),
            optional("hicache_storage_backend_extra_config_json", Kind::Text),
            optional("hicache_storage_prefetch_policy", Kind::Text),
            optional("hicache_write_policy", Kind::Text),
        ],
        answer: Answer::AsTold,
    },
    Operation {
        path: "/hicache/storage-backend",
        method: MethodFilter::DELETE,
        name: "hicache_storage_detach",
        fields: &[],
        answer: Answer::AsTold,
    },
    Operation {
        path: "/hicache/storage-backend/clear",
        method: MethodFilter::POST,
        name: "hicache_storage_clear",
        fields: &[],
        answer: Answer::AsTold,
    },
];

const fn optional(name: &'static str, kind: Kind) -> Field {
    Field {
        name,
        kind,
        is_required: false,
    }
}

const fn required(name: &'static str, kind: Kind) -> Field {
    Field {
        name,
        kind,
        is_required: true,
    }
}

/// The routes of a table.
pub fn routes(table: &'static [Operation]) -> Router<Arc<Context>> {
    table.iter().fold(Router::new(), |router, operation| {
        let handler = move |cx: State<Arc<Context>>, request: Request| run(operation, cx, request);
        router.route(operation.path, on(operation.method, handler))
    })
}

async fn run(
    operation: &'static Operation,
    State(cx): State<Arc<Context>>,
    request: Request,
) -> Result<Response, Failure> {
    let incoming = Incoming::any(request)?;
    let args = operation.args(&incoming.body)?;
    cx.fleet.first_ready()?;
    let workers = cx.fleet.ready();
    let calls = workers
        .iter()
        .map(|member| member.client.control(operation.name, &args));
    let outcomes: Vec<Result<Value, Failure>> = join_all(calls)
        .await
        .into_iter()
        .map(|outcome| outcome.map_err(|error| Failure::of_operation(operation.name, &error)))
        .collect();
    let num_failed = outcomes.iter().filter(|outcome| outcome.is_err()).count();
    if num_failed > 0 {
        return failed(operation, &workers, outcomes);
    }
    let results: Vec<(&str, Value)> = workers
        .iter()
        .map(|member| member.worker.url())
        .zip(outcomes.into_iter().filter_map(Result::ok))
        .collect();
    match (&operation.answer, results.as_slice()) {
        (Answer::Done(message), _) => json(&json!({"message": message, "status": "ok"})),
        (Answer::Adapters, results) => {
            let (status, body) = adapters::merged(results);
            Ok((status, axum::Json(body)).into_response())
        }
        (Answer::AsTold, [(_, result)]) => json(result),
        (Answer::AsTold, results) => {
            let told = results
                .iter()
                .map(|(worker, result)| json!({"worker": worker, "result": result}));
            json(&json!({"workers": told.collect::<Vec<_>>()}))
        }
    }
}

/// The only worker's own refusal, or which of several did it and which did not.
fn failed(
    operation: &Operation,
    workers: &[Arc<Member>],
    mut outcomes: Vec<Result<Value, Failure>>,
) -> Result<Response, Failure> {
    if outcomes.len() == 1 {
        return outcomes.remove(0).and_then(|result| json(&result));
    }
    let (mut successful, mut failed, mut status) = (Vec::new(), Vec::new(), StatusCode::BAD_GATEWAY);
    for (member, outcome) in workers.iter().zip(outcomes) {
        match outcome {
            Ok(_) => successful.push(member.worker.url()),
            Err(failure) => {
                status = failure.0.status;
                failed.push(json!({"worker": member.worker.url(), "error": failure.0.message}));
            }
        }
    }
    let (status, word) = if successful.is_empty() {
        (status, "failed")
    } else {
        (StatusCode::PARTIAL_CONTENT, "partial_success")
    };
    let message = format!(
        "{} ran on {} of {} workers",
        operation.name,
        successful.len(),
        workers.len()
    );
    let body = json!({"status": word, "message": message, "successful": successful, "failed": failed});
    Ok((status, axum::Json(body)).into_response())
}

// === impl Operation ===

impl Operation {
    /// The fields of a body, checked; those that are null or absent are left to the workers.
    fn args(&self, body: &[u8]) -> Result<Value, Failure> {
        let given: Map<String, Value> = match body {
            [] => Map::new(),
            body => serde_json::from_slice(body).map_err(|error| {
                ApiError::invalid_body(format!(
                    "the body must be a JSON object: {}",
                    clip(&error.to_string())
                ))
            })?,
        };
        let mut args = Map::new();
        for (name, value) in given {
            let field = self.field(&name)?;
            if value.is_null() {
                continue;
            }
            field.check(&value)?;
            args.insert(name, value);
        }
        let missing = self
            .fields
            .iter()
            .find(|field| field.is_required && !args.contains_key(field.name));
        match missing {
            Some(field) => Err(ApiError::missing(field.name, format!("{} is required", field.name)).into()),
            None => Ok(Value::Object(args)),
        }
    }

    fn field(&self, name: &str) -> Result<&Field, Failure> {
        let known = self.fields.iter().find(|field| field.name == name);
        known.ok_or_else(|| {
            let names: Vec<&str> = self.fields.iter().map(|field| field.name).collect();
            let takes = match names.as_slice() {
                [] => "takes no fields".to_owned(),
                names => format!("takes {}", names.join(", ")),
            };
            let message = format!("`{}` is no field of {}, which {takes}", clip(name), self.path);
            ApiError::bad_request(name, message)
                .with_code("unknown_parameter")
                .into()
        })
    }
}

// === impl Field ===

impl Field {
    fn check(&self, value: &Value) -> Result<(), Failure> {
        let allowed = match self.kind {
            Kind::Bool if value.is_boolean() => return Ok(()),
            Kind::Text if value.is_string() => return Ok(()),
            Kind::OneOf(words) if value.as_str().is_some_and(|word| words.contains(&word)) => return Ok(()),
            Kind::Bool => "true or false".to_owned(),
            Kind::Text => "a string".to_owned(),
            Kind::OneOf(words) => format!("one of {}", words.join(", ")),
        };
        let message = format!(
            "{} must be {allowed}, got {}",
            self.name,
            clip(&value.to_string())
        );
        Err(ApiError::bad_request(self.name, message).into())
    }
}
