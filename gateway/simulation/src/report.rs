//! The ranked table of a simulation, for people and for programs.

use serde::Serialize;

use crate::ORACLE;
use crate::outcome::{Outcome, Percentiles};
use crate::params::Params;
use crate::trace::Trace;

/// Everything that a simulation found, best first: by the 99th percentile of the time to the first token.
#[derive(Debug, Serialize)]
pub struct Report {
    pub trace: String,
    pub num_requests: usize,
    pub num_workers: usize,
    pub num_gateways: usize,
    pub seed: u64,
    /// Hit rate of one cache without bounds.
    pub possible_hit_rate: f64,
    pub policies: Vec<Row>,
}

/// Times in seconds.
#[derive(Debug, Serialize)]
pub struct Row {
    pub policy: String,
    pub num_ended: usize,
    pub num_refused: usize,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    pub ttft: Times,
    pub tpot: Times,
    pub requests_per_second: f64,
    pub tokens_per_second: f64,
    pub hit_rate: f64,
    /// Unset where the oracle was not run or found nothing cached.
    pub hit_rate_of_oracle: Option<f64>,
    pub imbalance: f64,
    pub utilization: f64,
}

#[derive(Debug, Serialize)]
pub struct Times {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
}

impl From<Percentiles> for Times {
    fn from(Percentiles { p50, p90, p99 }: Percentiles) -> Self {
        Self { p50, p90, p99 }
    }
}

impl Report {
    pub fn new(params: &Params, trace: &Trace, possible_hit_rate: f64, outcomes: &[Outcome]) -> Self {
        let oracle = outcomes.iter().find(|outcome| outcome.policy() == ORACLE);
        let oracle = oracle.map(Outcome::hit_rate).filter(|rate| *rate > 0.0);
        let mut policies: Vec<Row> = outcomes.iter().map(|outcome| Row::new(outcome, oracle)).collect();
        policies.sort_by(|a, b| a.ttft.p99.total_cmp(&b.ttft.p99));
        Self {
            trace: trace.name(),
            num_requests: trace.num_requests(),
            num_workers: params.num_workers,
            num_gateways: params.num_gateways,
            seed: params.seed,
            possible_hit_rate,
            policies,
        }
    }

    pub fn json(&self) -> String {
        // `Value` takes every number and text that is here.
        format!("{:#}", serde_json::json!(self))
    }

    pub fn table(&self) -> String {
        let head = [
            "policy",
            "TTFT p50 s",
            "p90",
            "p99",
            "TPOT p50 ms",
            "p99",
            "req/s",
            "tokens/s",
            "hit %",
            "of oracle's %",
            "imbalance",
            "busy %",
        ];
        let mut cells = vec![head.map(str::to_owned).to_vec()];
        cells.extend(self.policies.iter().map(Row::cells));
        let width = |column: usize| {
            cells
                .iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..head.len()).map(width).collect();
        let mut text = format!(
            "{}: {} requests, {} workers, {} gateway(s), seed {}; one cache without bounds could have had {:.1} %\n\
             ranked by the p99 of the time to the first token\n\n",
            self.trace,
            self.num_requests,
            self.num_workers,
            self.num_gateways,
            self.seed,
            100.0 * self.possible_hit_rate,
        );
        for row in &cells {
            let aligned = row
                .iter()
                .zip(&widths)
                .enumerate()
                .map(|(column, (cell, &width))| match column {
                    0 => format!("{cell:<width$}"),
                    _ => format!("{cell:>width$}"),
                });
            text.push_str(aligned.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        for row in self.policies.iter().filter(|row| row.num_refused > 0) {
            text.push_str(&format!(
                "{}: {} requests are longer than an engine's memory and were refused\n",
                row.policy, row.num_refused
            ));
        }
        text
    }
}

impl Row {
    fn new(outcome: &Outcome, oracle: Option<f64>) -> Self {
        Self {
            policy: outcome.policy().to_owned(),
            num_ended: outcome.num_ended(),
            num_refused: outcome.num_refused(),
            prompt_tokens: outcome.prompt_tokens(),
            output_tokens: outcome.output_tokens(),
            ttft: outcome.ttft().into(),
            tpot: outcome.tpot().into(),
            requests_per_second: outcome.requests_per_second(),
            tokens_per_second: outcome.tokens_per_second(),
            hit_rate: outcome.hit_rate(),
            hit_rate_of_oracle: oracle.map(|oracle| outcome.hit_rate() / oracle),
            imbalance: outcome.imbalance(),
            utilization: outcome.utilization(),
        }
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.policy.clone(),
            format!("{:.3}", self.ttft.p50),
            format!("{:.3}", self.ttft.p90),
            format!("{:.3}", self.ttft.p99),
            format!("{:.1}", 1e3 * self.tpot.p50),
            format!("{:.1}", 1e3 * self.tpot.p99),
            format!("{:.2}", self.requests_per_second),
            format!("{:.0}", self.tokens_per_second),
            format!("{:.1}", 100.0 * self.hit_rate),
            self.hit_rate_of_oracle
                .map_or("–".to_owned(), |ratio| format!("{:.1}", 100.0 * ratio)),
            format!("{:.2}", self.imbalance),
            format!("{:.0}", 100.0 * self.utilization),
        ]
    }
}
