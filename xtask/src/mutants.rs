//! Breaks the safety rules on purpose, one at a time, in a copy of the tree, and sees to it that a test notices.
//!
//! A rule whose breaking nobody notices is not tested. A mutant that no longer applies is a failure too: the table
//! must follow the code.

mod table;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use crate::workspace::{Failure, Workspace, shown};

/// One rule, one way to break it, and who should notice.
pub(crate) struct Mutant {
    /// A short name, for `--only`.
    pub(crate) name: &'static str,
    /// The rule that is broken.
    pub(crate) rule: &'static str,
    /// The file, from the root.
    pub(crate) file: &'static str,
    /// Text that stands in it exactly once …
    pub(crate) from: &'static str,
    /// … and what takes its place.
    pub(crate) to: &'static str,
    /// The arguments of `cargo test` that must fail then.
    pub(crate) test: &'static [&'static str],
}

/// Runs the mutants whose names are given, or all.
pub(crate) fn run(workspace: &Workspace, only: &[String]) -> Result<(), Failure> {
    for name in only {
        if !table::MUTANTS.iter().any(|mutant| mutant.name == *name) {
            return Err(Failure::new(format!("there is no mutant `{name}`")));
        }
    }
    let folder = workspace.root().join("target/mutants");
    let tree = folder.join("tree");
    let chosen: Vec<_> =
        table::MUTANTS.iter().filter(|mutant| only.is_empty() || only.iter().any(|n| n == mutant.name)).collect();
    copy_tree(workspace, &tree)?;
    check_healthy(workspace, &chosen, &tree, &folder)?;
    let mut survivors = Vec::new();
    for mutant in chosen {
        copy_tree(workspace, &tree)?;
        let caught = try_mutant(workspace, mutant, &tree, &folder)?;
        println!("{:<9} {:<28} {}", if caught { "caught" } else { "SURVIVED" }, mutant.name, mutant.rule);
        if !caught {
            survivors.push(mutant.name);
        }
    }
    copy_tree(workspace, &tree)?;
    if survivors.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!("nobody noticed: {}", survivors.join(", "))))
}

/// A test that fails anyway catches nothing: each must pass while no rule is broken.
fn check_healthy(workspace: &Workspace, chosen: &[&Mutant], tree: &Path, folder: &Path) -> anyhow::Result<()> {
    let mut seen: Vec<&[&str]> = Vec::new();
    for mutant in chosen {
        if seen.contains(&mutant.test) {
            continue;
        }
        seen.push(mutant.test);
        let mut command = test_command(workspace, mutant, tree, folder);
        if !command.status()?.success() {
            bail!("this fails with no rule broken: {}", shown(&command));
        }
    }
    Ok(())
}

/// Applies one mutant and runs its test. A mutant that does not compile proves nothing, and is an error.
fn try_mutant(workspace: &Workspace, mutant: &Mutant, tree: &Path, folder: &Path) -> anyhow::Result<bool> {
    let path = tree.join(mutant.file);
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", mutant.file))?;
    std::fs::write(&path, replace_once(&text, mutant)?)?;
    let mut build = test_command(workspace, mutant, tree, folder);
    build.arg("--no-run");
    if !build.status()?.success() {
        bail!("the mutant {} does not compile: {}", mutant.name, shown(&build));
    }
    let status = test_command(workspace, mutant, tree, folder).status()?;
    Ok(!status.success())
}

fn test_command(workspace: &Workspace, mutant: &Mutant, tree: &Path, folder: &Path) -> Command {
    let mut command = workspace.cargo(["test", "--quiet", "--locked"]);
    command.args(mutant.test).current_dir(tree).env("CARGO_TARGET_DIR", folder.join("build"));
    // The output of a test that is meant to fail would only frighten the reader.
    command.env("RUSTFLAGS", "-Awarnings").env("OARLOCK_SEEDS", "3000").env("RUST_BACKTRACE", "0");
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn replace_once(text: &str, mutant: &Mutant) -> anyhow::Result<String> {
    match text.matches(mutant.from).count() {
        1 => Ok(text.replacen(mutant.from, mutant.to, 1)),
        count => {
            bail!("the mutant {} no longer applies: its text stands {count} times in {}", mutant.name, mutant.file)
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

    #[test]
    fn every_mutant_applies_to_this_tree() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for mutant in table::MUTANTS {
            let text = std::fs::read_to_string(root.join(mutant.file)).unwrap();
            let changed = replace_once(&text, mutant).unwrap();
            assert_ne!(changed, text, "{}", mutant.name);
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = table::MUTANTS.iter().map(|mutant| mutant.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), table::MUTANTS.len());
    }
}
