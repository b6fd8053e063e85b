//! Servers that Debian has in another suite than the one that is installed: unpacked with all their libraries under the folder of build
//! products, and not installed. The machine's packages and apt's own state stay as they are, and no right beyond that
//! folder is needed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::workspace::Workspace;

/// Where the tests look for servers, under the folder of build products.
pub(crate) const SERVERS: &str = "servers";

/// The suite that has the newest.
const SUITE: &str = "sid";

/// A server of such a suite.
#[derive(Debug)]
pub(crate) struct Server {
    /// Its folder.
    pub(crate) name: &'static str,
    package: &'static str,
    suite: &'static str,
    /// The program itself, in what is unpacked.
    program: &'static str,
}

impl Server {
    pub(crate) const fn new(name: &'static str, package: &'static str, program: &'static str) -> Self {
        Self { name, package, suite: SUITE, program }
    }

    /// The same package of another suite.
    pub(crate) const fn of(mut self, suite: &'static str) -> Self {
        self.suite = suite;
        self
    }

    /// Where it is unpacked.
    pub(crate) fn home(&self, workspace: &Workspace) -> PathBuf {
        workspace.target().join(SERVERS).join(self.name)
    }

    /// Unpacks it if it is not there, and says whether it was.
    ///
    /// # Errors
    /// When it cannot be had.
    pub(crate) fn unpack(&self, workspace: &Workspace) -> anyhow::Result<bool> {
        let home = self.home(workspace);
        let is_there = home.join(self.program).is_file();
        if !is_there {
            unpack_to(self, &home)?;
        }
        Ok(is_there)
    }
}

/// The other server behind `mysql:` URLs.
pub(crate) const MYSQL: Server = Server::new("mysql", "mysql-server-core", "usr/sbin/mysqld");

/// What Debian's own packages are signed with.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// What a server does not need to run: a third of what is unpacked.
const USELESS: [&str; 5] =
    ["usr/share/doc", "usr/share/man", "usr/share/perl", "usr/share/locale", "usr/share/lintian"];

/// How the folders begin in which it is unpacked; then follows the number of the process.
const UNPACKING: &str = "unpacking-";

/// Programs that the machine has apt run. They are about its own packages, of which these are none. All else that is
/// set there stays, such as a proxy.
const HOOKS: [&str; 8] = [
    "APT::Update::Pre-Invoke",
    "APT::Update::Post-Invoke",
    "APT::Update::Post-Invoke-Success",
    "APT::Update::Post-Invoke-Stats",
    "DPkg::Pre-Invoke",
    "DPkg::Post-Invoke",
    "DPkg::Pre-Install-Pkgs",
    "AptCli::Hooks",
];

/// Unpacks MySQL if it is not there. Where it cannot be had, that is said, and the tests that need it are skipped.
pub(super) fn unpack_mysql(workspace: &Workspace) {
    let state = match MYSQL.unpack(workspace) {
        Ok(true) => "there".to_owned(),
        Ok(false) => "unpacked".to_owned(),
        Err(error) => format!("skipped, and with it the tests that need it: {error:#}"),
    };
    println!("server mysql: {state} (the other server behind mysql: URLs)");
}

fn unpack_to(server: &Server, home: &Path) -> anyhow::Result<()> {
    let above = home.parent().context("no folder for it")?;
    forget_killed(above);
    let work = above.join(format!("{UNPACKING}{}", std::process::id()));
    let unpacked = unpack_in(server, &work, home);
    // Whatever came of it, nothing else needs this.
    let _ = fs::remove_dir_all(&work);
    unpacked
}

/// Removes what runs that were killed have left there.
fn forget_killed(above: &Path) {
    for entry in fs::read_dir(above).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(UNPACKING)?.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn unpack_in(server: &Server, work: &Path, home: &Path) -> anyhow::Result<()> {
    let root = work.join("root");
    for part in ["state/lists/partial", "cache/archives/partial", "root"] {
        fs::create_dir_all(work.join(part))?;
    }
    let listed = listed()?;
    let source = source(&listed).context("none of apt's sources is Debian's")?;
    let keys = if Path::new(KEYS).is_file() { format!("[signed-by={KEYS}] ") } else { String::new() };
    fs::write(work.join("sources.list"), format!("deb {keys}{source} {} main\n", server.suite))?;
    fs::write(work.join("apt.conf"), HOOKS.map(|hook| format!("#clear {hook};\n")).concat())?;
    run_quietly(apart(work).arg("update"))?;
    run_quietly(apart(work).args(["--download-only", "install", server.package]))?;
    for entry in fs::read_dir(work.join("cache/archives"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            run_quietly(Command::new("dpkg-deb").arg("-x").arg(&path).arg(&root))?;
        }
    }
    for folder in USELESS {
        let _ = fs::remove_dir_all(root.join(folder));
    }
    put(server, &root, home)
}

/// Moves what is unpacked to its place, unless another process was faster.
fn put(server: &Server, root: &Path, home: &Path) -> anyhow::Result<()> {
    let moved = fs::rename(root, home);
    if !home.join(server.program).is_file() {
        moved.with_context(|| format!("cannot replace {}", home.display()))?;
        bail!("{} has no {}", server.package, server.program);
    }
    Ok(())
}

/// `apt-get` with lists, packages and a state of its own, in which nothing is installed.
fn apart(work: &Path) -> Command {
    let mut command = super::apt_get();
    let folder = |part: &str| work.join(part).display().to_string();
    command.arg("-c").arg(work.join("apt.conf"));
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
        ("Acquire::Retries", "0".to_owned()),
        ("Acquire::Languages", "none".to_owned()),
        ("Acquire::http::Timeout", "10".to_owned()),
        ("Acquire::https::Timeout", "10".to_owned()),
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

/// Runs it. Its output is shown only if it fails.
pub(crate) fn run_quietly(command: &mut Command) -> anyhow::Result<String> {
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
    run_quietly(super::apt_get().args([
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
        let work = PathBuf::from("/unpacking");
        let command = apart(&work);
        let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
        for wanted in ["Dir::State=/unpacking/state", "Dir::State::status=/dev/null", "Dir::Cache=/unpacking/cache"] {
            assert!(args.iter().any(|arg| arg == wanted), "{wanted}: {args:?}");
        }
    }

    fn folder(test: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("oarlock-setup-{test}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        folder
    }

    #[test]
    fn half_a_server_in_its_place_is_told() {
        let above = folder("half");
        let (root, home) = (above.join("root"), above.join("home"));
        for part in [root.join("usr/sbin"), home.join("usr")] {
            fs::create_dir_all(part).expect("made");
        }
        fs::write(root.join(MYSQL.program), "").expect("written");
        assert!(put(&MYSQL, &root, &home).is_err(), "no program, but no error");
        fs::remove_dir_all(&home).expect("removed");
        assert!(put(&MYSQL, &root, &home).is_ok());
        // Another process was faster.
        fs::create_dir_all(&root).expect("made");
        assert!(put(&MYSQL, &root, &home).is_ok());
        fs::remove_dir_all(above).expect("removed");
    }

    #[test]
    fn what_a_killed_run_has_left_is_removed() {
        let above = folder("killed");
        // No process has so large a number.
        let (killed, alive) =
            (above.join("unpacking-4294967295"), above.join(format!("{UNPACKING}{}", std::process::id())));
        for work in [&killed, &alive] {
            fs::create_dir_all(work.join("root")).expect("made");
        }
        forget_killed(&above);
        assert_eq!((killed.exists(), alive.exists()), (false, true));
        fs::remove_dir_all(above).expect("removed");
    }

    #[test]
    fn why_it_failed_is_told() {
        let why =
            run_quietly(Command::new("sh").args(["-c", "echo E: no such suite >&2; exit 100"])).expect_err("it failed");
        assert_eq!(why.to_string(), "sh failed: E: no such suite");
    }
}
