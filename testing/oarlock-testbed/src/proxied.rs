//! A connection of the conformance suite that goes through proxies.

use std::sync::Arc;

use oarlock_conformance::Connection;
use oarlock_conformance::faulty::Faulty;
use oarlock_core::driver::{BoxFuture, DynDriver};
use oarlock_core::memory::Verb;
use oarlock_core::{Error, ErrorKind, Result};

use crate::proxy::{Held, Proxy};

/// Replies are lost above the driver, where verbs are known; every other fault happens in the proxies.
pub struct ProxiedConnection {
    driver: Arc<Faulty>,
    proxies: Vec<Proxy>,
}

impl ProxiedConnection {
    /// A driver that reaches its servers through these proxies only.
    pub fn new(driver: impl DynDriver + 'static, proxies: Vec<Proxy>) -> Arc<Self> {
        Self::over(Arc::new(driver), proxies)
    }

    /// As [`new`](Self::new), for a driver that is chosen at run time.
    pub fn over(driver: Arc<dyn DynDriver>, proxies: Vec<Proxy>) -> Arc<Self> {
        Arc::new(Self { driver: Arc::new(Faulty::new(driver)), proxies })
    }

    /// The proxies.
    pub fn proxies(&self) -> &[Proxy] {
        &self.proxies
    }
}

impl Connection for ProxiedConnection {
    fn driver(&self) -> Arc<dyn DynDriver> {
        self.driver.clone()
    }

    /// A dead process resets its connections and opens no more. A session that is not a connection lives on until the
    /// server ends it.
    fn kill(&self) -> BoxFuture<Result<()>> {
        self.proxies.iter().for_each(Proxy::refuse);
        done(Ok(()))
    }

    fn cut(&self) -> BoxFuture<Result<()>> {
        self.proxies.iter().for_each(Proxy::cut);
        done(Ok(()))
    }

    /// What was held up arrives late: the hardest of the ways a cut can end.
    fn heal(&self) -> BoxFuture<Result<()>> {
        done(self.proxies.iter().try_for_each(|proxy| proxy.heal(Held::Deliver)).map_err(failed))
    }

    fn drop_reply(&self, verb: Verb) -> BoxFuture<Result<()>> {
        self.driver.drop_reply(verb);
        done(Ok(()))
    }
}

/// A result that is there already, for a [`Fixture`](oarlock_conformance::Fixture).
pub fn done(result: Result<()>) -> BoxFuture<Result<()>> {
    Box::pin(std::future::ready(result))
}

/// An error of the testbed itself.
pub fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Os, "the testbed failed").because(error)
}
