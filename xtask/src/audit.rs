//! The part `audit`: `cargo deny` and `cargo audit` over every lock file.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;

use crate::tools;
use crate::workspace::{Failure, Workspace, stream};

/// The lock files: each is a workspace of its own.
const WORKSPACES: [&str; 3] = [".", "python", "interop/sql"];

/// Names a folder with a clone of the advisories, for machines that cannot reach them.
const COPY: &str = "OARLOCK_ADVISORIES";

/// Where the advisories are.
const ADVISORIES: &str = "https://github.com/RustSec/advisory-db";

/// The subcommands of cargo, by their versions.
const TOOLS: [(&str, &str); 2] = [("cargo-deny", "0.20"), ("cargo-audit", "0.22")];

/// Checks licences, sources, duplicates and advisories of everything that is depended on.
///
/// # Errors
/// When a rule is broken, or a tool cannot be had. Where `CI` is set, also when the advisories cannot.
pub(crate) fn run(workspace: &Workspace) -> Result<(), Failure> {
    let [deny_program, audit_program] = TOOLS.map(|(tool, version)| tools::installed(workspace, tool, version));
    let (deny_program, audit_program) = (deny_program?, audit_program?);
    let copy = advisories(workspace)?;
    if let Some(copy) = &copy {
        println!("advisories: the copy in {}, of {}", copy.display(), age(copy));
    }
    let config = config(workspace, copy.as_deref())?;
    for folder in WORKSPACES {
        let folder = workspace.root().join(folder);
        let mut deny = Command::new(&deny_program);
        deny.arg("--manifest-path")
            .arg(folder.join("Cargo.toml"))
            .args(["--locked", "--config"])
            .arg(&config)
            .arg("check");
        match &copy {
            Some(copy) => from_copy(&mut deny, copy)?,
            None => _ = deny.args(["bans", "licenses", "sources"]),
        }
        stream(deny.current_dir(workspace.root()))?;
        let Some(copy) = &copy else { continue };
        let mut audit = Command::new(&audit_program);
        audit.args(["audit", "--no-fetch", "--stale", "--db"]).arg(copy).arg("--file").arg(folder.join("Cargo.lock"));
        stream(audit.args(ignored(workspace)?).current_dir(workspace.root()))?;
    }
    if copy.is_none() {
        let why = format!("the advisories were not checked: {ADVISORIES} cannot be reached, and {COPY} names no clone");
        println!("{why}");
        if std::env::var_os("CI").is_some() {
            return Err(Failure::new(why));
        }
    }
    Ok(())
}

/// A clone of the advisories: that which the environment names, or a new one.
fn advisories(workspace: &Workspace) -> anyhow::Result<Option<PathBuf>> {
    if let Some(copy) = std::env::var_os(COPY) {
        return Ok(Some(PathBuf::from(copy)));
    }
    let clone = workspace.target().join("advisories");
    let mut git = Command::new("git");
    if clone.join(".git").is_dir() {
        git.arg("-C").arg(&clone).args(["pull", "--quiet", "--ff-only"]);
    } else {
        git.args(["clone", "--quiet", "--depth", "1", ADVISORIES]).arg(&clone);
    }
    let fetched = git.env("GIT_TERMINAL_PROMPT", "0").stderr(Stdio::null()).status().context("cannot start git")?;
    Ok((fetched.success() || clone.join(".git").is_dir()).then_some(clone))
}

/// When the newest advisory in a clone was written.
fn age(clone: &Path) -> String {
    let log = Command::new("git").arg("-C").arg(clone).args(["log", "-1", "--format=%cs"]).output();
    log.map_or_else(|_| "an unknown day".to_owned(), |log| String::from_utf8_lossy(&log.stdout).trim().to_owned())
}

/// `deny.toml`, with a cache of its own for the advisories, which git fetches from the clone.
fn config(workspace: &Workspace, copy: Option<&Path>) -> anyhow::Result<PathBuf> {
    let rules = workspace.root().join("deny.toml");
    if copy.is_none() {
        return Ok(rules);
    }
    let text = std::fs::read_to_string(&rules).context("cannot read deny.toml")?;
    let cache = workspace.target().join("advisories-of-deny");
    let more = format!("[advisories]\ngit-fetch-with-cli = true\ndb-path = {:?}\n", cache.display().to_string());
    let path = workspace.target().join("deny.toml");
    std::fs::write(&path, text.replacen("[advisories]\n", &more, 1)).context("cannot write the rules")?;
    Ok(path)
}

/// Lets git fetch the advisories from the clone.
fn from_copy(command: &mut Command, copy: &Path) -> anyhow::Result<()> {
    let here = std::fs::canonicalize(copy).with_context(|| format!("cannot find {}", copy.display()))?;
    command.env("GIT_CONFIG_COUNT", "1").env("GIT_CONFIG_VALUE_0", ADVISORIES);
    command.env("GIT_CONFIG_KEY_0", format!("url.file://{}.insteadOf", here.display()));
    Ok(())
}

/// The advisories that `deny.toml` ignores, for the other tool.
fn ignored(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    #[derive(serde::Deserialize)]
    struct Rules {
        advisories: Advisories,
    }
    #[derive(serde::Deserialize)]
    struct Advisories {
        ignore: Vec<Ignored>,
    }
    #[derive(serde::Deserialize)]
    struct Ignored {
        id: String,
    }
    let text = std::fs::read_to_string(workspace.root().join("deny.toml")).context("cannot read deny.toml")?;
    let rules: Rules = toml::from_str(&text).context("deny.toml is not as expected")?;
    Ok(rules.advisories.ignore.into_iter().flat_map(|ignored| ["--ignore".to_owned(), ignored.id]).collect())
}
