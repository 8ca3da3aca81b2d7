//! The text library as Python classes: newtypes, nothing else.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict};
use serde_json::{Map, Value};
use smg::text;

use crate::errors::{Failure, Outcome};
use crate::json;

#[pyclass(frozen, module = "sglang_router.sglang_router_rs")]
pub struct Tokenizer(text::Tokenizer);

#[pymethods]
impl Tokenizer {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> Outcome<Self> {
        Self::from_dir(py, path)
    }

    #[staticmethod]
    fn from_dir(py: Python<'_>, path: PathBuf) -> Outcome<Self> {
        py.detach(|| {
            Ok(Self(text::Tokenizer::new(text::TokenizerFiles::read_dir(
                &path,
            )?)?))
        })
    }

    /// `files` maps names (`tokenizer.json`, …) to contents.
    #[staticmethod]
    fn from_files(py: Python<'_>, files: BTreeMap<String, PyBackedBytes>) -> Outcome<Self> {
        let files = files
            .into_iter()
            .map(|(name, content)| (name, content.to_vec()))
            .collect();
        py.detach(|| {
            Ok(Self(text::Tokenizer::new(text::TokenizerFiles::from_map(
                files,
            )?)?))
        })
    }

    #[getter]
    fn vocab_size(&self) -> usize {
        self.0.vocab_size()
    }

    #[getter]
    fn eos_token_ids(&self) -> Vec<u32> {
        self.0.eos_token_ids().to_vec()
    }

    #[getter]
    fn has_chat_template(&self) -> bool {
        self.0.chat_template().is_some()
    }

    #[pyo3(signature = (text, add_special_tokens = true))]
    fn encode(&self, py: Python<'_>, text: &str, add_special_tokens: bool) -> Outcome<Vec<u32>> {
        py.detach(|| Ok(self.0.encode(text, add_special_tokens)?))
    }

    #[pyo3(signature = (ids, skip_special_tokens = true))]
    fn decode(&self, py: Python<'_>, ids: Vec<u32>, skip_special_tokens: bool) -> Outcome<String> {
        py.detach(|| Ok(self.0.decode(&ids, skip_special_tokens)?))
    }

    fn token_bytes<'py>(&self, py: Python<'py>, id: u32) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.token_bytes(id))
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.token_to_id(token)
    }

    fn is_special(&self, id: u32) -> bool {
        self.0.is_special(id)
    }

    /// Renders messages to prompt text with the model's own template; other keywords reach the template.
    #[pyo3(signature = (messages, *, tools = None, add_generation_prompt = true, continue_final_message = false, **kwargs))]
    fn apply_chat_template(
        &self,
        messages: &Bound<'_, PyAny>,
        tools: Option<&Bound<'_, PyAny>>,
        add_generation_prompt: bool,
        continue_final_message: bool,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> Outcome<String> {
        let template = self.0.chat_template().ok_or_else(|| {
            Failure::Text(
                "the model has no chat template; render the prompt yourself and encode it".to_owned(),
            )
        })?;
        let messages: Value = json::from_python(messages)?;
        let tools: Option<Value> = tools.map(json::from_python).transpose()?;
        let kwargs: Map<String, Value> = kwargs
            .map(|kwargs| json::from_python(kwargs))
            .transpose()?
            .unwrap_or_default();
        Ok(template.render(&text::RenderInput {
            messages: &messages,
            tools: tools.as_ref(),
            add_generation_prompt,
            continue_final_message,
            kwargs: &kwargs,
        })?)
    }

    #[pyo3(signature = (skip_special_tokens = true))]
    fn decoder(&self, skip_special_tokens: bool) -> IncrementalDecoder {
        IncrementalDecoder(self.0.decoder(skip_special_tokens))
    }
}

/// Turns token ids into text piece by piece.
#[pyclass(module = "sglang_router.sglang_router_rs")]
pub struct IncrementalDecoder(text::IncrementalDecoder);

#[pymethods]
impl IncrementalDecoder {
    /// The text that `id` adds and that no later token can change.
    fn push(&mut self, id: u32) -> Outcome<String> {
        Ok(self.0.push(id)?)
    }

    /// What was held back, at the end.
    fn flush(&mut self) -> String {
        self.0.flush()
    }
}

/// Text that may be given out, and what it was cut at.
#[pyclass(frozen, get_all, module = "sglang_router.sglang_router_rs")]
pub struct StopProgress {
    text: String,
    matched: Option<String>,
}

/// Cuts text at the first stop string or stop expression.
#[pyclass(module = "sglang_router.sglang_router_rs")]
pub struct StopMatcher {
    /// `None` once the text has ended.
    open: Option<text::StopMatcher>,
    matched: Option<String>,
}

const TEXT_HAS_ENDED: &str = "flush() has ended the text; make a new StopMatcher for another one";

#[pymethods]
impl StopMatcher {
    #[new]
    #[pyo3(signature = (stop = vec![], stop_regex = vec![], no_stop_trim = false))]
    fn new(stop: Vec<String>, stop_regex: Vec<String>, no_stop_trim: bool) -> Outcome<Self> {
        Ok(Self {
            open: Some(text::StopMatcher::new(stop, stop_regex, no_stop_trim)?),
            matched: None,
        })
    }

    fn push(&mut self, text: &str) -> Outcome<StopProgress> {
        let matcher = self
            .open
            .as_mut()
            .ok_or_else(|| Failure::Text(TEXT_HAS_ENDED.to_owned()))?;
        let progress = matcher.push(text);
        Ok(self.told(progress))
    }

    /// Ends the text: what was held back. A stop that asks for the end can match here.
    fn flush(&mut self) -> Outcome<String> {
        let matcher = self
            .open
            .take()
            .ok_or_else(|| Failure::Text(TEXT_HAS_ENDED.to_owned()))?;
        Ok(self.told(matcher.end()).text)
    }

    /// The stop that was found, if any.
    #[getter]
    fn matched(&self) -> Option<&str> {
        self.matched.as_deref()
    }
}

impl StopMatcher {
    fn told(&mut self, progress: text::StopProgress) -> StopProgress {
        let text::StopProgress { text, matched } = progress;
        self.matched.clone_from(&matched);
        StopProgress { text, matched }
    }
}
