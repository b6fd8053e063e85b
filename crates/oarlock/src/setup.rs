//! Creates what a store needs before it can be used: the tables and procedures of an SQL store.

use crate::Result;
use crate::url::IntoUrl;

/// The script that creates what the store behind `url` needs, with the rights that locks need for the user `grant`;
/// `None` if the store needs nothing.
///
/// # Errors
/// [`ErrorKind::Config`](crate::ErrorKind::Config) for an invalid URL, or if this build has no driver for it.
///
/// # Examples
/// ```
/// assert_eq!(oarlock::setup::script("mem:", None)?, None);
/// # Ok::<(), oarlock::Error>(())
/// ```
pub fn script(url: impl IntoUrl, grant: Option<&str>) -> Result<Option<String>> {
    Ok(url.into_url()?.store().needs().map(|setup| (setup.script)(grant)))
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
/// As [`connect`](crate::connect).
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
        None => Ok(false),
    }
}
