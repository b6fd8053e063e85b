//! Breaks the safety rules on purpose, one at a time, in a copy of the tree, and sees to it that a test notices.
//!
//! A rule whose breaking no test notices is not tested. A mutant that no longer applies is a failure too: the table
//! must follow the code.

mod table;

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::workspace::{Failure, Workspace};
use table::Mutant;

/// Longer than any test of the table takes on a busy machine. A test that hangs has noticed.
const LONGEST: Duration = Duration::from_secs(300);

/// What became of one mutant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The test failed, as it must.
    Caught,
    /// The test did not end in time.
    Hung,
    /// The test passed although the rule was broken.
    Survived,
    /// It does not compile, and so proves nothing.
    DoesNotBuild,
    /// Its test fails with no rule broken, and so proves nothing.
    AlwaysRed,
}

impl Verdict {
    fn shown(self) -> &'static str {
        match self {
            Self::Caught => "caught",
            Self::Hung => "caught (hung)",
            Self::Survived => "SURVIVED",
            Self::DoesNotBuild => "DOES NOT BUILD",
            Self::AlwaysRed => "TEST ALWAYS RED",
        }
    }

    fn is_caught(self) -> bool {
        matches!(self, Self::Caught | Self::Hung)
    }
}

/// Runs the mutants whose names are given, or all.
pub(crate) fn run(workspace: &Workspace, only: &[String]) -> Result<(), Failure> {
    if let [flag] = only
        && flag == "--table"
    {
        let changed = table::write_page(workspace.root())?;
        println!("the table of the track record {}", if changed { "was written anew" } else { "is up to date" });
        return Ok(());
    }
    let mutants = table::read(workspace.root())?;
    for name in only {
        if !mutants.iter().any(|mutant| mutant.name == *name) {
            return Err(Failure::new(format!("there is no mutant `{name}`")));
        }
    }
    let folder = workspace.root().join("target/mutants");
    let tree = folder.join("tree");
    let chosen: Vec<_> = mutants.iter().filter(|mutant| only.is_empty() || only.contains(&mutant.name)).collect();
    copy_tree(workspace, &tree)?;
    let red = red_tests(workspace, &chosen, &tree, &folder)?;
    let mut failed = Vec::new();
    for mutant in chosen {
        let begun = Instant::now();
        let verdict = if red.contains(&mutant.test.as_str()) {
            Verdict::AlwaysRed
        } else {
            copy_tree(workspace, &tree)?;
            try_mutant(workspace, mutant, &tree, &folder)?
        };
        let seconds = begun.elapsed().as_secs();
        println!("{:<15} {seconds:>4} s  {:<36} {}", verdict.shown(), mutant.name, mutant.rule);
        if !verdict.is_caught() {
            failed.push(mutant.name.as_str());
        }
    }
    copy_tree(workspace, &tree)?;
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!("no test noticed: {}", failed.join(", "))))
}

/// A test that fails anyway catches nothing: the tests that fail while no rule is broken.
fn red_tests<'a>(
    workspace: &Workspace,
    chosen: &[&'a Mutant],
    tree: &Path,
    folder: &Path,
) -> anyhow::Result<Vec<&'a str>> {
    let mut tests: Vec<&str> = chosen.iter().map(|mutant| mutant.test.as_str()).collect();
    tests.sort_unstable();
    tests.dedup();
    let mut red = Vec::new();
    for (number, test) in tests.iter().enumerate() {
        let begun = Instant::now();
        let mut build = test_command(workspace, test, tree, folder);
        build.arg("--no-run");
        let built = build.status()?.success();
        let passed = built && run_bounded(&mut test_command(workspace, test, tree, folder))? == Some(true);
        let verdict = if passed { "passes" } else { "RED" };
        println!("{verdict:<15} {:>4} s  {}/{} {}", begun.elapsed().as_secs(), number + 1, tests.len(), test);
        if !passed {
            red.push(*test);
        }
    }
    Ok(red)
}

/// Applies one mutant and runs its test.
fn try_mutant(workspace: &Workspace, mutant: &Mutant, tree: &Path, folder: &Path) -> anyhow::Result<Verdict> {
    let path = tree.join(&mutant.file);
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", mutant.file.display()))?;
    std::fs::write(&path, replace_once(&text, mutant)?)?;
    let mut build = test_command(workspace, &mutant.test, tree, folder);
    build.arg("--no-run");
    if !build.status()?.success() {
        return Ok(Verdict::DoesNotBuild);
    }
    Ok(match run_bounded(&mut test_command(workspace, &mutant.test, tree, folder))? {
        Some(true) => Verdict::Survived,
        Some(false) => Verdict::Caught,
        None => Verdict::Hung,
    })
}

/// Whether `command` succeeded; `None` if it took too long and was killed, with its children.
fn run_bounded(command: &mut Command) -> anyhow::Result<Option<bool>> {
    let mut child = command.process_group(0).spawn()?;
    let end = Instant::now() + LONGEST;
    while Instant::now() < end {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.success()));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Command::new("kill").args(["-9", "--", &format!("-{}", child.id())]).status()?;
    child.wait()?;
    Ok(None)
}

fn test_command(workspace: &Workspace, test: &str, tree: &Path, folder: &Path) -> Command {
    let mut command = workspace.cargo(["test", "--quiet", "--locked"]);
    command.args(test.split_whitespace()).current_dir(tree).env("CARGO_TARGET_DIR", folder.join("build"));
    // One file changes from build to build.
    command.env("CARGO_INCREMENTAL", "1");
    // The output of a test that is meant to fail would only frighten the reader.
    command.env("RUSTFLAGS", "-Awarnings").env("OARLOCK_SEEDS", "3000").env("RUST_BACKTRACE", "0");
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn replace_once(text: &str, mutant: &Mutant) -> anyhow::Result<String> {
    match text.matches(&mutant.from).count() {
        1 => Ok(text.replacen(&mutant.from, &mutant.to, 1)),
        count => {
            let (name, file) = (&mutant.name, mutant.file.display());
            bail!("the mutant {name} no longer applies: its text stands {count} times in {file}")
        }
    }
}

/// Brings the copy up to date, touching only what differs so that little is built again.
fn copy_tree(workspace: &Workspace, tree: &Path) -> anyhow::Result<()> {
    let listing = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(workspace.root())
        .output()?;
    let names = String::from_utf8(listing.stdout).context("a file name is not UTF-8")?;
    for name in names.split('\0').filter(|name| !name.is_empty()) {
        let (from, to): (PathBuf, PathBuf) = (workspace.root().join(name), tree.join(name));
        let Ok(content) = std::fs::read(&from) else { continue };
        if std::fs::read(&to).is_ok_and(|copy| copy == content) {
            continue;
        }
        if let Some(parent) = to.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(&to, content).with_context(|| format!("cannot copy {name}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
    }

    #[test]
    fn every_mutant_applies_to_this_tree() {
        let mutants = table::read(root()).unwrap();
        assert!(mutants.len() > 200, "only {} mutants were found", mutants.len());
        for mutant in &mutants {
            let text = std::fs::read_to_string(root().join(&mutant.file)).unwrap();
            let changed = replace_once(&text, mutant).unwrap();
            assert_ne!(changed, text, "{}", mutant.name);
        }
    }

    #[test]
    fn names_are_unique() {
        let mutants = table::read(root()).unwrap();
        let mut names: Vec<_> = mutants.iter().map(|mutant| &mutant.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), mutants.len());
    }

    #[test]
    fn the_track_record_lists_every_mutant() {
        let (page, wanted) = table::page(root()).unwrap();
        assert!(page == wanted, "run `cargo xtask mutants --table` and commit what it writes");
    }
}
