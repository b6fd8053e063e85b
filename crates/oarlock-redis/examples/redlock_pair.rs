//! What a Redlock costs, beside the fewest raw requests that could do it: `cargo run --release -p oarlock-redis --example
//! redlock_pair`. It starts its own servers, on this machine, so that the way to them costs next to nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use oarlock_core::driver::{Attempt, Driver as _, End};
use oarlock_core::quorum::{Later, Quorum};
use oarlock_core::{Claim, ClaimId, Client, DynDriver, ResourceName};
use oarlock_redis::{Address, Config, Layout, Redis};
use oarlock_testbed::Redis as Server;
use redis::aio::MultiplexedConnection;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const PAIRS: usize = 1000;
const FREE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

/// The least that Redlock needs: one round to take, one to free, each over when a majority has answered.
struct Raw {
    nodes: Vec<MultiplexedConnection>,
    majority: usize,
    free: redis::Script,
}

impl Raw {
    /// Sends `command` to all nodes, and waits for a majority.
    async fn round(&self, command: &redis::Cmd) -> Result<(), Failure> {
        let mut calls = FuturesUnordered::new();
        for node in &self.nodes {
            let (mut node, command) = (node.clone(), command.clone());
            calls.push(async move { command.query_async::<redis::Value>(&mut node).await });
        }
        let mut answers = 0;
        while answers < self.majority {
            match calls.next().await {
                Some(Ok(_)) => answers += 1,
                Some(Err(_)) => {}
                None => return Err("no majority".into()),
            }
        }
        Ok(())
    }

    async fn pair(&self, number: usize) -> Result<(), Failure> {
        let value = format!("{number:032x}");
        let mut take = redis::cmd("SET");
        take.arg("raw").arg(&value).arg("NX").arg("PX").arg(30_000);
        self.round(&take).await?;
        let mut free = redis::cmd("EVALSHA");
        free.arg(self.free.get_hash()).arg(1).arg("raw").arg(&value);
        self.round(&free).await
    }
}

/// Both sides of a comparison, on the same servers.
struct Bench {
    raw: Raw,
    quorum: Quorum,
    client: Client,
}

impl Bench {
    async fn open(servers: &[Server]) -> Result<Self, Failure> {
        let mut nodes = Vec::new();
        let free = redis::Script::new(FREE);
        for server in servers {
            let client = redis::Client::open(format!("redis://{}", server.addr()))?;
            let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(60)));
            let mut node = client.get_multiplexed_async_connection_with_config(&config).await?;
            let _: String = redis::cmd("SCRIPT").arg("LOAD").arg(FREE).query_async(&mut node).await?;
            nodes.push(node);
        }
        let raw = Raw { majority: nodes.len() / 2 + 1, nodes, free };
        let client = Client::builder(quorum(servers).await?).build()?;
        Ok(Self { raw, quorum: quorum(servers).await?, client })
    }

    async fn driver_pair(&self, number: usize) -> Result<(), Failure> {
        let name = ResourceName::new("driver")?;
        let claim = Claim::new(ClaimId::from_bits(number as u128 + 1), name.clone());
        // The release of the pair before may still be on its way to the last node, which can cost a vote, never the round.
        let Attempt::Granted(_) = self.quorum.attempt(&claim).await? else { return Err("not granted".into()) };
        self.quorum.release(&name, claim.id, &End::Done { memo: None }).await?;
        Ok(())
    }

    async fn run(&self, what: &str) -> Result<(), Failure> {
        let (before, mutex) = (self.quorum.rounds(), self.client.mutex("engine")?);
        let mut took: [Vec<Duration>; 3] = Default::default();
        for number in 0..PAIRS {
            let began = Instant::now();
            self.raw.pair(number).await?;
            took[0].push(began.elapsed());
            let began = Instant::now();
            self.driver_pair(number).await?;
            took[1].push(began.elapsed());
            let began = Instant::now();
            mutex.lock().await?.release().await?;
            took[2].push(began.elapsed());
        }
        let rounds = self.quorum.rounds();
        for (side, took) in ["raw rounds, twice", "driver", "engine"].into_iter().zip(&mut took) {
            took.sort_unstable();
            let at = |part: usize| took[took.len() * part / 100].as_micros();
            println!("{what:<30} {side:<18} p50 {:>6} us   p99 {:>6} us", at(50), at(99));
        }
        let (won, written) = (rounds.won - before.won, rounds.written_back - before.written_back);
        println!("{what:<30} {won} rounds won, {} lost, fence written back in {written}", rounds.lost - before.lost);
        Ok(())
    }
}

async fn quorum(servers: &[Server]) -> Result<Quorum, Failure> {
    let node = |server: &Server| {
        let addr = server.addr();
        let mut config = Config::new(Address::Tcp(addr.ip().to_string(), addr.port()));
        (config.layout, config.prefix) = (Layout::Plain, String::new());
        Later::new(addr.to_string(), move || {
            let config = config.clone();
            Box::pin(async move { Ok(Arc::new(Redis::open(config).await?) as Arc<dyn DynDriver>) })
        })
    };
    Ok(Quorum::open(servers.iter().map(node).collect()).await?)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    for count in [3, 5] {
        let mut servers = Vec::new();
        for _ in 0..count {
            servers.push(Server::start()?);
        }
        let bench = Bench::open(&servers).await?;
        bench.run(&format!("{count} nodes, all up")).await?;
        if count == 5 {
            servers[0].kill()?;
            servers[1].pause()?;
            bench.run("5 nodes, 1 down, 1 stopped").await?;
            servers[1].resume()?;
        }
    }
    Ok(())
}
