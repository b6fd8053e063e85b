//! The two flaws of Redlock, and the fence that saves the data from both: `cargo run -p oarlock-redis --example
//! redlock_flaws`.
//!
//! Three real servers vote; a fourth has the data. First a holder is stopped for longer than its lease. Then the clock
//! of one server jumps, and two hold the lock at once.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use oarlock_core::{DynDriver, Fence, Locks};
use oarlock_quorum::{Later, Quorum};
use oarlock_redis::{Address, Checked, Config, Layout, Redis, Written};
use oarlock_testbed::{Redis as Server, RedisClock};

type Failure = Box<dyn std::error::Error>;

const LEASE: Duration = Duration::from_secs(1);
const A_MINUTE: i64 = 60_000_000;

fn config(addr: SocketAddr) -> Config {
    let mut config = Config::new(Address::Tcp(addr.ip().to_string(), addr.port()));
    (config.layout, config.prefix) = (Layout::Plain, String::new());
    config
}

async fn client(addrs: &[SocketAddr]) -> Result<Locks, Failure> {
    let node = |addr: &SocketAddr| {
        let config = config(*addr);
        Later::new(addr.to_string(), move || {
            let config = config.clone();
            Box::pin(async move { Ok(Arc::new(Redis::open(config).await?) as Arc<dyn DynDriver>) })
        })
    };
    Ok(Locks::over(Quorum::open(addrs.iter().map(node).collect()).await?)?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let addrs: Vec<SocketAddr> = std::env::args().skip(1).map(|addr| addr.parse()).collect::<Result<_, _>>()?;
    if let [nodes @ .., data] = &*addrs {
        return sleeper(nodes, *data).await;
    }
    let data = Server::start()?;
    let nodes: Vec<RedisClock> = (0..3).map(|_| RedisClock::start()).collect::<Result<_, _>>()?;
    paused(&nodes, data.addr()).await?;
    skewed(&nodes, data.addr()).await
}

/// The process that will be stopped. It takes the lock, and writes when told to, without looking back.
async fn sleeper(nodes: &[SocketAddr], data: SocketAddr) -> Result<(), Failure> {
    let (client, stock) = (client(nodes).await?, Checked::open(config(data)).await?);
    let guard = client.mutex("stock").ttl(LEASE).lock().await?;
    println!("{}", guard.fence());
    std::io::stdin().lock().lines().next().transpose()?;
    let written = stock.set("stock", guard.fence(), b"2 left").await?;
    println!("{}", written == Written::Stored);
    println!("{}", guard.lost().await);
    Ok(())
}

/// A holder that was away for longer than its lease writes before it looks.
async fn paused(nodes: &[RedisClock], data: SocketAddr) -> Result<(), Failure> {
    let addrs: Vec<_> = nodes.iter().map(RedisClock::addr).collect();
    let (client, stock) = (client(&addrs).await?, Checked::open(config(data)).await?);
    let (mut sleeper, mut says) = start(&addrs, data)?;
    let first = Fence::new(next(&mut says)?.parse()?);
    println!("process {} holds the lock with fence {first}, has read \"3 left\", and is stopped", sleeper.id());
    signal(&sleeper, "-STOP")?;
    let began = Instant::now();
    let rival = client.mutex("stock").ttl(LEASE).lock().await?;
    println!("{:.1} s later another holds it with fence {}", began.elapsed().as_secs_f64(), rival.fence());
    stored(stock.set("stock", rival.fence(), b"1 left").await?)?;
    writeln!(sleeper.stdin.take().ok_or("no line to the sleeper")?, "go on")?;
    signal(&sleeper, "-CONT")?;
    if next(&mut says)? != "false" {
        return Err("the late write got through".into());
    }
    println!(
        "the paused holder continues, writes \"2 left\", and is refused; then it learns of its loss: {}",
        next(&mut says)?
    );
    sleeper.wait()?;
    kept(&stock, "stock", rival.fence(), b"1 left").await?;
    rival.release().await?;
    client.shutdown(Duration::from_secs(1)).await?;
    Ok(())
}

/// The clock of one server jumps, and its vote ends before its time.
async fn skewed(nodes: &[RedisClock], data: SocketAddr) -> Result<(), Failure> {
    let addrs: Vec<_> = nodes.iter().map(RedisClock::addr).collect();
    let (one, other) = (client(&addrs).await?, client(&addrs).await?);
    let balance = Checked::open(config(data)).await?;
    // The third vote belongs to another client for a moment, which then gives up.
    let patience = Some(Duration::from_secs(10));
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(patience).set_connection_timeout(patience);
    let third = redis::Client::open(format!("redis://{}", addrs[2]))?;
    let mut third = third.get_multiplexed_async_connection_with_config(&patient).await?;
    redis::cmd("SET").arg("balance").arg("another").arg("PX").arg(60_000).exec_async(&mut third).await?;
    let first = one.mutex("balance").lock().await?;
    // A new client looks once at what it holds; the next look is at its renewal, ten seconds later.
    tokio::time::sleep(Duration::from_secs(1)).await;
    redis::cmd("DEL").arg("balance").exec_async(&mut third).await?;
    println!("one holds the lock by two of three votes, with fence {}", first.fence());
    nodes[0].set_clock(A_MINUTE)?;
    let second = other.mutex("balance").lock().await?;
    println!("the clock of one server jumps by a minute; another has two votes now, with fence {}", second.fence());
    if !(first.is_held() && second.is_held()) {
        return Err("one of them has heard of it already, so this shows nothing".into());
    }
    println!("both believe that they hold it");
    stored(balance.set("balance", second.fence(), b"42").await?)?;
    match balance.set("balance", first.fence(), b"17").await? {
        Written::Refused { .. } => println!("the first one writes late, and is refused"),
        Written::Stored => return Err("the smaller fence got through".into()),
    }
    kept(&balance, "balance", second.fence(), b"42").await?;
    nodes[0].set_clock(0)?;
    first.release().await?;
    second.release().await?;
    Ok(())
}

fn stored(written: Written) -> Result<(), Failure> {
    if written == Written::Stored { Ok(()) } else { Err(format!("the newest holder: {written:?}").into()) }
}

async fn kept(data: &Checked, key: &str, fence: Fence, value: &[u8]) -> Result<(), Failure> {
    let found = data.get(key).await?;
    if found != Some((fence, value.to_vec())) {
        return Err(format!("{found:?} instead of what the newest holder wrote").into());
    }
    println!("what the newest holder wrote is still there\n");
    Ok(())
}

fn start(nodes: &[SocketAddr], data: SocketAddr) -> Result<(Child, Lines<BufReader<ChildStdout>>), Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(nodes.iter().chain([&data]).map(ToString::to_string)).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut sleeper = command.spawn()?;
    let says = sleeper.stdout.take().ok_or("no line from the sleeper")?;
    Ok((sleeper, BufReader::new(says).lines()))
}

fn next(says: &mut Lines<BufReader<ChildStdout>>) -> Result<String, Failure> {
    Ok(says.next().ok_or("the sleeper said nothing")??)
}

fn signal(process: &Child, signal: &str) -> Result<(), Failure> {
    let sent = Command::new("kill").arg(signal).arg(process.id().to_string()).status()?;
    if sent.success() { Ok(()) } else { Err(format!("kill {signal} failed").into()) }
}
