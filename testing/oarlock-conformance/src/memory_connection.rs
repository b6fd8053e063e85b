//! A connection of the fixtures that are in memory.

use std::sync::Arc;

use oarlock_core::driver::BoxFuture;
use oarlock_core::memory::{Kit, Verb};
use oarlock_core::{DynDriver, Result};

use crate::fixture::Connection;

/// A connection of a store in memory. Its [`Kit`] has the powers.
pub struct MemoryConnection {
    /// The driver of this connection.
    pub driver: Arc<dyn DynDriver>,
    /// Kills and cuts it, and loses its replies.
    pub kit: Kit,
}

impl MemoryConnection {
    fn done(&self, what: impl FnOnce(&Kit)) -> BoxFuture<Result<()>> {
        what(&self.kit);
        Box::pin(std::future::ready(Ok(())))
    }
}

impl Connection for MemoryConnection {
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
