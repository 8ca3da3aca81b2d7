//! `ChatTemplate`: messages to prompt text with the model's own Jinja template.
//!
//! Renders as the reference renderer (transformers' `apply_chat_template`) does: same whitespace rules, same
//! functions and filters, Python's methods and formats. Differences, each on purpose:
//!
//! * a message with `tool_calls` and no `content` gets an empty one where the template cannot do without;
//! * a list of text parts is joined with newlines where the template only understands strings;
//! * `strftime_now` gives UTC;
//! * iterating over `none`, and comparing something undefined, is no error;
//! * `%` between a string and a tuple, `cycler`, `joiner`, `lipsum`, and filters for web pages and text layout
//!   (`urlencode`, `striptags`, `truncate`, …) are not there: using one is an error;
//! * `varargs` and `kwargs` are undefined in macros.
//!
//! # Layout
//!
//! | file | what lives there |
//! |---|---|
//! | `environment` | the engine, set up like the reference: syntax, functions, filters, limits |
//! | `messages` | what is done to messages before a template sees them |
//! | `methods` | methods of Python's strings, lists and dicts |
//! | `tojson` | the `tojson` filter |
//! | `clock` | the `strftime_now` function |

mod clock;
mod environment;
mod messages;
mod methods;
mod tojson;

use minijinja::{Environment, Error, ErrorKind, Value as Jinja};
use serde_json::{Map, Value, json};

use crate::error::TemplateError;
use environment::Raised;
use messages::Messages;

const NAME: &str = "chat";

/// Written behind the final message to find its end in the rendered text. The trailing space tells whether
/// the template trims.
const END_OF_FINAL_MESSAGE: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// A compiled chat template with the special tokens it can name.
pub struct ChatTemplate {
    environment: Environment<'static>,
    tokens: Map<String, Value>,
    takes_parts: bool,
}

/// One conversation to render.
#[derive(Debug, Clone, Copy)]
pub struct RenderInput<'a> {
    /// List of message objects (`role`, `content`, `tool_calls`, …). Arguments of tool calls are best given as
    /// objects; most templates write them with `tojson`.
    pub messages: &'a Value,
    pub tools: Option<&'a Value>,
    /// Whether to end with the beginning of an assistant message. Has no effect with `continue_final_message`.
    pub add_generation_prompt: bool,
    /// Whether to end right behind the content of the last message, so that the model continues it.
    pub continue_final_message: bool,
    /// More variables for the template, such as `documents` or `enable_thinking`. The fields above win.
    pub kwargs: &'a Map<String, Value>,
}

impl ChatTemplate {
    /// Compiles a template. `tokens` maps names (`bos_token`, `eos_token`, …) to the tokens' texts.
    pub fn new(source: &str, tokens: Map<String, Value>) -> Result<Self, TemplateError> {
        let environment = environment::build(source)?;
        let mut template = Self {
            environment,
            tokens,
            takes_parts: true,
        };
        template.takes_parts = template.probe_parts()?;
        Ok(template)
    }

    /// Whether the template understands `content` that is a list of parts (`{"type": "text", "text": …}`).
    /// Where it does not, [`Self::render`] joins text parts to one string.
    pub fn takes_content_parts(&self) -> bool {
        self.takes_parts
    }

    /// Renders a conversation to prompt text.
    pub fn render(&self, input: &RenderInput) -> Result<String, TemplateError> {
        let mut messages = Messages::new(input.messages, self.takes_parts)?;
        let mut to_continue = None;
        if input.continue_final_message {
            to_continue = Some(messages.mark_end(END_OF_FINAL_MESSAGE)?);
        }
        let rendered = match self.render_messages(input, &messages) {
            Err(TemplateError::Render(_) | TemplateError::Raised(_)) if messages.fill_missing_content() => {
                self.render_messages(input, &messages)
            }
            rendered => rendered,
        }?;
        match to_continue {
            Some(text) => cut_at_end(rendered, text.trim()),
            None => Ok(rendered),
        }
    }

    fn render_messages(&self, input: &RenderInput, messages: &Messages) -> Result<String, TemplateError> {
        let mut variables: Vec<(&str, Jinja)> = vec![("documents", Jinja::from(()))];
        for (name, value) in self.tokens.iter().chain(input.kwargs) {
            variables.push((name, jinja(value)));
        }
        variables.push(("messages", messages.list().iter().map(object).collect()));
        variables.push(("tools", input.tools.map_or(Jinja::from(()), jinja)));
        let add_generation_prompt = input.add_generation_prompt && !input.continue_final_message;
        variables.push(("add_generation_prompt", Jinja::from(add_generation_prompt)));
        let context = Jinja::from_pairs(variables);
        self.environment
            .get_template(NAME)
            .and_then(|template| template.render(context))
            .map_err(|error| render_error(&error))
    }

    /// Renders one message whose content is a list, and looks whether its text comes out by itself. Also
    /// refuses templates that use filters, tests or functions that do not exist.
    fn probe_parts(&self) -> Result<bool, TemplateError> {
        let text = "text of the probe";
        let messages = json!([{"role": "user", "content": [{"type": "text", "text": text}]}]);
        let input = RenderInput {
            messages: &messages,
            tools: None,
            add_generation_prompt: true,
            continue_final_message: false,
            kwargs: &Map::new(),
        };
        match self.render_messages(&input, &Messages::new(&messages, true)?) {
            Ok(rendered) => Ok(rendered.contains(text)
                && !rendered.contains(&format!("'{text}'"))
                && !rendered.contains(&format!("\"{text}\""))),
            Err(error @ TemplateError::Compile(_)) => Err(error),
            Err(_) => Ok(false),
        }
    }
}

/// A JSON value as the template engine sees it; objects keep their order.
fn jinja(value: &Value) -> Jinja {
    match value {
        Value::Null => Jinja::from(()),
        Value::Bool(flag) => Jinja::from(*flag),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Jinja::from(number),
            (None, Some(number)) => Jinja::from(number),
            (None, None) => Jinja::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => Jinja::from(text.as_str()),
        Value::Array(items) => items.iter().map(jinja).collect(),
        Value::Object(entries) => object(entries),
    }
}

fn object(entries: &Map<String, Value>) -> Jinja {
    Jinja::from_pairs(entries.iter().map(|(name, value)| (name.as_str(), jinja(value))))
}

/// The prompt up to the mark behind the final message, whose text has to stand in it unchanged.
fn cut_at_end(mut rendered: String, text: &str) -> Result<String, TemplateError> {
    let mark = rendered.rfind(END_OF_FINAL_MESSAGE.trim_end());
    let Some(at) = mark.filter(|_| rendered.contains(text)) else {
        return Err(TemplateError::NothingToContinue(
            "the template leaves out or changes the content of the final message; end with a message that it \
             shows as it is"
                .to_owned(),
        ));
    };
    let keeps_spaces = rendered[at..].starts_with(END_OF_FINAL_MESSAGE);
    rendered.truncate(at);
    if !keeps_spaces {
        rendered.truncate(rendered.trim_end().len()); // the template trims content
    }
    Ok(rendered)
}

fn render_error(error: &Error) -> TemplateError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref() {
            return TemplateError::Raised(message.clone());
        }
        if current
            .downcast_ref()
            .is_some_and(|error: &Error| error.kind() == ErrorKind::OutOfFuel)
        {
            return TemplateError::TooLong;
        }
        cause = current.source();
    }
    match error.kind() {
        ErrorKind::UnknownFilter | ErrorKind::UnknownTest | ErrorKind::UnknownFunction => {
            TemplateError::Compile(error.to_string())
        }
        _ => TemplateError::Render(error.to_string()),
    }
}

#[cfg(test)]
mod tests;
