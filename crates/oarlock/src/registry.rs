//! Which drivers this build has: one line for each.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use oarlock_core::Memory;

use crate::driver::{BoxFuture, DynDriver};
use crate::floor::{Bare, Floor};
use crate::url::Url;
use crate::{Error, ErrorKind, Result};

type Open = fn(Url) -> BoxFuture<Result<Arc<dyn DynDriver>>>;
type OpenFloor = fn(Url) -> BoxFuture<Result<Option<Arc<dyn Floor>>>>;

/// The drivers of this build, by the name that [`Url::driver`] gives, and the floors beneath them.
const DRIVERS: &[(&str, Open, OpenFloor)] = &[
    ("mem", |url| Box::pin(memory(url)), |_| Box::pin(async { Ok(None) })),
    #[cfg(feature = "etcd")]
    (
        "etcd",
        |url| Box::pin(etcd(url)),
        |url| Box::pin(async move { oarlock_etcd::floor::open(etcd_config(&url)?).await.map(Some) }),
    ),
    #[cfg(feature = "local")]
    (
        "local",
        |url| Box::pin(local(url)),
        |url| Box::pin(async move { oarlock_local::floor::open(local_config(&url)?).await.map(Some) }),
    ),
    #[cfg(feature = "mysql")]
    (
        "mysql",
        |url| Box::pin(mysql(url)),
        |url| Box::pin(async move { oarlock_mysql::floor::open(mysql_config(&url)?).await.map(Some) }),
    ),
    #[cfg(feature = "postgres")]
    (
        "postgres",
        |url| Box::pin(postgres(url)),
        |url| Box::pin(async move { oarlock_postgres::floor::open(postgres_config(&url)?).await.map(Some) }),
    ),
    #[cfg(feature = "redis")]
    (
        "redis",
        |url| Box::pin(redis(url)),
        |url| Box::pin(async move { oarlock_redis::floor::open(redis_config(&url)?).await.map(Some) }),
    ),
    #[cfg(feature = "redis")]
    (
        "redlock",
        |url| Box::pin(redlock(url)),
        |url| Box::pin(async move { oarlock_redis::quorum_floor::open(redlock_configs(&url)?).await.map(Some) }),
    ),
    #[cfg(feature = "zookeeper")]
    (
        "zookeeper",
        |url| Box::pin(zookeeper(url)),
        |url| Box::pin(async move { oarlock_zookeeper::floor::open(zookeeper_config(&url)?).await.map(Some) }),
    ),
];

/// Whether this build has the driver for `url`.
#[must_use]
pub fn built_in(url: &Url) -> bool {
    DRIVERS.iter().any(|(name, ..)| *name == url.driver())
}

fn find(url: &Url) -> Result<(Open, OpenFloor)> {
    find_in(DRIVERS, url)
}

fn find_in(drivers: &[(&str, Open, OpenFloor)], url: &Url) -> Result<(Open, OpenFloor)> {
    let driver = drivers.iter().find(|(name, ..)| *name == url.driver());
    driver.map(|(_, open, floor)| (*open, *floor)).ok_or_else(|| {
        let message = format!("this build has no {} driver, which {} needs", url.driver(), url.scheme());
        Error::new(ErrorKind::Config, message)
    })
}

pub(crate) async fn open(url: Url) -> Result<Arc<dyn DynDriver>> {
    find(&url)?.0(url).await
}

/// The fewest raw requests of the store behind `url`, to measure locks against; `None` where there is nothing beneath.
///
/// # Errors
/// As [`connect`](crate::connect).
pub async fn floor_of(url: Url) -> Result<Option<Arc<dyn Floor>>> {
    find(&url)?.1(url).await
}

/// The requests of the driver itself, without an engine.
///
/// # Errors
/// As [`connect`](crate::connect).
pub async fn bare_of(url: Url) -> Result<Arc<dyn Floor>> {
    Ok(Arc::new(Bare::new(open(url).await?)))
}

/// One store per process and prefix, so that two connections to `mem:` contend.
async fn memory(url: Url) -> Result<Arc<dyn DynDriver>> {
    static STORES: LazyLock<Mutex<HashMap<String, Memory>>> = LazyLock::new(Mutex::default);
    let mut stores = STORES.lock().unwrap_or_else(PoisonError::into_inner);
    let store = stores.entry(url.prefix().to_owned()).or_default();
    Ok(Arc::new(store.connect()))
}

#[cfg(feature = "local")]
async fn local(url: Url) -> Result<Arc<dyn DynDriver>> {
    let config = local_config(&url)?;
    Ok(Arc::new(oarlock_local::Local::open(config).await?))
}

#[cfg(feature = "local")]
fn local_config(url: &Url) -> Result<oarlock_local::Config> {
    let mut dir = match url.path() {
        "" => oarlock_local::default_dir()?,
        path => path.into(),
    };
    if !url.prefix().is_empty() {
        // A name space of its own is a store of its own.
        dir.push(format!("prefix-{}", url.prefix().replace('%', "%25").replace('/', "%2F")));
    }
    let mut config = oarlock_local::Config::new(canonical(dir));
    config.group = url.option("group") == Some("yes");
    config.inherit = url.inherits_session();
    Ok(config)
}

/// The directory that `local:` means for this process, if there is one.
#[must_use]
pub fn local_dir() -> Option<std::path::PathBuf> {
    #[cfg(feature = "local")]
    return oarlock_local::default_dir().ok();
    #[cfg(not(feature = "local"))]
    None
}

/// Another directory of this user's embedded store, which programs use that are started without `XDG_STATE_HOME`, as from
/// cron. Locks in the one exclude nothing in the other.
#[must_use]
pub fn other_local_dir() -> Option<std::path::PathBuf> {
    #[cfg(feature = "local")]
    return oarlock_local::other_default_dir();
    #[cfg(not(feature = "local"))]
    None
}

/// One address for one directory, whichever way leads to it. What does not exist yet has no other names.
#[cfg(feature = "local")]
fn canonical(dir: std::path::PathBuf) -> std::path::PathBuf {
    let mut ways = dir.ancestors();
    let found = ways.find_map(|way| Some((way.canonicalize().ok()?, dir.strip_prefix(way).ok()?)));
    match found {
        // A step back from what is not there yet stays as it was written.
        Some((real, rest)) if !rest.components().any(|part| part == std::path::Component::ParentDir) => {
            real.components().chain(rest.components()).collect()
        }
        _ => dir,
    }
}

#[cfg(feature = "etcd")]
async fn etcd(url: Url) -> Result<Arc<dyn DynDriver>> {
    Ok(Arc::new(oarlock_etcd::Etcd::open(etcd_config(&url)?).await?))
}

#[cfg(feature = "etcd")]
fn etcd_config(url: &Url) -> Result<oarlock_etcd::Config> {
    use oarlock_etcd::{Config, Layout, Tls};

    let mut config = Config::new(url.hosts().iter().map(ToString::to_string));
    config.layout = match url.layout() {
        None | Some("native") => Layout::Native,
        Some("go") => Layout::Go,
        Some(layout) => return Err(Error::new(ErrorKind::Unsupported, format!("there is no layout {layout}"))),
    };
    if url.tls() {
        let file = |key| url.option(key).map(std::path::PathBuf::from);
        let mut tls = Tls::default();
        (tls.ca, tls.identity) = (file("ca"), file("cert").zip(file("key")));
        if tls.identity.is_none() && (file("cert").is_some() || file("key").is_some()) {
            return Err(Error::new(ErrorKind::Config, "cert and key go together"));
        }
        config.tls = Some(tls);
    }
    config.user = url.user().map(str::to_owned);
    config.password = url.password().map(|secret| secret.reveal().to_owned());
    config.prefix = match url.path().trim_matches('/') {
        "" => url.prefix().to_owned(),
        root => format!("{root}/{}", url.prefix()),
    };
    config.connect_timeout = url.connect_timeout();
    Ok(config)
}

#[cfg(feature = "redis")]
async fn redis(url: Url) -> Result<Arc<dyn DynDriver>> {
    Ok(Arc::new(oarlock_redis::Redis::open(redis_config(&url)?).await?))
}

#[cfg(feature = "redis")]
fn redis_config(url: &Url) -> Result<oarlock_redis::Config> {
    use oarlock_redis::Address;

    let hosts = || url.hosts().iter().map(|host| (host.name.clone(), host.port)).collect();
    let address = match (url.scheme(), url.hosts()) {
        ("redis+unix", _) => Address::Unix(url.path().into()),
        ("redis+sentinel" | "rediss+sentinel", _) => {
            Address::Sentinel { hosts: hosts(), master: url.master().to_owned() }
        }
        ("redis+cluster" | "rediss+cluster", _) => Address::Cluster(hosts()),
        (_, [host]) => Address::Tcp(host.name.clone(), host.port),
        (scheme, _) => return Err(Error::new(ErrorKind::Config, format!("{scheme}:// needs one host"))),
    };
    redis_config_at(url, address)
}

#[cfg(feature = "redis")]
fn redis_config_at(url: &Url, address: oarlock_redis::Address) -> Result<oarlock_redis::Config> {
    use oarlock_redis::{Config, Layout, Tls};

    let mut config = Config::new(address);
    config.layout = match url.layout() {
        None | Some("native") => Layout::Native,
        Some("plain") => Layout::Plain,
        Some("redisson") => Layout::Redisson,
        Some(layout) => {
            return Err(Error::new(ErrorKind::Unsupported, format!("the layout {layout} is not supported yet")));
        }
    };
    if url.tls() {
        let file = |key| url.option(key).map(std::path::PathBuf::from);
        let mut tls = Tls::default();
        (tls.ca, tls.identity) = (file("ca"), file("cert").zip(file("key")));
        if tls.identity.is_none() && (file("cert").is_some() || file("key").is_some()) {
            return Err(Error::new(ErrorKind::Config, "cert and key go together"));
        }
        config.tls = Some(tls);
    }
    config.tokens = url.option("tokens") == Some("yes");
    if config.tokens && config.layout != Layout::Redisson {
        return Err(Error::new(ErrorKind::Config, "tokens are for layout=redisson"));
    }
    config.min_replicas = url.option("min_replicas").and_then(|count| count.parse().ok()).unwrap_or(0);
    config.allow_eviction = url.option("allow_eviction") == Some("yes");
    config.user = url.user().map(str::to_owned);
    config.password = url.password().map(|secret| secret.reveal().to_owned());
    config.database = url.number()?;
    config.prefix = url.prefix().to_owned();
    config.connect_timeout = url.connect_timeout();
    if let Some(op_timeout) = url.op_timeout() {
        config.silence_timeout = config.silence_timeout.max(op_timeout.saturating_mul(4));
    }
    Ok(config)
}

/// The servers of the URL are the members, whether or not they can be reached now.
#[cfg(feature = "redis")]
async fn redlock(url: Url) -> Result<Arc<dyn DynDriver>> {
    use oarlock_core::quorum::{Later, Quorum};
    use oarlock_redis::Redis;

    let nodes = redlock_configs(&url)?.into_iter().map(|config| {
        Later::new(config.address.to_string(), move || {
            let config = config.clone();
            Box::pin(async move { Ok(Arc::new(Redis::open(config).await?) as Arc<dyn DynDriver>) })
        })
    });
    Ok(Arc::new(Quorum::open(nodes.collect()).await?))
}

#[cfg(feature = "redis")]
fn redlock_configs(url: &Url) -> Result<Vec<oarlock_redis::Config>> {
    use oarlock_redis::Address;

    let hosts = url.hosts().iter();
    hosts.map(|host| redis_config_at(url, Address::Tcp(host.name.clone(), host.port))).collect()
}

/// What the options of an SQL store cannot be together, or not from a URL.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn check_sql(url: &Url) -> Result<()> {
    if url.mode() == Some("transaction") {
        let message =
            "a lock of a transaction is taken by that transaction itself, in SQL: no client can do it for another";
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    if url.option("key").is_some() && url.mode() != Some("session") {
        return Err(Error::new(ErrorKind::Config, "key is for mode=session alone"));
    }
    Ok(())
}

#[cfg(feature = "mysql")]
async fn mysql(url: Url) -> Result<Arc<dyn DynDriver>> {
    let config = mysql_config(&url)?;
    if url.mode() == Some("session") {
        return Ok(Arc::new(oarlock_mysql::MySqlSession::connect(oarlock_mysql::Named::new(config)).await?));
    }
    Ok(Arc::new(oarlock_mysql::MySql::connect(config).await?))
}

#[cfg(feature = "mysql")]
pub(crate) fn mysql_config(url: &Url) -> Result<oarlock_mysql::Config> {
    use oarlock_mysql::{Config, Encryption, Keys};

    check_sql(url)?;
    let Some(host) = url.hosts().first() else {
        return Err(Error::new(ErrorKind::Config, format!("{url} has no host")));
    };
    let mut config = Config::new(&host.name, host.port, url.path().trim_start_matches('/'));
    if let Some(password) = url.password() {
        config = config.password(password.reveal());
    }
    config.user = url.user().map(str::to_owned);
    config.prefix = url.prefix().to_owned();
    config.encryption = match url.option("sslmode") {
        // The client crate cannot go on unencrypted on the same connection.
        Some("prefer") => {
            return Err(Error::new(ErrorKind::Unsupported, "sslmode is disable, require or verify-full here"));
        }
        Some("require") => Encryption::Require,
        Some("verify-full") => Encryption::VerifyFull,
        _ => Encryption::Disable,
    };
    config.root_certificate = url.option("sslrootcert").map(std::path::PathBuf::from);
    config.keys = if url.option("key") == Some("raw") { Keys::Raw } else { Keys::Named };
    config.session_ttl = url.ttl().unwrap_or(config.session_ttl);
    config.connect_timeout = url.connect_timeout();
    if let Some(op_timeout) = url.op_timeout() {
        config.silence_timeout = config.silence_timeout.max(op_timeout.saturating_mul(4));
    }
    Ok(config)
}

#[cfg(feature = "postgres")]
async fn postgres(url: Url) -> Result<Arc<dyn DynDriver>> {
    let config = postgres_config(&url)?;
    if url.mode() == Some("session") {
        return Ok(Arc::new(
            oarlock_postgres::PostgresSession::connect(oarlock_postgres::Advisory::new(config)).await?,
        ));
    }
    Ok(Arc::new(oarlock_postgres::Postgres::connect(config).await?))
}

#[cfg(feature = "postgres")]
pub(crate) fn postgres_config(url: &Url) -> Result<oarlock_postgres::Config> {
    use oarlock_postgres::{Config, Encryption, Keys};

    check_sql(url)?;
    let Some(host) = url.hosts().first() else {
        return Err(Error::new(ErrorKind::Config, format!("{url} has no host")));
    };
    let mut config = Config::new(&host.name, host.port);
    if let Some(password) = url.password() {
        config = config.password(password.reveal());
    }
    config.user = url.user().map(str::to_owned);
    config.database = Some(url.path().trim_start_matches('/').to_owned()).filter(|name| !name.is_empty());
    config.prefix = url.prefix().to_owned();
    config.encryption = match url.option("sslmode") {
        Some("prefer") => Encryption::Prefer,
        Some("require") => Encryption::Require,
        Some("verify-full") => Encryption::VerifyFull,
        _ => Encryption::Disable,
    };
    config.root_certificate = url.option("sslrootcert").map(std::path::PathBuf::from);
    config.keys = if url.option("key") == Some("raw") { Keys::Raw } else { Keys::Named };
    config.session_ttl = url.ttl().unwrap_or(config.session_ttl);
    config.connect_timeout = url.connect_timeout();
    if let Some(op_timeout) = url.op_timeout() {
        config.silence_timeout = config.silence_timeout.max(op_timeout.saturating_mul(4));
    }
    Ok(config)
}

#[cfg(feature = "zookeeper")]
async fn zookeeper(url: Url) -> Result<Arc<dyn DynDriver>> {
    Ok(Arc::new(oarlock_zookeeper::ZooKeeper::open(zookeeper_config(&url)?).await?))
}

#[cfg(feature = "zookeeper")]
fn zookeeper_config(url: &Url) -> Result<oarlock_zookeeper::Config> {
    use oarlock_zookeeper::{Config, Layout};

    let layout = match url.layout() {
        Some("curator") => Layout::Curator,
        Some("kazoo") => Layout::Kazoo,
        _ => Layout::Native,
    };
    // What goes before every name is a node of its own here.
    let (path, prefix) = (url.path().trim_end_matches('/'), url.prefix().trim_end_matches([':', '/']));
    let root = if prefix.is_empty() { path.to_owned() } else { format!("{path}/{prefix}") };
    let mut config = Config::new(url.hosts().iter().map(ToString::to_string)).root(root);
    config.layout = layout;
    if let (Some(user), Some(password)) = (url.user(), url.password()) {
        config = config.digest(user, password.reveal());
    }
    if let Some(ttl) = url.ttl() {
        config = config.session_timeout(ttl);
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_scheme_without_its_driver_says_so() {
        let url = Url::parse("mysql://localhost/locks").unwrap();
        let error = find_in(&DRIVERS[..1], &url).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("no mysql driver"), "{error}");
    }

    #[cfg(feature = "zookeeper")]
    #[test]
    fn locks_on_zookeeper_are_below_the_path_and_the_prefix() {
        for (url, root) in [
            ("zk://h", "/oarlock"),
            ("zk://h/team", "/team/oarlock"),
            ("zk://h1,h2/team/?prefix=locks", "/team/locks"),
            ("zk://h/team/a%20b?prefix=locks:", "/team/a b/locks"),
            ("zk://h/team?prefix=&layout=curator", "/team"),
        ] {
            let config = zookeeper_config(&Url::parse(url).unwrap()).unwrap();
            assert_eq!(config.root, root, "{url}");
        }
    }

    #[tokio::test]
    async fn mem_is_one_store_per_process_and_prefix() {
        let (one, two) = (crate::connect("mem:").await.unwrap(), crate::connect("mem:").await.unwrap());
        let apart = crate::connect("mem:?prefix=apart").await.unwrap();
        let guard = one.mutex("one store").lock().await.unwrap();
        assert!(two.mutex("one store").try_lock().await.unwrap().is_none());
        assert!(apart.mutex("one store").try_lock().await.unwrap().is_some());
        guard.release().await.unwrap();
        assert!(two.mutex("one store").try_lock().await.unwrap().is_some());
    }
}
