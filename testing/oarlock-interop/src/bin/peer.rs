//! A peer in Rust: Oarlock on any URL, or the baseline of its store. See `interop/README.md` for its protocol.
//!
//! usage: interop-peer oarlock|baseline URL

use oarlock_interop::baseline::Baseline;
use oarlock_interop::ours::Ours;
use oarlock_interop::run;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [client, url] = args.as_slice() else { anyhow::bail!("usage: interop-peer oarlock|baseline URL") };
    match client.as_str() {
        "oarlock" => run(client, Ours::connect(url).await?).await?,
        "baseline" => run(client, Baseline::connect(url).await?).await?,
        other => anyhow::bail!("there is no client {other}"),
    }
    // The runtime would wait for a read of standard input that has ended already.
    std::process::exit(0)
}
