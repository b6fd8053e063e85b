//! What a crowd costs the server: waiters that are kept alive, waits that ended, names, and clients.
//!
//! `cargo run --release -p oarlock-redis --example crowd -- [ended|alive|steps|names|clients] [numbers…]` starts a
//! server for it. All times are the server's own (`INFO commandstats`, `SLOWLOG`).

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oarlock_core::driver::{Driver as _, End, Interest, Renewal};
use oarlock_core::state::Query;
use oarlock_core::{Capacity, Claim, ClaimId, Limit, Locks, ResourceName, Weight};
use oarlock_redis::{Address, Config, Redis};
use oarlock_testbed::server::redis_command;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How long waiters are kept alive while they are watched.
const SPAN: Duration = Duration::from_secs(30);
const SIZES: [u64; 4] = [10, 100, 1000, 10_000];
const DONE: End = End::Done { memo: None };

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let mut words = std::env::args().skip(1);
    let what = words.next();
    let sizes: Vec<u64> = words.map(|word| word.parse()).collect::<Result<_, _>>()?;
    let sizes = if sizes.is_empty() { SIZES.to_vec() } else { sizes };
    let is = |part: &str| what.as_deref().is_none_or(|what| what == part);
    if is("ended") {
        ended(3000).await?;
    }
    if is("alive") {
        for waiters in sizes.iter().filter(|size| **size <= 1000) {
            alive(*waiters).await?;
        }
    }
    for (part, run) in [("steps", 0), ("names", 1), ("clients", 2)] {
        if is(part) {
            for size in &sizes {
                match run {
                    0 => steps(*size).await?,
                    1 => names(*size).await?,
                    _ => clients(*size).await?,
                }
            }
        }
    }
    Ok(())
}

/// A server, and a store on it.
struct TestContext {
    addr: SocketAddr,
    store: Redis,
    _server: oarlock_testbed::Redis,
}

impl TestContext {
    async fn start() -> Result<Self, Failure> {
        let server = oarlock_testbed::Redis::start_with(&[
            ("appendonly", "no"),
            ("slowlog-max-len", "100000"),
            ("maxclients", "20000"),
        ])?;
        let addr = server.addr();
        let store = open(addr).await?;
        // The server learns the scripts.
        let first = claim(1, "first")?;
        store.attempt(&first).await?;
        renew(&store, &first, true).await?;
        show(&store, &first.resource).await?;
        store.release(&first.resource, first.id, &DONE).await?;
        Ok(Self { addr, store, _server: server })
    }

    /// The least time that a script took meanwhile, in microseconds: what it costs where nothing else disturbs the
    /// server.
    async fn least(&self, run: impl AsyncFnOnce() -> Result<(), Failure>) -> Result<u64, Failure> {
        redis_command(self.addr, &["CONFIG", "SET", "slowlog-log-slower-than", "0"])?;
        redis_command(self.addr, &["SLOWLOG", "RESET"])?;
        run().await?;
        let log = redis_command(self.addr, &["EVAL", LEAST, "0"])?;
        redis_command(self.addr, &["CONFIG", "SET", "slowlog-log-slower-than", "-1"])?;
        Ok(log.trim().trim_start_matches(':').parse()?)
    }

    /// Scripts, and the microseconds that they took.
    fn scripts(&self) -> Result<(f64, f64), Failure> {
        let stats = redis_command(self.addr, &["INFO", "commandstats"])?;
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:")).ok_or("no scripts")?;
        let figure = |name: &str| line.split(',').find_map(|part| part.strip_prefix(name)?.parse::<f64>().ok());
        Ok((figure("calls=").ok_or("no calls")?, figure("usec=").ok_or("no time")?))
    }
}

/// The least of the times of scripts in the slow log.
const LEAST: &str = "local times = {} \
    for _, entry in ipairs(redis.call('SLOWLOG', 'GET', '-1')) do \
      if string.upper(entry[4][1]) == 'EVALSHA' then times[#times + 1] = entry[3] end \
    end \
    table.sort(times) return times[1] or 0";

async fn open(addr: SocketAddr) -> Result<Redis, Failure> {
    Ok(Redis::open(Config::new(Address::Tcp(addr.ip().to_string(), addr.port()))).await?)
}

fn claim(id: u64, name: &str) -> Result<Claim, Failure> {
    let mut claim = Claim::new(ClaimId::from_bits(u128::from(id)), ResourceName::new(name)?);
    (claim.wait, claim.ttl) = (true, Duration::from_secs(3600));
    Ok(claim)
}

/// One permit of one.
fn permit(id: u64, name: &str) -> Result<Claim, Failure> {
    let mut claim = claim(id, name)?;
    claim.weight = Weight::Units(NonZeroU32::MIN);
    claim.capacity = Capacity::Fixed(Limit::Units(NonZeroU32::MIN));
    Ok(claim)
}

async fn renew(store: &Redis, claim: &Claim, held: bool) -> Result<(), Failure> {
    let mut renewal = Renewal::of(Arc::new(claim.clone()));
    renewal.held = held;
    for answer in store.renew(&[renewal]).await {
        answer?;
    }
    Ok(())
}

async fn poll(store: &Redis, claim: &Claim) -> Result<(), Failure> {
    store.attempt(claim).await?;
    Ok(())
}

async fn show(store: &Redis, name: &ResourceName) -> Result<(), Failure> {
    store.inspect(&Query::name(name.clone())).await?;
    Ok(())
}

/// One waiter stays, and others give up.
async fn ended(waits: u64) -> Result<(), Failure> {
    let context = TestContext::start().await?;
    let store = &context.store;
    let (holder, stays) = (claim(1, "deploy")?, claim(2, "deploy")?);
    store.attempt(&holder).await?;
    store.attempt(&stays).await?;
    for id in 10..10 + waits {
        store.attempt(&claim(id, "deploy")?).await?;
        store.release(&holder.resource, ClaimId::from_bits(u128::from(id)), &End::Withdrawn).await?;
    }
    let holders = context.least(async || repeat(async || renew(store, &holder, true).await).await).await?;
    let waiters = context.least(async || repeat(async || renew(store, &stays, false).await).await).await?;
    let polls = context.least(async || repeat(async || poll(store, &stays).await).await).await?;
    println!(
        "{waits} ended waits, one that stays: renewal of the holder {holders} µs, of the waiter {waiters} µs, another look {polls} µs"
    );
    Ok(())
}

async fn repeat(mut run: impl AsyncFnMut() -> Result<(), Failure>) -> Result<(), Failure> {
    for _ in 0..50 {
        run().await?;
    }
    Ok(())
}

/// So many tasks of one client wait for a fair lock, and are kept alive by it.
async fn alive(waiters: u64) -> Result<(), Failure> {
    let context = TestContext::start().await?;
    let (first, second) = (Locks::over(open(context.addr).await?)?, Locks::over(open(context.addr).await?)?);
    let guard = first.mutex("deploy").fair().lock().await?;
    let tasks: Vec<_> = (0..waiters)
        .map(|_| {
            let lock = second.mutex("deploy").fair().wait_forever();
            tokio::spawn(async move { lock.lock().await?.release().await })
        })
        .collect();
    let name = ResourceName::new("deploy")?;
    while first.inspect(&name).await?.waiters.count() != usize::try_from(waiters).ok() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    redis_command(context.addr, &["CONFIG", "RESETSTAT"])?;
    let start = Instant::now();
    tokio::time::sleep(SPAN).await;
    let ((calls, time), span) = (context.scripts()?, start.elapsed().as_secs_f64());
    println!(
        "{waiters} waiters kept alive for {span:.0} s: {calls} scripts, {:.1} µs each, {:.2} % of the server",
        time / calls,
        time / span / 10_000.0
    );
    assert!(guard.is_held());
    guard.release().await?;
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// What each step costs where so many wait.
async fn steps(waiters: u64) -> Result<(), Failure> {
    let context = TestContext::start().await?;
    let store = &context.store;
    let _mailbox = store.watch(&Interest::Mailbox).await?;
    let mut told = vec![waiters.to_string()];
    for of in [claim, permit] {
        // Each that comes for a share reads all who wait: ten thousand would take minutes.
        if told.len() > 1 && waiters > 1000 {
            continue;
        }
        let name = if told.len() == 1 { "deploy" } else { "pool" };
        store.attempt(&of(1, name)?).await?;
        for id in 2..2 + waiters {
            store.attempt(&of(id, name)?).await?;
        }
        let resource = ResourceName::new(name)?;
        let (middle, next) = (of(2 + waiters / 2, name)?, 2 + waiters);
        let holder = of(1, name)?;
        told.push(context.least(async || repeat(async || renew(store, &holder, true).await).await).await?.to_string());
        told.push(context.least(async || repeat(async || renew(store, &middle, false).await).await).await?.to_string());
        told.push(context.least(async || repeat(async || poll(store, &middle).await).await).await?.to_string());
        let come = context.least(async || {
            for id in next..next + 5 {
                store.attempt(&of(id, name)?).await?;
            }
            Ok(())
        });
        told.push(come.await?.to_string());
        let give_up = context.least(async || {
            for id in next..next + 5 {
                store.release(&resource, ClaimId::from_bits(u128::from(id)), &End::Withdrawn).await?;
            }
            Ok(())
        });
        told.push(give_up.await?.to_string());
        let hand = context.least(async || {
            for id in 1..6 {
                store.release(&resource, ClaimId::from_bits(id), &DONE).await?;
            }
            Ok(())
        });
        told.push(hand.await?.to_string());
        let shown = context.least(async || repeat(async || show(store, &resource).await).await);
        told.push(shown.await?.to_string());
    }
    println!("| {} |", told.join(" | "));
    Ok(())
}

/// What a pair and a renewal cost beside so many names that are held.
async fn names(names: u64) -> Result<(), Failure> {
    let context = TestContext::start().await?;
    let store = &context.store;
    for id in 10..10 + names {
        store.attempt(&claim(id, &format!("job/{id}"))?).await?;
    }
    let one = claim(1, "deploy")?;
    store.attempt(&one).await?;
    let renewal = context.least(async || repeat(async || renew(store, &one, true).await).await).await?;
    store.release(&one.resource, one.id, &DONE).await?;
    let pair = context.least(async || {
        repeat(async || {
            store.attempt(&one).await?;
            store.release(&one.resource, one.id, &DONE).await?;
            Ok(())
        })
        .await
    });
    let pair = pair.await?;
    let start = Instant::now();
    let mut query = Query::live();
    query.limit = 100;
    store.inspect(&query).await?;
    println!("| {names} | {renewal} | {pair} | {:.1} |", start.elapsed().as_secs_f64() * 1000.0);
    Ok(())
}

/// What a pair costs beside so many idle clients that listen for news of their own.
async fn clients(count: u64) -> Result<(), Failure> {
    let context = TestContext::start().await?;
    let store = &context.store;
    let mut idle = Vec::new();
    for _ in 0..count {
        let store = open(context.addr).await?;
        let mailbox = store.watch(&Interest::Mailbox).await?;
        idle.push((store, mailbox));
    }
    let one = claim(1, "deploy")?;
    let pair = context.least(async || {
        repeat(async || {
            store.attempt(&one).await?;
            store.release(&one.resource, one.id, &DONE).await?;
            Ok(())
        })
        .await
    });
    println!("| {count} | {} |", pair.await?);
    Ok(())
}
