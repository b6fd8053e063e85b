//! The command line.

use std::path::PathBuf;

use crate::cases::{Case, Fault};
use crate::deployments::Topology;
use crate::load::{LOADS, STORES};
use crate::runs::Done;

pub(crate) const HELP: &str = "\
cargo xtask faults [--resume [--any-commit]] [--only STORE]… [--fault FAULT]… [--runs N] [--seconds S] [--jobs J]

    --resume       do not repeat the runs of docs/measurements/fault-runs.jsonl whose code is the one of this tree; those
                   that say nothing of their case are repeated
    --any-commit   with --resume: do not repeat those of other code either
    --only STORE   this store or this STORE/TOPOLOGY only; may be repeated
    --only libraries  the lock libraries of other languages, which cargo xtask interop builds
    --only load    instead: many claims in one queue, many held locks, and churn; load/queue, load/held or load/churn
                   is one of them, and may be repeated
    --on STORE     with --only load: on redis (by default), postgres, etcd or zookeeper; may be repeated
    --for TIME     how long the churn takes, such as 90s, 10m or 1h; by default 10m
    --fault FAULT  this fault only; may be repeated
    --runs N       so many runs of each case, with the seeds 1 to N; by default 1
    --seconds S    how long a run takes; by default 15
    --dry          write neither the file of runs nor the table; so do --only and --fault without --resume
    --also PROGRAM another build of oarlock, for the case two-builds
    --older PROGRAM an older build of oarlock that knows an older format of tables, for the case format-raised
    --within S     start no run after so many seconds
    --jobs J       so many at a time, on different servers; by default 1

Each run is added to docs/measurements/fault-runs.jsonl, where it takes the place of the one with the same case and seed.
Writes the table in docs/reliability.md from all runs of the file.
";

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help,
    Run(Options),
    /// Instead of faults: many claims, many locks, and churn.
    Load(LoadOptions),
    /// One process of a load.
    LoadWorker(Vec<String>),
    /// One process of a power cut.
    PowerWorker(Vec<String>),
    /// Ask the run behind this socket to break its servers: the fault command of `oarlock torture`.
    Break(PathBuf),
}

/// Which loads, and on which stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoadOptions {
    /// All, if it is empty.
    pub(crate) loads: Vec<String>,
    pub(crate) stores: Vec<String>,
    pub(crate) churn_seconds: u64,
    /// Write no file and no table.
    pub(crate) dry: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) resume: bool,
    /// A run of any commit counts as done.
    pub(crate) any_commit: bool,
    /// Write no file and no table.
    pub(crate) dry: bool,
    pub(crate) only: Vec<String>,
    pub(crate) faults: Vec<String>,
    pub(crate) runs: u64,
    pub(crate) seconds: u64,
    pub(crate) jobs: u64,
    /// Another build, for cases with two.
    pub(crate) also: Option<PathBuf>,
    /// A build that knows an older format of tables.
    pub(crate) older: Option<PathBuf>,
    /// No run starts after so many seconds.
    pub(crate) within: u64,
}

impl Options {
    /// A part of the cases is tried by hand and written nowhere, unless it goes on with what is written.
    pub(crate) fn is_dry(&self) -> bool {
        let is_whole = self.only.is_empty() && self.faults.is_empty();
        self.dry || !(self.resume || is_whole)
    }

    pub(crate) fn selects(&self, topology: &Topology) -> bool {
        let group = if topology.library { LIBRARIES } else { topology.store };
        let named = |name: &String| name == group || *name == format!("{}/{}", topology.store, topology.name);
        self.only.is_empty() && !topology.library || self.only.iter().any(named)
    }

    /// Whether a case of a topology that is selected is to be run.
    pub(crate) fn selects_case(&self, case: &Case) -> bool {
        let is_named = self.faults.is_empty() || self.faults.iter().any(|fault| fault == case.name());
        let has_builds = match case.fault {
            Fault::TwoBuilds => self.also.is_some(),
            _ => !case.topology.older || self.older.is_some(),
        };
        is_named && has_builds
    }

    /// Whether a run of the file is of a case and a seed that are selected. What is wrong with others is not of this run.
    pub(crate) fn covers(&self, done: &Done) -> bool {
        let is_selected = |case: Case| self.selects(case.topology) && self.selects_case(&case);
        done.seed <= self.runs && done.case().is_some_and(is_selected)
    }
}

/// The hidden first word of [`Command::Break`].
pub(crate) const BREAK: &str = "__break";

/// The hidden first word of [`Command::LoadWorker`].
pub(crate) const LOAD_WORKER: &str = "__load";

/// The hidden first word of [`Command::PowerWorker`].
pub(crate) const POWER_WORKER: &str = "__power";

/// The flags that loads do not use.
const OF_FAULTS: [&str; 9] =
    ["--resume", "--any-commit", "--fault", "--runs", "--seconds", "--also", "--older", "--within", "--jobs"];

/// The flags that faults do not use.
const OF_LOADS: [&str; 2] = ["--on", "--for"];

/// The name of all other lock libraries for `--only`.
const LIBRARIES: &str = "libraries";

/// The name of the loads for `--only`.
const LOAD: &str = "load";

/// # Errors
/// A sentence that says which argument is wrong.
pub(crate) fn parse(args: impl IntoIterator<Item = String>) -> Result<Command, String> {
    let mut options = Options {
        resume: false,
        any_commit: false,
        dry: false,
        only: Vec::new(),
        faults: Vec::new(),
        runs: 1,
        seconds: 15,
        jobs: 1,
        also: None,
        older: None,
        within: u64::MAX,
    };
    let (mut churn, mut stores, mut given) = (600, Vec::new(), Vec::new());
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        given.push(arg.clone());
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "-h" | "--help" => return Ok(Command::Help),
            BREAK => return Ok(Command::Break(value()?.into())),
            POWER_WORKER => return Ok(Command::PowerWorker(args.collect())),
            LOAD_WORKER => return Ok(Command::LoadWorker(args.collect())),
            "--for" => churn = seconds(&value()?)?,
            "--on" => stores.push(value()?),
            "--dry" => options.dry = true,
            "--resume" => options.resume = true,
            "--any-commit" => options.any_commit = true,
            "--only" => options.only.push(value()?),
            "--fault" => options.faults.push(value()?),
            "--runs" => options.runs = number(&arg, &value()?, 1..=10_000)?,
            "--seconds" => options.seconds = number(&arg, &value()?, 3..=3600)?,
            "--also" => options.also = Some(value()?.into()),
            "--older" => options.older = Some(value()?.into()),
            "--within" => options.within = number(&arg, &value()?, 1..=1_000_000)?,
            "--jobs" => options.jobs = number(&arg, &value()?, 1..=32)?,
            other => return Err(format!("faults does not know `{other}`")),
        }
    }
    if options.any_commit && !options.resume {
        return Err("--any-commit needs --resume".to_owned());
    }
    let used = |flags: &[&str]| given.iter().find(|flag| flags.contains(&flag.as_str()));
    if let Some(loads) = loads(&options.only)? {
        if let Some(flag) = used(&OF_FAULTS) {
            return Err(format!("{flag} is about faults: --only load does not take it"));
        }
        if stores.is_empty() {
            stores.push(STORES[0].to_owned());
        }
        if let Some(other) = stores.iter().find(|store| !STORES.contains(&store.as_str())) {
            return Err(format!("there are no loads on `{other}`: --on is one of {}", STORES.join(", ")));
        }
        return Ok(Command::Load(LoadOptions { loads, stores, churn_seconds: churn, dry: options.dry }));
    }
    if let Some(flag) = used(&OF_LOADS) {
        return Err(format!("{flag} needs --only load"));
    }
    Ok(Command::Run(options))
}

/// The loads that are named; none for all. `None` if this is about faults.
fn loads(only: &[String]) -> Result<Option<Vec<String>>, String> {
    let of = |name: &String| name.strip_prefix(LOAD).map(|rest| rest.strip_prefix('/').unwrap_or(rest).to_owned());
    let named: Vec<_> = only.iter().filter_map(of).collect();
    match named.len() {
        0 => return Ok(None),
        count if count != only.len() => return Err("--only is loads or stores, and not both".to_owned()),
        _ => {}
    }
    let chosen: Vec<_> = named.into_iter().filter(|name| !name.is_empty()).collect();
    match chosen.iter().find(|name| !LOADS.contains(&name.as_str())) {
        Some(other) => Err(format!("there is no load `{other}`: they are {}", LOADS.join(", "))),
        None => Ok(Some(chosen)),
    }
}

fn seconds(text: &str) -> Result<u64, String> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let number = text[..text.len() - unit.len()].parse().ok();
    let scale = [("s", 1), ("m", 60), ("h", 3600)].into_iter().find(|(name, _)| *name == unit).map(|(_, scale)| scale);
    let span = number.zip(scale).map(|(number, scale): (u64, u64)| number.saturating_mul(scale));
    span.filter(|span| (10..=86_400).contains(span)).ok_or_else(|| format!("--for is 10s to 24h, and not `{text}`"))
}

fn number(flag: &str, text: &str, range: std::ops::RangeInclusive<u64>) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("{flag} is a number from {} to {}, and not `{text}`", range.start(), range.end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(String::from))
    }

    #[test]
    fn options_are_read() {
        let Ok(Command::Run(options)) = parsed("--resume --only redis --runs 3 --seconds 20 --jobs 2") else {
            panic!("these options are known")
        };
        assert!(options.resume);
        assert_eq!((options.runs, options.seconds, options.jobs), (3, 20, 2));
        let selected: Vec<_> = crate::deployments::ALL.iter().filter(|topology| options.selects(topology)).collect();
        assert!(!selected.is_empty() && selected.iter().all(|topology| topology.store == "redis"));
        let Ok(Command::Run(options)) = parsed("--only libraries --only redis/redsync") else { panic!("known") };
        let selected = crate::deployments::ALL.iter().filter(|topology| options.selects(topology));
        assert!(selected.clone().all(|topology| topology.library) && selected.count() > 1);
        let Ok(Command::Run(options)) = parsed("--resume") else { panic!("known") };
        assert!(crate::deployments::ALL.iter().all(|topology| options.selects(topology) != topology.library));
        assert_eq!(parsed("--help"), Ok(Command::Help));
        let load = |line| match parsed(line) {
            Ok(Command::Load(options)) => (options.loads.join(" "), options.stores.join(" "), options.churn_seconds),
            other => panic!("{other:?}"),
        };
        assert_eq!(load("--only load --for 2m"), (String::new(), "redis".into(), 120));
        let chosen = "--only load/queue --only load/held --on etcd --on postgres";
        assert_eq!(load(chosen), ("queue held".into(), "etcd postgres".into(), 600));
    }

    /// A plain run with one seed is not failed by what the file has of other seeds and other groups.
    #[test]
    fn only_what_was_selected_can_fail_a_run() {
        let covers = |line: &str, (store, topology, fault): (&str, &str, &str), seed: u64| {
            let Ok(Command::Run(options)) = parsed(line) else { panic!("{line}") };
            let case = Case::named(store, topology, fault).expect("a case");
            options.covers(&Done::of(&case, seed, 15))
        };
        let (kill, library) = (("redis", "one server", "kill"), ("redis", "redsync", "mixed"));
        let builds = ("redis", "one server", "two-builds");
        assert!(covers("", kill, 1) && covers("--runs 3", kill, 3) && covers("--also x", builds, 1));
        assert!(!covers("", kill, 2) && !covers("", library, 1) && !covers("", builds, 1));
        let raised = ("postgres", "older format", "format-raised");
        assert!(covers("--older x", raised, 1) && !covers("--also x", raised, 1) && !covers("--older x", builds, 1));
        assert!(covers("--only libraries", library, 1) && !covers("--only libraries", kill, 1));
        assert!(covers("--only redis --fault kill", kill, 1) && !covers("--only redis --fault cut", kill, 1));
    }

    #[test]
    fn mistakes_are_named() {
        for (line, word) in [
            ("--run 3", "--run"),
            ("--runs", "--runs"),
            ("--jobs many", "many"),
            ("--seconds 1", "3 to"),
            ("--for 9y", "9y"),
            ("--any-commit", "--resume"),
            ("--only load/all", "queue"),
            ("--only load --only redis", "not both"),
            ("--only load --on mem", "mem"),
            ("--on redis", "--only load"),
            ("--for 2m", "--only load"),
        ] {
            let why = parsed(line).expect_err(line);
            assert!(why.contains(word), "{line}: {why}");
        }
    }

    #[test]
    fn a_flag_that_a_load_does_not_use_is_refused() {
        for flag in ["--resume", "--fault kill", "--runs 2", "--seconds 9", "--also x", "--within 9", "--jobs 2"] {
            let why = parsed(&format!("--only load {flag}")).expect_err(flag);
            assert!(why.contains(flag.split(' ').next().unwrap_or_default()), "{flag}: {why}");
        }
        assert!(matches!(parsed("--only load --dry --on redis --for 2m"), Ok(Command::Load(_))));
    }
}
