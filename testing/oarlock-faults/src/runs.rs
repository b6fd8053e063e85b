//! The file of what was run: one line of JSON for each run.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::args::Options;
use crate::cases::{Case, Expected};
use crate::power::RAN_TWICE;

/// What the name of a commit ends with whose tree was changed.
pub(crate) const DIRTY: &str = "-dirty";

/// What came of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Done {
    pub(crate) store: String,
    pub(crate) topology: String,
    pub(crate) fault: String,
    pub(crate) seed: u64,
    pub(crate) seconds: u64,
    /// The server, as `oarlock doctor` names it.
    pub(crate) version: String,
    /// The commit that was built.
    pub(crate) commit: String,
    /// Why it could not be run to its end.
    pub(crate) failed: Option<String>,
    /// How often each fault was injected.
    pub(crate) faults: BTreeMap<String, u64>,
    pub(crate) grants: u64,
    pub(crate) losses: u64,
    pub(crate) least_margin_ms: Option<f64>,
    pub(crate) stale_refused: u64,
    pub(crate) lost_without_fence: u64,
    /// Broken promises.
    pub(crate) violations: Vec<String>,
    /// What the store does not promise to prevent.
    pub(crate) risks: Vec<String>,
    /// Workers that got no lock after the faults, and what could not be looked at.
    pub(crate) stuck: Vec<String>,
    /// Faults that had no effect, and runs that were too short.
    pub(crate) untried: Vec<String>,
}

impl Done {
    pub(crate) fn failed(case: &Case, seed: u64, seconds: u64, why: String) -> Self {
        Self { failed: Some(why), ..Self::of(case, seed, seconds) }
    }

    pub(crate) fn of(case: &Case, seed: u64, seconds: u64) -> Self {
        let (store, topology) = (case.topology.store.to_owned(), case.topology.name.to_owned());
        Self { store, topology, fault: case.name().to_owned(), seed, seconds, ..Self::default() }
    }

    pub(crate) fn case(&self) -> Option<Case> {
        Case::named(&self.store, &self.topology, &self.fault)
    }

    fn is(&self, case: &Case, seed: u64) -> bool {
        (self.store.as_str(), self.topology.as_str(), self.fault.as_str(), self.seed)
            == (case.topology.store, case.topology.name, case.name(), seed)
    }

    /// Two believed at once, or a slot ran twice: found where it must be.
    pub(crate) fn is_found(&self) -> bool {
        self.risks.iter().any(|risk| risk.starts_with("Overlap") || risk.starts_with(RAN_TWICE))
    }

    /// What is not as it must be.
    pub(crate) fn complaint(&self) -> Option<String> {
        let name = format!("{} {} / {} seed {}", self.store, self.topology, self.fault, self.seed);
        let expected = self.case()?.expected();
        let unfenced = self.fault == "pause" && self.lost_without_fence == 0 && self.stale_refused == 0;
        let why = match (&self.failed, expected) {
            (Some(why), _) => why.clone(),
            // What another library does wrong is no fault of this one.
            (_, Expected::Shown) if !self.violations.is_empty() || !self.stuck.is_empty() => return None,
            _ if !self.violations.is_empty() => self.violations.join("; "),
            _ if !self.stuck.is_empty() => self.stuck.join("; "),
            _ if !self.untried.is_empty() => self.untried.join("; "),
            (_, Expected::Found) if !self.is_found() => "it must be found, and was not".to_owned(),
            (_, Expected::Holds) if !self.risks.is_empty() => format!("not expected: {}", self.risks.join("; ")),
            _ if unfenced => "no stale write of a stopped holder came to the counters".to_owned(),
            _ => return None,
        };
        Some(format!("{name}: {why}"))
    }

    /// Whether it says something about its case: it need not be run again. What must be found and was not was not tried.
    pub(crate) fn is_conclusive(&self) -> bool {
        let silent = self.failed.is_none() && self.stuck.is_empty() && self.untried.is_empty();
        let must_find = self.case().is_some_and(|case| case.expected() == Expected::Found);
        silent && (self.is_found() || !must_find) || !self.violations.is_empty()
    }

    /// One line for people.
    pub(crate) fn line(&self) -> String {
        let count: u64 = self.faults.values().sum();
        let verdict = match self.case().map(|case| case.expected()) {
            _ if !self.violations.is_empty() => "VIOLATION",
            Some(Expected::Found) if self.is_found() => "found, as it must be",
            Some(Expected::Found) => "NOT FOUND",
            _ if !self.stuck.is_empty() => "stuck",
            _ if !self.untried.is_empty() => "untried",
            Some(Expected::Holds) if !self.risks.is_empty() => "RISK",
            _ if !self.risks.is_empty() => "risk, as documented",
            _ => "ok",
        };
        let details: Vec<_> = self
            .violations
            .iter()
            .chain(&self.risks)
            .chain(&self.untried)
            .map(|text| format!("\n    {text}"))
            .collect();
        format!(
            "{} {} / {} seed {}: {verdict}, {count} faults, {} grants, {} losses{}",
            self.store,
            self.topology,
            self.fault,
            self.seed,
            self.grants,
            self.losses,
            details.concat()
        )
    }
}

/// All runs, in the file and here.
pub(crate) struct Runs {
    all: Vec<Done>,
    file: Option<File>,
}

impl Runs {
    /// Opens the file. Each run takes the place of the one before it with the same case and seed, and of no other.
    pub(crate) fn open() -> anyhow::Result<Self> {
        Self::of(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/measurements/fault-runs.jsonl")))
    }

    fn of(path: &Path) -> anyhow::Result<Self> {
        let text = if path.exists() { fs::read_to_string(path)? } else { String::new() };
        let mut all = Vec::new();
        let lines: Vec<_> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            match serde_json::from_str(line) {
                Ok(done) => replace(&mut all, done),
                // A last line that was cut off is a run that did not end.
                Err(_) if number + 1 == lines.len() => {}
                Err(error) => return Err(error).with_context(|| format!("line {} of {}", number + 1, path.display())),
            }
        }
        let mut file = OpenOptions::new().create(true).append(true).open(path).context("the file of runs")?;
        if !text.is_empty() && !text.ends_with('\n') {
            file.write_all(b"\n")?;
        }
        Ok(Self { all, file: Some(file) })
    }

    /// No runs, and no file for them.
    pub(crate) fn in_memory() -> Self {
        Self { all: Vec::new(), file: None }
    }

    pub(crate) fn all(&self) -> &[Done] {
        &self.all
    }

    /// Whether a run that is there makes this one needless.
    pub(crate) fn is_done(&self, case: &Case, seed: u64, options: &Options, commit: &str) -> bool {
        let commit = Some(commit).filter(|_| !options.any_commit);
        options.resume && self.has(case, seed, options.seconds, commit)
    }

    /// Whether a run of this commit, or of any, is there that is as long, and need not be repeated. What was changed and
    /// not committed is no build that could be named again.
    fn has(&self, case: &Case, seed: u64, seconds: u64, commit: Option<&str>) -> bool {
        let same = |done: &Done| {
            let named = !done.commit.is_empty() && !done.commit.ends_with(DIRTY);
            named && commit.is_none_or(|commit| done.commit == commit)
        };
        let mut all = self.all.iter();
        all.any(|done| done.is_conclusive() && same(done) && done.seconds >= seconds && done.is(case, seed))
    }

    pub(crate) fn add(&mut self, done: Done) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(&done)?;
        line.push(b'\n');
        self.file.as_mut().map(|file| file.write_all(&line)).transpose()?;
        replace(&mut self.all, done);
        Ok(())
    }
}

/// The last run of a case and a seed counts.
fn replace(all: &mut Vec<Done>, done: Done) {
    all.retain(|old| {
        (&old.store, &old.topology, &old.fault, old.seed) != (&done.store, &done.topology, &done.fault, done.seed)
    });
    all.push(done);
}

/// Where the histories of broken promises are kept.
pub(crate) fn folder() -> anyhow::Result<PathBuf> {
    let here = std::env::current_exe()?;
    let target = here.ancestors().nth(2).context("the folder of builds")?;
    let folder = target.join("faults");
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Command;

    fn done(topology: &str, fault: &str) -> Done {
        let case = Case::named("redis", topology, fault).expect("a case");
        Done { lost_without_fence: 1, ..Done::of(&case, 1, 15) }
    }

    #[test]
    fn a_run_that_proves_nothing_is_a_complaint_and_is_repeated() {
        assert_eq!(done("one server", "pause").complaint(), None);
        let text = || vec!["Overlap: x".to_owned()];
        let bad = [
            Done { failed: Some("no server".into()), ..done("one server", "kill") },
            Done { untried: text(), ..done("one server", "kill") },
            Done { stuck: text(), ..done("one server", "kill") },
            // It must be found.
            done("without persistence", "server-forgets"),
        ];
        for done in bad {
            assert!(done.complaint().is_some() && !done.is_conclusive(), "{done:?}");
        }
        // These say something, and stay.
        let bad = [
            Done { violations: text(), untried: text(), ..done("one server", "kill") },
            Done { risks: text(), ..done("one server", "server-kill") },
            Done { lost_without_fence: 0, ..done("one server", "pause") },
            Done { violations: text(), ..done("without persistence", "server-forgets") },
        ];
        for done in bad {
            assert!(done.complaint().is_some() && done.is_conclusive(), "{done:?}");
        }
        let good = [
            Done { risks: text(), ..done("without persistence", "server-forgets") },
            Done { risks: text(), ..done("cluster", "failover") },
        ];
        for done in good {
            assert_eq!(done.complaint(), None);
        }
    }

    /// Also of a selection that leaves out a whole group, as one of all stores leaves out the libraries.
    #[test]
    fn a_run_takes_the_place_of_its_own_row_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("runs.jsonl");
        let rows =
            [done("redsync", "mixed"), done("one server", "kill"), Done { seed: 2, ..done("one server", "kill") }];
        let mut runs = Runs::of(&path).expect("a new file");
        rows.iter().for_each(|row| runs.add(row.clone()).expect("written"));
        let mut runs = Runs::of(&path).expect("the file");
        let Ok(Command::Run(plain)) = crate::args::parse([]) else { panic!("no options") };
        let case = Case::named("redis", "one server", "kill").expect("a case");
        let row = Done { commit: "2e7675d".into(), ..rows[1].clone() };
        runs.add(row.clone()).expect("written");
        assert!(!runs.is_done(&case, 1, &plain, "2e7675d"), "all that is selected runs again");
        assert!(runs.is_done(&case, 1, &Options { resume: true, ..plain }, "2e7675d"));
        let kept = Runs::of(&path).expect("the file");
        assert_eq!(kept.all(), [rows[0].clone(), rows[2].clone(), row]);
    }

    #[test]
    fn the_last_run_of_a_seed_counts() {
        let mut all = Vec::new();
        replace(&mut all, Done { failed: Some("no server".into()), ..done("one server", "kill") });
        replace(&mut all, done("one server", "kill"));
        assert_eq!(all, [done("one server", "kill")]);
        let case = Case::named("redis", "one server", "kill").expect("a case");
        let built = |commit: &str| {
            let all = all.iter().cloned().map(|done| Done { commit: commit.to_owned(), ..done }).collect();
            Runs { all, file: None }
        };
        let runs = built("2e7675d");
        assert!(runs.has(&case, 1, 15, Some("2e7675d")));
        assert!(!runs.has(&case, 1, 16, Some("2e7675d")) && !runs.has(&case, 2, 15, Some("2e7675d")));
        assert!(!runs.has(&case, 1, 15, Some("405f931")), "another build");
        assert!(runs.has(&case, 1, 15, None), "any build");
        assert!(!built("2e7675d-dirty").has(&case, 1, 15, None));
        assert!(!built("2e7675d-dirty").has(&case, 1, 15, Some("2e7675d-dirty")), "no build that can be named again");
        assert!(!built("").has(&case, 1, 15, Some("")));
    }
}
