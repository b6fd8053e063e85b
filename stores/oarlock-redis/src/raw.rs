//! Connections like those of the driver, for the requests of `oarlock-bench`. Not part of the API.

use oarlock_core::Result;
use redis::aio::MultiplexedConnection;

use crate::config::Config;
use crate::connection::{self, Target};
pub use crate::error::failed;
use crate::pool::Pool;

/// The servers of a store: one, or the masters of a cluster.
#[derive(Debug)]
pub struct Servers(Pool);

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server(Target);

/// An open connection; it ends when this is dropped.
pub struct Connection(connection::Connection);

impl Servers {
    /// Finds them.
    ///
    /// # Errors
    /// As for [`Redis::open`](crate::Redis::open).
    pub async fn open(config: Config) -> Result<Self> {
        Ok(Self(Pool::open(config).await.map_err(|error| error.during("open"))?.0))
    }

    /// The server that has `key`.
    ///
    /// # Errors
    /// When there is none.
    pub async fn of(&self, key: &str) -> Result<Server> {
        self.0.target(key).await.map(Server)
    }

    /// All of them.
    ///
    /// # Errors
    /// When they are not known.
    pub async fn all(&self) -> Result<Vec<Server>> {
        Ok(self.0.targets().await?.into_iter().map(Server).collect())
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// When the server cannot be reached, or refuses the user.
    pub async fn connect(&self, server: &Server) -> Result<Connection> {
        self.0.connect(&server.0).await.map(Connection)
    }

    /// Closes what was opened to find them.
    pub fn close(&self) {
        self.0.close();
    }
}

impl Connection {
    /// What requests are sent on.
    #[must_use]
    pub fn get(&self) -> MultiplexedConnection {
        self.0.client.clone()
    }
}
