//! The suite on a real server, each connection through a proxy of its own.

use std::sync::Arc;
use std::time::Duration;

use oarlock_conformance::faulty::Faulty;
use oarlock_conformance::{Connection, Fixture, Habits, Pace, Power, Powers};
use oarlock_core::driver::BoxFuture;
use oarlock_core::memory::Verb;
use oarlock_core::{DynDriver, Error, ErrorKind, Result};
use oarlock_etcd::{Config, Etcd};
use oarlock_testbed::proxy::{Held, Proxy};

struct Server(Arc<oarlock_testbed::Etcd>);

/// Replies are lost above the driver, where verbs are known; everything else happens on the wire.
struct Line {
    driver: Arc<Faulty>,
    proxy: Proxy,
}

impl Fixture for Server {
    fn name(&self) -> String {
        "etcd".into()
    }

    fn powers(&self) -> Powers {
        Powers::none().kill(Power::Has).cut(Power::Has).drop_reply(Power::Has).restart(Power::Has).pause(Power::Has)
    }

    /// Leases have whole seconds, at least two, and are ended every half second.
    fn pace(&self) -> Pace {
        Pace::of(Duration::from_secs(3))
    }

    fn habits(&self) -> Habits {
        // A lease from the pool is a quarter of a second old at most.
        Habits::of_the_model().queues().ends(Duration::from_millis(300), Duration::from_millis(800))
    }

    fn connect(&self) -> BoxFuture<Result<Arc<dyn Connection>>> {
        let addr = self.0.addr();
        Box::pin(async move {
            let proxy = Proxy::start(addr).map_err(os)?;
            let driver = Etcd::open(Config::new([proxy.addr().to_string()])).await?;
            Ok(Arc::new(Line { driver: Arc::new(Faulty::new(Arc::new(driver))), proxy }) as Arc<dyn Connection>)
        })
    }

    fn restart(&self) -> BoxFuture<Result<()>> {
        let server = self.0.clone();
        Box::pin(async move {
            let restarted = tokio::task::spawn_blocking(move || server.restart()).await.map_err(os)?;
            restarted.map_err(os)
        })
    }

    fn pause(&self) -> BoxFuture<Result<()>> {
        done(self.0.pause().map_err(os))
    }

    fn resume(&self) -> BoxFuture<Result<()>> {
        done(self.0.resume().map_err(os))
    }
}

fn os(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Os, "the testbed failed").because(error)
}

fn done(result: Result<()>) -> BoxFuture<Result<()>> {
    Box::pin(std::future::ready(result))
}

impl Connection for Line {
    fn driver(&self) -> Arc<dyn DynDriver> {
        self.driver.clone()
    }

    /// A dead process resets its connections and opens no more.
    fn kill(&self) -> BoxFuture<Result<()>> {
        self.proxy.refuse();
        done(Ok(()))
    }

    fn cut(&self) -> BoxFuture<Result<()>> {
        self.proxy.cut();
        done(Ok(()))
    }

    /// What was held up arrives late: the hardest of the ways a cut can end.
    fn heal(&self) -> BoxFuture<Result<()>> {
        done(self.proxy.heal(Held::Deliver).map_err(os))
    }

    fn drop_reply(&self, verb: Verb) -> BoxFuture<Result<()>> {
        self.driver.drop_reply(verb);
        done(Ok(()))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(server) = oarlock_testbed::Etcd::start_or_skip()? else { return Ok(()) };
    let server = Arc::new(server);
    let mut args = oarlock_conformance::args();
    // Leases of seconds are mostly waited for.
    args.test_threads = args.test_threads.or(Some(16));
    let conclusion = oarlock_conformance::run_with(Server(server.clone()), &args);
    // Exiting would leave the server behind.
    drop(server);
    conclusion.exit()
}
