//! The bytes that each token stands for, and which tokens are special.
//!
//! | vocabulary | written in tokenizer.json | stands for |
//! |---|---|---|
//! | byte-level BPE | `Ġthe`, one printable character for each byte | the bytes behind the characters |
//! | byte fallback | `<0x0A>` | that byte |
//! | SentencePiece | `▁the` | the text with spaces for `▁` |
//! | added tokens | `<|im_end|>` | the text itself |

use tokenizers::Tokenizer as HfTokenizer;

use crate::decode::Decoding;

/// Bytes of all tokens in one allocation, indexed by token id.
pub(crate) struct TokenBytes {
    bytes: Vec<u8>,
    /// Token `id` owns `bytes[ends[id - 1]..ends[id]]`.
    ends: Vec<u32>,
    flags: Vec<u8>,
}

const KNOWN: u8 = 1;
const SPECIAL: u8 = 2;
const FALLBACK_BYTE: u8 = 4;

impl TokenBytes {
    pub(crate) fn new(hf: &HfTokenizer, decoding: &Decoding) -> Self {
        let len = hf.get_vocab(true).values().max().map_or(0, |&id| id as usize + 1);
        let mut table = Self {
            bytes: Vec::new(),
            ends: Vec::with_capacity(len),
            flags: Vec::with_capacity(len),
        };
        let added = hf.get_added_tokens_decoder();
        for id in 0..len as u32 {
            let mut flags = 0;
            if let Some(token) = hf.id_to_token(id) {
                flags |= KNOWN;
                if hf.get_added_vocabulary().is_special_token(&token) {
                    flags |= SPECIAL;
                }
                if fallback_byte(&token).is_some() {
                    flags |= FALLBACK_BYTE;
                }
                table
                    .bytes
                    .extend(bytes_of(&token, added.contains_key(&id), decoding));
            }
            table.ends.push(table.bytes.len() as u32);
            table.flags.push(flags);
        }
        table
    }

    /// Number of ids, holes included: the highest id plus one.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of the longest token.
    pub(crate) fn longest(&self) -> usize {
        (0..self.len() as u32)
            .map(|id| self.get(id).len())
            .max()
            .unwrap_or(0)
    }

    /// The bytes of a token; empty for an id that the vocabulary does not have.
    pub(crate) fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }

    pub(crate) fn is_known(&self, id: u32) -> bool {
        self.has(id, KNOWN)
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.has(id, SPECIAL)
    }

    pub(crate) fn is_fallback_byte(&self, id: u32) -> bool {
        self.has(id, FALLBACK_BYTE)
    }

    fn has(&self, id: u32, flag: u8) -> bool {
        self.flags.get(id as usize).is_some_and(|flags| flags & flag != 0)
    }
}

fn bytes_of(token: &str, is_added: bool, decoding: &Decoding) -> Vec<u8> {
    let plain = || token.as_bytes().to_vec();
    match decoding {
        // Added tokens are matched in the raw text, so they are not written in the byte alphabet.
        Decoding::ByteLevel { .. } if is_added => plain(),
        Decoding::ByteLevel { .. } => token
            .chars()
            .map(byte_of_char)
            .collect::<Option<Vec<u8>>>()
            .unwrap_or_else(plain),
        Decoding::Window { byte_fallback, space } => match (fallback_byte(token), space) {
            (Some(byte), _) if *byte_fallback => vec![byte],
            (_, Some(space)) => token.replace(*space, " ").into_bytes(),
            (_, None) => plain(),
        },
        Decoding::Whole => plain(),
    }
}

/// The byte behind `<0xNN>`.
fn fallback_byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 {
        u8::from_str_radix(hex, 16).ok()
    } else {
        None
    }
}

/// Inverse of the byte-level alphabet: printable Latin-1 stands for itself; the other 68 bytes, in order,
/// are written as the characters from U+0100.
fn byte_of_char(c: char) -> Option<u8> {
    match c as u32 {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_alphabet_covers_each_byte_once() {
        let mut bytes: Vec<u8> = (0..0x200)
            .filter_map(char::from_u32)
            .filter_map(byte_of_char)
            .collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(byte_of_char('Ġ'), Some(b' '));
        assert_eq!(byte_of_char('Ċ'), Some(b'\n'));
        assert_eq!(byte_of_char('▁'), None);
    }

    #[test]
    fn fallback_bytes_have_two_hex_digits() {
        assert_eq!(fallback_byte("<0x0A>"), Some(10));
        assert_eq!(fallback_byte("<0xFF>"), Some(255));
        for other in ["<0xA>", "<0x0AB>", "<0xGG>", "0x0A", "<s>"] {
            assert_eq!(fallback_byte(other), None, "{other}");
        }
    }
}
