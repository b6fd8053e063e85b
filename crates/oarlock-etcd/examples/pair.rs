//! An uncontended lock and unlock through the engine, against the fewest calls that etcd itself needs for it (a transaction
//! that makes a key on a lease that is there, and one that removes it) and against the server's own lock service.
//!
//! `OARLOCK_URL=etcd://host:port cargo run --release -p oarlock-etcd --example pair`, or without it on a server of its own.

use std::time::{Duration, Instant};

use oarlock_core::Locks;
use oarlock_etcd::bench::{Raw, Service};
use oarlock_etcd::{Config, Etcd};

const ROUNDS: usize = 15;
const PAIRS: usize = 200;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let given = std::env::var("OARLOCK_URL").ok();
    let server = if given.is_none() { Some(oarlock_testbed::Etcd::start()?) } else { None };
    let member = match (&given, &server) {
        (Some(url), _) => url.trim_start_matches("etcd://").trim_end_matches('/').to_owned(),
        (None, Some(server)) => server.addr().to_string(),
        (None, None) => anyhow::bail!("no server"),
    };
    let config = Config::new([member]);
    let client = Locks::over(Etcd::open(config.clone()).await?)?;
    let raw = Raw::open(&config).await?;
    let service = Service::open(&config, "pair").await?;
    let (mut engine, mut bare, mut served) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let lock = client.mutex("pair");
        let (mut ours, mut theirs, mut theirs_too) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..PAIRS {
            let start = Instant::now();
            lock.lock().await?.release().await?;
            ours.push(start.elapsed());
            let start = Instant::now();
            raw.pair().await?;
            theirs.push(start.elapsed());
            let start = Instant::now();
            service.unlock(service.lock().await?).await?;
            theirs_too.push(start.elapsed());
        }
        if round > 0 {
            engine.extend(ours);
            bare.extend(theirs);
            served.extend(theirs_too);
        }
    }
    let (ours, theirs, served) = (quantiles(&mut engine), quantiles(&mut bare), quantiles(&mut served));
    println!("two bare transactions   p50 {:?}  p99 {:?}", theirs.0, theirs.1);
    println!("lock and release        p50 {:?}  p99 {:?}", ours.0, ours.1);
    println!("the lock service        p50 {:?}  p99 {:?}", served.0, served.1);
    println!("ratio of the medians    {:.2}", ours.0.as_secs_f64() / theirs.0.as_secs_f64());
    service.close().await?;
    client.shutdown(Duration::from_secs(2)).await?;
    Ok(())
}

fn quantiles(times: &mut [Duration]) -> (Duration, Duration) {
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}
