//! When a server is not installed: a reason to skip a test, or to fail it.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// A server that is not installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The server, by the name that `OARLOCK_REQUIRE` knows.
    pub server: &'static str,
    /// The file that was not found.
    pub file: &'static str,
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is not installed: there is no {} (`cargo xtask setup` installs it)", self.server, self.file)
    }
}

impl std::error::Error for Missing {}

/// Prints that a test is skipped, if the reason is a missing server that is not required.
///
/// # Errors
/// Every other error as it is, and this one too when the server must be there.
pub(super) fn skip(error: anyhow::Error) -> anyhow::Result<()> {
    let Some(missing) = error.downcast_ref::<Missing>() else {
        return Err(error);
    };
    if is_required(missing.server, std::env::var_os("CI"), std::env::var("OARLOCK_REQUIRE").ok().as_deref()) {
        return Err(error.context("CI is set, or OARLOCK_REQUIRE lists it: this test must not be skipped"));
    }
    // What `eprintln!` prints is hidden when the test passes, and a test that is skipped passes.
    writeln!(io::stderr(), "skipped: {missing}")?;
    Ok(())
}

fn is_required(server: &str, ci: Option<OsString>, required: Option<&str>) -> bool {
    let is_ci = ci.is_some_and(|value| !["", "0", "false"].iter().any(|no| value == *no));
    let mut listed = required.unwrap_or_default().split([',', ' ']);
    is_ci || listed.any(|name| name == server || name == "all")
}

/// The program of a newer server, as `cargo xtask test --only versions=…` unpacks it under the folder of build products,
/// behind a script that starts it with its libraries.
#[must_use]
pub fn newer(server: &str, file: &str) -> Option<PathBuf> {
    newer_above(&std::env::current_exe().ok()?, server, file)
}

fn newer_above(place: &Path, server: &str, file: &str) -> Option<PathBuf> {
    let mut programs = place.ancestors().map(|folder| folder.join("servers").join(server).join("usr/bin").join(file));
    // Without the script its libraries are those of the machine, which are older.
    programs.find(|program| std::fs::read(program).is_ok_and(|text| text.starts_with(b"#!")))
}

/// Finds a program as a shell would, then in these folders.
pub(super) fn find(server: &'static str, file: &'static str, folders: &[PathBuf]) -> Result<PathBuf, Missing> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(folders.iter().cloned())
        .map(|folder| folder.join(file))
        .find(|candidate| candidate.is_file())
        .ok_or(Missing { server, file })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_required_by_ci_or_by_name() {
        let ci = |value: &str| Some(OsString::from(value));
        assert!(!is_required("redis", None, None));
        assert!(is_required("redis", ci("true"), None));
        assert!(!is_required("redis", ci(""), None));
        assert!(!is_required("redis", ci("false"), None));
        assert!(is_required("redis", None, Some("etcd,redis")));
        assert!(is_required("redis", None, Some("etcd redis")));
        assert!(is_required("redis", None, Some("all")));
        assert!(!is_required("redis", None, Some("etcd,rediss")));
    }

    #[test]
    fn a_newer_server_is_behind_a_script() {
        let target = tempfile::tempdir().expect("a folder");
        let (folder, here) = (target.path().join("servers/redis/usr/bin"), target.path().join("debug/deps/test"));
        std::fs::create_dir_all(&folder).expect("made");
        let (found, program) = (|| newer_above(&here, "redis", "redis-server"), folder.join("redis-server"));
        assert_eq!(found(), None);
        std::fs::write(&program, "\x7fELF").expect("written");
        assert_eq!(found(), None, "it is not wrapped yet");
        std::fs::write(&program, "#!/bin/sh\n").expect("written");
        assert_eq!(found(), Some(program));
    }

    #[test]
    fn what_is_missing_is_named() {
        let missing = find("etcd", "no-such-program", &[]).expect_err("not there");
        let message = missing.to_string();
        assert!(message.contains("etcd") && message.contains("no-such-program"), "{message}");
        assert!(skip(anyhow::anyhow!("it did not start")).is_err());
    }

    #[test]
    fn a_program_is_found_in_its_own_folder() {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src");
        assert_eq!(find("etcd", "lib.rs", std::slice::from_ref(&folder)), Ok(folder.join("lib.rs")));
    }
}
