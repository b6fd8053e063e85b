//! `cargo xtask fuzz`: every reader of foreign bytes, for minutes each, in release.

use std::path::Path;

use crate::simulate::number;
use crate::workspace::{Failure, Workspace, stream};

/// What runs a target: nothing of it may grow without bound. It is much more than a target with all its threads takes, so
/// that one that exceeds it has made too much of 64 KiB.
const LIMITED: [&str; 2] = ["prlimit", "--as=2147483648"];

/// The programs that have targets, as arguments of `cargo test`. Each target is a test with `fuzz` in its name.
const PROGRAMS: &[&[&str]] = &[
    &["-p", "oarlock-core", "--lib"],
    &["-p", "oarlock", "--test", "fuzz"],
    &["-p", "oarlock-local", "--lib"],
    &["-p", "oarlock-redis", "--lib"],
    &["-p", "oarlock-etcd", "--lib"],
    &["-p", "oarlock-zookeeper", "--lib"],
    &["-p", "oarlock-sql", "--lib", "--all-features"],
    &["-p", "oarlock-quorum", "--lib"],
    &["-p", "oarlock-serve", "--lib"],
    &["-p", "oarlock-torture", "--lib"],
    &["-p", "oarlock-cli", "--bin", "oarlock"],
];

/// Every target.
const TARGETS: &[&str] = &[
    "fuzz_children",
    "fuzz_children_of_other_programs",
    "fuzz_configuration",
    "fuzz_datagram",
    "fuzz_duration",
    "fuzz_history",
    "fuzz_label",
    "fuzz_memo_of_a_quorum",
    "fuzz_memo_of_once",
    "fuzz_notice_and_memo",
    "fuzz_notification",
    "fuzz_numbers_of_a_handed_grant",
    "fuzz_payload",
    "fuzz_queue",
    "fuzz_records",
    "fuzz_reply",
    "fuzz_request",
    "fuzz_row",
    "fuzz_slot",
    "fuzz_state_file",
    "fuzz_state_in_binary",
    "fuzz_state_in_json",
    "fuzz_ticket",
    "fuzz_url",
    "fuzz_written_ticket",
];

/// The options of `cargo xtask fuzz`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FuzzOptions {
    /// How long each target.
    pub(crate) minutes: u64,
    /// Targets whose name begins with this only, after `fuzz_`.
    pub(crate) only: Option<String>,
}

/// Reads the arguments that follow `fuzz`; `None` asks for help.
pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<FuzzOptions>, String> {
    let mut options = FuzzOptions { minutes: 10, only: None };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "-h" | "--help" => return Ok(None),
            "--minutes" => options.minutes = number(&arg, &value()?)?,
            "--only" => options.only = Some(value()?),
            other => return Err(format!("fuzz does not know `{other}`")),
        }
    }
    Ok(Some(options))
}

/// Runs every target.
///
/// # Errors
/// When a build fails, or a target finds something.
pub(crate) fn run(workspace: &Workspace, options: &FuzzOptions) -> Result<(), Failure> {
    // All targets are named so; a name that is none would run nothing, and pass.
    let name = format!("fuzz_{}", options.only.as_deref().unwrap_or_default());
    if !TARGETS.iter().any(|target| target.starts_with(&*name)) {
        return Err(Failure::new(format!("there is no target `{name}`; the targets are {}", TARGETS.join(", "))));
    }
    let seconds = options.minutes.saturating_mul(60).to_string();
    // Compilers have no limit.
    let runner = format!("target.'cfg(unix)'.runner=[\"{}\"]", LIMITED.join("\",\""));
    let inputs = workspace.target().join("fuzz");
    let new = inputs.join("new");
    println!("the input that each target reads is in {}", inputs.display());
    for program in PROGRAMS {
        let mut command = workspace.cargo(["test", "--release", "--locked", "--config", &runner]);
        command.env("OARLOCK_FUZZ_INPUTS", &inputs).env("OARLOCK_FUZZ_NEW", &new);
        command.args(*program).args([&*name, "--", "--nocapture", "--test-threads", "2"]);
        stream(command.env("OARLOCK_FUZZ_SECONDS", &seconds))?;
    }
    println!("{}", said_of(&new));
    Ok(())
}

/// How many inputs of each target reached something that the corpus does not.
fn said_of(new: &Path) -> String {
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut counts: Vec<_> = entries(new)
        .map(|target| (target.file_name().to_string_lossy().into_owned(), entries(&target.path()).count()))
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    if counts.is_empty() {
        return "no input reached anything new".to_owned();
    }
    counts.sort();
    format!(
        "inputs that reached something new, with which the next run begins, are in {}: {}\n\
         copy those that the corpus lacks to fuzz/TARGET beside the manifest of the crate",
        new.display(),
        counts.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `dd` asks for its block at once and touches none of it.
    #[test]
    fn a_target_that_grows_without_bound_fails() {
        let reads = |block: &str| {
            let mut command = std::process::Command::new(LIMITED[0]);
            command.args(&LIMITED[1..]).args(["dd", "if=/dev/null", "of=/dev/null", "count=1", block]);
            command.output().expect("prlimit").status.success()
        };
        assert!(reads("bs=16M"));
        assert!(!reads("bs=3G"));
    }

    #[test]
    fn what_reached_something_new_is_counted() {
        let folder = std::env::temp_dir().join(format!("oarlock-xtask-fuzz-{}", std::process::id()));
        assert_eq!(said_of(&folder), "no input reached anything new");
        for file in ["url/1", "url/2", "label/1"] {
            let file = folder.join(file);
            std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            std::fs::write(file, b"x").expect("a file");
        }
        std::fs::create_dir_all(folder.join("slot")).expect("a folder");
        let said = said_of(&folder);
        std::fs::remove_dir_all(&folder).expect("it goes");
        assert!(said.contains(": label 1, url 2\n"), "{said}");
    }

    #[test]
    fn options_are_minutes_and_a_name() {
        let parsed = |line: &str| parse(line.split_whitespace().map(String::from));
        let options = FuzzOptions { minutes: 2, only: Some("url".into()) };
        assert_eq!(parsed("--minutes 2 --only url").unwrap(), Some(options));
        assert_eq!(parsed("").unwrap(), Some(FuzzOptions { minutes: 10, only: None }));
        assert_eq!(parsed("-h").unwrap(), None);
        assert!(parsed("--minutes x").is_err() && parsed("--only").is_err() && parsed("all").is_err());
    }
}
