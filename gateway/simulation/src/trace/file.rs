//! The published trace format: a JSON object a line, prompts as ids of blocks of 512 tokens.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use serde::Deserialize;

use super::{NANOS, Requests, TraceRequest};
use crate::content::{Content, Segment, mix};
use crate::error::SimulateError;

/// Tokens that an id of `hash_ids` stands for; the last one of a prompt may stand for fewer.
const BLOCK_TOKENS: u32 = 512;
const FIELDS: &str = "timestamp, input_length, output_length and hash_ids";
/// More tokens in one prompt or answer are a mistake.
const MOST_TOKENS: u32 = 100_000_000;

/// A trace that is read anew for each use.
#[derive(Clone, Debug)]
pub struct TraceFile {
    path: PathBuf,
    num_requests: usize,
    /// Nanoseconds of the simulation per millisecond of the file.
    nanos_per_milli: f64,
    first: f64,
}

#[derive(Deserialize)]
struct Line {
    /// Milliseconds.
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
    #[serde(default)]
    session: Option<String>,
}

struct Lines {
    path: PathBuf,
    reader: Box<dyn BufRead>,
    number: usize,
    /// Of the line before.
    timestamp: f64,
    text: String,
}

// === impl TraceFile ===

impl TraceFile {
    pub(super) fn new(path: &Path, most: Option<usize>, rate: Option<f64>) -> Result<Self, SimulateError> {
        let (mut num_requests, mut first, mut last) = (0, 0.0, 0.0);
        for line in Lines::open(path)?.take(most.unwrap_or(usize::MAX)) {
            last = line?.timestamp;
            if num_requests == 0 {
                first = last;
            }
            num_requests += 1;
        }
        if num_requests == 0 {
            return Err(SimulateError::Empty {
                path: path.to_owned(),
                fields: FIELDS,
            });
        }
        let recorded = NANOS / 1e3;
        // Milliseconds between two arrivals in the file, and as they shall be.
        let gap = (last - first) / (num_requests - 1).max(1) as f64;
        let nanos_per_milli = match rate {
            Some(rate) if gap > 0.0 => NANOS / rate / gap,
            _ => recorded,
        };
        Ok(Self {
            path: path.to_owned(),
            num_requests,
            nanos_per_milli,
            first,
        })
    }

    pub(super) fn requests(&self) -> Result<Requests, SimulateError> {
        let Self {
            nanos_per_milli,
            first,
            ..
        } = *self;
        let lines = Lines::open(&self.path)?.take(self.num_requests).enumerate();
        Ok(Box::new(lines.map(move |(number, line)| {
            let line = line?;
            let arrival = ((line.timestamp - first) * nanos_per_milli) as u64;
            Ok(TraceRequest {
                arrival,
                content: line.content(number),
                session: line.session,
            })
        })))
    }

    pub(super) fn num_requests(&self) -> usize {
        self.num_requests
    }

    pub(super) fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or(self.path.as_os_str());
        name.to_string_lossy().into_owned()
    }
}

// === impl Line ===

impl Line {
    fn check(&self, before: f64) -> Result<(), String> {
        let blocks = self.input_length.div_ceil(BLOCK_TOKENS) as usize;
        let wrong =
            |field: &str, given: String, allowed: String| Err(format!("{field} is {given}; {allowed}"));
        if !self.timestamp.is_finite() || self.timestamp < 0.0 {
            return wrong(
                "timestamp",
                self.timestamp.to_string(),
                "give milliseconds from 0 on".into(),
            );
        }
        if self.timestamp < before {
            let allowed = format!("the line before has {before}, and lines are in the order of their time");
            return wrong("timestamp", self.timestamp.to_string(), allowed);
        }
        for (field, given) in [
            ("input_length", self.input_length),
            ("output_length", self.output_length),
        ] {
            if !(1..=MOST_TOKENS).contains(&given) {
                return wrong(
                    field,
                    given.to_string(),
                    format!("give 1 to {MOST_TOKENS} tokens"),
                );
            }
        }
        if self.hash_ids.len() != blocks {
            let allowed = format!(
                "{} tokens are {blocks} blocks of {BLOCK_TOKENS}",
                self.input_length
            );
            return wrong("hash_ids", format!("{} ids", self.hash_ids.len()), allowed);
        }
        Ok(())
    }

    fn content(&self, number: usize) -> Content {
        let mut left = self.input_length;
        let prompt = self.hash_ids.iter().map(|&seed| {
            let len = left.min(BLOCK_TOKENS);
            left -= len;
            Segment { seed, len }
        });
        // The trace does not tell what was answered.
        let output = Segment {
            seed: mix(number as u64, u64::MAX),
            len: self.output_length,
        };
        Content::new(prompt.collect(), output)
    }
}

// === impl Lines ===

impl Lines {
    fn open(path: &Path) -> Result<Self, SimulateError> {
        let unreadable = |source| SimulateError::Unreadable {
            path: path.to_owned(),
            source,
        };
        let mut reader = BufReader::new(File::open(path).map_err(unreadable)?);
        let is_gzip = reader.fill_buf().map_err(unreadable)?.starts_with(&[0x1f, 0x8b]);
        let reader: Box<dyn Read> = match is_gzip {
            true => Box::new(MultiGzDecoder::new(reader)),
            false => Box::new(reader),
        };
        Ok(Self {
            path: path.to_owned(),
            reader: Box::new(BufReader::new(reader)),
            number: 0,
            timestamp: 0.0,
            text: String::new(),
        })
    }

    fn read(&mut self) -> Result<Option<Line>, SimulateError> {
        loop {
            self.text.clear();
            self.number += 1;
            let read = self.reader.read_line(&mut self.text);
            let read = read.map_err(|source| match source.kind() {
                std::io::ErrorKind::InvalidData => self.wrong("is not UTF-8 text".to_owned()),
                _ => SimulateError::Unreadable {
                    path: self.path.clone(),
                    source,
                },
            })?;
            if read == 0 {
                return Ok(None);
            }
            if self.text.trim().is_empty() {
                continue;
            }
            let line: Line = serde_json::from_str(&self.text)
                .map_err(|error| self.wrong(format!("{error}; give a JSON object with {FIELDS}")))?;
            line.check(self.timestamp)
                .map_err(|message| self.wrong(message))?;
            self.timestamp = line.timestamp;
            return Ok(Some(line));
        }
    }

    fn wrong(&self, message: String) -> SimulateError {
        SimulateError::Line {
            path: self.path.clone(),
            line: self.number,
            message,
        }
    }
}

impl Iterator for Lines {
    type Item = Result<Line, SimulateError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}
