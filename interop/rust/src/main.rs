//! Peers in Rust that Oarlock is measured beside: see ../README.md for their protocol.
//!
//! usage: oarlock-interop-peer <client> <url>

mod advisory_locks;
#[cfg(feature = "etcd")]
mod etcd_locks;
#[path = "../../../testing/oarlock-interop/src/peer.rs"]
mod peer;
mod rslock_locks;
mod zookeeper_locks;

use std::time::Duration;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [client, url] = args.as_slice() else { anyhow::bail!("usage: oarlock-interop-peer <client> <url>") };
    match client.as_str() {
        "rslock" => peer::run(client, rslock_locks::Rslock::connect(url)).await?,
        "zookeeper-client" => peer::run(client, zookeeper_locks::ZookeeperClient::connect(url).await?).await?,
        #[cfg(feature = "etcd")]
        "etcd-client" => peer::run(client, etcd_locks::EtcdClient::connect(url).await?).await?,
        "pg_advisory_lock" => peer::run(client, advisory_locks::Postgres(url.clone())).await?,
        "GET_LOCK" => peer::run(client, advisory_locks::Mysql(url.clone())).await?,
        other => anyhow::bail!("there is no client {other}"),
    }
    // The runtime would wait for a read of standard input that has ended already.
    std::process::exit(0)
}

/// For locks without a try that does not wait: it is asked for only where no other contends.
fn bound(wait: Duration) -> Duration {
    wait.max(Duration::from_secs(1))
}
