//! The command line of `cargo xtask`.

use std::fmt::Write as _;

use crate::fuzz::{self, FuzzOptions};
use crate::interop::{BUILT, InteropOptions};
use crate::parts::Part;
use crate::simulate::{self, SimulateOptions};
use crate::versions;

/// What the caller asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Invocation {
    /// Say what can be asked for.
    Help,
    /// Install what the tests need, and stop there.
    Setup,
    /// Install what the tests need, then run them.
    Test(TestOptions),
    /// Break the safety rules on purpose: these, or all.
    Mutants(Vec<String>),
    /// Measure locks on every store, with these flags of `oarlock bench`.
    Bench(Vec<String>),
    /// Measure the goals of speed, so many rounds of each.
    Goals(Vec<String>),
    /// Break every store and its servers, with these flags.
    Faults(Vec<String>),
    /// Measure locks beside those of other libraries.
    Peers(InteropOptions),
    /// Meet the lock libraries of other languages.
    Interop(InteropOptions),
    /// Pack every published crate.
    Package,
    /// Make what users install.
    Dist,
    /// Check and make a release, and say how to publish it.
    Release,
    /// Run the simulation over many seeds.
    Simulate(SimulateOptions),
    /// Feed hostile bytes to every reader.
    Fuzz(FuzzOptions),
}

/// The options of `cargo xtask test`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TestOptions {
    /// Run the long tier too.
    pub(crate) long: bool,
    /// Run these parts only; empty means every part.
    pub(crate) only: Vec<Part>,
    /// The servers of the part `versions`; empty means every server.
    pub(crate) servers: Vec<String>,
}

impl TestOptions {
    /// Whether `part` was asked for.
    pub(crate) fn selects(&self, part: Part) -> bool {
        self.only.contains(&part) || self.only.is_empty() && (self.long || !part.is_long())
    }

    /// Adds what `--only` names: a part, or one server of the part `versions`.
    fn add(&mut self, name: &str) -> Result<(), String> {
        let (name, server) = name.split_once('=').map_or((name, None), |(name, server)| (name, Some(server)));
        let part = part(name)?;
        if let Some(server) = server {
            if part != Part::Versions {
                return Err(format!("`{name}` takes no `={server}`"));
            }
            versions::check(server)?;
            self.servers.push(server.to_owned());
        }
        if !self.only.contains(&part) {
            self.only.push(part);
        }
        Ok(())
    }
}

/// Reads the arguments that follow `cargo xtask`.
///
/// # Errors
/// A sentence for the caller that says which argument is wrong and what would be right.
pub(crate) fn parse(args: impl IntoIterator<Item = String>) -> Result<Invocation, String> {
    let mut args = args.into_iter();
    let Some(command) = args.next() else {
        return Ok(Invocation::Help);
    };
    match command.as_str() {
        "help" | "-h" | "--help" => Ok(Invocation::Help),
        "setup" => alone("setup", Invocation::Setup, args),
        "package" => alone("package", Invocation::Package, args),
        "dist" => alone("dist", Invocation::Dist, args),
        "release" => alone("release", Invocation::Release, args),
        "test" => parse_test(args),
        "bench" => parse_bench(args),
        "faults" => Ok(Invocation::Faults(args.collect())),
        "interop" => parse_interop(args),
        "mutants" => Ok(Invocation::Mutants(args.collect())),
        "simulate" => Ok(simulate::parse(args)?.map_or(Invocation::Help, Invocation::Simulate)),
        "fuzz" => Ok(fuzz::parse(args)?.map_or(Invocation::Help, Invocation::Fuzz)),
        other => Err(format!("there is no command `{other}`")),
    }
}

/// A command that takes no argument.
fn alone(name: &str, command: Invocation, mut args: impl Iterator<Item = String>) -> Result<Invocation, String> {
    match args.next().as_deref() {
        None => Ok(command),
        Some("-h" | "--help") => Ok(Invocation::Help),
        Some(extra) => Err(format!("{name} takes no argument, got `{extra}`")),
    }
}

fn parse_bench(args: impl Iterator<Item = String>) -> Result<Invocation, String> {
    let mut args = args.peekable();
    if args.next_if(|arg| arg == "--goals").is_some() {
        return parse_goals(args);
    }
    if args.next_if(|arg| arg == "--peers").is_none() {
        return Ok(Invocation::Bench(args.collect()));
    }
    let mut options = InteropOptions { speed: true, ..InteropOptions::default() };
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "-h" | "--help" => return Ok(Invocation::Help),
            "--only" => options.only.push(args.next().ok_or("--only needs the name of a store or a client")?),
            other => return Err(format!("bench --peers does not know `{other}`")),
        }
    }
    Ok(Invocation::Peers(options))
}

fn parse_goals(args: impl Iterator<Item = String>) -> Result<Invocation, String> {
    let args: Vec<_> = args.collect();
    match args.as_slice() {
        [] => Ok(Invocation::Goals(args)),
        [rounds] if rounds.parse().is_ok_and(|rounds: usize| rounds > 0) => Ok(Invocation::Goals(args)),
        [help] if help == "-h" || help == "--help" => Ok(Invocation::Help),
        _ => Err("bench --goals takes a number of rounds, or nothing".to_owned()),
    }
}

fn parse_test(mut args: impl Iterator<Item = String>) -> Result<Invocation, String> {
    let mut options = TestOptions::default();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "-h" | "--help" => return Ok(Invocation::Help),
            "--all" => options.long = true,
            "--only" => {
                options.add(&args.next().ok_or("--only needs the name of a part")?)?;
            }
            other => match other.strip_prefix("--only=") {
                Some(name) => options.add(name)?,
                None => return Err(format!("test does not know `{other}`")),
            },
        }
    }
    Ok(Invocation::Test(options))
}

fn parse_interop(mut args: impl Iterator<Item = String>) -> Result<Invocation, String> {
    let mut options = InteropOptions::default();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "-h" | "--help" => return Ok(Invocation::Help),
            "--all" => options.all = true,
            BUILT => options.built = Some(args.next().ok_or("--built needs the path of a program")?.into()),
            "--only" => options.only.push(args.next().ok_or("--only needs the name of a client")?),
            other => match other.strip_prefix("--only=") {
                Some(name) => options.only.push(name.to_owned()),
                None => return Err(format!("interop does not know `{other}`")),
            },
        }
    }
    Ok(Invocation::Interop(options))
}

fn part(name: &str) -> Result<Part, String> {
    Part::named(name).ok_or_else(|| {
        let known: Vec<_> = Part::ALL.iter().map(|part| part.name()).collect();
        format!("there is no part `{name}`; the parts are {}", known.join(", "))
    })
}

/// The text of `cargo xtask help`.
pub(crate) fn help() -> String {
    let mut text = String::from(
        "Tasks of this repository: set-up, tests, mutants, benchmarks.

cargo xtask test [--all] [--only PART]…   install what the tests need, then run every part
    --all          the long tier too
    --only PART    this part only; may be repeated
    --only versions=SERVER    the rows of this server only; the others stay in the table
cargo xtask mutants [NAME]…               break the safety rules on purpose; a test must notice each
cargo xtask mutants --table               write the table of mutants in docs/track-record.md
cargo xtask interop [--all] [--only CLIENT]…
                                          share locks with the libraries of other languages
    --all          every version of every client
    --only CLIENT  this client only; may be repeated
cargo xtask faults [FLAG]…                break every store and its servers, write docs/reliability.md
    --help         its flags: --resume, --only STORE, --runs N, --seconds S, --jobs J
cargo xtask bench [FLAG]…                 measure locks on every store; flags of `oarlock bench`
cargo xtask bench --goals [ROUNDS]        measure the goals of speed on every store, and print their table
cargo xtask bench --peers [--only NAME]…  measure locks beside those of other libraries, write docs/benchmarks.md
    --only NAME    this store or library only, and write nothing; may be repeated
cargo xtask package                       pack every published crate, and compile what was packed
cargo xtask dist                          make what users install: program, archive, Debian package, wheel
cargo xtask release                       check and make a release, and print the commands that publish it
cargo xtask simulate [--seeds N] [--from S] [--jobs J]
                                          the simulation of the engine over N seeds (a million)
    --replay SEED  one world only: a seed, or the JSON that a failure prints
cargo xtask fuzz [--minutes M] [--only NAME]
                                          hostile bytes for every reader, M minutes each (ten)
cargo xtask setup                         install what the tests need, and stop there
cargo xtask help                          this text

Parts of test, in order:
",
    );
    for part in Part::ALL {
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "    {:<10} {}", part.name(), part.purpose());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Invocation, String> {
        parse(line.split_whitespace().map(String::from))
    }

    #[test]
    fn nothing_is_a_question() {
        assert_eq!(parsed(""), Ok(Invocation::Help));
        assert_eq!(parsed("help"), Ok(Invocation::Help));
        assert_eq!(parsed("test --help"), Ok(Invocation::Help));
    }

    #[test]
    fn test_runs_every_part_unless_told() {
        let Ok(Invocation::Test(options)) = parsed("test") else {
            panic!("`test` is a command");
        };
        assert!(!options.long);
        assert!(Part::ALL.iter().all(|part| options.selects(*part) != part.is_long()));
        let Ok(Invocation::Test(options)) = parsed("test --all") else {
            panic!("`test --all` is a command");
        };
        assert!(Part::ALL.iter().all(|part| options.selects(*part)));
    }

    #[test]
    fn only_may_be_repeated() {
        let Ok(Invocation::Test(options)) = parsed("test --all --only format --only=docs") else {
            panic!("these options are known");
        };
        assert!(options.long);
        assert_eq!(options.only, [Part::Format, Part::Docs]);
        assert!(!options.selects(Part::Tests));
    }

    #[test]
    fn versions_takes_servers() {
        let Ok(Invocation::Test(options)) = parsed("test --only versions=etcd --only=versions=valkey") else {
            panic!("these servers are known");
        };
        assert_eq!(options.only, [Part::Versions]);
        assert_eq!(options.servers, ["etcd", "valkey"]);
    }

    #[test]
    fn flags_of_bench_are_not_ours() {
        let flags = ["--duration", "1s", "--fair"].map(String::from).to_vec();
        assert_eq!(parsed("bench --duration 1s --fair"), Ok(Invocation::Bench(flags)));
        let only = vec!["redis".to_owned()];
        let options = InteropOptions { speed: true, only, ..InteropOptions::default() };
        assert_eq!(parsed("bench --peers --only redis"), Ok(Invocation::Peers(options)));
        assert!(parsed("bench --peers --fair").is_err());
        assert_eq!(parsed("bench --goals 3"), Ok(Invocation::Goals(vec!["3".to_owned()])));
        assert!(parsed("bench --goals 0").is_err());
        assert!(parsed("bench --goals --fair").is_err());
    }

    #[test]
    fn interop_takes_clients() {
        let only = ["redisson", "redsync"].map(String::from).to_vec();
        let options = InteropOptions { all: true, only, ..InteropOptions::default() };
        assert_eq!(parsed("interop --all --only redisson --only=redsync"), Ok(Invocation::Interop(options)));
        assert!(parsed("interop --fast").is_err());
    }

    #[test]
    fn mistakes_are_named() {
        for (line, word) in [
            ("tset", "tset"),
            ("test --al", "--al"),
            ("test --only", "--only"),
            ("test --only fromat", "format, readme"),
            ("test --only versions=oracle", "redis, etcd"),
            ("test --only docs=etcd", "docs"),
            ("setup now", "now"),
            ("dist fast", "fast"),
            ("release --publish", "--publish"),
        ] {
            let why = parsed(line).expect_err(line);
            assert!(why.contains(word), "{line}: {why}");
        }
    }

    #[test]
    fn help_lists_every_command_and_part() {
        let text = help();
        let commands = ["test", "bench", "faults", "interop", "package", "dist", "release", "setup", "help"];
        for word in commands.into_iter().chain(["--all", "--only", "--peers"]) {
            assert!(text.contains(word), "{word}");
        }
        for part in Part::ALL {
            assert!(text.contains(part.name()), "{}", part.name());
        }
    }
}
