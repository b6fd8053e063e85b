//! What a Redlock costs, beside the fewest raw requests that could do it: `cargo run --release -p oarlock-redis --example
//! redlock_pair`. It starts its own servers, on this machine, so that the way to them costs next to nothing; then the same again
//! behind proxies that hold up what passes for half a millisecond at least.

#[path = "support/redlock.rs"]
mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oarlock_core::driver::{Attempt, Driver as _, End};
use oarlock_core::floor::Floor;
use oarlock_core::quorum::Quorum;
use oarlock_core::{Claim, ClaimId, Locks, ResourceName};
use oarlock_testbed::proxy::{Direction, Proxy};

use self::support::{Failure, config, quorum, start};

const PAIRS: usize = 2000;

/// Both sides of a comparison, on the same servers.
struct Bench {
    raw: Arc<dyn Floor>,
    quorum: Quorum,
    client: Locks,
}

impl Bench {
    async fn open(addrs: &[SocketAddr]) -> Result<Self, Failure> {
        let raw = oarlock_redis::quorum_floor::open(addrs.iter().map(|addr| config(*addr)).collect()).await?;
        let client = Locks::builder(quorum(addrs).await?).build()?;
        Ok(Self { raw, quorum: quorum(addrs).await?, client })
    }

    async fn driver_pair(&self, number: usize) -> Result<(), Failure> {
        let name = ResourceName::new("driver")?;
        let claim = Claim::new(ClaimId::from_bits(number as u128 + 1), name.clone());
        // The release of the pair before may still be on its way to the last node, which can cost a vote, never the round.
        let Attempt::Granted(_) = self.quorum.attempt(&claim).await? else { return Err("not granted".into()) };
        self.quorum.release(&name, claim.id, &End::Done { memo: None }).await?;
        Ok(())
    }

    /// One client alone: a pair of each.
    async fn turn(&self, number: usize, took: &mut [Vec<Duration>; 3]) -> Result<(), Failure> {
        let began = Instant::now();
        self.raw.clone().pair(Arc::from("raw")).await?;
        took[0].push(began.elapsed());
        let began = Instant::now();
        self.driver_pair(number).await?;
        took[1].push(began.elapsed());
        let began = Instant::now();
        self.client.mutex("engine").lock().await?.release().await?;
        took[2].push(began.elapsed());
        Ok(())
    }
}

/// All of these in turn, so that what else the machine does is the same for each.
async fn run(benches: &[(&str, &Bench)], pairs: usize) -> Result<(), Failure> {
    let before: Vec<_> = benches.iter().map(|(_, bench)| bench.quorum.rounds()).collect();
    let mut took = vec![<[Vec<Duration>; 3]>::default(); benches.len()];
    for number in 0..pairs {
        for ((_, bench), took) in benches.iter().zip(&mut took) {
            bench.turn(number, took).await?;
        }
    }
    for (((what, bench), took), before) in benches.iter().zip(&mut took).zip(before) {
        took.iter_mut().for_each(|took| took.sort_unstable());
        let at = |side: usize, part: usize| took[side][took[side].len() * part / 100].as_micros();
        for (side, name) in ["raw rounds, twice", "driver", "engine"].into_iter().enumerate() {
            let ratio = at(side, 50) as f64 / at(0, 50) as f64;
            println!("{what:<30} {name:<18} p50 {:>6} us   p99 {:>6} us   {ratio:.2}", at(side, 50), at(side, 99));
        }
        let rounds = bench.quorum.rounds();
        let (won, written) = (rounds.won - before.won, rounds.written_back - before.written_back);
        println!("{what:<30} {won} rounds won, {} lost, fence written back in {written}", rounds.lost - before.lost);
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    // Where the tasks of a program run: what they start from there wakes no other thread.
    tokio::spawn(measure()).await?
}

async fn measure() -> Result<(), Failure> {
    for count in [3, 5] {
        let (_servers, addrs) = start(count)?;
        let bench = Bench::open(&addrs).await?;
        run(&[(&format!("{count} nodes, all up"), &bench)], PAIRS).await?;
        let proxies: Vec<_> = addrs.iter().map(|addr| Proxy::start(*addr)).collect::<Result<_, _>>()?;
        for proxy in &proxies {
            proxy.delay(Direction::ToServer, Duration::from_micros(500));
            proxy.delay(Direction::ToClient, Duration::from_micros(500));
        }
        let far: Vec<_> = proxies.iter().map(Proxy::addr).collect();
        run(&[(&format!("{count} nodes, behind a delay"), &Bench::open(&far).await?)], PAIRS / 10).await?;
        if count == 5 {
            let (others, addrs) = start(count)?;
            let fewer = Bench::open(&addrs).await?;
            others[0].kill()?;
            others[1].pause()?;
            run(&[("5 nodes, all up", &bench), ("5 nodes, 1 down, 1 stopped", &fewer)], PAIRS).await?;
            others[1].resume()?;
        }
    }
    Ok(())
}
