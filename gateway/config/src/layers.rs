//! Where a value comes from: flag over environment over file over default.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use clap::builder::OsStr;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use serde_json::{Map, Value};

use crate::command::is_secret;
use crate::error::ConfigError;
use crate::lacking;
use crate::schema::kind_of;

/// What the name of an environment variable starts with.
const PREFIX: &str = "SMG_";

/// Characters of a wrong value that a message repeats.
const MAX_QUOTED_CHARS: usize = 100;

/// Looks up an environment variable.
pub(crate) type Lookup<'a> = dyn Fn(&str) -> Option<OsString> + 'a;

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
        let mut keys: HashMap<&str, &str> = HashMap::new();
        for (key, value) in map {
            match find(command, key) {
                Some(arg) => {
                    let id = arg.get_id().as_str();
                    if let Some(other) = keys.insert(id, key) {
                        return Err(ConfigError::new(format!(
                            "`{other}` and `{key}` are the same option; leave one out (given by {origin})"
                        )));
                    }
                    if let Some(words) = words_of(arg, key, value, origin)? {
                        self.values.insert(id.to_owned(), (words, origin.clone()));
                    }
                }
                None if asks_for_nothing(value) && lacking::instead_of(&dashed(key)).is_some() => {}
                None => return Err(unknown(command, key, origin)),
            }
        }
        Ok(())
    }

    /// Adds the variables `SMG_<OPTION>`, over what is there. Empty ones count as unset.
    pub(crate) fn add_environment(
        &mut self,
        command: &Command,
        lookup: &Lookup<'_>,
    ) -> Result<(), ConfigError> {
        for arg in command.get_arguments() {
            let name = variable_of(arg.get_id().as_str());
            let value = variable(&name, lookup)?.filter(|value| !is_service_link(&name, value));
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
        Ok(())
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

    /// Who gave a wrong `value` of the option with this flag, unless it came from the command line.
    pub(crate) fn origin_of_value(&self, command: &Command, flag: &str, value: &str) -> Option<&Origin> {
        let (words, origin) = self.values.get(find(command, name_of(flag))?.get_id().as_str())?;
        words.iter().any(|word| word.contains(value)).then_some(origin)
    }

    /// Adds to a sentence that begins with a flag who set that option, unless the flag did.
    pub(crate) fn with_origin(&self, error: ConfigError, matches: &ArgMatches) -> ConfigError {
        let sentence = error.to_string();
        let id = name_of(&sentence).replace('-', "_");
        if !matches.ids().any(|known| *known == *id) {
            return error;
        }
        match self.origin(matches, &id) {
            Origin::Default | Origin::Flag => error,
            origin => ConfigError::new(format!("{sentence} (given by {origin})")),
        }
    }
}

/// The value of an environment variable; an empty one counts as unset.
pub(crate) fn variable(name: &str, lookup: &Lookup<'_>) -> Result<Option<String>, ConfigError> {
    let text = lookup(name).map(OsString::into_string).transpose();
    let text = text.map_err(|_| {
        ConfigError::new(format!(
            "the environment variable {name} is not valid UTF-8; write it in UTF-8 or unset it"
        ))
    })?;
    Ok(text.filter(|text| !text.is_empty()))
}

/// The name of the option that a text begins with, such as `log-json` of `--log-json[=<true|false>]`.
pub(crate) fn name_of(flag: &str) -> &str {
    let name = flag.trim_start_matches('-');
    let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    &name[..end.unwrap_or(name.len())]
}

/// `text`, or its start and how many characters it has.
pub(crate) fn clip(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(MAX_QUOTED_CHARS) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}… ({} characters)", &text[..end], text.chars().count())),
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

/// The words of an option's value in a map, whose type must be the option's.
fn words_of(
    arg: &Arg,
    key: &str,
    value: &Value,
    origin: &Origin,
) -> Result<Option<Vec<String>>, ConfigError> {
    let kind = kind_of(arg);
    let words = match (kind, value) {
        (_, Value::Null) => return Ok(None),
        ("list", Value::Array(items)) if items.is_empty() => return Ok(None),
        ("list", Value::Array(items)) => items
            .iter()
            .map(|item| item.as_str().map(str::to_owned))
            .collect(),
        ("int" | "float", Value::Number(number)) => Some(vec![number.to_string()]),
        ("bool", Value::Bool(is_on)) => Some(vec![is_on.to_string()]),
        (_, Value::String(text)) => Some(vec![text.clone()]),
        _ => None,
    };
    let wrong = || {
        let allowed = match kind {
            "list" => "a list of texts",
            "int" => "a whole number",
            "float" => "a number",
            "bool" => "true or false",
            _ => "a text (in quotes if it looks like something else)",
        };
        let given = given_in_words(value, is_secret(arg));
        ConfigError::new(format!(
            "{key} must be {allowed}, got {given} (given by {origin})"
        ))
    };
    words.map(Some).ok_or_else(wrong)
}

fn given_in_words(value: &Value, is_secret: bool) -> String {
    let what = match value {
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
        Value::Number(_) => "a number",
        Value::Bool(_) => "a truth value",
        Value::String(_) => "a text",
        Value::Null => "nothing",
    };
    if is_secret {
        return what.to_owned();
    }
    format!("{what}: {}", clip(&value.to_string()))
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
