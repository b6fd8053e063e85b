//! Lets the contestants take turns.

use std::time::Duration;

use anyhow::{Result, bail};
use oarlock_testbed::server::redis_command;

use super::contestants::{Contestant, ExtraRequests};
use super::grants::{Contention, read};
use super::progress::Progress;
use super::rate;
use crate::process::{Answer, Peer, Trouble};
use crate::servers::Servers;

/// How often each library is measured.
pub(super) const TURNS: usize = 3;

/// How long a turn of acquiring and releasing takes, in seconds.
const PAIR_SECONDS: &str = "0.5";

/// How long a turn of contention takes, in seconds: long enough for libraries that sleep 200 ms between two tries.
const LOAD_SECONDS: f64 = 1.2;

/// Turns of each contention.
pub(super) const LOAD_TURNS: usize = 2;

/// What is counted as a request of every client; the rest is what its scripts do inside the server.
const REQUESTS: [&str; 6] = ["evalsha", "eval", "subscribe", "unsubscribe", "lpush", "blpop"];

/// Pairs of one contestant: how many a second, and the median and the 99th of a hundred, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pairs {
    pub(super) rate: f64,
    pub(super) p50: u64,
    pub(super) p99: u64,
}

/// A contestant, and its figures or why there are none.
pub(super) type Measured<T> = (&'static str, Result<T, String>);

/// How many tasks, and what each contestant did.
pub(super) type PairRows = (u32, Vec<Measured<Pairs>>);

/// How many contenders in how many processes, and what each contestant did.
pub(super) type LoadRows = ((usize, usize), Vec<Measured<Contention>>);

/// Acquire and release, by so many tasks with a name each: the median turn of each contestant.
pub(super) async fn pairs(all: &mut [Contestant], tasks: u32, progress: &mut Progress) -> Result<Vec<Measured<Pairs>>> {
    let seconds: f64 = PAIR_SECONDS.parse()?;
    let mut turns: Vec<Result<Vec<Pairs>, String>> = vec![Ok(Vec::new()); all.len()];
    // The first turn of all is there to warm up.
    for turn in 0..=TURNS {
        for (place, contestant) in all.iter_mut().enumerate() {
            progress.step(contestant.shown);
            let (Some(kind), Ok(sum)) = (contestant.pair, &mut turns[place]) else { continue };
            let peer = match contestant.peers(1).await {
                Ok(peers) => peers[0].clone(),
                Err(error) => {
                    turns[place] = Err(format!("{error:#}"));
                    continue;
                }
            };
            let line = format!("pairs {} {kind} speed-{tasks}-{place} {tasks} {PAIR_SECONDS}", Peer::handle());
            match peer.request(line).await {
                Ok(Answer::Pairs { count, p50, p99 }) if turn > 0 => {
                    sum.push(Pairs { rate: rate(count, seconds), p50, p99 });
                }
                Ok(Answer::Pairs { .. }) => {}
                Err(Trouble::Cannot(why) | Trouble::Failed(why)) => turns[place] = Err(why),
                Ok(other) => bail!("{}: {other:?}", contestant.shown),
            }
        }
    }
    let median = |mut turns: Vec<Pairs>| {
        turns.sort_by(|a, b| a.rate.total_cmp(&b.rate));
        turns.get(turns.len() / 2).copied().ok_or_else(|| "not measured".to_owned())
    };
    Ok(all.iter().zip(turns).map(|(contestant, turns)| (contestant.shown, turns.and_then(median))).collect())
}

/// One lock, many contenders.
pub(super) async fn loads(
    all: &mut [Contestant],
    (contenders, processes): (usize, usize),
    servers: &Servers,
    progress: &mut Progress,
) -> Result<Vec<Measured<Contention>>> {
    let folder = tempfile::tempdir()?;
    let mut sums: Vec<Result<Contention, String>> = all.iter().map(|_| Ok(Contention::new(contenders))).collect();
    for turn in 0..LOAD_TURNS {
        for (place, contestant) in all.iter_mut().enumerate() {
            progress.step(contestant.shown);
            let (Some(kind), Ok(sum)) = (contestant.load, &mut sums[place]) else { continue };
            let extra = contestant.extra;
            let peers = match contestant.peers(processes).await {
                Ok(peers) => peers.to_vec(),
                Err(error) => {
                    sums[place] = Err(format!("{error:#}"));
                    continue;
                }
            };
            for server in servers.redis() {
                redis_command(server, &["CONFIG", "RESETSTAT"])?;
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
            let (mut grants, mut trouble) = (Vec::new(), None);
            while let Some(done) = loading.join_next().await {
                let (number, file, answer) = done?;
                match answer {
                    Ok(_) => grants.extend(read(&file, number * contenders / processes)?),
                    Err(Trouble::Cannot(why) | Trouble::Failed(why)) => trouble = Some(why),
                }
            }
            let mut requests = None;
            for server in servers.redis() {
                let count = calls(&redis_command(server, &["INFO", "commandstats"])?, extra, grants.len() as u64);
                requests = Some(requests.unwrap_or(0) + count);
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
fn calls(info: &str, extra: ExtraRequests, grants: u64) -> u64 {
    let count = |line: &str| -> Option<u64> {
        let (name, rest) = line.trim().strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let calls: u64 = rest.split(',').next()?.parse().ok()?;
        match name {
            "del" if extra.del => Some(calls.saturating_sub(grants)),
            "set" if extra.set => Some(calls),
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
        assert_eq!(calls(info, ExtraRequests::default(), 3), 9);
        assert_eq!(calls(info, ExtraRequests { set: true, del: false }, 3), 14);
        assert_eq!(calls(info, ExtraRequests { set: false, del: true }, 3), 12);
    }
}
