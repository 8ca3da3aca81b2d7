//! The gateway's HTTP application: every route, and every layer that a request passes.

use std::sync::Arc;

use axum::{
    Router,
    extract::Request,
    middleware::from_fn_with_state,
    routing::{get, post, put},
};
use smg_api::{ApiError, clip};
use tower::ServiceBuilder;
use tower_http::catch_panic::CatchPanicLayer;

use crate::{
    admin,
    context::Context,
    endpoints::{chat, completions, embeddings, generate, info, models, sessions, tokenize},
    error::Failure,
    extract,
    layers::{admission, auth, body, panic, request_id, trace},
};

/// All routes behind the whole stack.
pub fn router(cx: Arc<Context>) -> Router {
    let stack = ServiceBuilder::new()
        // Outermost, so that the log line and every answer, errors included, carry the id.
        .layer(from_fn_with_state(cx.clone(), request_id::layer))
        // Outside of everything that may answer early, so that each exchange is counted once with its status.
        .layer(from_fn_with_state(cx.clone(), trace::layer))
        // Inside the counting: a panic counts as a 500.
        .layer(CatchPanicLayer::custom(panic::answer));
    open()
        .merge(guarded(&cx))
        .merge(administration(&cx))
        .merge(closed(&cx))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(stack)
        .with_state(cx)
}

/// Routes for probes and scrapers, which have no key.
fn open() -> Router<Arc<Context>> {
    Router::new()
        .route("/health", get(admin::health::health))
        .route("/liveness", get(admin::health::liveness))
        .route("/readiness", get(admin::health::readiness))
        .route("/ready", get(admin::health::readiness))
        .route("/health_generate", get(admin::health::health_generate))
        .route("/metrics", get(admin::metrics::gateway))
        .route("/engine_metrics", get(admin::metrics::engines))
}

/// Routes that need the API key.
fn guarded(cx: &Arc<Context>) -> Router<Arc<Context>> {
    Router::new()
        .merge(generation(cx))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::one))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/v1/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/v1/detokenize", post(tokenize::detokenize))
        .route("/get_model_info", get(info::model))
        .route("/model_info", get(info::model))
        .route("/get_server_info", get(info::server))
        .route("/server_info", get(info::server))
        .route("/get_load", get(admin::loads::native))
        .route("/get_loads", get(admin::loads::by_worker))
        .route("/v1/loads", get(admin::loads::detailed))
        .route("/route/explain", post(admin::explain::explain))
        .route("/workers", get(admin::workers::list))
        .route("/workers/{id}", get(admin::workers::one))
        .route("/open_session", post(sessions::open).get(sessions::open))
        .route("/close_session", post(sessions::close).get(sessions::close))
        // Outside of admission: a body that comes slowly must not hold a permit.
        .layer(from_fn_with_state(cx.clone(), body::layer))
        // Before any work is done for a stranger.
        .layer(from_fn_with_state(cx.clone(), auth::layer))
}

/// Routes that need the key of administrators, where they have one of their own.
fn administration(cx: &Arc<Context>) -> Router<Arc<Context>> {
    Router::new()
        .merge(admin::operations::routes(admin::operations::TABLE))
        .route("/flush_cache", post(admin::cache::flush).get(admin::cache::flush))
        .route("/abort_request", post(admin::abort::abort))
        .layer(from_fn_with_state(cx.clone(), body::layer))
        .layer(from_fn_with_state(cx.clone(), auth::admin))
}

/// Routes that are closed to all where administrators have no key.
fn closed(cx: &Arc<Context>) -> Router<Arc<Context>> {
    admin::operations::routes(admin::operations::GUARDED_TABLE)
        // A worker of a stranger would get the prompts of all clients.
        .route("/workers", post(admin::membership::add))
        .route(
            "/workers/{id}",
            put(admin::membership::replace)
                .patch(admin::membership::patch)
                .delete(admin::membership::remove),
        )
        .layer(from_fn_with_state(cx.clone(), body::layer))
        .layer(from_fn_with_state(cx.clone(), auth::admin_only))
}

/// Routes that occupy a worker.
fn generation(cx: &Arc<Context>) -> Router<Arc<Context>> {
    Router::new()
        .route("/v1/chat/completions", post(chat::handle))
        .route("/v1/completions", post(completions::handle))
        .route("/generate", post(generate::handle).put(generate::handle))
        .route("/v1/embeddings", post(embeddings::openai))
        .route("/encode", post(embeddings::native).put(embeddings::native))
        // Inside the key check: strangers must not take places in the queue.
        .layer(from_fn_with_state(cx.clone(), admission::layer))
}

/// The second listener serves metrics and nothing else.
pub fn metrics_router(cx: Arc<Context>) -> Router {
    Router::new()
        .route("/metrics", get(admin::metrics::gateway))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .with_state(cx)
}

async fn unknown_path(request: Request) -> Failure {
    let (method, path) = (request.method().as_str(), request.uri().path());
    if let Some(failure) = extract::unreadable_path(path) {
        return failure;
    }
    ApiError::not_found(format!("there is no route {} {}", clip(method), clip(path))).into()
}

async fn wrong_method(request: Request) -> Failure {
    let message = format!(
        "{} does not take {}; the Allow header lists what it takes",
        clip(request.uri().path()),
        clip(request.method().as_str())
    );
    ApiError::method_not_allowed(message).into()
}
