//! The calls in an answer's text, found as the text comes.
//!
//! The answer is held to a schema, so its text has one of two forms: the arguments of one function, or a list of
//! `{"name": …, "parameters": …}`. Arguments are handed on as they stand there. What follows the last bracket is no part
//! of a call. Text of another form means that the worker did not apply the constraint, and fails the answer.

use smg_api::{ApiError, CallForm, FinishReason};

use crate::error::Failure;

/// News of a call. `position` counts the calls of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallPiece {
    /// Comes first of each call.
    Opened { position: u32, name: String },
    /// More of its arguments.
    Arguments { position: u32, text: String },
}

/// Reads one answer.
pub struct CallParser {
    form: CallForm,
    place: Place,
    /// The call that is being read.
    call: Call,
    num_calls: u32,
    pieces: Vec<CallPiece>,
}

/// What comes next. White space may stand before all of it but strings and arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The `[` of a list.
    List,
    /// The `{` of a call.
    CallStart,
    /// A key, or after a comma.
    Key,
    InString(Text),
    Colon(Key),
    NameStart,
    ArgumentsStart,
    InArguments(Braces),
    /// A comma or the `}` of a call.
    AfterValue,
    /// A comma or the `]` of the list.
    AfterCall,
    Over,
}

/// Whose string it is, and whether the last character was a backslash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Text {
    Key { escaped: bool },
    Name { escaped: bool },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Name,
    Parameters,
}

/// Where in an object we are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Braces {
    /// Objects and lists that are open.
    levels: u32,
    in_string: bool,
    escaped: bool,
}

#[derive(Default)]
struct Call {
    /// The string that is being read, with its quotes.
    string: String,
    name: Option<String>,
    has_arguments: bool,
    /// Arguments that came before the name.
    held: String,
}

// === impl CallParser ===

impl CallParser {
    pub fn new(form: CallForm) -> Self {
        let place = match form {
            CallForm::One(_) => Place::ArgumentsStart,
            CallForm::List(_) => Place::List,
        };
        Self {
            form,
            place,
            call: Call::default(),
            num_calls: 0,
            pieces: Vec::new(),
        }
    }

    /// Takes more of the text; what it tells of calls, in order. After a failure the parser is of no more use.
    pub fn push(&mut self, text: &str) -> Result<Vec<CallPiece>, Failure> {
        let mut rest = text;
        while !rest.is_empty() && self.place != Place::Over {
            rest = match self.place {
                Place::InArguments(braces) => self.read_arguments(rest, braces),
                Place::InString(string) => self.read_string(rest, string)?,
                place => self.read_mark(rest, place)?,
            };
        }
        Ok(std::mem::take(&mut self.pieces))
    }

    /// Why the answer ended, if `reason` is what the worker says.
    pub fn reason(&self, reason: FinishReason) -> FinishReason {
        match reason {
            FinishReason::Stop if self.place == Place::Over => FinishReason::ToolCalls,
            other => other,
        }
    }

    /// One character between strings and arguments.
    fn read_mark<'t>(&mut self, text: &'t str, place: Place) -> Result<&'t str, Failure> {
        let text = text.trim_start_matches([' ', '\t', '\n', '\r']);
        let Some(&mark) = text.as_bytes().first() else {
            return Ok(text);
        };
        self.place = match (place, mark) {
            (Place::List, b'[') => Place::CallStart,
            (Place::CallStart, b'{') => {
                self.call = Call::default();
                Place::Key
            }
            (Place::Key, b'"') => self.begin_string(Text::Key { escaped: false }),
            (Place::Colon(Key::Name), b':') => Place::NameStart,
            (Place::Colon(Key::Parameters), b':') => Place::ArgumentsStart,
            (Place::NameStart, b'"') => self.begin_string(Text::Name { escaped: false }),
            (Place::ArgumentsStart, b'{') => {
                if let CallForm::One(name) = &self.form {
                    let name = name.clone();
                    self.open(name);
                }
                // The brace is read again, with the rest of the object.
                self.place = Place::InArguments(Braces::default());
                return Ok(text);
            }
            (Place::AfterValue, b',') => Place::Key,
            (Place::AfterValue, b'}') if self.call.name.is_some() && self.call.has_arguments => {
                self.num_calls += 1;
                Place::AfterCall
            }
            (Place::AfterCall, b',') => Place::CallStart,
            (Place::AfterCall, b']') => Place::Over,
            _ => return Err(self.unexpected(text)),
        };
        Ok(&text[1..])
    }

    fn begin_string(&mut self, string: Text) -> Place {
        "\"".clone_into(&mut self.call.string);
        Place::InString(string)
    }

    fn read_string<'t>(&mut self, text: &'t str, string: Text) -> Result<&'t str, Failure> {
        let (Text::Key { mut escaped } | Text::Name { mut escaped }) = string;
        for (at, byte) in text.bytes().enumerate() {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => {
                    self.call.string.push_str(&text[..=at]);
                    self.end_string(string)?;
                    return Ok(&text[at + 1..]);
                }
                _ => {}
            }
        }
        self.call.string.push_str(text);
        self.place = Place::InString(match string {
            Text::Key { .. } => Text::Key { escaped },
            Text::Name { .. } => Text::Name { escaped },
        });
        Ok("")
    }

    fn end_string(&mut self, string: Text) -> Result<(), Failure> {
        let quoted = std::mem::take(&mut self.call.string);
        let text: String = serde_json::from_str(&quoted).map_err(|_| self.unexpected(&quoted))?;
        let call = &self.call;
        self.place = match (string, text.as_str()) {
            (Text::Key { .. }, "name") if call.name.is_none() => Place::Colon(Key::Name),
            (Text::Key { .. }, "parameters") if !call.has_arguments => Place::Colon(Key::Parameters),
            (Text::Name { .. }, name) if self.knows(name) => {
                self.open(text);
                Place::AfterValue
            }
            _ => return Err(self.unexpected(&quoted)),
        };
        Ok(())
    }

    fn knows(&self, name: &str) -> bool {
        matches!(&self.form, CallForm::List(names) if names.iter().any(|known| known == name))
    }

    /// Reads on in the arguments, to their end or that of the text.
    fn read_arguments<'t>(&mut self, text: &'t str, mut braces: Braces) -> &'t str {
        let end = text.bytes().position(|byte| braces.closes(byte));
        let (arguments, rest) = match end {
            Some(last) => text.split_at(last + 1),
            None => (text, ""),
        };
        self.call.has_arguments = true;
        if self.call.name.is_some() {
            self.tell(arguments.to_owned());
        } else {
            self.call.held.push_str(arguments);
        }
        self.place = match (end, &self.form) {
            (None, _) => Place::InArguments(braces),
            (Some(_), CallForm::One(_)) => Place::Over,
            (Some(_), CallForm::List(_)) => Place::AfterValue,
        };
        rest
    }

    fn open(&mut self, name: String) {
        self.pieces.push(CallPiece::Opened {
            position: self.num_calls,
            name: name.clone(),
        });
        self.call.name = Some(name);
        let held = std::mem::take(&mut self.call.held);
        self.tell(held);
    }

    fn tell(&mut self, text: String) {
        if !text.is_empty() {
            self.pieces.push(CallPiece::Arguments {
                position: self.num_calls,
                text,
            });
        }
    }

    fn unexpected(&self, text: &str) -> Failure {
        tracing::warn!(place = ?self.place, begins = %smg_api::clip(text), "an answer is no call");
        ApiError::bad_gateway(
            "the worker's answer is not the call that tool_choice asks for: it does not apply the constraint",
        )
        .into()
    }
}

// === impl Braces ===

impl Braces {
    /// Takes the next byte; true if it closes the object.
    fn closes(&mut self, byte: u8) -> bool {
        match (byte, self.in_string) {
            _ if self.escaped => self.escaped = false,
            (b'\\', true) => self.escaped = true,
            (b'"', in_string) => self.in_string = !in_string,
            (b'{' | b'[', false) => self.levels += 1,
            (b'}' | b']', false) => {
                self.levels = self.levels.saturating_sub(1);
                return self.levels == 0;
            }
            _ => {}
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name and arguments of each call.
    type Calls = Vec<(String, String)>;

    fn list() -> CallForm {
        CallForm::List(vec!["f".to_owned(), "get \"it\"".to_owned()])
    }

    fn one() -> CallForm {
        CallForm::One("f".to_owned())
    }

    /// The calls in pieces of text, and why the answer ended.
    fn read<'t>(
        form: CallForm,
        pieces: impl IntoIterator<Item = &'t str>,
    ) -> Result<(Calls, FinishReason), Failure> {
        let mut parser = CallParser::new(form);
        let mut calls = Calls::new();
        for text in pieces {
            for piece in parser.push(text)? {
                match piece {
                    CallPiece::Opened { position, name } => {
                        assert_eq!(position as usize, calls.len());
                        calls.push((name, String::new()));
                    }
                    CallPiece::Arguments { position, text } => {
                        assert!(position as usize + 1 == calls.len() && !text.is_empty());
                        calls.last_mut().unwrap().1.push_str(&text);
                    }
                }
            }
        }
        Ok((calls, parser.reason(FinishReason::Stop)))
    }

    const ARGUMENTS: &str = r#"{"a": "é}]\\\"{[", "b": [{"東": {}}, -1e5],"": null }"#;

    /// Form, text, and the calls in it.
    type Case = (CallForm, String, Vec<(&'static str, &'static str)>);

    fn texts() -> Vec<Case> {
        vec![
            (one(), format!(" \n{ARGUMENTS}"), vec![("f", ARGUMENTS)]),
            (one(), "{}".to_owned(), vec![("f", "{}")]),
            (
                list(),
                format!(r#"[{{"name":"f","parameters":{ARGUMENTS}}}]"#),
                vec![("f", ARGUMENTS)],
            ),
            (
                list(),
                format!(
                    "[ {{ \"parameters\" :\t{ARGUMENTS} , \"name\" : \"get \\\"\\u0069t\\\"\" }} ,\r\n\
                     {{\"na\\u006de\":\"f\",\"parameters\":{{}}}}, {{\"name\":\"f\",\"parameters\":{{\"x\":1}}}} ] \n"
                ),
                vec![("get \"it\"", ARGUMENTS), ("f", "{}"), ("f", r#"{"x":1}"#)],
            ),
        ]
    }

    #[test]
    fn calls_are_the_same_wherever_the_text_is_cut() {
        for (form, text, expected) in texts() {
            let expected: Calls = expected
                .into_iter()
                .map(|(name, arguments)| (name.to_owned(), arguments.to_owned()))
                .collect();
            let expected = (expected, FinishReason::ToolCalls);
            let boundaries: Vec<usize> = (0..=text.len()).filter(|at| text.is_char_boundary(*at)).collect();
            for &first in &boundaries {
                for &second in boundaries.iter().filter(|at| **at >= first) {
                    let pieces = [&text[..first], &text[first..second], &text[second..]];
                    assert_eq!(read(form.clone(), pieces).unwrap(), expected, "{pieces:?}");
                }
            }
            let characters = text.split_inclusive(|_: char| true);
            assert_eq!(read(form, characters).unwrap(), expected);
        }
    }

    #[test]
    fn an_answer_that_is_cut_keeps_what_there_is_of_its_calls() {
        for (form, text, expected) in texts() {
            let text = text.trim_end();
            for end in (0..text.len()).filter(|at| text.is_char_boundary(*at)) {
                let (calls, reason) = read(form.clone(), [&text[..end]]).unwrap();
                assert_eq!(reason, FinishReason::Stop);
                for ((name, arguments), (whole_name, whole)) in calls.iter().zip(&expected) {
                    assert_eq!(name, whole_name);
                    assert!(whole.starts_with(arguments.as_str()), "{arguments}");
                }
                let num_whole = calls.len().saturating_sub(1);
                for ((_, arguments), (_, whole)) in calls[..num_whole].iter().zip(&expected) {
                    assert_eq!(arguments, whole);
                }
            }
        }
    }

    #[test]
    fn arguments_are_told_as_they_come() {
        let mut parser = CallParser::new(list());
        let opened = CallPiece::Opened {
            position: 0,
            name: "f".to_owned(),
        };
        let told = |text: &str| {
            vec![CallPiece::Arguments {
                position: 0,
                text: text.to_owned(),
            }]
        };
        assert_eq!(parser.push(r#"[{"name": "f"#).unwrap(), []);
        assert_eq!(parser.push("\"").unwrap(), [opened]);
        assert_eq!(parser.push(r#", "parameters": "#).unwrap(), []);
        assert_eq!(parser.push(r#"{"a": "b"#).unwrap(), told(r#"{"a": "b"#));
        assert_eq!(parser.push(r#"c"}"#).unwrap(), told(r#"c"}"#));
        assert_eq!(parser.push("}").unwrap(), []);
        assert_eq!(parser.reason(FinishReason::Stop), FinishReason::Stop);
        assert_eq!(parser.push("] and more").unwrap(), []);
        assert_eq!(parser.reason(FinishReason::Stop), FinishReason::ToolCalls);
        assert_eq!(parser.reason(FinishReason::Length), FinishReason::Length);
        assert_eq!(parser.push("{[").unwrap(), []);
    }

    #[test]
    fn text_of_another_form_is_no_call() {
        for text in [
            "Sure!",
            "{",
            "[]",
            "[1",
            "[{}",
            r#"[{"name":"g"}"#,
            r#"[{"name":"f"}"#,
            r#"[{"name":5"#,
            r#"[{"parameters":{}}"#,
            r#"[{"name":"f","name":"f""#,
            r#"[{"x""#,
            r#"[{"name":"f","parameters":[1]"#,
            r#"[{"name":"f","parameters":{},"#,
            r#"[{"name":"f","parameters":{}}}"#,
            r#"[{"na\qme""#,
        ] {
            // The fault of an unfinished text shows with the next character.
            let whole = format!("{text}!");
            assert!(read(list(), [whole.as_str()]).is_err(), "{text}");
        }
        for text in ["Sure!", "[", "\"", "1"] {
            assert!(read(one(), [text]).is_err(), "{text}");
        }
    }
}
