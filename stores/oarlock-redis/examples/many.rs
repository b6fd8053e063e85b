//! What it costs one client to hold very many locks: memory on both sides, and the time that renewals take.
//!
//! `cargo run --release -p oarlock-redis --example many -- [locks] [seconds]` starts a server for it.

use std::fs;
use std::time::{Duration, Instant};

use oarlock_core::Locks;
use oarlock_redis::{Address, Config, Redis};
use oarlock_testbed::server::redis_command;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const LEASE: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let mut numbers = std::env::args().skip(1).map(|number| number.parse::<usize>());
    let locks = numbers.next().unwrap_or(Ok(100_000))?;
    let seconds = numbers.next().unwrap_or(Ok(30))?;
    let server = oarlock_testbed::Redis::start_with(&[("appendonly", "no")])?;
    let addr = server.addr();
    let store = Redis::open(Config::new(Address::Tcp(addr.ip().to_string(), addr.port()))).await?;
    let client = Locks::builder(store).ttl(LEASE).build()?;
    let used = || -> Result<f64, Failure> {
        let info = redis_command(addr, &["INFO", "memory"])?;
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory:")).ok_or("no memory")?;
        Ok(line.trim().parse()?)
    };
    let pid = server.pid().ok_or("no server")?;
    let (ours, theirs) = (resident()?, used()?);
    let start = Instant::now();
    let mut guards = Vec::with_capacity(locks);
    for number in 0..locks {
        guards.push(client.mutex(format!("job/{number}")).lock().await?);
    }
    println!("{locks} locks taken one after the other in {:.1} s", start.elapsed().as_secs_f64());
    let each = |bytes: f64| bytes / locks as f64;
    println!(
        "memory for each: client {:.0} bytes, server {:.0} bytes",
        each(resident()? - ours),
        each(used()? - theirs)
    );

    let (start, own, server_time) = (Instant::now(), cpu("self")?, cpu(&pid.to_string())?);
    let _ = redis_command(addr, &["CONFIG", "RESETSTAT"])?;
    tokio::time::sleep(Duration::from_secs(seconds as u64)).await;
    let span = start.elapsed().as_secs_f64();
    let stats = redis_command(addr, &["INFO", "commandstats"])?;
    let evals = stats.lines().find(|line| line.starts_with("cmdstat_evalsha")).unwrap_or_default();
    println!("renewals for {span:.0} s: {evals}");
    println!(
        "processor: client {:.1} %, server {:.1} %",
        (cpu("self")? - own) / span * 100.0,
        (cpu(&pid.to_string())? - server_time) / span * 100.0,
    );
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    println!("lost: {lost}");
    client.shutdown(Duration::from_secs(60)).await?;
    Ok(())
}

/// The memory of this process, in bytes.
fn resident() -> Result<f64, Failure> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no memory")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse::<f64>()? * 1024.0)
}

/// The seconds of processor time that a process has used.
fn cpu(pid: &str) -> Result<f64, Failure> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = stat.rsplit_once(") ").ok_or("no times")?;
    let ticks = rest.split(' ').skip(11).take(2).map(str::parse::<f64>).sum::<Result<f64, _>>()?;
    Ok(ticks / 100.0)
}
