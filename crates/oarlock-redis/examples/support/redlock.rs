//! What the examples of Redlock share.

use std::net::SocketAddr;
use std::sync::Arc;

use oarlock_core::DynDriver;
use oarlock_core::quorum::{Later, Quorum};
use oarlock_redis::{Address, Config, Layout, Redis};
use oarlock_testbed::Redis as Server;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

pub(crate) fn config(addr: SocketAddr) -> Config {
    let mut config = Config::new(Address::Tcp(addr.ip().to_string(), addr.port()));
    (config.layout, config.prefix) = (Layout::Plain, String::new());
    config
}

/// A client of its own, with connections of its own.
pub(crate) async fn quorum(addrs: &[SocketAddr]) -> Result<Quorum, Failure> {
    let node = |addr: &SocketAddr| {
        let config = config(*addr);
        Later::new(addr.to_string(), move || {
            let config = config.clone();
            Box::pin(async move { Ok(Arc::new(Redis::open(config).await?) as Arc<dyn DynDriver>) })
        })
    };
    Ok(Quorum::open(addrs.iter().map(node).collect()).await?)
}

pub(crate) fn start(count: usize) -> Result<(Vec<Server>, Vec<SocketAddr>), Failure> {
    let servers: Vec<_> = (0..count).map(|_| Server::start()).collect::<Result<_, _>>()?;
    let addrs = servers.iter().map(Server::addr).collect();
    Ok((servers, addrs))
}
