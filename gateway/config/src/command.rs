//! The command line: arguments in, a checked [`Command`] out.

use std::any::TypeId;
use std::error::Error as _;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgMatches, Args, FromArgMatches};
use clap_complete::Shell;
use serde_json::{Map, Value};

use crate::error::ConfigError;
use crate::lacking;
use crate::layers::{Layers, Lookup, Origin, clip, name_of, nearest, variable};
use crate::options::GatewayConfig;
use crate::schema::kind_of;
use crate::secret::{MASK, Secret};
use crate::show;
use crate::simulate::{self, SimulateOptions};

const ABOUT: &str = "Routes OpenAI-style and native generation requests to engine workers.";
const AFTER_HELP: &str = "Every option can also be set by the environment variable SMG_<OPTION>, such as \
    SMG_PORT, and by a key of the --config file; a flag wins over the environment, the environment over the file.";

/// What the user asked for.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Run the gateway.
    Launch(Box<GatewayConfig>),
    /// Try policies on a model of engines.
    Simulate(Box<SimulateOptions>),
    /// Write this text to standard output and end with status 0 (help, version, `config show`, completions).
    Print(String),
}

/// Reads the arguments after the program's name, and the process's environment.
pub fn parse<A: Into<OsString>>(args: impl IntoIterator<Item = A>) -> Result<Command, ConfigError> {
    parse_with(args, &process_environment)
}

/// The same with an environment of the caller's making.
pub fn parse_with<A: Into<OsString>>(
    args: impl IntoIterator<Item = A>,
    environment: &Lookup<'_>,
) -> Result<Command, ConfigError> {
    let args = args.into_iter().map(Into::into).enumerate();
    let args = args
        .map(|(i, arg)| readable(i, arg))
        .collect::<Result<Vec<_>, _>>()?;
    refuse_server(&args)?;
    if args.first().is_some_and(|word| word == simulate::NAME) {
        return simulated(args);
    }
    refuse_lacking(&args)?;
    let layers = layers_of(&args, environment)?;
    let line = command_line(&layers);
    let words = std::iter::once("smg".to_owned()).chain(args);
    let matches = match line.clone().try_get_matches_from(words) {
        Ok(matches) => matches,
        Err(e) if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return Ok(Command::Print(e.to_string()));
        }
        Err(e) if e.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            return Ok(Command::Print(e.to_string()));
        }
        Err(e) => return Err(in_one_sentence(&e, &options(), &layers)),
    };
    match matches.subcommand() {
        Some(("completions", sub)) => Ok(Command::Print(completions(sub, line))),
        Some(("config", config)) => match config.subcommand() {
            Some((_, sub)) => {
                let (config, origins) = checked(sub, &layers)?;
                Ok(Command::Print(show::table(&config, &origins)))
            }
            None => Err(ConfigError::new(
                "say what to do with the config: smg config show",
            )),
        },
        Some((_, sub)) => checked(sub, &layers).map(|(config, _)| Command::Launch(Box::new(config))),
        None => checked(&matches, &layers).map(|(config, _)| Command::Launch(Box::new(config))),
    }
}

/// A simulation has options of its own, given by flags alone: neither a gateway's file nor its environment is meant for it.
fn simulated(args: Vec<String>) -> Result<Command, ConfigError> {
    let line = clap::Command::new("smg").subcommand(simulate::command());
    let told = |e: &clap::Error| in_one_sentence(e, &simulate::command(), &Layers::default());
    match line.try_get_matches_from(std::iter::once("smg".to_owned()).chain(args)) {
        Ok(matches) => {
            let sub = matches.subcommand_matches(simulate::NAME).unwrap_or(&matches);
            let options = SimulateOptions::from_arg_matches(sub).map_err(|e| told(&e))?;
            Ok(Command::Simulate(Box::new(options)))
        }
        Err(e) if e.kind() == ErrorKind::DisplayHelp => Ok(Command::Print(e.to_string())),
        Err(e) => Err(told(&e)),
    }
}

/// Builds a config from a map of options, as an embedding program has them; names may have `_` or `-`. The
/// process's environment counts below the map.
pub fn from_map(map: &Map<String, Value>) -> Result<GatewayConfig, ConfigError> {
    from_map_with(map, &process_environment)
}

pub(crate) fn from_map_with(
    map: &Map<String, Value>,
    environment: &Lookup<'_>,
) -> Result<GatewayConfig, ConfigError> {
    let mut layers = layers_of(&[], environment)?;
    layers.add_map(&options(), map, &Origin::Program)?;
    let line = layers.apply(options());
    let matches = line
        .try_get_matches_from(["smg"])
        .map_err(|e| in_one_sentence(&e, &options(), &layers))?;
    checked(&matches, &layers).map(|(config, _)| config)
}

/// A command with every option of [`GatewayConfig`] and nothing else.
pub(crate) fn options() -> clap::Command {
    declared("smg").disable_help_flag(true)
}

/// A negative number is a value that can be refused with its option's bounds, not another option.
fn declared(name: &'static str) -> clap::Command {
    GatewayConfig::augment_args(clap::Command::new(name)).mut_args(|arg| {
        let is_number = matches!(kind_of(&arg), "int" | "float");
        arg.allow_negative_numbers(is_number)
    })
}

fn command_line(layers: &Layers) -> clap::Command {
    let config = || {
        Arg::new("config")
            .long("config")
            .value_name("FILE")
            .help_heading("Server")
            .value_parser(clap::value_parser!(PathBuf))
            .help("File with options: YAML, TOML or JSON, keys named like the flags")
    };
    let with_options = |name: &'static str, about: &'static str| {
        let command = declared(name);
        // The doc comment of the struct is not for users.
        let command = command.about(about).long_about(about).after_help(AFTER_HELP);
        layers.apply(command).arg(config())
    };
    let show = with_options("show", "Print every option with its value and where it came from");
    let shell = Arg::new("shell")
        .required(true)
        .value_parser(clap::value_parser!(Shell));
    with_options("smg", ABOUT)
        .version(env!("CARGO_PKG_VERSION"))
        .args_conflicts_with_subcommands(true)
        .subcommand(with_options("launch", "Run the gateway (the same as no subcommand)").alias("start"))
        .subcommand(
            clap::Command::new("config")
                .about("Look at the options")
                .subcommand(show)
                .arg_required_else_help(true),
        )
        .subcommand(
            clap::Command::new("completions")
                .about("Print a completion script")
                .arg(shell),
        )
        .subcommand(simulate::command())
}

fn layers_of(args: &[String], environment: &Lookup<'_>) -> Result<Layers, ConfigError> {
    let command = options();
    let mut layers = Layers::default();
    let path = match config_path(args) {
        Some(path) => Some(path),
        None => variable("SMG_CONFIG", environment)?,
    };
    if let Some(path) = path {
        let example = "one key per option, such as `port: 30000`";
        let map = crate::file::read("--config", Path::new(&path), example)?;
        layers.add_map(&command, &map, &Origin::File(PathBuf::from(path)))?;
    }
    layers.add_environment(&command, environment)?;
    Ok(layers)
}

/// The last `--config` of the arguments; needed before they are parsed, as its values are the defaults.
pub(crate) fn config_path(args: &[String]) -> Option<String> {
    let inline = |arg: &String| arg.strip_prefix("--config=").map(str::to_owned);
    let pairs = args.iter().enumerate().rev();
    pairs
        .filter_map(|(i, arg)| {
            if arg == "--config" {
                args.get(i + 1).cloned()
            } else {
                inline(arg)
            }
        })
        .next()
}

fn checked(matches: &ArgMatches, layers: &Layers) -> Result<(GatewayConfig, show::Origins), ConfigError> {
    let config =
        GatewayConfig::from_arg_matches(matches).map_err(|e| in_one_sentence(&e, &options(), layers))?;
    config
        .validate()
        .map_err(|error| layers.with_origin(error, matches))?;
    let command = options();
    let ids = command.get_arguments().map(|arg| arg.get_id().to_string());
    let origins = ids.map(|id| (id.clone(), layers.origin(matches, &id))).collect();
    Ok((config, origins))
}

fn completions(matches: &ArgMatches, mut line: clap::Command) -> String {
    let mut script = Vec::new();
    if let Some(shell) = matches.get_one::<Shell>("shell") {
        clap_complete::generate(*shell, &mut line, "smg", &mut script);
    }
    String::from_utf8_lossy(&script).into_owned()
}

/// The wheel's own command line knows these words and never brings them here.
fn refuse_server(args: &[String]) -> Result<(), ConfigError> {
    match args.first().map(String::as_str) {
        Some(word @ ("server" | "serve")) => Err(ConfigError::new(format!(
            "`smg {word}` (workers and a gateway in one command) comes with the Python wheel: pip install \
             sglang-router; this binary is the gateway alone"
        ))),
        _ => Ok(()),
    }
}

fn refuse_lacking(args: &[String]) -> Result<(), ConfigError> {
    for arg in args {
        let name = arg
            .strip_prefix("--")
            .map(|rest| rest.split('=').next().unwrap_or(rest));
        if let Some((name, instead)) = name.and_then(|name| lacking::instead_of(name).map(|i| (name, i))) {
            return Err(ConfigError::new(format!(
                "this version does not have --{name}: {instead}"
            )));
        }
    }
    Ok(())
}

/// clap's report without usage and tips, with the nearest name and the source of the value.
fn in_one_sentence(error: &clap::Error, command: &clap::Command, layers: &Layers) -> ConfigError {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => Some(texts.join(", ")),
        _ => None,
    };
    let flag = text(ContextKind::InvalidArg);
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(flag) = &flag
    {
        let hint = match nearest(command, flag.trim_start_matches('-')).filter(|_| flag.starts_with('-')) {
            Some(near) => format!("the nearest is --{near}"),
            None => "see smg --help".to_owned(),
        };
        return ConfigError::new(format!("there is no option {flag}; {hint}"));
    }
    let value = text(ContextKind::InvalidValue).filter(|value| !value.is_empty());
    let mut sentence = match (&flag, &value) {
        (Some(flag), Some(value)) => wrong_value(error, command, flag, value),
        _ => {
            let rendered = error.to_string();
            let first = rendered.lines().next().unwrap_or_default();
            first.strip_prefix("error: ").unwrap_or(first).to_owned()
        }
    };
    if let Some(near) = text(ContextKind::SuggestedSubcommand) {
        sentence.push_str(&format!("; the nearest is {near}"));
    }
    if error.kind() == ErrorKind::InvalidSubcommand && text(ContextKind::SuggestedSubcommand).is_none() {
        sentence.push_str("; see smg --help");
    }
    if let Some(allowed) = text(ContextKind::ValidValue).filter(|allowed| !allowed.is_empty()) {
        sentence.push_str(&format!("; allowed are {allowed}"));
    }
    if let (Some(flag), Some(value)) = (&flag, &value)
        && let Some(origin) = layers.origin_of_value(command, flag, value)
    {
        sentence.push_str(&format!(" (given by {origin})"));
    }
    ConfigError::new(sentence)
}

/// Our own sentence in place of clap's, which repeats the value however long it is, line breaks included.
fn wrong_value(error: &clap::Error, command: &clap::Command, flag: &str, value: &str) -> String {
    let arg = command
        .get_arguments()
        .find(|arg| arg.get_long() == Some(name_of(flag)));
    let shown = if arg.is_some_and(is_secret) {
        MASK.to_owned()
    } else {
        clip(value).escape_debug().to_string()
    };
    let why = error.source().map_or_else(String::new, |why| format!(": {why}"));
    format!("invalid value '{shown}' for '{flag}'{why}")
}

pub(crate) fn is_secret(arg: &Arg) -> bool {
    arg.get_value_parser().type_id() == TypeId::of::<Secret>()
}

/// An argument as text. Only the name of an option is repeated: its value may be a key.
fn readable(position: usize, arg: OsString) -> Result<String, ConfigError> {
    arg.into_string().map_err(|arg| {
        let text = arg.to_string_lossy();
        let option = match text.split_once('=') {
            Some((name, _)) if name.starts_with("--") => format!(" ({name}=…)"),
            _ => String::new(),
        };
        ConfigError::new(format!(
            "argument {}{option} is not valid UTF-8; write it in UTF-8",
            position + 1
        ))
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place where the gateway reads the environment"
)]
pub(crate) fn process_environment(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}
