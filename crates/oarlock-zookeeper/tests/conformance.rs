//! The suite on a real ZooKeeper, each connection through a proxy of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use oarlock_conformance::faulty::Faulty;
use oarlock_conformance::{Connection, Fixture, Pace, Power, Powers};
use oarlock_core::driver::BoxFuture;
use oarlock_core::memory::Verb;
use oarlock_core::{DynDriver, Error, ErrorKind, Result};
use oarlock_testbed::Proxy;
use oarlock_testbed::proxy::Held;
use oarlock_zookeeper::{Config, ZooKeeper};

/// Four ticks of the test server, and more than it takes a busy machine to be heard.
const SESSION: Duration = Duration::from_secs(2);

struct Ensemble(Arc<oarlock_testbed::ZooKeeper>);

struct Line {
    driver: Arc<Faulty>,
    proxy: Proxy,
}

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Os, "the test bed failed").because(error)
}

impl Ensemble {
    async fn line(server: SocketAddr) -> Result<Arc<dyn Connection>> {
        let proxy = Proxy::start(server).map_err(failed)?;
        let config = Config::new([proxy.addr().to_string()]).session_timeout(SESSION);
        let driver = Arc::new(Faulty::new(Arc::new(ZooKeeper::open(config).await?)));
        Ok(Arc::new(Line { driver, proxy }))
    }
}

impl Fixture for Ensemble {
    fn name(&self) -> String {
        "zookeeper".into()
    }

    fn powers(&self) -> Powers {
        Powers::none().kill(Power::Has).cut(Power::Has).drop_reply(Power::Has).restart(Power::Has).pause(Power::Has)
    }

    fn pace(&self) -> Pace {
        // What the driver makes of such a session.
        Pace::of(SESSION * 3 / 4)
    }

    fn connect(&self) -> BoxFuture<Result<Arc<dyn Connection>>> {
        Box::pin(Self::line(self.0.addr()))
    }

    fn restart(&self) -> BoxFuture<Result<()>> {
        let server = self.0.clone();
        Box::pin(async move {
            let restarted = tokio::task::spawn_blocking(move || server.restart()).await;
            restarted.map_err(failed)?.map_err(failed)
        })
    }

    fn pause(&self) -> BoxFuture<Result<()>> {
        Box::pin(std::future::ready(self.0.pause().map_err(failed)))
    }

    fn resume(&self) -> BoxFuture<Result<()>> {
        Box::pin(std::future::ready(self.0.resume().map_err(failed)))
    }
}

fn done(result: std::io::Result<()>) -> BoxFuture<Result<()>> {
    Box::pin(std::future::ready(result.map_err(failed)))
}

impl Connection for Line {
    fn driver(&self) -> Arc<dyn DynDriver> {
        self.driver.clone()
    }

    /// What the kernel does to the sockets of a dead process. Its session lives on until the server gives it up.
    fn kill(&self) -> BoxFuture<Result<()>> {
        self.proxy.refuse();
        done(Ok(()))
    }

    fn cut(&self) -> BoxFuture<Result<()>> {
        self.proxy.cut();
        done(Ok(()))
    }

    fn heal(&self) -> BoxFuture<Result<()>> {
        done(self.proxy.heal(Held::Deliver))
    }

    fn drop_reply(&self, verb: Verb) -> BoxFuture<Result<()>> {
        self.driver.drop_reply(verb);
        done(Ok(()))
    }
}

fn main() -> anyhow::Result<()> {
    let Some(server) = oarlock_testbed::ZooKeeper::start_or_skip()? else { return Ok(()) };
    let server = Arc::new(server);
    // The process must not end before the server has: it is stopped when this is dropped.
    let conclusion = oarlock_conformance::run_with(Ensemble(server.clone()), &libtest_mimic::Arguments::from_args());
    drop(server);
    conclusion.exit_if_failed();
    Ok(())
}
