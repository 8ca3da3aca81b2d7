//! The `tojson` filter, which writes JSON as Python's `json.dumps` does.

use std::fmt::Write;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Nesting that is written; a template cannot build deeper values than its input has.
const MAX_DEPTH: usize = 200;

/// `value | tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`
pub(super) fn filter(
    state: &State,
    value: &Value,
    positional: Rest<Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    let argument = |at: usize, name: &str| -> Result<Option<Value>, Error> {
        let value = match positional.get(at) {
            Some(value) => Some(value.clone()),
            None => named.get::<Option<Value>>(name)?,
        };
        Ok(value.filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let indent = argument(1, "indent")?
        .map(|indent| indent_text(&indent))
        .transpose()?;
    let (item, key) = match argument(2, "separators")? {
        Some(separators) => {
            let part = |at: usize| separators.get_item_by_index(at).map(|part| part.to_string());
            (part(0)?, part(1)?)
        }
        None => (
            if indent.is_some() { "," } else { ", " }.to_owned(),
            ": ".to_owned(),
        ),
    };
    let mut writer = Writer {
        out: String::new(),
        ensure_ascii: argument(0, "ensure_ascii")?.is_some_and(|flag| flag.is_true()),
        sort_keys: argument(3, "sort_keys")?.is_some_and(|flag| flag.is_true()),
        indent,
        item,
        key,
    };
    named.assert_all_used()?;
    writer.value(value, 0)?;
    state.consume_fuel(writer.out.len() as u64 / 16)?;
    Ok(Value::from(writer.out))
}

/// Python takes a number of spaces (`True` is 1) or the text itself.
fn indent_text(indent: &Value) -> Result<String, Error> {
    if let Some(text) = indent.as_str() {
        return Ok(text.to_owned());
    }
    let count = if indent.kind() == ValueKind::Bool {
        Some(i64::from(indent.is_true()))
    } else {
        indent.as_i64()
    };
    match count {
        Some(count) if count <= 64 => Ok(" ".repeat(usize::try_from(count).unwrap_or(0))),
        _ => Err(invalid(format!(
            "tojson: indent must be a number up to 64 or a string, got {indent}"
        ))),
    }
}

struct Writer {
    out: String,
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    /// Between items, and between a key and its value.
    item: String,
    key: String,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(invalid(format!("tojson: nested deeper than {MAX_DEPTH}")));
        }
        match value.kind() {
            ValueKind::None | ValueKind::Bool | ValueKind::Number => self.out.push_str(&scalar(value)?),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            kind => return Err(invalid(format!("tojson: {kind} has no JSON form"))),
        }
        Ok(())
    }

    fn list(&mut self, list: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        for item in list.try_iter()?.checked() {
            self.begin_item(empty, depth + 1);
            self.value(&item?, depth + 1)?;
            empty = false;
        }
        self.end_items(empty, depth);
        self.out.push(']');
        Ok(())
    }

    fn map(&mut self, map: &Value, depth: usize) -> Result<(), Error> {
        let mut entries = Vec::new();
        for key in map.try_iter()?.checked() {
            let key = key?;
            let name = match key.as_str() {
                Some(name) => name.to_owned(),
                None => scalar(&key)?,
            };
            entries.push((name, map.get_item(&key)?));
        }
        if self.sort_keys {
            entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        }
        self.out.push('{');
        for (at, (name, value)) in entries.iter().enumerate() {
            self.begin_item(at == 0, depth + 1);
            self.string(name);
            self.out.push_str(&self.key);
            self.value(value, depth + 1)?;
        }
        self.end_items(entries.is_empty(), depth);
        self.out.push('}');
        Ok(())
    }

    fn begin_item(&mut self, first: bool, depth: usize) {
        if !first {
            self.out.push_str(&self.item);
        }
        self.new_line(depth);
    }

    fn end_items(&mut self, empty: bool, depth: usize) {
        if !empty {
            self.new_line(depth);
        }
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out.push_str(&indent.repeat(depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && c > '~') => self.escape(c),
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn escape(&mut self, c: char) {
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            write!(self.out, "\\u{unit:04x}").ok();
        }
    }
}

fn scalar(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(if value.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::Number if value.is_integer() => Ok(value.to_string()),
        ValueKind::Number => f64::try_from(value.clone()).map(float),
        kind => Err(invalid(format!("tojson: {kind} cannot be a key"))),
    }
}

/// Rust and Python write the same digits, but Python signs exponents and gives them two digits.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let text = format!("{number:?}");
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => {
            let (sign, exponent) = exponent
                .strip_prefix('-')
                .map_or(('+', exponent), |exponent| ('-', exponent));
            format!("{digits}e{sign}{exponent:0>2}")
        }
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}
