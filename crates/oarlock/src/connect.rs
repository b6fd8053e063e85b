//! Connects to the store behind a URL.

use std::sync::Arc;

use oarlock_core::text;

use crate::driver::{BoxFuture, DynDriver, Opener};
use crate::url::{IntoUrl, Url};
use crate::{Error, Locks, LocksBuilder, Result};

/// Connects to the store behind a URL, with defaults.
///
/// # Cancel safety
/// If the future is dropped there is no client; a connection that is being opened is closed.
///
/// # Errors
/// [`ErrorKind::Config`](crate::ErrorKind::Config) for an invalid URL, or if this build has no driver for it; any error
/// that the store returns.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock::Result<()> {
/// let locks = oarlock::connect("mem:").await?;
/// let guard = locks.mutex("deploy/prod").lock().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
pub async fn connect(url: impl IntoUrl) -> Result<Locks> {
    builder(url).connect().await
}

/// Connects to the store behind a URL, with settings; finish with [`connect`](LocksBuilder::connect), or with
/// [`connect_blocking`](LocksBuilder::connect_blocking) in code that blocks.
///
/// That call also returns the error of an invalid URL.
///
/// # Examples
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock::Result<()> {
/// let locks = oarlock::builder("mem:").ttl(Duration::from_secs(10)).own_thread().connect().await?;
/// # locks.mutex("deploy/prod").lock().await?.release().await?;
/// # Ok(()) }
/// ```
pub fn builder(url: impl IntoUrl) -> LocksBuilder {
    let url = match url.into_url() {
        Ok(url) => url,
        Err(error) => return LocksBuilder::of(Opener::new(|| Box::pin(async { Err(error) }))),
    };
    let (ttl, op_timeout, max_waiters) = (url.ttl(), url.op_timeout(), url.max_waiters());
    let mut builder = LocksBuilder::of(Opener::new(|| open(url)));
    if let Some(ttl) = ttl {
        builder = builder.ttl(ttl);
    }
    if let Some(op_timeout) = op_timeout {
        builder = builder.op_timeout(op_timeout);
    }
    if let Some(max_waiters) = max_waiters {
        builder = builder.max_waiters(max_waiters);
    }
    builder
}

/// Connects to the store behind a URL, without an engine over it: for tools that wrap the driver, and pass it to
/// [`Locks::builder_over`](crate::Locks::builder_over). The lease and the limits that the URL names are not applied.
///
/// # Cancel safety
/// As [`connect`].
///
/// # Errors
/// As [`connect`].
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock::Result<()> {
/// let driver = oarlock::driver::open("mem:").await?;
/// assert_eq!(driver.info().scheme, "mem");
/// # Ok(()) }
/// ```
pub async fn open_driver(url: impl IntoUrl) -> Result<Arc<dyn DynDriver>> {
    open(url.into_url()?).await
}

fn open(url: Url) -> BoxFuture<Result<Arc<dyn DynDriver>>> {
    Box::pin(async move {
        let patience = url.connect_timeout();
        let late = format!("no connection to {url} within {} (connect_timeout)", text::span(patience));
        let late = Error::unreachable(late).during("connect");
        tokio::time::timeout(patience, url.store().open(url)).await.unwrap_or(Err(late))
    })
}
