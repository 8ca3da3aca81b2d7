//! The options of `smg simulate`. What they may be is checked by the simulation, which knows traces and policies.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::schema::kind_of;

pub(crate) const NAME: &str = "simulate";

/// What `smg simulate` is told.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct SimulateOptions {
    /// Trace to run: a JSON object a line with timestamp (milliseconds), input_length, output_length (tokens) and hash_ids (one per block of 512 prompt tokens); plain or gzipped
    #[arg(long, value_name = "FILE", conflicts_with = "trace")]
    pub from: Option<PathBuf>,
    /// Built-in trace, where no file is given: shared-prompts, multi-turn, agents or uniform
    #[arg(long, default_value = "shared-prompts", value_name = "NAME")]
    pub trace: String,
    /// Engines
    #[arg(long, default_value_t = 8, value_name = "NUMBER")]
    pub workers: usize,
    /// Gateways that do not talk to each other; each request comes to one of them by chance
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    pub gateways: usize,
    /// Policies to compare: those of the gateway, and oracle and upstream_cache_aware
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "cache_aware,round_robin,power_of_two,upstream_cache_aware,oracle",
        value_name = "A,B,…"
    )]
    pub policy: Vec<String>,
    /// Requests to run; without it all of a file, and 2000 of a built-in trace
    #[arg(long, value_name = "NUMBER")]
    pub requests: Option<usize>,
    /// Requests per second on the whole; without it as recorded in the file, or as many as the engines of a built-in trace just take
    #[arg(long, value_name = "NUMBER")]
    pub rate: Option<f64>,
    /// Number that all chance comes from
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    pub seed: u64,
    /// Tokens of a page of the prefix cache
    #[arg(long, default_value = "16", value_parser = page, value_name = "TOKENS")]
    pub page_size: NonZeroU32,
    /// Tokens that an engine's memory takes
    #[arg(long, default_value_t = 400_000, value_name = "TOKENS")]
    pub kv_tokens: usize,
    /// Prompt tokens that an engine computes in one pass at most
    #[arg(long, default_value_t = 8192, value_name = "TOKENS")]
    pub prefill_budget: usize,
    /// Prompt tokens that an engine computes per second
    #[arg(long, default_value_t = 10_000.0, value_name = "TOKENS")]
    pub prefill_rate: f64,
    /// Milliseconds of every pass, whatever it computes
    #[arg(long, default_value_t = 8.0, value_name = "MS")]
    pub step_ms: f64,
    /// Microseconds that each running request adds to a pass that generates
    #[arg(long, default_value_t = 100.0, value_name = "US")]
    pub request_us: f64,
    /// Nanoseconds that each token of running requests' context adds to a pass that generates
    #[arg(long, default_value_t = 40.0, value_name = "NS")]
    pub kv_token_ns: f64,
    /// Milliseconds until gateways hear what an engine caches and how loaded it is
    #[arg(long, default_value_t = 20.0, value_name = "MS")]
    pub event_delay_ms: f64,
    /// Engines tell nothing: gateways go by what they have sent
    #[arg(long, conflicts_with = "event_delay_ms")]
    pub without_events: bool,
    /// How the result is written
    #[arg(long, value_enum, default_value_t = ReportFormat::Table)]
    pub format: ReportFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// For people
    Table,
    /// For programs: times in seconds, rates per second, shares from 0 to 1
    Json,
}

fn page(text: &str) -> Result<NonZeroU32, String> {
    text.parse()
        .map_err(|_| "it must be a whole number of tokens from 1 on".to_owned())
}

pub(crate) fn command() -> clap::Command {
    let about = "Compare policies on a model of engines";
    SimulateOptions::augment_args(clap::Command::new(NAME))
        .about(about)
        .long_about(about)
        .mut_args(|arg| {
            let is_number = matches!(kind_of(&arg), "int" | "float");
            arg.allow_negative_numbers(is_number)
        })
}
