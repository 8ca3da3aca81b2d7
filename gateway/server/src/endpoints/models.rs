//! `/v1/models`.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use smg_api::{ApiError, ModelCard, ModelList};
use smg_routing::WorkerState;

use super::json;
use crate::{admin::adapters, context::Context, error::Failure, extract::PathText};

pub async fn list(State(cx): State<Arc<Context>>) -> Result<Response, Failure> {
    json(&ModelList::new(cards(&cx).await))
}

pub async fn one(State(cx): State<Arc<Context>>, PathText(id): PathText) -> Result<Response, Failure> {
    let cards = cards(&cx).await;
    match cards.iter().find(|card| card.id == id) {
        Some(card) => json(card),
        None => {
            let served: Vec<&str> = cards.iter().map(|card| card.id.as_str()).collect();
            Err(ApiError::model_not_found(&id, &served).into())
        }
    }
}

/// One card per model, whichever of its workers is asked, one per alias, and one per adapter that requests may name.
async fn cards(cx: &Context) -> Vec<ModelCard> {
    let mut cards: Vec<ModelCard> = Vec::new();
    for member in cx.fleet.members() {
        let Some(served) = member.served() else {
            continue;
        };
        if cards.iter().any(|card| *card.id == *served.model) {
            continue;
        }
        let context = Some(served.info.max_context_length).filter(|length| *length > 0);
        let mut card = ModelCard::new(served.model.to_string(), served.since, context);
        if !served.info.model_path.is_empty() {
            card.root = served.info.model_path.clone();
        }
        cards.push(card);
        for alias in cx.fleet.aliases_of(&served.model) {
            let mut card = ModelCard::new(alias, served.since, context);
            card.root = served.model.to_string();
            cards.push(card);
        }
        if member.worker.state() != WorkerState::Ready {
            continue;
        }
        for (name, path) in adapters::of(&member).await {
            let mut card = ModelCard::new(name, served.since, context);
            card.root = path.as_str().unwrap_or_default().to_owned();
            card.parent = Some(served.model.to_string());
            cards.push(card);
        }
    }
    cards
}
