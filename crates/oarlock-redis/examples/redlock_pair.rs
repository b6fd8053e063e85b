//! What a Redlock costs, beside the fewest raw requests that could do it: `cargo run --release -p oarlock-redis --example
//! redlock_pair`. It starts its own servers, on this machine, so that the way to them costs next to nothing; then the same again
//! behind proxies that hold up what passes for half a millisecond at least.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oarlock_core::driver::{Attempt, Driver as _, End};
use oarlock_core::floor::Floor;
use oarlock_core::quorum::{Later, Quorum};
use oarlock_core::{Claim, ClaimId, Client, DynDriver, ResourceName};
use oarlock_redis::{Address, Config, Layout, Redis};
use oarlock_testbed::Redis as Server;
use oarlock_testbed::proxy::{Direction, Proxy};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const PAIRS: usize = 1000;
/// How many rivals there are where there are any, and how often each gets the lock.
const RIVALS: usize = 8;
const TURNS: usize = 50;

fn config(addr: SocketAddr) -> Config {
    let mut config = Config::new(Address::Tcp(addr.ip().to_string(), addr.port()));
    (config.layout, config.prefix) = (Layout::Plain, String::new());
    config
}

async fn quorum(addrs: &[SocketAddr]) -> Result<Quorum, Failure> {
    let node = |addr: &SocketAddr| {
        let config = config(*addr);
        Later::new(addr.to_string(), move || {
            let config = config.clone();
            Box::pin(async move { Ok(Arc::new(Redis::open(config).await?) as Arc<dyn DynDriver>) })
        })
    };
    Ok(Quorum::open(addrs.iter().map(node).collect()).await?)
}

/// Both sides of a comparison, on the same servers.
struct Bench {
    raw: Arc<dyn Floor>,
    quorum: Quorum,
    client: Client,
}

impl Bench {
    async fn open(addrs: &[SocketAddr]) -> Result<Self, Failure> {
        let raw = oarlock_redis::quorum_floor::open(addrs.iter().map(|addr| config(*addr)).collect()).await?;
        let client = Client::builder(quorum(addrs).await?).build()?;
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

    /// One client alone.
    async fn run(&self, what: &str, pairs: usize) -> Result<(), Failure> {
        let (before, mutex, name) = (self.quorum.rounds(), self.client.mutex("engine")?, Arc::<str>::from("raw"));
        let mut took: [Vec<Duration>; 3] = Default::default();
        for number in 0..pairs {
            let began = Instant::now();
            self.raw.clone().pair(name.clone()).await?;
            took[0].push(began.elapsed());
            let began = Instant::now();
            self.driver_pair(number).await?;
            took[1].push(began.elapsed());
            let began = Instant::now();
            mutex.lock().await?.release().await?;
            took[2].push(began.elapsed());
        }
        let rounds = self.quorum.rounds();
        took.iter_mut().for_each(|took| took.sort_unstable());
        let at = |side: usize, part: usize| took[side][took[side].len() * part / 100].as_micros();
        for (side, name) in ["raw rounds, twice", "driver", "engine"].into_iter().enumerate() {
            let ratio = at(side, 50) as f64 / at(0, 50) as f64;
            println!("{what:<30} {name:<18} p50 {:>6} us   p99 {:>6} us   {ratio:.2}", at(side, 50), at(side, 99));
        }
        let (won, written) = (rounds.won - before.won, rounds.written_back - before.written_back);
        println!("{what:<30} {won} rounds won, {} lost, fence written back in {written}", rounds.lost - before.lost);
        Ok(())
    }
}

/// Many clients at once, each with connections of its own.
async fn contend(what: &str, addrs: &[SocketAddr]) -> Result<(), Failure> {
    let mut rivals = tokio::task::JoinSet::new();
    let began = Instant::now();
    for _ in 0..RIVALS {
        let quorum = Arc::new(quorum(addrs).await?);
        let client = Client::builder_over(quorum.clone()).build()?;
        rivals.spawn(async move {
            for _ in 0..TURNS {
                client.mutex("contended")?.lock().await?.release().await?;
            }
            Ok::<_, Failure>(quorum.rounds())
        });
    }
    let (mut won, mut lost, mut written) = (0, 0, 0);
    while let Some(rounds) = rivals.join_next().await {
        let rounds = rounds??;
        (won, lost, written) = (won + rounds.won, lost + rounds.lost, written + rounds.written_back);
    }
    let took = began.elapsed().as_secs_f64();
    println!(
        "{what:<30} {RIVALS} rivals: {won} rounds won in {took:.1} s, {lost} lost, fence written back in {written}"
    );
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    for count in [3, 5] {
        let mut servers = Vec::new();
        for _ in 0..count {
            servers.push(Server::start()?);
        }
        let addrs: Vec<_> = servers.iter().map(Server::addr).collect();
        let bench = Bench::open(&addrs).await?;
        bench.run(&format!("{count} nodes, all up"), PAIRS).await?;
        let proxies: Vec<_> = addrs.iter().map(|addr| Proxy::start(*addr)).collect::<Result<_, _>>()?;
        for proxy in &proxies {
            proxy.delay(Direction::ToServer, Duration::from_micros(500));
            proxy.delay(Direction::ToClient, Duration::from_micros(500));
        }
        let far: Vec<_> = proxies.iter().map(Proxy::addr).collect();
        Bench::open(&far).await?.run(&format!("{count} nodes, behind a delay"), PAIRS / 5).await?;
        contend(&format!("{count} nodes, all up"), &addrs).await?;
        if count == 5 {
            servers[0].kill()?;
            servers[1].pause()?;
            bench.run("5 nodes, 1 down, 1 stopped", PAIRS).await?;
            servers[1].resume()?;
        }
    }
    Ok(())
}
