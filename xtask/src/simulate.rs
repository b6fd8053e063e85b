//! `cargo xtask simulate`: the simulation of the engine in release, over many seeds.

use crate::workspace::{Failure, Workspace, stream};

/// The options of `cargo xtask simulate`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SimulateOptions {
    /// How many seeds.
    pub(crate) seeds: u64,
    /// The first of them.
    pub(crate) from: u64,
    /// In how many threads.
    pub(crate) jobs: u64,
    /// Run this world only: a seed, or the JSON of a plan.
    pub(crate) replay: Option<String>,
}

impl Default for SimulateOptions {
    fn default() -> Self {
        Self { seeds: 1_000_000, from: 0, jobs: 2, replay: None }
    }
}

/// Reads the arguments that follow `simulate`; `None` asks for help.
pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<SimulateOptions>, String> {
    let mut options = SimulateOptions::default();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "-h" | "--help" => return Ok(None),
            "--seeds" => options.seeds = number(&arg, &value()?)?,
            "--from" => options.from = number(&arg, &value()?)?,
            "--jobs" => options.jobs = number(&arg, &value()?)?,
            "--replay" => options.replay = Some(value()?),
            other => return Err(format!("simulate does not know `{other}`")),
        }
    }
    Ok(Some(options))
}

pub(crate) fn number(option: &str, text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{option} needs a number, not `{text}`"))
}

/// Builds and runs it.
///
/// # Errors
/// When the build fails, or a seed does.
pub(crate) fn run(workspace: &Workspace, options: &SimulateOptions) -> Result<(), Failure> {
    let mut command = workspace.cargo(["test", "--release", "--locked", "-p", "oarlock-conformance"]);
    command.args(["--test", "simulation", "every_seed", "--", "--nocapture"]);
    command.env("OARLOCK_SEEDS", options.seeds.to_string());
    command.env("OARLOCK_FROM", options.from.to_string()).env("OARLOCK_JOBS", options.jobs.to_string());
    match &options.replay {
        Some(plan) => command.env("OARLOCK_PLAN", plan),
        None => command.env_remove("OARLOCK_PLAN"),
    };
    stream(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Option<SimulateOptions>, String> {
        parse(line.split_whitespace().map(String::from))
    }

    #[test]
    fn options_are_numbers() {
        let options = parsed("--seeds 10 --from 7 --jobs 1 --replay 3").unwrap().unwrap();
        assert_eq!(options, SimulateOptions { seeds: 10, from: 7, jobs: 1, replay: Some("3".into()) });
        assert_eq!(parsed("").unwrap(), Some(SimulateOptions::default()));
        assert_eq!(parsed("--help").unwrap(), None);
        assert_eq!(parsed("--seeds many").unwrap_err(), "--seeds needs a number, not `many`");
        assert_eq!(parsed("--seeds").unwrap_err(), "--seeds needs a value");
        assert!(parsed("--fast").is_err());
    }
}
