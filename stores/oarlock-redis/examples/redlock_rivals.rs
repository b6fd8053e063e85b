//! Clients that contend for one lock on several servers, each with connections of its own, each taking it and giving it
//! back at once, again and again: `cargo run --release -p oarlock-redis --example redlock_rivals`. It starts its own
//! servers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oarlock_core::{DynDriver, Locks};
use oarlock_quorum::{Later, Quorum, Rounds};
use oarlock_redis::{Address, Config, Layout, Redis};
use oarlock_testbed::Redis as Server;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const SPAN: Duration = Duration::from_secs(4);

/// What one rival saw.
struct Share {
    grants: usize,
    longest: Duration,
    rounds: Rounds,
}

/// A client with connections of its own.
async fn quorum(addrs: &[SocketAddr]) -> Result<Quorum, Failure> {
    let node = |addr: &SocketAddr| {
        let mut config = Config::new(Address::Tcp(addr.ip().to_string(), addr.port()));
        (config.layout, config.prefix) = (Layout::Plain, String::new());
        Later::new(addr.to_string(), move || {
            let config = config.clone();
            Box::pin(async move { Ok(Arc::new(Redis::open(config).await?) as Arc<dyn DynDriver>) })
        })
    };
    Ok(Quorum::open(addrs.iter().map(node).collect()).await?)
}

/// Takes and gives back until the time is over. A contender that waits then waits on, so that no wait is left out.
async fn contend(addrs: Vec<SocketAddr>, until: Instant, start: Arc<tokio::sync::Barrier>) -> Result<Share, Failure> {
    let quorum = Arc::new(quorum(&addrs).await?);
    let client = Locks::builder_over(quorum.clone()).build()?;
    let mutex = client.mutex("contended").wait_forever();
    let (mut grants, mut longest) = (0, Duration::ZERO);
    start.wait().await;
    while Instant::now() < until {
        let began = Instant::now();
        let guard = mutex.lock().await?;
        longest = longest.max(began.elapsed());
        guard.release().await?;
        grants += 1;
    }
    client.shutdown(Duration::from_secs(1)).await?;
    Ok(Share { grants, longest, rounds: quorum.rounds() })
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    println!(
        "servers  rivals  grants/s  rounds lost for a grant  longest wait  most and fewest grants of one  written back"
    );
    for count in [3, 5] {
        let servers: Vec<_> = (0..count).map(|_| Server::start()).collect::<Result<_, _>>()?;
        let addrs: Vec<_> = servers.iter().map(Server::addr).collect();
        for rivals in [2, 8, 32] {
            let gate = Arc::new(tokio::sync::Barrier::new(rivals));
            // Time to connect is not measured.
            let began = Instant::now() + Duration::from_secs(1);
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..rivals {
                tasks.spawn(contend(addrs.clone(), began + SPAN, gate.clone()));
            }
            let mut shares = Vec::new();
            while let Some(share) = tasks.join_next().await {
                shares.push(share??);
            }
            let took = began.elapsed().as_secs_f64();
            let grants: usize = shares.iter().map(|share| share.grants).sum();
            let (lost, written) = shares.iter().fold((0, 0), |(lost, written), Share { rounds, .. }| {
                (lost + rounds.lost, written + rounds.written_back)
            });
            let longest = shares.iter().map(|share| share.longest).max().unwrap_or_default();
            let each = || shares.iter().map(|share| share.grants);
            println!(
                "{count:>7}  {rivals:>6}  {:>8.0}  {:>23.1}  {:>9.0} ms  {:>14} and {:>6}  {written:>20}",
                grants as f64 / took,
                lost as f64 / grants as f64,
                longest.as_secs_f64() * 1000.0,
                each().max().unwrap_or_default(),
                each().min().unwrap_or_default(),
            );
        }
    }
    Ok(())
}
