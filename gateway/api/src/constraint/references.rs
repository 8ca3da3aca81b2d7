//! What a `$ref` leads to inside of its schema.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::keywords::is_schema;
use crate::clip::clip;

/// Schemas that every validator knows.
const WELL_KNOWN: [&str; 2] = ["http://json-schema.org/", "https://json-schema.org/"];

pub(super) enum Target<'a> {
    Schema(&'a Value),
    /// A part of this schema that has a name of its own, or the schema of schemas.
    Elsewhere,
}

/// Names that parts of a schema give themselves.
#[derive(Default)]
pub(super) struct Names<'a> {
    ids: HashSet<&'a str>,
    anchors: HashSet<&'a str>,
    /// A part has an id, so pointers may start there.
    has_parts: bool,
}

impl<'a> Names<'a> {
    pub(super) fn note(&mut self, schema: &'a Map<String, Value>, is_root: bool) {
        for key in ["$id", "id"] {
            let Some(id) = schema.get(key).and_then(Value::as_str) else {
                continue;
            };
            match id.strip_prefix('#') {
                Some(anchor) => self.anchors.insert(anchor),
                None => self.ids.insert(last_part(id.trim_end_matches('#'))),
            };
            self.has_parts |= !is_root;
        }
        for key in ["$anchor", "$dynamicAnchor"] {
            self.anchors.extend(schema.get(key).and_then(Value::as_str));
        }
    }

    /// Fails with what follows the name of the reference's place.
    pub(super) fn target(&self, root: &'a Value, reference: &str) -> Result<Target<'a>, String> {
        let (document, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        if !document.is_empty() {
            let is_known = WELL_KNOWN.iter().any(|known| document.starts_with(known));
            return if is_known || self.ids.contains(last_part(document)) {
                Ok(Target::Elsewhere)
            } else {
                Err(format!(
                    "`{}` leads to another document, and none is fetched; put it into `$defs` and write `#/$defs/NAME`",
                    clip(reference)
                ))
            };
        }
        let fragment = decoded(fragment);
        let found = match fragment.as_str() {
            "" => Some(root),
            pointer if pointer.starts_with('/') => root.pointer(pointer),
            anchor if self.anchors.contains(anchor) => return Ok(Target::Elsewhere),
            _ => None,
        };
        match found {
            Some(target) if is_schema(target) => Ok(Target::Schema(target)),
            None if self.has_parts => Ok(Target::Elsewhere),
            Some(_) => Err(format!(
                "`{}` leads to something that is no schema",
                clip(reference)
            )),
            None => Err(format!(
                "`{}` leads nowhere; there is nothing at that place of the schema",
                clip(reference)
            )),
        }
    }
}

/// What remains of an address when its base is not known.
fn last_part(address: &str) -> &str {
    address.rsplit('/').next().unwrap_or(address)
}

/// Percent-decodes a fragment; what is no UTF-8 then stays as it is.
fn decoded(fragment: &str) -> String {
    let bytes = fragment.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let code = (byte == b'%').then(|| fragment.get(at + 1..at + 3)).flatten();
        let code = code.filter(|code| code.bytes().all(|byte| byte.is_ascii_hexdigit()));
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(decoded) => {
                out.push(decoded);
                at += 3;
            }
            None => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| fragment.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_are_decoded() {
        for (given, expected) in [
            ("/a%20b", "/a b"),
            ("/100%", "/100%"),
            ("/%zz%+1", "/%zz%+1"),
            ("/%C3%A9", "/é"),
            ("/%ff", "/%ff"),
            ("/é%", "/é%"),
        ] {
            assert_eq!(decoded(given), expected);
        }
    }
}
