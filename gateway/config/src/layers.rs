//! Where a value comes from: flag over environment over file over default.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;

use clap::builder::OsStr;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use serde_json::{Map, Value};

use crate::error::ConfigError;
use crate::lacking;

/// What the name of an environment variable starts with.
const PREFIX: &str = "SMG_";

/// Who set an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Default,
    File(PathBuf),
    /// Name of the variable.
    Environment(String),
    /// Given by the embedding program.
    Program,
    Flag,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Program => f.write_str("program"),
            Self::Flag => f.write_str("flag"),
        }
    }
}

/// Values below the flags, strongest last in wins: option id → its words and who set it.
#[derive(Debug, Default)]
pub(crate) struct Layers {
    values: HashMap<String, (Vec<String>, Origin)>,
}

impl Layers {
    /// Adds what a map of options says, over what is there. Keys may be written with `_` or `-`.
    pub(crate) fn add_map(
        &mut self,
        command: &Command,
        map: &Map<String, Value>,
        origin: &Origin,
    ) -> Result<(), ConfigError> {
        for (key, value) in map {
            match find(command, key) {
                Some(arg) => {
                    if let Some(words) = words_of(key, value)? {
                        if words.len() > 1 && !is_list(arg) {
                            return Err(ConfigError::new(format!(
                                "{key} must be one value, got the list {value}"
                            )));
                        }
                        self.values
                            .insert(arg.get_id().to_string(), (words, origin.clone()));
                    }
                }
                None if asks_for_nothing(value) && lacking::instead_of(&dashed(key)).is_some() => {}
                None => return Err(unknown(command, key, origin)),
            }
        }
        Ok(())
    }

    /// Adds the variables `SMG_<OPTION>`, over what is there. Empty ones count as unset.
    pub(crate) fn add_environment(&mut self, command: &Command, lookup: &dyn Fn(&str) -> Option<String>) {
        for arg in command.get_arguments() {
            let name = variable_of(arg.get_id().as_str());
            let value = lookup(&name).filter(|value| !value.is_empty() && !is_service_link(&name, value));
            if let Some(value) = value {
                let words = if is_list(arg) {
                    value.split_whitespace().map(str::to_owned).collect()
                } else {
                    vec![value]
                };
                self.values
                    .insert(arg.get_id().to_string(), (words, Origin::Environment(name)));
            }
        }
    }

    /// Makes these values the defaults of `command`, so that flags win over them.
    pub(crate) fn apply(&self, mut command: Command) -> Command {
        for (id, (words, _)) in &self.values {
            let words: Vec<OsStr> = words.iter().map(OsStr::from).collect();
            command = command.mut_arg(id, |arg| arg.default_values(words));
        }
        command
    }

    /// Who set the option `id` of a parsed command line.
    pub(crate) fn origin(&self, matches: &ArgMatches, id: &str) -> Origin {
        match matches.value_source(id) {
            Some(ValueSource::CommandLine) => Origin::Flag,
            _ => self
                .values
                .get(id)
                .map_or(Origin::Default, |(_, origin)| origin.clone()),
        }
    }

    /// Who gave the value of the option with this flag, for messages about it.
    pub(crate) fn origin_of_flag(&self, command: &Command, flag: &str) -> Option<&Origin> {
        let name = flag.trim_start_matches('-').split([' ', '=']).next()?;
        let arg = find(command, name)?;
        self.values.get(arg.get_id().as_str()).map(|(_, origin)| origin)
    }
}

/// The environment variable of an option.
pub(crate) fn variable_of(id: &str) -> String {
    format!("{PREFIX}{}", id.to_uppercase())
}

/// Kubernetes sets `SMG_PORT=tcp://…` in pods beside a service called `smg`.
fn is_service_link(name: &str, value: &str) -> bool {
    name == "SMG_PORT" && value.starts_with("tcp://")
}

pub(crate) fn is_list(arg: &Arg) -> bool {
    arg.get_num_args().is_some_and(|range| range.max_values() > 1)
}

fn find<'c>(command: &'c Command, key: &str) -> Option<&'c Arg> {
    let name = dashed(key);
    command.get_arguments().find(|arg| {
        arg.get_long() == Some(name.as_str())
            || arg
                .get_all_aliases()
                .is_some_and(|aliases| aliases.contains(&name.as_str()))
    })
}

pub(crate) fn dashed(key: &str) -> String {
    key.trim_start_matches('-').replace('_', "-")
}

fn words_of(key: &str, value: &Value) -> Result<Option<Vec<String>>, ConfigError> {
    let word = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        _ => None,
    };
    let words = match value {
        Value::Null => return Ok(None),
        Value::Array(items) if items.is_empty() => return Ok(None),
        Value::Array(items) => items.iter().map(word).collect(),
        single => word(single).map(|word| vec![word]),
    };
    let allowed = || {
        ConfigError::new(format!(
            "{key} must be a text, a number, true, false or a list of them, got {value}"
        ))
    };
    words.map(Some).ok_or_else(allowed)
}

fn asks_for_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

fn unknown(command: &Command, key: &str, origin: &Origin) -> ConfigError {
    let name = dashed(key);
    if let Some(instead) = lacking::instead_of(&name) {
        return ConfigError::new(format!(
            "this version does not have `{key}` ({origin}): {instead}"
        ));
    }
    let hint = nearest(command, &name).map_or_else(String::new, |near| {
        format!("; the nearest is `{}`", near.replace('-', "_"))
    });
    ConfigError::new(format!("there is no option `{key}` ({origin}){hint}"))
}

/// The option whose name is most like `name` (with dashes).
pub(crate) fn nearest<'c>(command: &'c Command, name: &str) -> Option<&'c str> {
    let names = command.get_arguments().filter_map(Arg::get_long);
    let scored = names.map(|long| (strsim::jaro_winkler(name, long), long));
    scored
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(score, _)| *score > 0.7)
        .map(|(_, long)| long)
}
