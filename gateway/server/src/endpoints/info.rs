//! What the served model and its server are: `/model_info` and `/server_info`.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use serde_json::{Value, json};
use smg_api::ApiError;
use smg_engine_client::{EngineError, StatusClass};

use super::json;
use crate::{context::Context, error::Failure};

pub async fn model(State(cx): State<Arc<Context>>) -> Result<Response, Failure> {
    let member = cx.fleet.first_ready()?;
    let served = member
        .served()
        .ok_or_else(|| ApiError::internal("a ready worker has told no model"))?;
    let info = &served.info;
    json(&json!({
        "model_path": info.model_path,
        "tokenizer_path": info.tokenizer_path,
        "served_model_name": *served.model,
        "is_generation": info.is_generation,
        "preferred_sampling_params": preferred(&info.preferred_sampling_params),
        "default_sampling_params": info.default_sampling_params,
        "weight_version": info.weight_version,
        "has_image_understanding": info.supports_vision,
        "has_audio_understanding": false,
        "model_type": info.model_type,
        "architectures": info.architectures,
        "max_context_length": info.max_context_length,
        "vocab_size": info.vocab_size,
        "eos_token_ids": info.eos_token_ids,
    }))
}

fn preferred(params: &serde_json::Map<String, Value>) -> Value {
    if params.is_empty() {
        Value::Null
    } else {
        json!(params)
    }
}

/// The worker's own flat object. Live cache counters come with our engines only.
pub async fn server(State(cx): State<Arc<Context>>) -> Result<Response, Failure> {
    let member = cx.fleet.first_ready()?;
    let told = match member.client.control("server_info", &Value::Null).await {
        Err(error) if lacks_operation(&error) => member.client.server_info().await,
        told => told,
    };
    json(&told?)
}

/// Foreign engines have no administrative operations, or not this one.
fn lacks_operation(error: &EngineError) -> bool {
    matches!(
        error.status_class(),
        StatusClass::Unimplemented | StatusClass::InvalidArgument
    )
}
