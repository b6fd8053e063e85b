//! What the suite does to a MariaDB or MySQL server; every client comes through a proxy of its own, as a user with no
//! more rights than locks need.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use anyhow::Context as _;
use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use oarlock_conformance::{Connection, Fixture, Pace, Power, Powers};
use oarlock_core::driver::BoxFuture;
use oarlock_core::{DynDriver, Error, Result};
use oarlock_sql::mysql::{Config, MySql, MySqlSession, Named};
use oarlock_testbed::{Flavour, ProxiedConnection, Proxy, SqlServer};

struct Server(Arc<State>);

struct State {
    flavour: Flavour,
    mode: Mode,
    /// The one that is in charge.
    primary: Mutex<Arc<SqlServer>>,
    /// The one that is to be promoted, which applies nothing more.
    behind: Mutex<Option<SqlServer>>,
    connections: Mutex<Vec<Weak<ProxiedConnection>>>,
}

#[derive(Clone, Copy)]
#[allow(dead_code, reason = "each suite has one")]
pub(crate) enum Mode {
    Lease,
    Session,
}

const TTL: Duration = Duration::from_millis(2000);

/// Runs the suite, if there is such a server.
pub(crate) fn run(flavour: Flavour, mode: Mode) -> anyhow::Result<()> {
    let Some(server) = SqlServer::primary_or_skip(flavour)? else { return Ok(()) };
    tokio::runtime::Runtime::new()?.block_on(with_user(&server, mode))?;
    let (primary, behind, connections) = (Mutex::new(Arc::new(server)), Mutex::default(), Mutex::default());
    oarlock_conformance::run(Server(Arc::new(State { flavour, mode, primary, behind, connections })))
}

/// Makes the user `app` with the rights that locks need, and no other. Named locks need none but to enter the database.
async fn with_user(server: &SqlServer, mode: Mode) -> anyhow::Result<()> {
    let mut root = Conn::from_url(server.url()).await?;
    root.query_drop("CREATE USER app").await?;
    match mode {
        Mode::Lease => {
            let config = Config::new(server.addr().ip().to_string(), server.addr().port(), "locks");
            oarlock_sql::mysql::init(config, Some("app")).await?;
        }
        Mode::Session => root.query_drop("GRANT EXECUTE ON locks.* TO app").await?,
    }
    Ok(())
}

impl Fixture for Server {
    fn name(&self) -> String {
        let server = match self.0.flavour {
            Flavour::MariaDb => "mariadb",
            Flavour::MySql => "mysql",
        };
        match self.0.mode {
            Mode::Lease => server.into(),
            Mode::Session => format!("{server}/session"),
        }
    }

    fn powers(&self) -> Powers {
        let powers = Powers::none().kill(Power::Has).cut(Power::Has).drop_reply(Power::Has);
        let powers = powers.restart(Power::Has).pause(Power::Has);
        match self.0.mode {
            Mode::Lease => powers.fall_back(Power::Has),
            Mode::Session => powers.fall_back(Power::Lacks("named locks are not replicated: a failover ends them all")),
        }
    }

    fn pace(&self) -> Pace {
        Pace::of(TTL)
    }

    fn connect(&self) -> BoxFuture<Result<Arc<dyn Connection>>> {
        let state = self.0.clone();
        Box::pin(async move {
            let (entrance, mode) = (state.primary().addr(), state.mode);
            let proxy = Proxy::start(entrance).map_err(|error| Error::unreachable("no proxy").because(error))?;
            let mut config = Config::new(proxy.addr().ip().to_string(), proxy.addr().port(), "locks");
            (config.user, config.session_ttl) = (Some("app".into()), TTL);
            let driver: Arc<dyn DynDriver> = match mode {
                Mode::Lease => Arc::new(MySql::connect(config).await?),
                Mode::Session => Arc::new(MySqlSession::connect(Named::new(config)).await?),
            };
            let connection = ProxiedConnection::over(driver, vec![proxy]);
            lock(&state.connections).push(Arc::downgrade(&connection));
            Ok(connection as Arc<dyn Connection>)
        })
    }

    fn restart(&self) -> BoxFuture<Result<()>> {
        self.control(SqlServer::restart)
    }

    fn pause(&self) -> BoxFuture<Result<()>> {
        self.control(SqlServer::pause)
    }

    fn resume(&self) -> BoxFuture<Result<()>> {
        self.control(SqlServer::resume)
    }

    fn remember(&self) -> BoxFuture<Result<()>> {
        let state = self.0.clone();
        Box::pin(async move { state.remember().await.map_err(|error| failed(&error)) })
    }

    fn fall_back(&self) -> BoxFuture<Result<()>> {
        let state = self.0.clone();
        Box::pin(async move { state.fall_back().await.map_err(|error| failed(&error)) })
    }
}

impl Server {
    fn control(&self, what: fn(&SqlServer) -> anyhow::Result<()>) -> BoxFuture<Result<()>> {
        let server = self.0.primary();
        Box::pin(async move { blocking(move || what(&server)).await.map_err(|error| failed(&error)) })
    }
}

async fn blocking<T: Send + 'static>(what: impl FnOnce() -> anyhow::Result<T> + Send + 'static) -> anyhow::Result<T> {
    tokio::task::spawn_blocking(what).await?
}

fn failed(error: &anyhow::Error) -> Error {
    Error::unreachable(format!("{error:#}"))
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn primary(&self) -> Arc<SqlServer> {
        lock(&self.primary).clone()
    }

    /// A replica has all that was committed until now, and follows no more.
    async fn remember(&self) -> anyhow::Result<()> {
        let (primary, flavour) = (self.primary(), self.flavour);
        let addr = primary.addr();
        let replica = blocking(move || SqlServer::replica_of(flavour, addr)).await?;
        let mut root = Conn::from_url(primary.url()).await?;
        let there: String = root.query_first(flavour.position()).await?.context("no position")?;
        let mut theirs = Conn::from_url(replica.url()).await?;
        let caught_up = theirs.query_first::<i64, _>(flavour.catch_up(&there, 30)).await?;
        anyhow::ensure!(caught_up == Some(0), "the replica does not follow");
        theirs.query_drop(flavour.stop_following()).await?;
        *lock(&self.behind) = Some(replica);
        Ok(())
    }

    /// The primary dies, and all addresses lead to the replica.
    async fn fall_back(&self) -> anyhow::Result<()> {
        let replica = lock(&self.behind).take().context("nothing was remembered")?;
        let primary = self.primary();
        blocking(move || primary.kill()).await?;
        let mut theirs = Conn::from_url(replica.url()).await?;
        theirs.query_drop(self.flavour.promote()).await?;
        for connection in lock(&self.connections).iter().filter_map(Weak::upgrade) {
            connection.proxies().iter().for_each(|proxy| proxy.aim(replica.addr()));
        }
        *lock(&self.primary) = Arc::new(replica);
        Ok(())
    }
}
