//! Peers in Rust that Oarlock is measured beside: see ../README.md for their protocol.
//!
//! usage: oarlock-interop-peer <client> <url>

#[path = "../../../testing/oarlock-interop/src/peer.rs"]
mod peer;
mod rslock_locks;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [client, url] = args.as_slice() else { anyhow::bail!("usage: oarlock-interop-peer <client> <url>") };
    match client.as_str() {
        "rslock" => peer::run(client, rslock_locks::Rslock::connect(url)).await?,
        other => anyhow::bail!("there is no client {other}"),
    }
    // The runtime would wait for a read of standard input that has ended already.
    std::process::exit(0)
}
