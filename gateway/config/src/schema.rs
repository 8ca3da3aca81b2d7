//! The options as data, for programs that declare the same flags.

use std::any::TypeId;

use clap::Arg;
use serde_json::{Value, json};

use crate::command::options;
use crate::layers::{is_list, variable_of};

/// A JSON list with one object per option: `{flag, name, env, aliases, type, default, choices, help, group}`.
///
/// `type` is one of `int`, `float`, `bool`, `str`, `list`; `default` has that type, or is null; `choices` is
/// null where any value of the type may be given.
pub fn option_schema() -> Value {
    options().get_arguments().map(describe).collect()
}

fn describe(arg: &Arg) -> Value {
    let name = arg.get_id().as_str();
    let kind = kind_of(arg);
    let choices: Vec<String> = arg
        .get_possible_values()
        .iter()
        .map(|value| value.get_name().to_owned())
        .collect();
    let choices = if choices.is_empty() || kind == "bool" {
        Value::Null
    } else {
        json!(choices)
    };
    json!({
        "flag": format!("--{}", arg.get_long().unwrap_or(name)),
        "name": name,
        "env": variable_of(name),
        "aliases": arg.get_all_aliases().unwrap_or_default().iter().map(|a| format!("--{a}")).collect::<Vec<_>>(),
        "type": kind,
        "default": default_of(arg, kind),
        "choices": choices,
        "help": arg.get_help().map(|help| help.to_string()),
        "group": arg.get_help_heading(),
    })
}

pub(crate) fn kind_of(arg: &Arg) -> &'static str {
    if is_list(arg) {
        return "list";
    }
    let parsed = arg.get_value_parser().type_id();
    let is = |id: TypeId| parsed == id;
    if is(TypeId::of::<bool>()) {
        "bool"
    } else if is(TypeId::of::<f64>()) {
        "float"
    } else if [
        TypeId::of::<u16>(),
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<usize>(),
        TypeId::of::<i64>(),
    ]
    .into_iter()
    .any(is)
    {
        "int"
    } else {
        "str"
    }
}

fn default_of(arg: &Arg, kind: &str) -> Value {
    let words: Vec<String> = arg
        .get_default_values()
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    match (kind, words.first()) {
        ("list", _) => json!(words),
        (_, None) => Value::Null,
        ("str", Some(word)) => json!(word),
        // Numbers and booleans are written as in JSON.
        (_, Some(word)) => serde_json::from_str(word).unwrap_or(Value::Null),
    }
}
