//! `cargo xtask release`: checks that this commit can be released, makes everything that is uploaded, and prints the
//! commands that publish it. It publishes nothing by itself.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context as _;
use serde_json::Value;

use crate::workspace::{Failure, Workspace};
use crate::{dist, package};

/// The Python package, a workspace of its own.
const PYTHON: &str = "python/Cargo.toml";

/// Everything that decides whether this commit can be released.
#[derive(Debug, Default)]
struct Candidate {
    /// The version of the first crate, which all others must have.
    version: String,
    /// What has a version: a crate or a dependency between two crates, and the version that it names.
    versions: Vec<(String, String)>,
    changelog: String,
    /// What `git status --porcelain` prints.
    changed: String,
    /// The tags of releases that this commit comes after, in any order.
    tags: Vec<String>,
    /// Whether any commit has the tag of this version.
    is_taken: bool,
}

/// Checks, packs, builds, and prints what is left to do.
///
/// # Errors
/// When the commit cannot be released: every reason at once. When a crate cannot be packed, breaks its API without a new
/// version, or something that users install does not build.
pub(crate) fn run(workspace: &Workspace) -> Result<(), Failure> {
    let candidate = Candidate::find(workspace)?;
    let faults = candidate.faults();
    if !faults.is_empty() {
        return Err(Failure::new(format!("this commit cannot be released:\n- {}", faults.join("\n- "))));
    }
    println!("release: {}, after {}", candidate.version, candidate.last_tag().map_or("none", |(tag, _)| tag));
    package::run(workspace)?;
    let dist = dist::run(workspace)?;
    println!("\n{}", next_steps(&candidate.version, &dist.folder));
    Ok(())
}

/// The commands that publish a release, in order.
fn next_steps(version: &str, folder: &Path) -> String {
    format!(
        "Nothing was published. The files for this machine are in {folder}: install one and try it. Then:

git tag --sign v{version} --message v{version}
git push origin v{version}                       # the workflow `release` makes a draft with the files of all machines
gh release download v{version} --dir release
gh attestation verify release/oarlock_{version}_amd64.deb --repo oarlock/oarlock
cargo publish --workspace --locked           # cannot be undone, and needs cargo 1.90
twine upload release/*.whl                   # cannot be undone
gh release edit v{version} --draft=false",
        folder = folder.display()
    )
}

impl Candidate {
    fn find(workspace: &Workspace) -> anyhow::Result<Self> {
        let versions = versions(workspace)?;
        let version = versions.first().map(|(_, version)| version.clone()).context("no crate is published")?;
        // A fix of an older version is released beside newer ones.
        let tags = git(workspace, &["tag", "--merged", "HEAD", "--list", "v*"])?.lines().map(str::to_owned).collect();
        let is_taken = !git(workspace, &["tag", "--list", &format!("v{version}")])?.is_empty();
        let changed = git(workspace, &["status", "--porcelain"])?;
        Ok(Self { version, versions, changelog: read(workspace, "CHANGELOG.md")?, changed, tags, is_taken })
    }

    /// Why it cannot be released.
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if !self.changed.is_empty() {
            faults.push(format!("files are changed or not committed:\n{}", self.changed.trim_end()));
        }
        for (what, version) in self.versions.iter().filter(|(_, version)| *version != self.version) {
            faults.push(format!("{what} has the version `{version}`, not {}", self.version));
        }
        faults.extend(changelog_fault(&self.changelog, &self.version));
        if self.is_taken {
            faults.push(format!("another commit was released as v{}", self.version));
        }
        match (numbers(&self.version), self.last_tag()) {
            (None, _) => faults.push(format!("the version `{}` is not of the form 1.2.3", self.version)),
            (Some(this), Some((tag, last))) if this <= last => {
                faults.push(format!("{} is not newer than the last release, {tag}", self.version));
            }
            _ => {}
        }
        faults
    }

    /// The newest release.
    fn last_tag(&self) -> Option<(&str, [u64; 3])> {
        let tags = self.tags.iter().filter_map(|tag| Some((tag.as_str(), numbers(tag.strip_prefix('v')?)?)));
        tags.max_by_key(|(_, version)| *version)
    }
}

/// Every version in the repository that a release sets.
fn versions(workspace: &Workspace) -> anyhow::Result<Vec<(String, String)>> {
    let mut versions: Vec<_> = package::published(workspace)?.iter().flat_map(versions_of).collect();
    let python: toml::Table = read(workspace, PYTHON)?.parse().with_context(|| format!("{PYTHON} is not TOML"))?;
    let python = python.get("package").and_then(|package| package.get("version")).and_then(toml::Value::as_str);
    versions.push((PYTHON.to_owned(), python.unwrap_or_default().to_owned()));
    Ok(versions)
}

fn read(workspace: &Workspace, file: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(workspace.root().join(file)).with_context(|| format!("cannot read {file}"))
}

/// The versions that a crate names: its own, and those of the crates here that it depends on when it is uploaded.
fn versions_of(each: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = text(&each["name"]);
    let dependencies = each["dependencies"].as_array().into_iter().flatten();
    let ours = dependencies.filter(|one| one["path"].is_string() && one["req"] != "*");
    let ours = ours.map(|one| {
        let version = text(&one["req"]);
        (format!("{name}: its dependency {}", text(&one["name"])), version.trim_start_matches('^').to_owned())
    });
    std::iter::once((name.clone(), text(&each["version"]))).chain(ours).collect()
}

/// What is wrong with the changelog for a release of `version`: the newest section must be of it, with a day and
/// entries, and none may be left under `Unreleased`.
fn changelog_fault(changelog: &str, version: &str) -> Option<String> {
    let mut sections =
        changelog.split("\n## ").skip(1).map(|section| section.split_once('\n').unwrap_or((section, "")));
    let has_entries = |text: &str| text.lines().any(|line| line.starts_with("- "));
    let mut newest = sections.next();
    if let Some((_, entries)) = newest.filter(|(heading, _)| *heading == "[Unreleased]") {
        if has_entries(entries) {
            return Some(format!("CHANGELOG.md has entries under [Unreleased]: move them under [{version}]"));
        }
        newest = sections.next();
    }
    let heading = format!("## [{version}] - YYYY-MM-DD");
    let Some((found, entries)) = newest else { return Some(format!("CHANGELOG.md lacks the heading `{heading}`")) };
    let day = found.strip_prefix(&format!("[{version}] - ")).unwrap_or_default();
    if !is_day(day) {
        return Some(format!("CHANGELOG.md has the heading `## {found}` where `{heading}` should be"));
    }
    (!has_entries(entries)).then(|| format!("CHANGELOG.md has no entry under [{version}]"))
}

/// Whether it looks like 2026-01-31.
fn is_day(text: &str) -> bool {
    let lengths = text.split('-').map(|part| part.bytes().all(|byte| byte.is_ascii_digit()).then_some(part.len()));
    lengths.eq([Some(4), Some(2), Some(2)])
}

/// The numbers of a version without a suffix.
fn numbers(version: &str) -> Option<[u64; 3]> {
    let parts: Option<Vec<u64>> = version.split('.').map(|part| part.parse().ok()).collect();
    parts?.try_into().ok()
}

/// What git answers.
fn git(workspace: &Workspace, arguments: &[&str]) -> anyhow::Result<String> {
    let mut git = Command::new("git");
    let output = git.args(arguments).current_dir(workspace.root()).stderr(Stdio::inherit()).output();
    let output = output.context("cannot start git")?;
    anyhow::ensure!(output.status.success(), "`git {}` failed", arguments.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGELOG: &str = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-12-01\n\n### Added\n\n- A lock.\n\n\
                             ## [0.1.0] - 2026-11-01\n\n- The first.\n";

    fn ready() -> Candidate {
        let versions = [("oarlock", "0.2.0"), (PYTHON, "0.2.0")].map(|(what, is)| (what.to_owned(), is.to_owned()));
        let tags = ["v0.1.0", "v0.1.10", "v0.1.9", "vendor"].map(str::to_owned).to_vec();
        Candidate {
            version: "0.2.0".to_owned(),
            versions: versions.to_vec(),
            changelog: CHANGELOG.to_owned(),
            changed: String::new(),
            tags,
            is_taken: false,
        }
    }

    #[test]
    fn a_commit_that_is_ready_has_no_fault() {
        assert_eq!(ready().faults(), Vec::<String>::new());
        assert_eq!(ready().last_tag(), Some(("v0.1.10", [0, 1, 10])));
        let first = Candidate { tags: Vec::new(), ..ready() };
        assert_eq!(first.faults(), Vec::<String>::new(), "the first release has no tag before it");
    }

    #[test]
    fn every_fault_is_named() {
        let other = vec![("oarlock".to_owned(), "0.2.0".to_owned()), (PYTHON.to_owned(), "0.1.0".to_owned())];
        let tagged = |tag: &str| Candidate { tags: vec![tag.to_owned()], ..ready() };
        let unreleased = CHANGELOG.replacen("\n## [0.2.0]", "\n- Something new.\n\n## [0.2.0]", 1);
        let changelog = |text: &str| Candidate { changelog: text.to_owned(), ..ready() };
        for (candidate, fault) in [
            (Candidate { changed: " M src/lib.rs\n".to_owned(), ..ready() }, "src/lib.rs"),
            (Candidate { versions: other, ..ready() }, "python/Cargo.toml has the version `0.1.0`"),
            (Candidate { is_taken: true, ..ready() }, "released as v0.2.0"),
            (tagged("v0.2.0"), "not newer than the last release, v0.2.0"),
            (tagged("v0.10.0"), "not newer than the last release, v0.10.0"),
            (changelog(&unreleased), "entries under [Unreleased]"),
            (changelog(&CHANGELOG.replacen("- A lock.\n", "", 1)), "no entry under [0.2.0]"),
            (changelog(&CHANGELOG.replacen("2026-12-01", "soon", 1)), "[0.2.0] - soon"),
            (changelog(&CHANGELOG.replacen("[0.2.0]", "[0.3.0]", 1)), "[0.3.0] - 2026-12-01"),
            (changelog("# Changelog\n\n## [Unreleased]\n"), "lacks the heading"),
        ] {
            let faults = candidate.faults();
            assert_eq!(faults.len(), 1, "{fault}: {faults:?}");
            assert!(faults[0].contains(fault), "{fault}: {faults:?}");
        }
        let suffix = "0.2.0-rc1".to_owned();
        let candidate =
            Candidate { versions: vec![("oarlock".to_owned(), suffix.clone())], version: suffix, ..ready() };
        assert!(candidate.faults().iter().any(|fault| fault.contains("not of the form")), "{:?}", candidate.faults());
    }

    #[test]
    fn a_crate_names_its_version_and_those_of_its_siblings() {
        let on = |name: &str, req: &str, path: Value| serde_json::json!({ "name": name, "req": req, "path": path });
        let (sibling, test) = (on("core", "^0.1.0", "/core".into()), on("testbed", "*", "/testbed".into()));
        let dependencies = [sibling, test, on("tokio", "^1.54", Value::Null)];
        let each = serde_json::json!({ "name": "oarlock", "version": "0.2.0", "dependencies": dependencies });
        let found = versions_of(&each);
        let found: Vec<_> = found.iter().map(|(what, version)| (what.as_str(), version.as_str())).collect();
        assert_eq!(found, [("oarlock", "0.2.0"), ("oarlock: its dependency core", "0.1.0")]);
    }

    #[test]
    fn versions_in_this_repository_agree() {
        let versions = versions(&Workspace::find().expect("the repository")).expect("its versions");
        let others: Vec<_> = versions.iter().filter(|(_, version)| *version != versions[0].1).collect();
        assert!(versions.len() > 20 && others.is_empty(), "{others:?}");
    }
}
