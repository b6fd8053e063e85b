//! MySQL, which Debian has in its unstable suite alone: unpacked with all its libraries under the folder of build products, and not
//! installed. The machine's packages and apt's own state stay as they are, and no right beyond that folder is needed.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::workspace::Workspace;

/// Where the tests look for it, under the folder of build products.
const HOME: &str = "servers/mysql";

/// The suite that has it, and its package there.
const SUITE: &str = "sid";
const PACKAGE: &str = "mysql-server-core";

/// What Debian's own packages are signed with.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// What a server does not need to run: a third of what is unpacked.
const USELESS: [&str; 5] =
    ["usr/share/doc", "usr/share/man", "usr/share/perl", "usr/share/locale", "usr/share/lintian"];

/// Unpacks it if it is not there. Where it cannot be had, that is said, and the tests that need it are skipped.
pub(super) fn unpack(workspace: &Workspace) {
    let home = workspace.target().join(HOME);
    let state = if home.join("usr/sbin/mysqld").is_file() {
        "there".to_owned()
    } else {
        match unpack_to(&home) {
            Ok(()) => "unpacked".to_owned(),
            Err(error) => format!("skipped, and with it the tests that need it: {error:#}"),
        }
    };
    println!("server mysql: {state} (the other server behind mysql: URLs)");
}

fn unpack_to(home: &Path) -> anyhow::Result<()> {
    let above = home.parent().context("no folder for it")?;
    let work = above.join(format!("unpacking-{}", std::process::id()));
    let unpacked = unpack_in(&work, home);
    // Whatever came of it, nothing else needs this.
    let _ = fs::remove_dir_all(&work);
    unpacked
}

fn unpack_in(work: &Path, home: &Path) -> anyhow::Result<()> {
    let root = work.join("root");
    for part in ["state/lists/partial", "cache/archives/partial", "root"] {
        fs::create_dir_all(work.join(part))?;
    }
    let listed = listed()?;
    let source = source(&listed).context("none of apt's sources is Debian's")?;
    let keys = if Path::new(KEYS).is_file() { format!("[signed-by={KEYS}] ") } else { String::new() };
    fs::write(work.join("sources.list"), format!("deb {keys}{source} {SUITE} main\n"))?;
    told(apart(work).arg("update"))?;
    told(apart(work).args(["--download-only", "install", PACKAGE]))?;
    for entry in fs::read_dir(work.join("cache/archives"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            told(Command::new("dpkg-deb").arg("-x").arg(&path).arg(&root))?;
        }
    }
    for folder in USELESS {
        let _ = fs::remove_dir_all(root.join(folder));
    }
    match fs::rename(&root, home) {
        Err(error) if !home.is_dir() => Err(error.into()),
        // Another was faster.
        _ => Ok(()),
    }
}

/// `apt-get` with lists, packages and a state of its own, in which nothing is installed.
fn apart(work: &Path) -> Command {
    let mut command = super::apt_get();
    let folder = |part: &str| work.join(part).display().to_string();
    for (name, value) in [
        ("Dir::Etc::sourcelist", folder("sources.list")),
        ("Dir::Etc::sourceparts", "/dev/null".to_owned()),
        ("Dir::Etc::preferences", "/dev/null".to_owned()),
        ("Dir::Etc::preferencesparts", "/dev/null".to_owned()),
        ("Dir::State", folder("state")),
        ("Dir::State::lists", folder("state/lists")),
        ("Dir::State::status", "/dev/null".to_owned()),
        ("Dir::Cache", folder("cache")),
        ("Dir::Cache::archives", folder("cache/archives/")),
        ("Debug::NoLocking", "1".to_owned()),
        ("Acquire::Languages", "none".to_owned()),
        ("Acquire::http::Timeout", "20".to_owned()),
        ("Acquire::https::Timeout", "20".to_owned()),
        // The user that apt downloads as otherwise may have no way to the folder.
        ("APT::Sandbox::User", "root".to_owned()),
        ("APT::Keep-Downloaded-Packages", "1".to_owned()),
        // A list that is missing is a failure, not a warning.
        ("APT::Update::Error-Mode", "any".to_owned()),
    ] {
        command.arg("-o").arg(format!("{name}={value}"));
    }
    command.args(["-qq", "-y", "--no-install-recommends"]);
    command
}

/// Runs it; what it says is told only if it fails.
fn told(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command.output().with_context(|| format!("cannot start {name}"))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        bail!("{name} failed: {}", said.trim().lines().next_back().unwrap_or("it does not say why"));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// The machine's own sources of packages, one address a line.
fn listed() -> anyhow::Result<String> {
    told(super::apt_get().args([
        "indextargets",
        "--no-release-info",
        "--format",
        "$(REPO_URI)",
        "Created-By: Packages",
    ]))
}

/// That of Debian's main archive among them: security updates come from another, and have no such suite.
fn source(listed: &str) -> Option<&str> {
    listed.lines().map(str::trim).find(|address| address.trim_end_matches('/').ends_with("/debian"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn debian_is_found_among_other_sources() {
        let listed =
            "https://packages.example/apt/\nhttp://mirror.example/debian-security/\nhttp://mirror.example/debian/\n";
        assert_eq!(source(listed), Some("http://mirror.example/debian/"));
        assert_eq!(source("http://mirror.example/ubuntu/\n"), None);
    }

    #[test]
    fn apt_is_kept_away_from_what_is_installed() {
        let work = PathBuf::from("/work");
        let command = apart(&work);
        let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
        for wanted in ["Dir::State=/work/state", "Dir::State::status=/dev/null", "Dir::Cache=/work/cache"] {
            assert!(args.iter().any(|arg| arg == wanted), "{wanted}: {args:?}");
        }
    }

    #[test]
    fn why_it_failed_is_told() {
        let why = told(Command::new("sh").args(["-c", "echo E: no such suite >&2; exit 100"])).expect_err("it failed");
        assert_eq!(why.to_string(), "sh failed: E: no such suite");
    }
}
