//! The template engine, set up like the reference renderer: syntax, functions, filters, limits.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use regex::Regex;
use thiserror::Error;

use super::{NAME, clock, methods, tojson};
use crate::error::TemplateError;

/// Bounds the work of one rendering: a step of the engine costs 1, and so do 64 bytes that it produces.
/// A conversation of 500 messages with 5,000 characters each costs less than 200,000.
const FUEL: u64 = 5_000_000;

/// What a template said through `raise_exception`.
#[derive(Debug, Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

pub(super) fn build(source: &str) -> Result<Environment<'static>, TemplateError> {
    let compile_error = |error: Error| TemplateError::Compile(error.to_string());
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .map_err(compile_error)?;
    environment.set_syntax(syntax);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(methods::call);
    environment.add_filter("tojson", tojson::filter);
    environment.add_test("sequence", is_sequence);
    environment.add_test("iterable", is_iterable);
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", clock::strftime_now);
    let source = without_generation_tags(&normal_newlines(source))?;
    environment
        .add_template_owned(NAME, source)
        .map_err(compile_error)?;
    Ok(environment)
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let raised = Raised(message.to_string());
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(raised))
}

/// In Python strings and dicts have a length and items, too; templates rely on it to tell strings from lists.
fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined
    )
}

fn is_iterable(value: &Value) -> bool {
    is_sequence(value) || value.kind() == ValueKind::Iterable
}

/// Templates written on other systems carry `\r\n`; Jinja reads each kind of line end as `\n`.
fn normal_newlines(source: &str) -> String {
    source.replace("\r\n", "\n").replace('\r', "\n")
}

/// `{% generation %}` marks text of the assistant for training. It has no effect on the text but opens a
/// scope, as `{% with %}` does.
fn without_generation_tags(source: &str) -> Result<String, TemplateError> {
    let tag = Regex::new(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")
        .map_err(|error| TemplateError::Compile(error.to_string()))?;
    Ok(tag.replace_all(source, "{%${1} ${2}with ${3}%}").into_owned())
}
