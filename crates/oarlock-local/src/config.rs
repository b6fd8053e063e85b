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
}

impl Config {
    /// The store in this directory; locks end with this process.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), inherit: false }
    }
}

/// The directory of this user's locks: `$XDG_STATE_HOME/oarlock`, else `$HOME/.local/state/oarlock`.
///
/// # Errors
/// [`ErrorKind::Config`] if neither variable holds an absolute path.
pub fn default_dir() -> Result<PathBuf> {
    dir_from(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"))
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
    fn without_a_home_the_error_says_what_to_do() {
        for home in [None, Some(""), Some("relative")] {
            assert_eq!(dir(None, home), None);
        }
        let error = dir_from(None, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("local:/path"), "{error}");
    }
}
