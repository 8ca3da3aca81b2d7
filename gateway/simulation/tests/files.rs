//! Traces in files, and what is said of wrong ones.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use smg_simulation::{SimulateError, Trace, TraceParams, TraceRequest};
use tempfile::TempDir;

const GOOD: &str = r#"{"timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]}"#;
const LATER: &str = r#"{"timestamp": 3000, "input_length": 512, "output_length": 9, "hash_ids": [7]}"#;

fn file(lines: &[&str]) -> (TempDir, PathBuf) {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("trace.jsonl");
    std::fs::write(&path, lines.join("\n")).expect("written");
    (folder, path)
}

fn params(path: &Path) -> TraceParams {
    TraceParams {
        from: Some(path.to_owned()),
        num_workers: 1,
        ..TraceParams::default()
    }
}

fn read(params: &TraceParams) -> Vec<TraceRequest> {
    let trace = Trace::new(params).expect("right");
    trace
        .requests()
        .expect("right")
        .collect::<Result<_, _>>()
        .expect("right")
}

fn error(lines: &[&str]) -> String {
    let (folder, path) = file(lines);
    let error = Trace::new(&params(&path)).expect_err("wrong").to_string();
    error.replace(&folder.path().display().to_string(), "")
}

#[test]
fn blocks_become_tokens_and_equal_blocks_equal_ones() {
    let (_folder, path) = file(&[GOOD, "", LATER]);
    let requests = read(&params(&path));
    let [first, second] = &requests[..] else {
        panic!("{requests:?}");
    };
    assert_eq!((first.arrival, second.arrival), (0, 2_000_000_000));
    assert_eq!((first.content.prompt_len(), first.content.output_len()), (600, 5));
    assert_eq!(first.content.tokens(0, 512), second.content.tokens(0, 512));
    assert_ne!(first.content.tokens(512, 517), second.content.tokens(512, 517));
}

#[test]
fn a_rate_stretches_the_time_and_a_number_cuts_the_trace() {
    let (_folder, path) = file(&[GOOD, LATER, LATER]);
    let slow = read(&TraceParams {
        rate: Some(0.5),
        ..params(&path)
    });
    let arrivals: Vec<_> = slow.iter().map(|request| request.arrival / 1_000_000).collect();
    assert_eq!(arrivals, [0, 4000, 4000]);
    assert_eq!(
        read(&TraceParams {
            num_requests: Some(2),
            ..params(&path)
        })
        .len(),
        2
    );
}

#[test]
fn gzip_is_told_by_its_first_bytes() {
    let (folder, path) = file(&[]);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(format!("{GOOD}\n{LATER}\n").as_bytes())
        .expect("in memory");
    std::fs::write(&path, gzip.finish().expect("in memory")).expect("written");
    assert_eq!(read(&params(&path)).len(), 2);
    std::fs::write(
        folder.path().join("half.gz"),
        &std::fs::read(&path).expect("there")[..40],
    )
    .expect("written");
    let error = Trace::new(&params(&folder.path().join("half.gz"))).expect_err("cut off");
    assert!(matches!(error, SimulateError::Unreadable { .. }), "{error}");
}

#[test]
fn a_wrong_line_is_told_with_its_number_and_field() {
    assert_eq!(
        error(&[
            GOOD,
            r#"{"timestamp": 2000, "input_length": 600, "output_length": 5, "hash_ids": [7]}"#
        ]),
        "--from: /trace.jsonl line 2: hash_ids is 1 ids; 600 tokens are 2 blocks of 512"
    );
    assert_eq!(
        error(&[LATER, GOOD]),
        "--from: /trace.jsonl line 2: timestamp is 1000; the line before has 3000, and lines are in the order of their time"
    );
    assert_eq!(
        error(&[r#"{"timestamp": 1, "input_length": 0, "output_length": 5, "hash_ids": []}"#]),
        "--from: /trace.jsonl line 1: input_length is 0; give 1 to 100000000 tokens"
    );
    assert_eq!(
        error(&[r#"{"timestamp": -1, "input_length": 1, "output_length": 5, "hash_ids": [1]}"#]),
        "--from: /trace.jsonl line 1: timestamp is -1; give milliseconds from 0 on"
    );
    let missing = error(&[
        GOOD,
        "",
        r#"{"timestamp": 4000, "input_length": 1, "hash_ids": [1]}"#,
    ]);
    assert!(
        missing.starts_with("--from: /trace.jsonl line 3: missing field `output_length`"),
        "{missing}"
    );
    let no_json = error(&["timestamp,input"]);
    assert!(
        no_json.contains("line 1: ") && no_json.ends_with("hash_ids"),
        "{no_json}"
    );
    assert_eq!(
        error(&[""]),
        "--from: /trace.jsonl has no requests; each line is a JSON object with timestamp, input_length, \
         output_length and hash_ids"
    );
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = Trace::new(&params(Path::new("/nowhere/trace.jsonl"))).expect_err("no such file");
    assert!(
        error
            .to_string()
            .starts_with("--from: /nowhere/trace.jsonl cannot be read: "),
        "{error}"
    );
}

/// Counted by a few lines of Python over the same file.
#[test]
fn the_published_trace_is_read_as_it_is() {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let path = shared.join("data/mooncake-conversation.jsonl.gz");
    if !path.exists() {
        eprintln!("skipped: ../shared/data is not beside this checkout");
        return;
    }
    let requests = read(&TraceParams {
        num_requests: Some(1000),
        ..params(&path)
    });
    let sum = |of: fn(&TraceRequest) -> usize| requests.iter().map(of).sum::<usize>();
    let blocks: std::collections::HashSet<_> = requests
        .iter()
        .flat_map(|request| request.content.segments().split_last().expect("an answer").1)
        .map(|segment| segment.seed)
        .collect();
    assert_eq!(requests.len(), 1000);
    assert_eq!(sum(|request| request.content.prompt_len()), 13_732_944);
    assert_eq!(sum(|request| request.content.output_len()), 349_357);
    assert_eq!(blocks.len(), 21_514);
    assert_eq!(requests[999].arrival, 330_000 * 1_000_000);
}
