//! The directory of the store and its options.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use oarlock_core::url::{Opt, PathParts, Scheme, Store, Url, Value};
use oarlock_core::{Error, ErrorKind, Result};

use crate::Local;
use crate::doctor::DOCTOR;
use crate::error::SCHEME;
use crate::guarantees::GUARANTEES;

/// The embedded store and its scheme `local:`.
pub static STORE: Store = Store::new(
    "local",
    &[Scheme::new(SCHEME, "the embedded store").path(directory).options(&[Opt::new("group", Value::YES_OR_NO, "no")])],
    |url| Box::pin(async move { Ok(Arc::new(Local::open(Config::from_url(&url)?).await?) as _) }),
)
.guarantees(GUARANTEES)
.doctor(DOCTOR);

fn directory(scheme: &str, path: &str) -> Result<PathParts> {
    let shown = match path {
        "" => "the state directory of this user",
        path if path.starts_with('/') => path,
        _ => {
            let message = format!("the directory of {scheme}: must be an absolute path, as in local:/var/lib/oarlock");
            return Err(Error::new(ErrorKind::Config, message));
        }
    };
    Ok(vec![("directory", shown.to_owned())])
}

/// Options of a [`Local`](crate::Local) store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The directory; created if it is missing. Processes that share locks use the same one.
    pub dir: PathBuf,
    /// Whether programs that this process starts keep its locks alive after its death, as with flock(1).
    pub inherit: bool,
    /// Whether the group of the directory shares its locks. Otherwise the directory belongs to one user, and one that
    /// other users can write to is refused.
    pub group: bool,
}

impl Config {
    /// A store in this directory. Its locks end with this process.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), inherit: false, group: false }
    }

    /// The store that a `local:` URL names.
    ///
    /// # Errors
    /// As [`default_dir`], if the URL names no directory.
    pub fn from_url(url: &Url) -> Result<Self> {
        let mut dir = match url.path() {
            "" => default_dir()?,
            path => path.into(),
        };
        if !url.prefix().is_empty() {
            // Each prefix is a store of its own.
            dir.push(format!("prefix-{}", url.prefix().replace('%', "%25").replace('/', "%2F")));
        }
        Ok(Self { dir: canonical(dir), inherit: url.inherits_session(), group: url.is_yes("group") })
    }
}

/// One path for one directory, whichever links lead to it. Components that do not exist yet stay as written.
fn canonical(dir: PathBuf) -> PathBuf {
    let found = dir.ancestors().find_map(|way| Some((way.canonicalize().ok()?, dir.strip_prefix(way).ok()?)));
    match found {
        // `..` below a directory that does not exist yet cannot be resolved.
        Some((real, rest)) if !rest.components().any(|part| part == Component::ParentDir) => {
            real.components().chain(rest.components()).collect()
        }
        _ => dir,
    }
}

/// The directory of this user's locks: `$XDG_STATE_HOME/oarlock`, else `$HOME/.local/state/oarlock`.
///
/// # Errors
/// [`ErrorKind::Config`] if neither variable is an absolute path.
pub fn default_dir() -> Result<PathBuf> {
    dir_from(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"))
}

/// The other default directory of this user's locks, if both exist: programs that are started without `XDG_STATE_HOME`,
/// as from cron, use `$HOME/.local/state/oarlock`. A lock in one directory does not exclude a lock in the other.
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
    let message = "no home directory: set HOME, or use a URL with a directory, local:/path";
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
