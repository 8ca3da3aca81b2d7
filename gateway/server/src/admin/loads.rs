//! The load of every worker: `/get_load`, `/get_loads`, `/v1/loads`.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::SystemTime,
};

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use futures::future::join_all;
use http::header;
use serde_json::{Value, json};
use smg_api::{ApiError, clip};
use smg_engine_client::Load;

use super::metrics::TEXT_FORMAT;
use crate::{
    context::Context, endpoints::json, error::Failure, exposition::escape, extract::QueryPairs,
    workers::Member,
};

/// Parts of a worker's load that `include` may name.
const SECTIONS: [&str; 7] = ["core", "memory", "spec", "lora", "disagg", "queues", "all"];

/// One entry per data-parallel rank, in the keys that older gateways read.
pub async fn native(State(cx): State<Arc<Context>>) -> Result<Response, Failure> {
    cx.fleet.first_ready()?;
    let now = unix_time();
    let loads = of_workers(&cx, &[])
        .await
        .into_iter()
        .flat_map(|(_, loads)| loads.unwrap_or_default());
    let entries: Vec<Value> = loads
        .map(|load| {
            json!({
                "dp_rank": load.dp_rank,
                "num_reqs": load.num_running_reqs + load.num_waiting_reqs,
                "num_waiting_reqs": load.num_waiting_reqs,
                "num_tokens": total_tokens(&load),
                "num_pending_tokens": load.num_waiting_uncached_tokens,
                "ts_tic": now,
            })
        })
        .collect();
    json(&entries)
}

/// Tokens per worker; -1 for a worker that does not tell.
pub async fn by_worker(State(cx): State<Arc<Context>>) -> Result<Response, Failure> {
    let workers: Vec<Value> = of_workers(&cx, &[])
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

/// What the workers measure: `?include=` names sections, `?dp_rank=` one rank, `?format=` json or prometheus.
pub async fn detailed(
    State(cx): State<Arc<Context>>,
    QueryPairs(query): QueryPairs,
) -> Result<Response, Failure> {
    let wish = Wish::read(&query)?;
    cx.fleet.first_ready()?;
    let now = unix_time();
    let told = of_workers(&cx, &wish.include).await;
    let mut entries = Vec::new();
    let mut ranks = BTreeSet::new();
    for (member, loads) in &told {
        for load in loads.iter().flatten() {
            ranks.insert(load.dp_rank);
            if wish.dp_rank.is_none_or(|rank| rank == load.dp_rank) {
                entries.push(entry(member, load, now));
            }
        }
    }
    if let Some(rank) = wish.dp_rank.filter(|rank| !ranks.contains(rank)) {
        let known: Vec<String> = ranks.iter().map(u32::to_string).collect();
        let message = format!("dp_rank must be one of {}, got {rank}", known.join(", "));
        return Err(ApiError::bad_request("dp_rank", message).into());
    }
    if wish.as_prometheus {
        return Ok(([(header::CONTENT_TYPE, TEXT_FORMAT)], exposition(&entries)).into_response());
    }
    let (accelerator, num_accelerators) = accelerators(&told);
    json(&json!({
        "timestamp": now,
        "version": env!("CARGO_PKG_VERSION"),
        "accelerator": accelerator,
        "num_accelerators": num_accelerators,
        "loads": entries,
    }))
}

/// What a query asks for.
struct Wish<'a> {
    dp_rank: Option<u32>,
    include: Vec<&'a str>,
    as_prometheus: bool,
}

impl<'a> Wish<'a> {
    fn read(query: &'a HashMap<String, String>) -> Result<Self, Failure> {
        let mut wish = Wish {
            dp_rank: None,
            include: Vec::new(),
            as_prometheus: false,
        };
        if let Some(given) = query.get("dp_rank") {
            let rank = given
                .parse()
                .map_err(|_| refused("dp_rank", given, "a whole number from 0"))?;
            wish.dp_rank = Some(rank);
        }
        if let Some(given) = query.get("include") {
            wish.include = given.split(',').map(str::trim).collect();
            if let Some(unknown) = wish.include.iter().find(|name| !SECTIONS.contains(name)) {
                let allowed = format!("a list of {}", SECTIONS.join(","));
                return Err(refused("include", unknown, &allowed));
            }
        }
        if let Some(given) = query.get("format") {
            wish.as_prometheus = match given.as_str() {
                "json" => false,
                "prometheus" => true,
                other => return Err(refused("format", other, "json or prometheus")),
            };
        }
        Ok(wish)
    }
}

fn refused(field: &str, given: &str, allowed: &str) -> Failure {
    let message = format!("{field} must be {allowed}, got {}", clip(given));
    ApiError::bad_request(field, message).into()
}

fn entry(member: &Member, load: &Load, now: f64) -> Value {
    let mut entry = json!(load);
    entry["worker"] = json!(member.worker.url());
    entry["timestamp"] = json!(now);
    entry["num_total_tokens"] = json!(total_tokens(load));
    entry["num_active_tokens"] = json!(load.num_used_tokens);
    entry
}

/// Tokens in memory, and those that wait to be computed.
fn total_tokens(load: &Load) -> u64 {
    u64::from(load.num_used_tokens) + u64::from(load.num_waiting_uncached_tokens)
}

/// What the workers that answered run on.
fn accelerators(told: &[(Arc<Member>, Option<Vec<Load>>)]) -> (Option<String>, u64) {
    let infos = told
        .iter()
        .filter(|(_, loads)| loads.is_some())
        .map(|(member, _)| member.worker.info());
    infos.fold((None, 0), |(device, count), info| {
        let of_worker = info.labels.get("tp_size").and_then(|size| size.parse().ok());
        (
            device.or_else(|| info.labels.get("device").cloned()),
            count + of_worker.unwrap_or(1),
        )
    })
}

/// Every number of the entries as a gauge with the labels `worker` and `dp_rank`.
fn exposition(entries: &[Value]) -> String {
    let mut families: BTreeMap<String, String> = BTreeMap::new();
    for entry in entries {
        let worker = entry["worker"].as_str().unwrap_or_default();
        let labels = format!("worker=\"{}\",dp_rank=\"{}\"", escape(worker), entry["dp_rank"]);
        for (name, value) in numbers(entry) {
            let samples = families.entry(format!("sglang:{name}")).or_default();
            samples.push_str(&format!("{labels}}} {value}\n"));
        }
    }
    let mut text = String::new();
    for (name, samples) in families {
        text.push_str(&format!("# TYPE {name} gauge\n"));
        for sample in samples.lines() {
            text.push_str(&format!("{name}{{{sample}\n"));
        }
    }
    text
}

/// The numbers of an entry; those of a section are called `section_name`.
fn numbers(entry: &Value) -> Vec<(String, &serde_json::Number)> {
    let mut found = Vec::new();
    for (name, value) in entry.as_object().into_iter().flatten() {
        match value {
            Value::Number(number) if name != "dp_rank" && name != "timestamp" => {
                found.push((name.clone(), number));
            }
            Value::Object(section) => found.extend(
                section
                    .iter()
                    .filter_map(|(key, value)| Some((format!("{name}_{key}"), as_number(value)?))),
            ),
            _ => {}
        }
    }
    found
}

fn as_number(value: &Value) -> Option<&serde_json::Number> {
    match value {
        Value::Number(number) => Some(number),
        _ => None,
    }
}

async fn of_workers(cx: &Context, include: &[&str]) -> Vec<(Arc<Member>, Option<Vec<Load>>)> {
    let members = cx.fleet.ready();
    let loads = join_all(members.iter().map(|member| member.client.loads(include))).await;
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
