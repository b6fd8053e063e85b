//! Compares the speed of lock libraries: one run, one server, one library after the other.

mod grants;
mod table;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use oarlock_testbed::Redis;
use oarlock_testbed::server::redis_command;

use crate::args::Args;
use crate::clients::{CLIENTS, Language};
use crate::process::{Answer, Peer, Trouble};
use grants::{Contention, read};

/// How often each library is measured.
const TURNS: usize = 3;

/// How long a turn of acquiring and releasing takes, in seconds.
const PAIR_SECONDS: &str = "0.5";

/// How long a turn of contention takes, in seconds: long enough for libraries that sleep 200 ms between two tries.
const LOAD_SECONDS: f64 = 1.2;

/// Turns of each contention.
const LOAD_TURNS: usize = 2;

/// Contenders, and processes that they are spread over, on one server.
const SHAPES: [(usize, usize); 3] = [(2, 2), (16, 2), (128, 8)];

/// The same on five.
const QUORUM_SHAPE: (usize, usize) = (4, 4);

/// A lease that nothing here outlives.
const LEASE: Duration = Duration::from_secs(30);

/// The fewest raw requests, in tables.
const BASELINE: &str = "baseline";

/// Libraries that are measured but not in the table of clients.
pub(crate) const ALSO: &[&str] = &["rslock", "rslock-5"];

/// What is counted as a request of every client; the rest is what its scripts do inside the server.
const REQUESTS: [&str; 6] = ["evalsha", "eval", "subscribe", "unsubscribe", "lpush", "blpop"];

/// Other requests of a client.
#[derive(Clone, Copy, Default)]
struct Asks {
    /// It does not set keys by scripts alone.
    set: bool,
    /// After each release it deletes a key, besides the one that its script deletes.
    del: bool,
}

/// A library that is measured.
struct Contestant {
    shown: &'static str,
    /// The client's kind for acquire and release alone, and for contention; none where it is not asked.
    pair: Option<&'static str>,
    load: Option<&'static str>,
    asks: Asks,
    command: Vec<String>,
    url: String,
    peers: Vec<Arc<Peer>>,
}

impl Contestant {
    fn new(shown: &'static str, command: Vec<String>, kind: &'static str, url: impl Into<String>) -> Self {
        let (asks, peers) = (Asks::default(), Vec::new());
        Self { shown, pair: Some(kind), load: Some(kind), asks, command, url: url.into(), peers }
    }

    /// As many processes as asked for, started when first needed.
    async fn peers(&mut self, many: usize) -> Result<&[Arc<Peer>]> {
        while self.peers.len() < many {
            self.peers.push(Arc::new(Peer::start(&self.command, &self.url, LEASE).await?));
        }
        Ok(&self.peers[..many])
    }
}

/// Measures, and prints the tables.
pub(crate) async fn run(args: &Args) -> Result<()> {
    if args.wants(|name| !name.ends_with("-5")) {
        let servers = masters(1).await?;
        let mut all = contestants(args, &servers[0])?;
        let mut pairs = Vec::new();
        for tasks in [1, 64] {
            pairs.push((tasks, measure_pairs(&mut all, tasks).await?));
        }
        println!("{}", table::pairs(&pairs));
        let mut loads = Vec::new();
        for shape in SHAPES {
            loads.push((shape, measure_loads(&mut all, shape, &servers).await?));
        }
        println!("{}", table::loads(&loads));
    }
    if args.wants(|name| name.ends_with("-5")) {
        let servers = masters(5).await?;
        let mut all = redlocks(args, &servers)?;
        println!("{}", table::pairs(&[(1, measure_pairs(&mut all, 1).await?)]));
        println!("{}", table::loads(&[(QUORUM_SHAPE, measure_loads(&mut all, QUORUM_SHAPE, &servers).await?)]));
    }
    Ok(())
}

async fn masters(many: usize) -> Result<Vec<Redis>> {
    tokio::task::spawn_blocking(move || (0..many).map(|_| Redis::start()).collect::<Result<Vec<_>>>()).await?
}

/// All libraries on one server. A client that is not installed is left out.
fn contestants(args: &Args, server: &Redis) -> Result<Vec<Contestant>> {
    let url = server.url();
    let baseline = Contestant::new(BASELINE, ours("baseline")?, "pair", url.clone());
    let mut all = vec![Contestant { load: Some("rival"), ..baseline }];
    for (shown, kind, query) in [
        ("oarlock", "mutex", ""),
        ("oarlock, fair", "fair", ""),
        ("oarlock, layout=plain", "mutex", "?layout=plain"),
        ("oarlock, layout=redisson", "mutex", "?layout=redisson"),
    ] {
        all.push(Contestant::new(shown, ours("oarlock")?, kind, format!("{url}{query}")));
    }
    let (sets, dels) = (Asks { set: true, del: false }, Asks { set: false, del: true });
    for (name, shown, kind, asks) in [
        ("redisson", "Redisson RLock", "mutex", dels),
        ("redisson", "Redisson RFairLock", "fair", dels),
        ("redis-py", "redis-py", "mutex", sets),
        ("pottery", "pottery", "mutex", sets),
        ("node-redlock", "node-redlock", "mutex", Asks::default()),
        ("redsync", "redsync", "mutex", sets),
        ("rslock", "rslock", "mutex", sets),
    ] {
        if let Some(command) = theirs(args, name)? {
            all.push(Contestant { asks, ..Contestant::new(shown, command, kind, url.clone()) });
        }
    }
    Ok(all)
}

/// All libraries on five servers.
fn redlocks(args: &Args, masters: &[Redis]) -> Result<Vec<Contestant>> {
    let hosts: Vec<_> = masters.iter().map(|master| master.addr().to_string()).collect();
    let url: Vec<_> = masters.iter().map(Redis::url).collect();
    let (ours_url, url) = (format!("redlock://{}", hosts.join(",")), url.join(","));
    let baseline = Contestant::new(BASELINE, ours("baseline")?, "pair", &ours_url);
    let mut all =
        vec![Contestant { load: None, ..baseline }, Contestant::new("oarlock", ours("oarlock")?, "mutex", &ours_url)];
    for (name, shown, set) in [
        ("node-redlock-5", "node-redlock", false),
        ("pottery-5", "pottery", true),
        ("redsync-5", "redsync", true),
        ("rslock-5", "rslock", true),
    ] {
        if let Some(command) = theirs(args, name)? {
            all.push(Contestant { asks: Asks { set, del: false }, ..Contestant::new(shown, command, "mutex", &url) });
        }
    }
    Ok(all)
}

fn ours(client: &str) -> Result<Vec<String>> {
    let program = std::env::current_exe()?.with_file_name("interop-peer");
    Ok(vec![program.to_string_lossy().into_owned(), client.to_owned()])
}

/// The newest version of a client, where it was asked for and can be run.
fn theirs(args: &Args, name: &str) -> Result<Option<Vec<String>>> {
    if !args.wants(|wanted| wanted == name) {
        return Ok(None);
    }
    if ALSO.contains(&name) {
        // It is built beside ours.
        let program = std::env::current_exe()?.with_file_name("oarlock-interop-peer");
        return Ok(program.is_file().then(|| vec![program.to_string_lossy().into_owned(), "rslock".to_owned()]));
    }
    let client = CLIENTS.iter().find(|client| client.name == name).context("no such client")?;
    if args.lacks(client.language) {
        return Ok(None);
    }
    let versions = client.versions(&args.root, false)?;
    let version = versions.first().context("no version")?;
    let mut command = client.command(&args.root, &args.out, version);
    if client.language == Language::Java {
        // What is measured here lives for minutes, so the collector that a server would have.
        command.retain(|arg| arg != "-XX:+UseSerialGC");
    }
    Ok(Some(command))
}

/// Pairs of one contestant: how many a second, and the median and the 99th of a hundred, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Pairs {
    rate: f64,
    p50: u64,
    p99: u64,
}

async fn measure_pairs(all: &mut [Contestant], tasks: u32) -> Result<Vec<(&'static str, Option<Pairs>)>> {
    let seconds: f64 = PAIR_SECONDS.parse()?;
    let mut turns: Vec<Vec<Pairs>> = vec![Vec::new(); all.len()];
    // The first turn of all is there to warm up.
    for turn in 0..=TURNS {
        for (place, contestant) in all.iter_mut().enumerate() {
            let Some(kind) = contestant.pair else { continue };
            let shown = contestant.shown;
            let peer = match contestant.peers(1).await {
                Ok(peers) => peers[0].clone(),
                // A store without a baseline is left out.
                Err(error) => {
                    eprintln!("{shown}: {error:#}");
                    contestant.pair = None;
                    continue;
                }
            };
            let line = format!("pairs {} {kind} speed-{tasks}-{place} {tasks} {PAIR_SECONDS}", Peer::handle());
            match peer.request(line).await {
                Ok(Answer::Pairs { count, p50, p99 }) if turn > 0 => {
                    turns[place].push(Pairs { rate: rate(count, seconds), p50, p99 });
                }
                Ok(Answer::Pairs { .. }) => {}
                other => bail!("{shown}: {other:?}"),
            }
        }
    }
    let median = |turns: &Vec<Pairs>| {
        let mut turns = turns.clone();
        turns.sort_by(|a, b| a.rate.total_cmp(&b.rate));
        turns.get(turns.len() / 2).copied()
    };
    Ok(all.iter().zip(&turns).map(|(contestant, turns)| (contestant.shown, median(turns))).collect())
}

#[expect(clippy::cast_precision_loss, reason = "figures are rounded anyway")]
fn rate(count: u64, seconds: f64) -> f64 {
    count as f64 / seconds
}

/// One lock, many contenders; what came of it, or why nothing did.
async fn measure_loads(
    all: &mut [Contestant],
    (contenders, processes): (usize, usize),
    servers: &[Redis],
) -> Result<Vec<(&'static str, Result<Contention, String>)>> {
    let folder = tempfile::tempdir()?;
    let mut sums: Vec<Result<Contention, String>> = all.iter().map(|_| Ok(Contention::new(contenders))).collect();
    for turn in 0..LOAD_TURNS {
        for (place, contestant) in all.iter_mut().enumerate() {
            let Some(kind) = contestant.load else { continue };
            let Ok(sum) = &mut sums[place] else { continue };
            let asks = contestant.asks;
            let peers = match contestant.peers(processes).await {
                Ok(peers) => peers.to_vec(),
                Err(error) => {
                    sums[place] = Err(format!("{error:#}"));
                    continue;
                }
            };
            for server in servers {
                redis_command(server.addr(), &["CONFIG", "RESETSTAT"])?;
            }
            let name = format!("load-{contenders}-{processes}-{place}-{turn}");
            let mut loading = tokio::task::JoinSet::new();
            for (number, peer) in peers.into_iter().enumerate() {
                let file = folder.path().join(format!("{place}-{turn}-{number}"));
                let line = format!(
                    "load {} {kind} {name} {} {LOAD_SECONDS} {}",
                    Peer::handle(),
                    contenders / processes,
                    file.display()
                );
                loading.spawn(async move { (number, file, peer.request(line).await) });
            }
            let mut grants = Vec::new();
            let mut trouble = None;
            while let Some(done) = loading.join_next().await {
                let (number, file, answer) = done?;
                match answer {
                    Ok(_) => grants.extend(read(&file, number * contenders / processes)?),
                    Err(Trouble::Cannot(why) | Trouble::Failed(why)) => trouble = Some(why),
                }
            }
            let mut requests = 0;
            for server in servers {
                requests += calls(&redis_command(server.addr(), &["INFO", "commandstats"])?, asks, grants.len() as u64);
            }
            match trouble {
                None => sum.add(grants, Duration::from_secs_f64(LOAD_SECONDS), requests),
                Some(why) => sums[place] = Err(why),
            }
        }
    }
    let asked = all.iter().map(|contestant| (contestant.shown, contestant.load.is_some()));
    Ok(asked.zip(sums).filter(|((_, asked), _)| *asked).map(|((shown, _), sum)| (shown, sum)).collect())
}

/// How many requests a server has had for so many grants, out of its own statistics.
fn calls(info: &str, asks: Asks, grants: u64) -> u64 {
    let count = |line: &str| -> Option<u64> {
        let (name, rest) = line.trim().strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let calls: u64 = rest.split(',').next()?.parse().ok()?;
        match name {
            "del" if asks.del => Some(calls.saturating_sub(grants)),
            "set" if asks.set => Some(calls),
            _ => REQUESTS.contains(&name).then_some(calls),
        }
    };
    info.lines().filter_map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_are_counted() {
        let info = "# Commandstats\r\ncmdstat_evalsha:calls=7,usec=1\r\ncmdstat_set:calls=5,usec=1\r\n\
                    cmdstat_hget:calls=9,usec=1\r\ncmdstat_subscribe:calls=2,usec=1\r\n\
                    cmdstat_del:calls=6,usec=1\r\n";
        assert_eq!(calls(info, Asks::default(), 3), 9);
        assert_eq!(calls(info, Asks { set: true, del: false }, 3), 14);
        assert_eq!(calls(info, Asks { set: false, del: true }, 3), 12);
    }
}
