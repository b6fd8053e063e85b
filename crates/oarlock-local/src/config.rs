//! Where the store is.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use oarlock_core::{Error, ErrorKind, Result};

use crate::error::SCHEME;

/// Choices for a [`Local`](crate::Local) store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The directory. It is made if it is missing; everyone who shares its locks names the same one.
    pub dir: PathBuf,
    /// Whether the programs this process starts keep its locks alive after it has died, as with flock(1).
    pub inherit: bool,
    /// Whether everyone in the group of the directory shares its locks. Otherwise it belongs to one user, and a directory
    /// that others can write to is refused.
    pub group: bool,
}

impl Config {
    /// The store in this directory; locks end with this process.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), inherit: false, group: false }
    }
}

/// The directory of this user's locks: `$XDG_STATE_HOME/oarlock`, else `$HOME/.local/state/oarlock`.
///
/// # Errors
/// [`ErrorKind::Config`] if neither variable holds an absolute path.
pub fn default_dir() -> Result<PathBuf> {
    dir_from(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"))
}

/// Another directory of this user's locks, if there is one: that of programs that are started without `XDG_STATE_HOME`, as
/// from cron, where this program has it. Locks in the one exclude nothing in the other.
#[must_use]
pub fn other_default_dir() -> Option<PathBuf> {
    other_dir(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"))
}

fn other_dir(state_home: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let used = dir_from(state_home, home.clone()).ok()?;
    let other = dir_from(None, home).ok()?;
    let is_other = || Some(used.canonicalize().ok()? != other.canonicalize().ok()?);
    (other.join("state").is_dir() && is_other().unwrap_or(used != other)).then_some(other)
}

fn dir_from(state_home: Option<OsString>, home: Option<OsString>) -> Result<PathBuf> {
    // The XDG specification says that a relative path is to be ignored.
    let absolute = |path: OsString| Path::new(&path).is_absolute().then(|| PathBuf::from(path));
    if let Some(state) = state_home.and_then(absolute) {
        return Ok(state.join("oarlock"));
    }
    if let Some(home) = home.and_then(absolute) {
        return Ok(home.join(".local/state/oarlock"));
    }
    let message = "no home directory is known: set HOME, or name a directory with local:/path";
    Err(Error::new(ErrorKind::Config, message).on(SCHEME))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(state_home: Option<&str>, home: Option<&str>) -> Option<String> {
        let dir = dir_from(state_home.map(Into::into), home.map(Into::into)).ok()?;
        Some(dir.to_string_lossy().into_owned())
    }

    #[test]
    fn the_state_home_comes_before_the_home() {
        assert_eq!(dir(Some("/state"), Some("/home/a")).as_deref(), Some("/state/oarlock"));
        assert_eq!(dir(Some("state"), Some("/home/a")).as_deref(), Some("/home/a/.local/state/oarlock"));
        assert_eq!(dir(Some(""), Some("/home/a")).as_deref(), Some("/home/a/.local/state/oarlock"));
    }

    #[test]
    fn a_store_that_is_used_without_the_state_home_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let (home, state) = (dir.path().join("home"), dir.path().join("state"));
        let of = |state: &Path| other_dir(Some(state.into()), Some(home.clone().into()));
        let theirs = home.join(".local/state/oarlock");
        assert_eq!(of(&state), None, "there is none");
        std::fs::create_dir_all(theirs.join("state")).unwrap();
        assert_eq!(of(&state), Some(theirs.clone()));
        assert_eq!(of(&home.join(".local/state")), None, "it is the same");
        std::os::unix::fs::symlink(home.join(".local/state"), &state).unwrap();
        assert_eq!(of(&state), None, "it is the same by another name");
        assert_eq!(other_dir(None, Some(home.clone().into())), None);
    }

    #[test]
    fn without_a_home_the_error_says_what_to_do() {
        for home in [None, Some(""), Some("relative")] {
            assert_eq!(dir(None, home), None);
        }
        let error = dir_from(None, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("local:/path"), "{error}");
    }
}
