//! `Tokenizer`: encode, decode, vocabulary, end-of-sequence ids of one model.

use std::sync::Arc;

use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use tokenizers::Tokenizer as HfTokenizer;

use crate::bytes::TokenBytes;
use crate::decode::{Decoding, IncrementalDecoder};
use crate::error::TokenizerError;
use crate::files::{CHAT_TEMPLATE, TOKENIZER_CONFIG, TOKENIZER_JSON, TokenizerFiles};
use crate::template::ChatTemplate;

/// The tokenizer of one model. Cheap to clone; a clone shares everything.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

pub(crate) struct Inner {
    hf: HfTokenizer,
    pub(crate) bytes: TokenBytes,
    longest_token: usize,
    pub(crate) decoding: Decoding,
    eos_token_ids: Vec<u32>,
    chat_template: Option<ChatTemplate>,
}

impl Tokenizer {
    /// Builds the tokenizer and compiles its chat template. Takes up to a second for a large vocabulary.
    pub fn new(files: TokenizerFiles) -> Result<Self, TokenizerError> {
        let broken = |reason: String| TokenizerError::Broken {
            file: TOKENIZER_JSON.to_owned(),
            reason,
        };
        // The library panics on text that is no JSON at all.
        serde_json::from_slice::<IgnoredAny>(&files.tokenizer_json)
            .map_err(|error| broken(error.to_string()))?;
        let mut hf =
            HfTokenizer::from_bytes(&files.tokenizer_json).map_err(|error| broken(error.to_string()))?;
        // Some publishers leave their training settings in the file; a prompt is never cut or padded here.
        hf.with_truncation(None)
            .map_err(|error| broken(error.to_string()))?;
        hf.with_padding(None);
        let decoding = Decoding::of(hf.get_decoder());
        let bytes = TokenBytes::new(&hf, &decoding);
        if bytes.len() == 0 {
            return Err(broken("the vocabulary is empty".to_owned()));
        }
        let eos_token_ids = eos_token_ids(&files, &hf);
        let chat_template = chat_template(&files)?;
        Ok(Self(Arc::new(Inner {
            hf,
            longest_token: bytes.longest(),
            bytes,
            decoding,
            eos_token_ids,
            chat_template,
        })))
    }

    /// Token ids of a text. Texts of control tokens in it become these tokens. `add_special_tokens` adds what
    /// the model expects around a plain prompt (for instance BOS); leave it off for rendered chat templates,
    /// which write theirs.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TokenizerError> {
        self.0
            .hf
            .encode_fast(text, add_special_tokens)
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|error| TokenizerError::Encode {
                reason: error.to_string(),
            })
    }

    /// Text of token ids; bytes that are no UTF-8 become U+FFFD, ids outside the vocabulary nothing.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, TokenizerError> {
        if matches!(self.0.decoding, Decoding::ByteLevel { .. }) {
            let mut decoder = self.decoder(skip_special_tokens);
            let mut text = String::new();
            for &id in ids {
                let piece = decoder.push(id).map_err(|error| TokenizerError::Decode {
                    reason: error.to_string(),
                })?;
                text.push_str(&piece);
            }
            text.push_str(&decoder.flush());
            return Ok(text);
        }
        self.0
            .decode_hf(ids, skip_special_tokens)
            .map_err(|reason| TokenizerError::Decode { reason })
    }

    /// The raw bytes that one token stands for, which need not be whole characters. Empty for an id outside
    /// the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.0.bytes.get(id).to_vec()
    }

    /// Bytes that no text of `num_tokens` tokens exceeds; a text that does need not be encoded to know that it is
    /// too long. The factor 4 leaves room for what a normalizer takes away.
    pub fn most_bytes(&self, num_tokens: usize) -> usize {
        num_tokens
            .saturating_mul(self.0.longest_token.max(1))
            .saturating_mul(4)
    }

    /// Number of ids: the highest id of the vocabulary and the added tokens, plus one.
    pub fn vocab_size(&self) -> usize {
        self.0.bytes.len()
    }

    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.hf.token_to_id(token)
    }

    /// Whether `skip_special_tokens` hides the token.
    pub fn is_special(&self, id: u32) -> bool {
        self.0.bytes.is_special(id)
    }

    /// Ids that end a generation: those of generation_config.json, config.json and tokenizer_config.json, united.
    pub fn eos_token_ids(&self) -> &[u32] {
        &self.0.eos_token_ids
    }

    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.0.chat_template.as_ref()
    }

    /// A decoder for one generated sequence.
    pub fn decoder(&self, skip_special_tokens: bool) -> IncrementalDecoder {
        IncrementalDecoder::new(Arc::clone(&self.0), skip_special_tokens)
    }
}

impl Inner {
    /// Whether the token has text in a decoded sequence.
    pub(crate) fn is_shown(&self, id: u32, skip_special_tokens: bool) -> bool {
        self.bytes.is_known(id) && !(skip_special_tokens && self.bytes.is_special(id))
    }

    pub(crate) fn decode_hf(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, String> {
        let shown: Vec<u32> = ids
            .iter()
            .copied()
            .filter(|&id| self.is_shown(id, skip_special_tokens))
            .collect();
        if shown.is_empty() {
            return Ok(String::new()); // some decoders of the library panic here
        }
        self.hf.decode(&shown, false).map_err(|error| error.to_string())
    }

    /// Text of ids at the end of a sequence, where there is nobody left to report an error to.
    pub(crate) fn decode_all(&self, ids: &[u32]) -> String {
        self.decode_hf(ids, false).unwrap_or_default()
    }

    /// Whether the text of the token depends on the tokens after it.
    pub(crate) fn keeps_back(&self, id: u32) -> bool {
        matches!(
            self.decoding,
            Decoding::Window {
                byte_fallback: true,
                ..
            }
        ) && self.bytes.is_fallback_byte(id)
    }
}

fn eos_token_ids(files: &TokenizerFiles, hf: &HfTokenizer) -> Vec<u32> {
    let mut ids = Vec::new();
    let mut add = |id: u32| {
        if !ids.contains(&id) {
            ids.push(id);
        }
    };
    for config in [&files.generation_config, &files.config].into_iter().flatten() {
        for value in [&config["eos_token_id"], &config["text_config"]["eos_token_id"]] {
            let listed = value
                .as_array()
                .map_or(std::slice::from_ref(value), Vec::as_slice);
            listed
                .iter()
                .filter_map(Value::as_u64)
                .filter_map(|id| u32::try_from(id).ok())
                .for_each(&mut add);
        }
    }
    let eos_token = files
        .tokenizer_config
        .as_ref()
        .and_then(|config| token_text(&config["eos_token"]));
    eos_token
        .and_then(|token| hf.token_to_id(token))
        .into_iter()
        .for_each(add);
    ids
}

/// A token in tokenizer_config.json is its text, or an object that has it under `content`.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

fn chat_template(files: &TokenizerFiles) -> Result<Option<ChatTemplate>, TokenizerError> {
    let in_config = files
        .tokenizer_config
        .as_ref()
        .map(|config| &config["chat_template"]);
    let (source, file) = match (&files.chat_template, in_config.and_then(default_template)) {
        (Some(source), _) => (source.as_str(), CHAT_TEMPLATE),
        (None, Some(source)) => (source, TOKENIZER_CONFIG),
        (None, None) => return Ok(None),
    };
    ChatTemplate::new(source, special_tokens(files.tokenizer_config.as_ref()))
        .map(Some)
        .map_err(|source| TokenizerError::Template {
            file: file.to_owned(),
            source,
        })
}

/// The template itself, or the one called `default` in a list of `{name, template}`.
fn default_template(value: &Value) -> Option<&str> {
    let named = || {
        let templates = value.as_array()?;
        templates.iter().find(|entry| entry["name"] == "default")?["template"].as_str()
    };
    value.as_str().or_else(named)
}

/// The tokens that templates can name, for instance `bos_token`.
fn special_tokens(config: Option<&Value>) -> Map<String, Value> {
    let entries = config.and_then(Value::as_object).into_iter().flatten();
    entries
        .filter(|(name, _)| name.ends_with("_token"))
        .filter_map(|(name, value)| Some((name.clone(), Value::from(token_text(value)?))))
        .collect()
}

#[cfg(test)]
pub(crate) mod tests;
