//! How long an uncontended lock and its release take through the engine, beside the fewest plain requests that take and
//! free a key safely (`SET NX PX`, and a script that deletes it if it is ours), on the same kind of connection.
//!
//! `OARLOCK_URL=redis://host:port cargo run --release -p oarlock-redis --example pair -- [pairs]`; without the variable
//! a server is started for it.

use std::time::{Duration, Instant};

use oarlock_core::Client;
use oarlock_redis::{Address, Config, Redis};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{IntoConnectionInfo as _, Script};

type Failure = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let pairs: usize = std::env::args().nth(1).map_or(Ok(5000), |pairs| pairs.parse())?;
    let mut started = None;
    let url = match std::env::var("OARLOCK_URL") {
        Ok(url) => url,
        Err(_) => started.insert(oarlock_testbed::Redis::start()?).url(),
    };
    let host = url.strip_prefix("redis://").ok_or("redis://host:port is wanted")?;
    let (host, port) = host.rsplit_once(':').ok_or("redis://host:port is wanted")?;
    let client = Client::new(Redis::open(Config::new(Address::Tcp(host.to_owned(), port.parse()?))).await?)?;
    let settings = url.into_connection_info()?.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    let mut bare = redis::Client::open(settings)?.get_multiplexed_async_connection().await?;

    // In turn, so that whatever else the machine does meets both.
    let (mut plain, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        plain.extend(plain_pairs(&mut bare, pairs / 10).await?);
        ours.extend(our_pairs(&client, pairs / 10).await?);
    }
    let (plain, ours) = (report("SET NX PX and a deleting script", plain), report("oarlock", ours));
    println!("ratio of the medians: {:.2}", ours / plain);
    client.shutdown(Duration::from_secs(1)).await?;
    Ok(())
}

async fn plain_pairs(connection: &mut MultiplexedConnection, pairs: usize) -> Result<Vec<Duration>, Failure> {
    let delete = Script::new(
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end",
    );
    let mut spans = Vec::with_capacity(pairs);
    for pair in 0..pairs {
        let start = Instant::now();
        let mut set = redis::cmd("SET");
        let taken: bool = set.arg("bare").arg(pair).arg("NX").arg("PX").arg(30_000).query_async(connection).await?;
        let freed: bool = delete.key("bare").arg(pair).invoke_async(connection).await?;
        spans.push(start.elapsed());
        if !taken || !freed {
            return Err("not taken, or not freed".into());
        }
    }
    Ok(spans)
}

async fn our_pairs(client: &Client, pairs: usize) -> Result<Vec<Duration>, Failure> {
    let lock = client.mutex("pair")?;
    let mut spans = Vec::with_capacity(pairs);
    for _ in 0..pairs {
        let start = Instant::now();
        lock.lock().await?.release().await?;
        spans.push(start.elapsed());
    }
    Ok(spans)
}

/// Prints the spread, and gives the median in microseconds.
fn report(what: &str, mut spans: Vec<Duration>) -> f64 {
    spans.sort_unstable();
    let at =
        |part: usize| spans.get(spans.len().saturating_sub(1) * part / 1000).map_or(0.0, |s| s.as_secs_f64() * 1e6);
    println!("{what}: p50 {:.1} µs, p99 {:.1} µs, p99.9 {:.1} µs", at(500), at(990), at(999));
    at(500)
}
