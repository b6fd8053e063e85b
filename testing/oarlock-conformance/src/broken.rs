//! Deliberately broken locks as a fixture: the cases must catch them, or they prove nothing.

use std::sync::Arc;

use oarlock_core::driver::BoxFuture;
use oarlock_core::memory::{Kit, Verb};
use oarlock_core::{DynDriver, Result};
pub use oarlock_torture::broken::{BrokenStore, Flaw, is_right, judged, storm};

use crate::fixture::{Connection, Fixture, Power, Powers};

impl Fixture for BrokenStore {
    fn name(&self) -> String {
        format!("{:?}", self.flaw())
    }

    fn powers(&self) -> Powers {
        Powers::none().kill(Power::Has).cut(Power::Has).drop_reply(Power::Has)
    }

    fn connect(&self) -> BoxFuture<Result<Arc<dyn Connection>>> {
        let (driver, kit) = self.open();
        Box::pin(async move { Ok(Arc::new(BrokenConnection { driver, kit }) as Arc<dyn Connection>) })
    }
}

struct BrokenConnection {
    driver: Arc<dyn DynDriver>,
    kit: Kit,
}

impl BrokenConnection {
    fn done(&self, what: impl FnOnce(&Kit)) -> BoxFuture<Result<()>> {
        what(&self.kit);
        Box::pin(std::future::ready(Ok(())))
    }
}

impl Connection for BrokenConnection {
    fn driver(&self) -> Arc<dyn DynDriver> {
        self.driver.clone()
    }

    fn kill(&self) -> BoxFuture<Result<()>> {
        self.done(Kit::kill)
    }

    fn cut(&self) -> BoxFuture<Result<()>> {
        self.done(Kit::cut)
    }

    fn heal(&self) -> BoxFuture<Result<()>> {
        self.done(Kit::heal)
    }

    fn drop_reply(&self, verb: Verb) -> BoxFuture<Result<()>> {
        self.done(|kit| kit.drop_reply(verb))
    }
}
