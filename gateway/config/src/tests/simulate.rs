//! `smg simulate` as a user meets it.

use super::*;
use crate::{ReportFormat, SimulateOptions};

fn simulate(line: &str) -> SimulateOptions {
    match parse(line).unwrap() {
        Command::Simulate(options) => *options,
        other => panic!("expected a simulation, got: {other:?}"),
    }
}

#[test]
fn a_simulation_has_options_of_its_own() {
    let options = simulate("simulate --trace agents --workers 3 --policy random,oracle --format json");
    assert_eq!(options.workers, 3);
    assert_eq!(options.trace, "agents");
    assert_eq!(options.policy, ["random", "oracle"]);
    assert_eq!(options.format, ReportFormat::Json);
    assert!(!options.without_events && options.from.is_none());
    assert!(error("--workers 3").contains("there is no option --workers"));
}

#[test]
fn a_gateways_environment_is_not_meant_for_it() {
    let environment = |name: &str| (name == "SMG_POLICY").then(|| OsString::from("no such policy"));
    let words = ["simulate".to_owned()];
    assert!(matches!(
        parse_with(words, &environment),
        Ok(Command::Simulate(_))
    ));
}

#[test]
fn wrong_options_are_told_in_one_sentence() {
    assert_eq!(
        error("simulate --worker 3"),
        "there is no option --worker; the nearest is --workers"
    );
    let wrong = error("simulate --workers many");
    assert!(
        wrong.starts_with("invalid value 'many' for '--workers <NUMBER>': "),
        "{wrong}"
    );
    assert_eq!(
        error("simulate --page-size 0"),
        "invalid value '0' for '--page-size <TOKENS>': it must be a whole number of tokens from 1 on"
    );
    let wrong = error("simulate --format yaml");
    assert!(wrong.ends_with("; allowed are table, json"), "{wrong}");
    assert!(error("simulate --from a --trace agents").contains("cannot be used with"));
    assert!(error("simulate --without-events --event-delay-ms 5").contains("cannot be used with"));
}

#[test]
fn help_tells_each_option() {
    let Command::Print(help) = parse("simulate --help").unwrap() else {
        panic!("expected text");
    };
    for option in [
        "--from",
        "--trace",
        "--workers",
        "--policy",
        "--kv-tokens",
        "--gateways",
        "--seed",
    ] {
        assert!(help.contains(option), "{option} in {help}");
    }
    assert!(printed("--help", &nothing).contains("simulate"));
}
