//! Methods of Python's strings, lists and dicts that templates call, as far as the engine lacks them.

use minijinja::value::{Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Answers a method call that the engine does not know.
pub(super) fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let own = match (value.kind(), value.as_str()) {
        (ValueKind::String, Some(text)) => on_string(state, text, method, args)?,
        (ValueKind::Seq, _) => on_list(value, method, args)?,
        (ValueKind::Map, _) if method == "copy" && args.is_empty() => Some(value.clone()),
        _ => None,
    };
    match own {
        Some(result) => Ok(result),
        None => unknown_method_callback(state, value, method, args),
    }
}

fn on_string(state: &State, text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let result = match method {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let found = if method == "partition" {
                text.split_once(separator)
            } else {
                text.rsplit_once(separator)
            };
            let parts = match found {
                Some((head, tail)) => [head, separator, tail],
                None if method == "partition" => [text, "", ""],
                None => ["", "", text],
            };
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "split" | "rsplit" => {
            let (separator, limit): (Option<&str>, Option<i64>) = from_args(args)?;
            split(text, separator, limit, method == "rsplit")?
        }
        "splitlines" => {
            let (keep_ends,): (Option<bool>,) = from_args(args)?;
            Value::from(lines(text, keep_ends.unwrap_or(false)))
        }
        "index" | "rindex" => {
            let (part,): (&str,) = from_args(args)?;
            let at = if method == "index" {
                text.find(part)
            } else {
                text.rfind(part)
            };
            let at = at.ok_or_else(|| invalid(format!("{method}: {part:?} is not in the string")))?;
            Value::from(text[..at].chars().count())
        }
        "swapcase" | "casefold" | "isdecimal" => {
            let () = from_args(args)?;
            by_character(text, method)
        }
        "zfill" | "ljust" | "rjust" | "center" => Value::from(padded(state, text, method, args)?),
        _ => return Ok(None),
    };
    Ok(Some(result))
}

fn by_character(text: &str, method: &str) -> Value {
    match method {
        "swapcase" => {
            let upper = |c: char| c.to_uppercase().collect::<String>();
            let lower = |c: char| c.to_lowercase().collect::<String>();
            Value::from(
                text.chars()
                    .map(|c| if c.is_uppercase() { lower(c) } else { upper(c) })
                    .collect::<String>(),
            )
        }
        "casefold" => Value::from(text.to_lowercase().replace('ß', "ss")),
        _ => Value::from(!text.is_empty() && text.chars().all(|c| c.is_ascii_digit())),
    }
}

fn on_list(list: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match method {
        "copy" if args.is_empty() => Ok(Some(list.clone())),
        "index" => {
            let (wanted,): (&Value,) = from_args(args)?;
            for (at, item) in list.try_iter()?.checked().enumerate() {
                if item? == *wanted {
                    return Ok(Some(Value::from(at)));
                }
            }
            Err(invalid(format!("index: {wanted} is not in the list")))
        }
        _ => Ok(None),
    }
}

/// `str.split` and, with `from_right`, `str.rsplit`. A negative limit is none.
fn split(text: &str, separator: Option<&str>, limit: Option<i64>, from_right: bool) -> Result<Value, Error> {
    let limit = limit
        .and_then(|limit| usize::try_from(limit).ok())
        .map_or(usize::MAX, |limit| limit.saturating_add(1));
    let mut parts: Vec<&str> = match (separator, from_right) {
        (Some(""), _) => return Err(invalid("split: the separator is empty".to_owned())),
        (Some(separator), false) => text.splitn(limit, separator).collect(),
        (Some(separator), true) => text.rsplitn(limit, separator).collect(),
        (None, from_right) => split_at_spaces(text, limit, from_right),
    };
    if from_right {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Words between runs of white space; the last of `limit` parts is all that is left.
fn split_at_spaces(text: &str, limit: usize, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        rest = if from_right {
            rest.trim_end()
        } else {
            rest.trim_start()
        };
        if rest.is_empty() {
            return parts;
        }
        let (word, other) = match (parts.len() + 1 == limit, from_right) {
            (true, _) => (rest, ""),
            (false, false) => rest.split_at(rest.find(char::is_whitespace).unwrap_or(rest.len())),
            (false, true) => {
                let start = rest.trim_end_matches(|c: char| !c.is_whitespace()).len();
                (&rest[start..], &rest[..start])
            }
        };
        parts.push(word);
        rest = other;
    }
}

/// Lines of a text; `\r\n` and the other line ends that Python knows count.
fn lines(text: &str, keep_ends: bool) -> Vec<Value> {
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c| "\n\r\u{b}\u{c}\u{1c}\u{1d}\u{1e}\u{85}\u{2028}\u{2029}".contains(c));
        let (line, after) = match end {
            None => (rest.len(), rest.len()),
            Some(at) if rest[at..].starts_with("\r\n") => (at, at + 2),
            Some(at) => (at, at + rest[at..].chars().next().map_or(0, char::len_utf8)),
        };
        lines.push(Value::from(&rest[..if keep_ends { after } else { line }]));
        rest = &rest[after..];
    }
    lines
}

fn padded(state: &State, text: &str, method: &str, args: &[Value]) -> Result<String, Error> {
    let (width, fill): (usize, Option<char>) = from_args(args)?;
    let missing = width.saturating_sub(text.chars().count());
    state.consume_fuel(missing as u64 / 16)?;
    let fill = fill.unwrap_or(if method == "zfill" { '0' } else { ' ' });
    let pad = |count: usize| String::from(fill).repeat(count);
    Ok(match method {
        "ljust" => format!("{text}{}", pad(missing)),
        "rjust" => format!("{}{text}", pad(missing)),
        "center" => {
            let left = missing / 2 + (missing & width & 1); // an odd space goes where Python puts it
            format!("{}{text}{}", pad(left), pad(missing - left))
        }
        _ => match text.strip_prefix(['+', '-']) {
            Some(digits) => format!("{}{}{digits}", &text[..1], pad(missing)),
            None => format!("{}{text}", pad(missing)),
        },
    })
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}
