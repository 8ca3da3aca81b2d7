//! Token ids to text, one token at a time: text is given out once it can no longer change.
//!
//! ```text
//! how tokenizer.json decodes     what can still change                    what is kept back
//! byte level                     a character whose bytes are incomplete   at most 3 bytes
//! pieces, with byte fallback     a run of <0xNN>: one bad byte spoils it  the run, until another token comes
//! pieces (SentencePiece, …)      nothing                                  nothing
//! anything else                  all of it                                all of it, until the flush
//! ```

use std::sync::Arc;

use serde_json::Value;
use tokenizers::decoders::DecoderWrapper;

use crate::error::DecodeError;
use crate::tokenizer::Inner;

/// How the text of a token depends on its neighbours; derived from the `decoder` of tokenizer.json.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decoding {
    /// The text is the concatenation of the tokens' bytes, less up to `strip` of that character at its start.
    ByteLevel { strip: Option<(char, usize)> },
    /// The text of a token is settled by the token before it, and by the whole run of fallback bytes it is in.
    /// `space` is the character that stands for a space in the vocabulary.
    Window {
        byte_fallback: bool,
        space: Option<char>,
    },
    /// A later token may change any earlier text.
    Whole,
}

impl Decoding {
    pub(crate) fn of(decoder: Option<&DecoderWrapper>) -> Self {
        let stages = match decoder.map(serde_json::to_value) {
            None => {
                return Self::Window {
                    byte_fallback: false,
                    space: None,
                };
            }
            Some(Err(_)) => return Self::Whole,
            Some(Ok(decoder)) => flatten(&decoder),
        };
        let kinds: Vec<&str> = stages
            .iter()
            .map(|stage| stage["type"].as_str().unwrap_or_default())
            .collect();
        if let Some(at) = kinds.iter().position(|kind| *kind == "ByteLevel") {
            return match &stages[at + 1..] {
                [] => Self::ByteLevel { strip: None },
                [strip] => {
                    left_strip(strip).map_or(Self::Whole, |strip| Self::ByteLevel { strip: Some(strip) })
                }
                _ => Self::Whole,
            };
        }
        let fused_at = kinds
            .iter()
            .position(|kind| *kind == "Fuse")
            .unwrap_or(stages.len());
        let mut space = None;
        for (at, stage) in stages.iter().enumerate() {
            let per_token = match kinds[at] {
                "Metaspace" => {
                    space = space.or(single_char(&stage["replacement"]));
                    at < fused_at
                }
                "Replace" => {
                    let pattern = single_char(&stage["pattern"]["String"]);
                    if stage["content"] == " " {
                        space = space.or(pattern);
                    }
                    at < fused_at || pattern.is_some()
                }
                "Strip" => at < fused_at || left_strip(stage).is_some(),
                "ByteFallback" | "WordPiece" | "BPEDecoder" => at < fused_at,
                "Fuse" => true,
                _ => false,
            };
            if !per_token {
                return Self::Whole;
            }
        }
        Self::Window {
            byte_fallback: kinds.contains(&"ByteFallback"),
            space,
        }
    }
}

fn flatten(decoder: &Value) -> Vec<Value> {
    match decoder["decoders"].as_array() {
        Some(stages) => stages.iter().flat_map(flatten).collect(),
        None => vec![decoder.clone()],
    }
}

/// The character and count of a `Strip` stage that leaves the end of the text alone.
fn left_strip(stage: &Value) -> Option<(char, usize)> {
    if stage["type"] != "Strip" || stage["stop"] != 0 {
        return None;
    }
    Some((single_char(&stage["content"])?, stage["start"].as_u64()? as usize))
}

fn single_char(value: &Value) -> Option<char> {
    let mut chars = value.as_str()?.chars();
    let first = chars.next()?;
    chars.next().is_none().then_some(first)
}

/// Decodes one sequence. The texts of all `push` calls and of `flush`, joined, equal `Tokenizer::decode` of
/// all ids. A token costs amortized constant time.
pub struct IncrementalDecoder {
    tokenizer: Arc<Inner>,
    skip_special_tokens: bool,
    state: State,
}

enum State {
    Bytes(ByteState),
    Window(WindowState),
    Whole(Vec<u32>),
}

impl IncrementalDecoder {
    pub(crate) fn new(tokenizer: Arc<Inner>, skip_special_tokens: bool) -> Self {
        let state = match &tokenizer.decoding {
            Decoding::ByteLevel { strip } => State::Bytes(ByteState {
                pending: Vec::new(),
                strip: *strip,
            }),
            Decoding::Window { .. } => State::Window(WindowState::default()),
            Decoding::Whole => State::Whole(Vec::new()),
        };
        Self {
            tokenizer,
            skip_special_tokens,
            state,
        }
    }

    /// Takes the next token and returns the text that is now settled; ids outside the vocabulary have no text.
    pub fn push(&mut self, id: u32) -> Result<String, DecodeError> {
        if !self.tokenizer.is_shown(id, self.skip_special_tokens) {
            return Ok(String::new());
        }
        match &mut self.state {
            State::Bytes(state) => Ok(state.push(self.tokenizer.bytes.get(id))),
            State::Window(state) => state.push(&self.tokenizer, id),
            State::Whole(ids) => {
                ids.push(id);
                Ok(String::new())
            }
        }
    }

    /// Ends the sequence: returns what was kept back, an incomplete character as U+FFFD. The next `push`
    /// begins a new sequence.
    pub fn flush(&mut self) -> String {
        let fresh = Self::new(Arc::clone(&self.tokenizer), self.skip_special_tokens);
        match std::mem::replace(&mut self.state, fresh.state) {
            State::Bytes(state) => state.flush(),
            State::Window(state) => state.flush(&self.tokenizer),
            State::Whole(ids) => self.tokenizer.decode_all(&ids),
        }
    }
}

/// Byte stream to text: keeps the bytes of an incomplete character.
struct ByteState {
    pending: Vec<u8>,
    strip: Option<(char, usize)>,
}

impl ByteState {
    fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        let mut read = 0;
        loop {
            match std::str::from_utf8(&self.pending[read..]) {
                Ok(rest) => {
                    text.push_str(rest);
                    read = self.pending.len();
                    break;
                }
                Err(error) => {
                    let valid = read + error.valid_up_to();
                    text.push_str(&String::from_utf8_lossy(&self.pending[read..valid]));
                    read = valid;
                    let Some(broken) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    read += broken;
                }
            }
        }
        self.pending.drain(..read);
        self.strip_start(text)
    }

    fn flush(mut self) -> String {
        let text = String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned();
        self.strip_start(text)
    }

    fn strip_start(&mut self, text: String) -> String {
        let Some((content, left)) = self.strip else {
            return text;
        };
        if text.is_empty() {
            return text;
        }
        let cut = text.chars().take(left).take_while(|c| *c == content).count();
        let rest = &text[cut * content.len_utf8()..];
        self.strip = (rest.is_empty() && cut < left).then_some((content, left - cut));
        rest.to_owned()
    }
}

/// Decodes a window of a few tokens before and after the newest one, and gives out what the newest ones add.
#[derive(Default)]
struct WindowState {
    /// Context tokens whose text was given out, then tokens kept back. Never a skipped or unknown token: such
    /// a token has no text and would make its successor look like the first of the sequence.
    ids: Vec<u32>,
    /// Text of the context tokens when decoded alone.
    context: String,
}

impl WindowState {
    fn push(&mut self, tokenizer: &Inner, id: u32) -> Result<String, DecodeError> {
        self.ids.push(id);
        if tokenizer.keeps_back(id) {
            return Ok(String::new());
        }
        let decode = |ids: &[u32]| {
            tokenizer
                .decode_hf(ids, false)
                .map_err(|reason| DecodeError::Decoder { id, reason })
        };
        let text = decode(&self.ids)?;
        let new = text
            .strip_prefix(&self.context)
            .ok_or(DecodeError::Unstable { id })?
            .to_owned();
        if text.is_empty() {
            return Ok(new);
        }
        // The shortest tail that has text of its own becomes the context: a decoder that strips the start of a
        // text has then used that up.
        let mut len = 1;
        loop {
            let mut start = self.ids.len().saturating_sub(len);
            while start > 0
                && tokenizer.keeps_back(self.ids[start])
                && tokenizer.keeps_back(self.ids[start - 1])
            {
                start -= 1; // inside a run of fallback bytes the text is not settled
            }
            self.context = decode(&self.ids[start..])?;
            if !self.context.is_empty() || start == 0 {
                self.ids.drain(..start);
                return Ok(new);
            }
            len *= 2;
        }
    }

    fn flush(self, tokenizer: &Inner) -> String {
        let text = tokenizer.decode_all(&self.ids);
        text.strip_prefix(&self.context)
            .map(str::to_owned)
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
