//! What the suite does to a PostgreSQL server; every client comes through a proxy of its own.

#[path = "context.rs"]
mod context;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use oarlock_conformance::{Connection, Fixture, Pace, Power, Powers};
use oarlock_core::driver::BoxFuture;
use oarlock_core::{DynDriver, Error, Result};
use oarlock_sql::postgres::{Advisory, Config, Postgres, PostgresSession};
use oarlock_testbed::{Postgres as Postgresql, ProxiedConnection, Proxy};

pub(crate) use self::context::TestContext;

/// A server, and what clients connect to: its door, or a pooler in front of that.
pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) context: Arc<TestContext>,
    pub(crate) entrance: SocketAddr,
    pub(crate) mode: Mode,
    /// Whom clients log in as.
    pub(crate) user: &'static str,
}

#[derive(Clone, Copy)]
#[allow(dead_code, reason = "each suite has one")]
pub(crate) enum Mode {
    Lease,
    Session,
}

const TTL: Duration = Duration::from_millis(2000);

impl Fixture for Server {
    fn name(&self) -> String {
        self.name.into()
    }

    fn powers(&self) -> Powers {
        let powers = Powers::none().kill(Power::Has).cut(Power::Has).drop_reply(Power::Has);
        powers.restart(Power::Has).pause(Power::Has).fall_back(Power::Has)
    }

    fn pace(&self) -> Pace {
        Pace::of(TTL)
    }

    fn connect(&self) -> BoxFuture<Result<Arc<dyn Connection>>> {
        let (entrance, mode, user) = (self.entrance, self.mode, self.user);
        Box::pin(async move {
            admits(entrance).await?;
            let proxy = Proxy::start(entrance).map_err(|error| Error::unreachable("no proxy").because(error))?;
            let mut config = Config::new(proxy.addr().ip().to_string(), proxy.addr().port());
            (config.user, config.database) = (Some(user.into()), Some("postgres".into()));
            config.session_ttl = TTL;
            let driver: Arc<dyn DynDriver> = match mode {
                Mode::Lease => Arc::new(Postgres::connect(config).await?),
                Mode::Session => Arc::new(PostgresSession::connect(Advisory::new(config)).await?),
            };
            Ok(ProxiedConnection::over(driver, vec![proxy]) as Arc<dyn Connection>)
        })
    }

    fn restart(&self) -> BoxFuture<Result<()>> {
        self.control(Postgresql::restart)
    }

    fn pause(&self) -> BoxFuture<Result<()>> {
        self.control(Postgresql::pause)
    }

    fn resume(&self) -> BoxFuture<Result<()>> {
        self.control(Postgresql::resume)
    }

    fn remember(&self) -> BoxFuture<Result<()>> {
        let context = self.context.clone();
        Box::pin(async move { context.remember().await.map_err(|error| Error::unreachable(format!("{error:#}"))) })
    }

    fn fall_back(&self) -> BoxFuture<Result<()>> {
        let (context, entrance) = (self.context.clone(), self.entrance);
        Box::pin(
            async move { context.fall_back(entrance).await.map_err(|error| Error::unreachable(format!("{error:#}"))) },
        )
    }
}

/// Waits until a client is let in: a pooler refuses the next clients after a login at a server that was restarting.
async fn admits(entrance: SocketAddr) -> Result<()> {
    let config = format!("host={} port={} user=postgres dbname=postgres", entrance.ip(), entrance.port());
    let mut refused = None;
    for _ in 0..100 {
        match tokio_postgres::connect(&config, tokio_postgres::NoTls).await {
            Ok((client, connection)) => {
                tokio::spawn(connection);
                match client.simple_query("SELECT 1").await {
                    Ok(_) => return Ok(()),
                    Err(error) => refused = Some(error),
                }
            }
            Err(error) => refused = Some(error),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let error = Error::unreachable("the pooler lets no client in");
    Err(refused.into_iter().fold(error, Error::because))
}

impl Server {
    fn control(&self, what: fn(&Postgresql) -> anyhow::Result<()>) -> BoxFuture<Result<()>> {
        let server = self.context.server();
        Box::pin(async move {
            let done = tokio::task::spawn_blocking(move || what(&server)).await;
            let done = done.unwrap_or_else(|error| Err(error.into()));
            done.map_err(|error| Error::unreachable(format!("{error:#}")))
        })
    }
}
