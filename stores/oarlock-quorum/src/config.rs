//! A quorum of Redis servers, and its URL.

use std::sync::Arc;

use oarlock_core::driver::{BoxFuture, DynDriver};
use oarlock_core::error::Result;
use oarlock_core::url::{Scheme, Store, TLS_FILES, Url};
use oarlock_redis::{ALLOW_EVICTION, Address, Config, Redis, database, rights};

use crate::doctor::DOCTOR;
use crate::guarantees::GUARANTEES;
use crate::{Later, Quorum, SCHEME};

/// Redlock and its schemes `redlock://` and `redlocks://`.
pub static STORE: Store = Store::new(
    SCHEME,
    &[scheme(SCHEME), scheme("redlocks").tls().options(&[ALLOW_EVICTION, TLS_FILES[0], TLS_FILES[1], TLS_FILES[2]])],
    |url| Box::pin(async move { Ok(Arc::new(redlock(configs(&url)?).await?) as _) }),
)
.guarantees(GUARANTEES)
.doctor(DOCTOR)
// The same on each server.
.rights(|url, user| {
    let first = configs(url)?.into_iter().next();
    first.map_or(Ok(String::new()), |config| rights(&without_queue(config), user))
});

const fn scheme(name: &'static str) -> Scheme {
    Scheme::new(name, "Redlock over independent Redis servers")
        .port(6379)
        .hosts(3)
        .path(database)
        .choices(&[("layout", &["plain"])])
        // A server of a Redlock has no replicas, so that there is no `min_replicas`.
        .options(&[ALLOW_EVICTION])
        .warnings(even_number)
        .routes()
}

fn even_number(url: &Url) -> Vec<String> {
    let hosts = url.hosts().len();
    let warning = || format!("{hosts} servers tolerate no more failures than {}: use an odd number", hosts - 1);
    hosts.is_multiple_of(2).then(warning).into_iter().collect()
}

/// The configuration of each server that a `redlock://` or `redlocks://` URL names.
///
/// # Errors
/// As [`Config::with_options`].
pub fn configs(url: &Url) -> Result<Vec<Config>> {
    let hosts = url.hosts().iter();
    hosts.map(|host| Config::with_options(Address::Tcp(host.name.clone(), host.port), url)).collect()
}

/// Opens a quorum of these Redis servers: Redlock. A server that cannot be reached now is a member all the same; see
/// [`Quorum::open`].
///
/// # Errors
/// Those of [`Quorum::open`].
///
/// # Examples
/// ```no_run
/// # async fn example() -> oarlock_core::Result<()> {
/// use oarlock_redis::{Address, Config, Layout};
///
/// let node = |host: &str| {
///     let mut config = Config::new(Address::Tcp(host.into(), 6379));
///     // As `redlock://` does it: the key is the lock's name, with nothing before it. A client with another layout or
///     // prefix locks another key, and both would hold.
///     (config.layout, config.prefix) = (Layout::Plain, String::new());
///     config
/// };
/// let quorum = oarlock_quorum::redlock(["redis-a", "redis-b", "redis-c"].map(node)).await?;
/// let locks = oarlock_core::Locks::over(quorum)?;
/// # Ok(())
/// # }
/// ```
pub async fn redlock(servers: impl IntoIterator<Item = Config>) -> Result<Quorum> {
    Quorum::open(servers.into_iter().map(node).collect()).await
}

/// A quorum has no order: what waits stands in no queue of a server.
fn without_queue(mut config: Config) -> Config {
    config.queue = false;
    config
}

fn node(config: Config) -> Later {
    let config = without_queue(config);
    Later::new(config.address.to_string(), move || -> BoxFuture<Result<Arc<dyn DynDriver>>> {
        let config = config.clone();
        Box::pin(async move { Ok(Arc::new(Redis::open(config).await?) as Arc<dyn DynDriver>) })
    })
}
