//! The model list of `/v1/models`.

use serde::Serialize;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModelList {
    pub object: &'static str,
    pub data: Vec<ModelCard>,
}

impl ModelList {
    pub fn new(data: Vec<ModelCard>) -> Self {
        Self { object: "list", data }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModelCard {
    /// The name that requests give as `model`.
    pub id: String,
    pub object: &'static str,
    /// Seconds since the epoch.
    pub created: u64,
    pub owned_by: &'static str,
    pub root: String,
    pub parent: Option<String>,
    /// Context length in tokens; null when the worker does not tell.
    pub max_model_len: Option<u32>,
}

impl ModelCard {
    pub fn new(id: String, created: u64, max_model_len: Option<u32>) -> Self {
        Self {
            root: id.clone(),
            id,
            object: "model",
            created,
            owned_by: "sglang",
            parent: None,
            max_model_len,
        }
    }
}
