//! A ready-made fixture for any driver: faults are put between the engine and the driver.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::BoxFuture;
use oarlock_core::memory::Verb;
use oarlock_core::{DynDriver, Result};

use crate::faulty::Faulty;
use crate::fixture::{Connection, Fixture, Pace, Power, Powers};

type Connect = Box<dyn Fn() -> BoxFuture<Result<Arc<dyn DynDriver>>> + Send + Sync>;

/// A fixture made of a way to connect. It can cut lines and lose replies on every driver; a store with a network of
/// its own deserves a [`Fixture`] that cuts that one, too.
pub struct Plain {
    name: String,
    pace: Pace,
    kill: Power,
    connect: Connect,
}

impl Plain {
    /// A store called `name` that `connect` opens another connection to, each time.
    pub fn new<F>(name: impl Into<String>, connect: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Arc<dyn DynDriver>>> + Send + 'static,
    {
        let connect: Connect = Box::new(move || Box::pin(connect()));
        let pace = Pace::of(Duration::from_millis(1000));
        let kill = Power::Lacks("closing a connection of this store is not like the death of its process");
        Self { name: name.into(), pace, kill, connect }
    }

    /// The times that suit the store.
    #[must_use]
    pub fn pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// Closing a connection of this store does to its claims what the death of its process would.
    #[must_use]
    pub fn close_is_death(mut self) -> Self {
        self.kill = Power::Has;
        self
    }
}

impl Fixture for Plain {
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
        Box::pin(async move { Ok(Arc::new(Line(Arc::new(Faulty::new(connect.await?)))) as Arc<dyn Connection>) })
    }
}

struct Line(Arc<Faulty>);

impl Line {
    fn done(&self, what: impl FnOnce(&Faulty)) -> BoxFuture<Result<()>> {
        what(&self.0);
        Box::pin(std::future::ready(Ok(())))
    }
}

impl Connection for Line {
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
