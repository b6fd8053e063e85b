//! Creates what a store needs before it can be used: the tables and procedures of an SQL store, and rights of a user.

use crate::url::IntoUrl;
use crate::{Error, ErrorKind, Result};

/// The user that a script names if neither the caller nor the URL does.
const ANY_USER: &str = "locks";

/// What an administrator runs to prepare the store behind `url`; `None` if there is nothing to do.
///
/// For an SQL store it is a script that creates the tables and procedures, and gives the user `grant` the rights that
/// locks need. For Redis, etcd and `ZooKeeper` it is the commands that give these rights to `grant`, or to the user of
/// the URL.
///
/// # Errors
/// [`ErrorKind::Config`] for an invalid URL, or if this build has no driver for it.
///
/// # Examples
/// ```
/// assert_eq!(oarlock::setup::script("mem:", None)?, None);
/// # Ok::<(), oarlock::Error>(())
/// ```
pub fn script(url: impl IntoUrl, grant: Option<&str>) -> Result<Option<String>> {
    let url = url.into_url()?;
    let store = url.store();
    if let Some(setup) = store.needs() {
        return Ok(Some((setup.script)(grant)));
    }
    let user = grant.or_else(|| url.user()).unwrap_or(ANY_USER);
    store.granted_by().map(|rights| rights(&url, user)).transpose()
}

/// Creates what the store behind `url` needs, and gives the user `grant` the rights that locks need; false if the store
/// needs nothing.
///
/// # Guarantees
/// What exists already stays as it is. Any number of processes may call this at once.
///
/// # Cancel safety
/// If the future is dropped, a part may have been created; the next call creates the rest.
///
/// # Errors
/// As [`connect`](crate::connect); [`ErrorKind::Unsupported`] for `grant` on a store whose rights only an administrator
/// can give, with the commands of [`script`].
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock::Result<()> {
/// assert!(!oarlock::setup::init("mem:", None).await?); // with postgres://… or mysql://… it is true
/// # Ok(()) }
/// ```
pub async fn init(url: impl IntoUrl, grant: Option<&str>) -> Result<bool> {
    let url = url.into_url()?;
    match url.store().needs() {
        Some(setup) => (setup.run)(url, grant.map(str::to_owned)).await.map(|()| true),
        None if grant.is_some() && url.store().granted_by().is_some() => {
            let message =
                "rights on this store are given with its own tools: `oarlock init --print` prints the commands";
            Err(Error::new(ErrorKind::Unsupported, message).on(url.scheme()))
        }
        None => Ok(false),
    }
}
