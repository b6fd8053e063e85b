//! A ready-made fixture for any driver. It injects faults between the engine and the driver.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::BoxFuture;
use oarlock_core::memory::Verb;
use oarlock_core::{DynDriver, Result};

use crate::faulty::Faulty;
use crate::fixture::{Connection, Fixture, Pace, Power, Powers};

type Connect = Box<dyn Fn() -> BoxFuture<Result<Arc<dyn DynDriver>>> + Send + Sync>;

/// A fixture for any driver, made from a function that connects. It can cut connections and lose replies. For a store
/// with a server, also write a [`Fixture`] that cuts the real network.
pub struct DriverFixture {
    name: String,
    pace: Pace,
    kill: Power,
    connect: Connect,
}

impl DriverFixture {
    /// A fixture called `name`. Each call of `connect` opens another connection, as another process would.
    pub fn new<F>(name: impl Into<String>, connect: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Arc<dyn DynDriver>>> + Send + 'static,
    {
        let connect: Connect = Box::new(move || Box::pin(connect()));
        let pace = Pace::of(Duration::from_millis(1000));
        let kill = Power::Lacks("closing a connection of this store does not act like the death of its process");
        Self { name: name.into(), pace, kill, connect }
    }

    /// Sets the times that suit the store.
    #[must_use]
    pub fn pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// States that closing a connection of this store ends its claims as the death of its process would.
    #[must_use]
    pub fn close_is_death(mut self) -> Self {
        self.kill = Power::Has;
        self
    }
}

impl Fixture for DriverFixture {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn powers(&self) -> Powers {
        let restart = Power::Lacks("this fixture does not know how its server is started");
        Powers::none().kill(self.kill).cut(Power::Has).drop_reply(Power::Has).restart(restart).pause(restart)
    }

    fn pace(&self) -> Pace {
        self.pace
    }

    fn connect(&self) -> BoxFuture<Result<Arc<dyn Connection>>> {
        let connect = (self.connect)();
        Box::pin(
            async move { Ok(Arc::new(FaultyConnection(Arc::new(Faulty::new(connect.await?)))) as Arc<dyn Connection>) },
        )
    }
}

struct FaultyConnection(Arc<Faulty>);

impl FaultyConnection {
    fn done(&self, what: impl FnOnce(&Faulty)) -> BoxFuture<Result<()>> {
        what(&self.0);
        Box::pin(std::future::ready(Ok(())))
    }
}

impl Connection for FaultyConnection {
    fn driver(&self) -> Arc<dyn DynDriver> {
        self.0.clone()
    }

    fn kill(&self) -> BoxFuture<Result<()>> {
        self.driver().close()
    }

    fn cut(&self) -> BoxFuture<Result<()>> {
        self.done(Faulty::cut)
    }

    fn heal(&self) -> BoxFuture<Result<()>> {
        self.done(Faulty::heal)
    }

    fn drop_reply(&self, verb: Verb) -> BoxFuture<Result<()>> {
        self.done(|line| line.drop_reply(verb))
    }
}
