//! The load of every worker: `/get_load`, `/get_loads`, `/v1/loads`.

use std::{sync::Arc, time::SystemTime};

use axum::{extract::State, response::Response};
use futures::future::join_all;
use serde_json::{Value, json};
use smg_engine_client::Load;

use crate::{context::Context, endpoints::json, error::Failure, workers::Member};

/// One entry per data-parallel rank, in the keys that older gateways read.
pub async fn native(State(cx): State<Arc<Context>>) -> Result<Response, Failure> {
    cx.fleet.first_ready()?;
    let now = unix_time();
    let loads = of_workers(&cx)
        .await
        .into_iter()
        .flat_map(|(_, loads)| loads.unwrap_or_default());
    let entries: Vec<Value> = loads
        .map(|load| {
            json!({
                "dp_rank": load.dp_rank,
                "num_reqs": load.num_running_reqs + load.num_waiting_reqs,
                "num_waiting_reqs": load.num_waiting_reqs,
                "num_tokens": load.num_used_tokens + load.num_waiting_uncached_tokens,
                "num_pending_tokens": load.num_waiting_uncached_tokens,
                "ts_tic": now,
            })
        })
        .collect();
    json(&entries)
}

/// Tokens per worker; -1 for a worker that does not tell.
pub async fn by_worker(State(cx): State<Arc<Context>>) -> Result<Response, Failure> {
    let workers: Vec<Value> = of_workers(&cx)
        .await
        .iter()
        .map(|(member, loads)| {
            let tokens = |loads: &Vec<Load>| loads.iter().map(|load| i64::from(load.num_used_tokens)).sum();
            let load: i64 = loads.as_ref().map_or(-1, tokens);
            json!({"worker": member.worker.url(), "load": load})
        })
        .collect();
    json(&json!({"workers": workers}))
}

/// Everything that the workers measure.
pub async fn detailed(State(cx): State<Arc<Context>>) -> Result<Response, Failure> {
    cx.fleet.first_ready()?;
    let mut entries = Vec::new();
    for (member, loads) in of_workers(&cx).await {
        for load in loads.unwrap_or_default() {
            let mut entry = json!(load);
            entry["worker"] = json!(member.worker.url());
            entries.push(entry);
        }
    }
    json(&json!({"timestamp": unix_time(), "version": env!("CARGO_PKG_VERSION"), "loads": entries}))
}

async fn of_workers(cx: &Context) -> Vec<(Arc<Member>, Option<Vec<Load>>)> {
    let members = cx.fleet.ready();
    let loads = join_all(members.iter().map(|member| member.client.loads())).await;
    let told = loads.into_iter().map(|loads| {
        loads
            .inspect_err(|error| tracing::debug!(%error, "a worker does not tell its load"))
            .ok()
    });
    members.into_iter().zip(told).collect()
}

fn unix_time() -> f64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0.0, |age| age.as_secs_f64())
}
