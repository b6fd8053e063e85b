//! An uncontended acquire and release through the engine, against the fewest requests that a lock on ZooKeeper needs:
//! make an ephemeral sequential node, list its siblings, delete it. In turns, on connections of the same kind.
//!
//! `cargo run --release -p oarlock-zookeeper --example pair`; `OARLOCK_URL=zk://host:port` uses a server that runs.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use oarlock_core::Locks;
use oarlock_zookeeper::{Config, ZooKeeper};
use zookeeper_client as zk;

const ROUNDS: usize = 2000;
const WARM_UP: usize = 200;

#[tokio::main]
async fn main() -> Result<()> {
    let given = std::env::var("OARLOCK_URL").ok();
    let started = if given.is_none() { Some(oarlock_testbed::ZooKeeper::start()?) } else { None };
    let host = match (&given, &started) {
        (Some(url), _) => {
            url.split_once("://").context("no scheme")?.1.split('/').next().unwrap_or_default().to_owned()
        }
        (None, Some(server)) => server.addr().to_string(),
        (None, None) => anyhow::bail!("no server"),
    };
    let client = Locks::over(ZooKeeper::open(Config::new([host.clone()])).await?)?;
    let lock = client.mutex("pair");
    let raw = zk::Client::connect(&host).await?;
    let container = zk::CreateMode::Container.with_acls(zk::Acls::anyone_all());
    raw.mkdir("/pair", &container).await?;

    let (mut ours, mut least) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS + WARM_UP {
        let begun = Instant::now();
        let guard = lock.lock().await?;
        guard.release().await?;
        let took = begun.elapsed();
        let begun = Instant::now();
        raw_pair(&raw).await?;
        if round >= WARM_UP {
            ours.push(took);
            least.push(begun.elapsed());
        }
    }
    let (ours, least) = (median(ours), median(least));
    let ratio = ours.as_secs_f64() / least.as_secs_f64();
    println!("pair, median of {ROUNDS}: engine {ours:.1?}, fewest requests {least:.1?}, ratio {ratio:.2}");
    Ok(())
}

/// Making and listing are sent together, as nothing needs the first answer to ask the second question.
async fn raw_pair(raw: &zk::Client) -> Result<()> {
    let ephemeral = zk::CreateMode::EphemeralSequential.with_acls(zk::Acls::anyone_all());
    let (made, listed) = (raw.create("/pair/lock-", b"", &ephemeral), raw.list_children("/pair"));
    let (_, sequence) = made.await?;
    let node = format!("lock-{sequence}");
    anyhow::ensure!(listed.await?.iter().min() == Some(&node), "somebody else is here");
    raw.delete(&format!("/pair/{node}"), None).await?;
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
