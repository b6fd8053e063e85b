//! Creates what a store needs before it can be used: the tables and procedures of an SQL store.

use std::path::PathBuf;

use crate::Result;
use crate::url::Url;

/// The script that creates what the store behind `url` needs, with the rights that locks need for the user `grant`; `None` if
/// the store needs nothing.
#[must_use]
pub fn script(url: &Url, grant: Option<&str>) -> Option<String> {
    url.store().needs().map(|setup| (setup.script)(grant))
}

/// Creates what the store behind `url` needs, and gives the user `grant` the rights that locks need; false if the store needs
/// nothing.
///
/// # Guarantees
/// What exists already stays as it is. Any number of processes may call this at once.
///
/// # Errors
/// As [`connect`](crate::connect).
pub async fn init(url: Url, grant: Option<String>) -> Result<bool> {
    match url.store().needs() {
        Some(setup) => (setup.run)(url, grant).await.map(|()| true),
        None => Ok(false),
    }
}

/// The directory that `local:` means for this process, if there is one.
#[doc(hidden)]
#[must_use]
pub fn local_dir() -> Option<PathBuf> {
    #[cfg(feature = "local")]
    return oarlock_local::default_dir().ok();
    #[cfg(not(feature = "local"))]
    None
}

/// Another directory of this user's embedded store, which programs use that are started without `XDG_STATE_HOME`, as from
/// cron. Locks in one directory exclude nothing in the other.
#[doc(hidden)]
#[must_use]
pub fn other_local_dir() -> Option<PathBuf> {
    #[cfg(feature = "local")]
    return oarlock_local::other_default_dir();
    #[cfg(not(feature = "local"))]
    None
}
