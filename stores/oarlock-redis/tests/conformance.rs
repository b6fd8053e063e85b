//! The suite on real servers, in every way that they can be put together; each connection has proxies of its own, and
//! logs in as a user with no more rights than locks need.
//!
//! `OARLOCK_REDIS=cluster` runs it on that one alone, and `OARLOCK_LONG=1` all of it everywhere.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use oarlock_conformance::{Connection, Fixture, Pace, Power, Powers, SAME_ANYWHERE};
use oarlock_core::Result;
use oarlock_core::driver::BoxFuture;
use oarlock_redis::{Address, Config, Host, Layout, Redis, Tls};
use oarlock_testbed::proxied::{done, failed};
use oarlock_testbed::server::{MASTER, RedisUser, UsedCommands, redis_command, redis_version};
use oarlock_testbed::{ProxiedConnection, Proxy, RedisCluster, RedisSentinel, RedisTls};

/// Servers under test.
struct Store {
    name: &'static str,
    config: Config,
    /// Where clients must not go without a proxy.
    addrs: Vec<SocketAddr>,
    /// The one server, where there is only one to be stopped.
    alone: Option<Arc<oarlock_testbed::Redis>>,
    remembered: Arc<Mutex<Vec<StoredKey>>>,
    used: Arc<UsedCommands>,
}

/// What not every run of the suite needs: to leave a channel, which a client does when it joins the next; to list a
/// queue with long gaps; and to change the queue of an `RFairLock`, which only Redisson makes.
const ELSEWHERE: &[&str] = &["unsubscribe", "hkeys", "lpop", "zscore"];

/// A key, when it ends, and what is in it.
type StoredKey = (Vec<u8>, i64, Vec<u8>);

fn host(addr: SocketAddr) -> Host {
    (addr.ip().to_string(), addr.port())
}

impl Fixture for Store {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn powers(&self) -> Powers {
        let power = match self.alone {
            Some(_) => Power::Has,
            None => Power::Lacks("stopping a server is a failover here, which has tests of its own"),
        };
        Powers::none()
            .kill(Power::Has)
            .cut(Power::Has)
            .drop_reply(Power::Has)
            .restart(power)
            .pause(power)
            .fall_back(power)
    }

    fn pace(&self) -> Pace {
        Pace::of(Duration::from_millis(1200))
    }

    fn connect(&self) -> BoxFuture<Result<Arc<dyn Connection>>> {
        let (mut config, addrs) = (self.config.clone(), self.addrs.clone());
        Box::pin(async move {
            let proxies: Vec<_> =
                addrs.iter().map(|addr| Proxy::start(*addr)).collect::<Result<_, _>>().map_err(failed)?;
            config.detours = addrs.iter().map(|addr| host(*addr)).zip(proxies.iter().map(|p| host(p.addr()))).collect();
            Ok(ProxiedConnection::new(Redis::open(config).await?, proxies) as Arc<dyn Connection>)
        })
    }

    fn restart(&self) -> BoxFuture<Result<()>> {
        let (server, used) = (self.alone.clone(), self.used.clone());
        Box::pin(async move {
            let restarted = tokio::task::spawn_blocking(move || {
                let Some(server) = server else { return Ok(()) };
                used.note(server.addr())?;
                server.restart()
            });
            restarted.await.map_err(failed)?.map_err(failed)
        })
    }

    fn pause(&self) -> BoxFuture<Result<()>> {
        done(self.alone.as_ref().map_or(Ok(()), |server| server.pause()).map_err(failed))
    }

    fn resume(&self) -> BoxFuture<Result<()>> {
        done(self.alone.as_ref().map_or(Ok(()), |server| server.resume()).map_err(failed))
    }

    fn remember(&self) -> BoxFuture<Result<()>> {
        let (server, remembered) = (self.alone.clone(), self.remembered.clone());
        Box::pin(async move {
            if let Some(server) = server {
                let kept = all_keys(&server).await.map_err(failed)?;
                *remembered.lock().unwrap_or_else(PoisonError::into_inner) = kept;
            }
            Ok(())
        })
    }

    fn fall_back(&self) -> BoxFuture<Result<()>> {
        let (server, remembered) = (self.alone.clone(), self.remembered.clone());
        Box::pin(async move {
            let kept = remembered.lock().unwrap_or_else(PoisonError::into_inner).clone();
            match server {
                Some(server) => restore(&server, &kept).await.map_err(failed),
                None => Ok(()),
            }
        })
    }
}

/// A plain connection.
async fn raw(server: &oarlock_testbed::Redis) -> redis::RedisResult<redis::aio::MultiplexedConnection> {
    redis::Client::open(server.url())?.get_multiplexed_async_connection().await
}

async fn all_keys(server: &oarlock_testbed::Redis) -> redis::RedisResult<Vec<StoredKey>> {
    let mut raw = raw(server).await?;
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query_async(&mut raw).await?;
    let mut all = redis::pipe();
    all.atomic().cmd("TIME");
    for key in &keys {
        all.cmd("PTTL").arg(key).cmd("DUMP").arg(key);
    }
    let mut told: Vec<redis::Value> = all.query_async(&mut raw).await?;
    let (seconds, micros): (i64, i64) = redis::from_redis_value(told.remove(0))?;
    let now = seconds * 1000 + micros / 1000;
    let mut kept = Vec::new();
    for (key, told) in keys.into_iter().zip(told.chunks(2)) {
        let (left, dump): (i64, Option<Vec<u8>>) = redis::from_redis_value(redis::Value::Array(told.to_vec()))?;
        let ends = if left < 0 { 0 } else { now + left };
        kept.extend(dump.map(|dump| (key, ends, dump)));
    }
    Ok(kept)
}

async fn restore(server: &oarlock_testbed::Redis, kept: &[StoredKey]) -> redis::RedisResult<()> {
    let mut all = redis::pipe();
    all.atomic().cmd("FLUSHALL");
    for (key, ends, dump) in kept {
        all.cmd("RESTORE").arg(key).arg(ends).arg(dump).arg("ABSTTL");
    }
    all.exec_async(&mut raw(server).await?).await
}

type Failure = Box<dyn std::error::Error>;

type Run = fn() -> Result<bool, Failure>;

/// Runs the suite on one store; says whether it is content.
fn run(store: Store) -> bool {
    run_without(store, &[])
}

/// The same without some topics, except in the long tier.
fn run_without(store: Store, topics: &[&str]) -> bool {
    let (name, started) = (store.name, Instant::now());
    println!("\n{name}");
    let ended = oarlock_conformance::run_with(store, &oarlock_conformance::args_without(topics));
    println!("{name}: {:.1} s", started.elapsed().as_secs_f64());
    !ended.has_failed()
}

/// A user with the rights that the locks of this configuration need, and no other; `config` logs in as it.
fn user(config: &mut Config) -> Result<RedisUser, Failure> {
    (config.user, config.password) = (Some("app".into()), Some(RedisUser::PASSWORD.into()));
    Ok(RedisUser::new(&oarlock_redis::rights(config, "app")?)?)
}

fn alone(name: &'static str, layout: Layout) -> Result<bool, Failure> {
    let mut config = Config::new(Address::Tcp(String::new(), 0));
    config.layout = layout;
    let user = user(&mut config)?;
    let Some(server) = oarlock_testbed::Redis::start_with_or_skip(&[("aclfile", &user.file())])? else {
        return Ok(true);
    };
    let (addr, server, used) = (server.addr(), Arc::new(server), Arc::<UsedCommands>::default());
    config.address = Address::Tcp(addr.ip().to_string(), addr.port());
    let (alone, remembered) = (Some(server.clone()), Arc::default());
    let content = run(Store { name, config, addrs: vec![addr], alone, remembered, used: used.clone() });
    used.note(server.addr())?;
    let mut unused = used.unused(user.rights());
    unused.retain(|command| !ELSEWHERE.contains(command));
    match unused {
        unused if unused.is_empty() || oarlock_conformance::args().filter.is_some() => Ok(content),
        unused => Err(format!("{name}: no case needs the rights {unused:?}").into()),
    }
}

fn tls() -> Result<bool, Failure> {
    let mut config = Config::new(Address::Tcp(String::new(), 0));
    let user = user(&mut config)?;
    let Some(server) = RedisTls::start_with_or_skip(&[("aclfile", &user.file())])? else { return Ok(true) };
    let addr = server.addr();
    config.address = Address::Tcp(addr.ip().to_string(), addr.port());
    let mut tls = Tls::default();
    tls.ca = Some(server.ca());
    config.tls = Some(tls);
    let (remembered, used) = (Arc::default(), Arc::default());
    let store = Store { name: "redis/tls", config, addrs: vec![addr], alone: None, remembered, used };
    Ok(run_without(store, SAME_ANYWHERE))
}

fn sentinel() -> Result<bool, Failure> {
    let Some(context) = RedisSentinel::start_or_skip()? else { return Ok(true) };
    // A busy machine must not look like a dead server: a failover forgets, and has tests of its own.
    for sentinel in &context.sentinels {
        redis_command(sentinel.addr(), &["SENTINEL", "SET", MASTER, "down-after-milliseconds", "60000"])?;
    }
    let hosts = context.sentinels.iter().map(|sentinel| host(sentinel.addr())).collect();
    let mut config = Config::new(Address::Sentinel { hosts, master: MASTER.to_owned() });
    let user = user(&mut config)?;
    for machine in &context.machines {
        user.join(machine.server.addr())?;
    }
    let addrs = context.machines.iter().map(|machine| machine.proxy.addr()).collect();
    let (remembered, used) = (Arc::default(), Arc::default());
    let store = Store { name: "redis/sentinel", config, addrs, alone: None, remembered, used };
    Ok(run_without(store, SAME_ANYWHERE))
}

/// A server that is too old for a cluster: a client of one is refused when it connects.
fn refused() -> Result<bool, Failure> {
    let Some(server) = oarlock_testbed::Redis::start_or_skip()? else { return Ok(true) };
    let config = Config::new(Address::Cluster(vec![host(server.addr())]));
    let opened = tokio::runtime::Runtime::new()?.block_on(Redis::open(config));
    match opened.err().map(|error| error.to_string()) {
        Some(why) if why.contains("Redis 7") => {
            println!("\nredis/cluster\nskipped: {CLUSTER_NEEDS}");
            Ok(true)
        }
        other => Err(format!("an old cluster is not refused by its version: {other:?}").into()),
    }
}

const CLUSTER_NEEDS: &str = "a cluster needs Redis 7: the client refuses an older one when it connects (all its cases)";

fn cluster(name: &'static str, layout: Layout) -> Result<bool, Failure> {
    if redis_version()?.is_some_and(|(major, _)| major < 7) {
        return refused();
    }
    let Some(context) = RedisCluster::start_or_skip()? else { return Ok(true) };
    // A replica is named first, as after a failover: it knows where the slots are.
    let nodes = context.replicas.iter().take(1).chain(&context.masters);
    let addrs: Vec<_> = nodes.map(oarlock_testbed::server::Server::addr).collect();
    let mut config = Config::new(Address::Cluster(addrs.iter().map(|addr| host(*addr)).collect()));
    config.layout = layout;
    let user = user(&mut config)?;
    for node in context.masters.iter().chain(&context.replicas) {
        redis_command(node.addr(), &["CONFIG", "SET", "cluster-node-timeout", "60000"])?;
        user.join(node.addr())?;
    }
    Ok(run(Store { name, config, addrs, alone: None, remembered: Arc::default(), used: Arc::default() }))
}

fn main() -> Result<(), Failure> {
    let chosen = std::env::var("OARLOCK_REDIS").ok();
    let stores: [(&str, Run); 6] = [
        ("alone", || alone("redis", Layout::Native)),
        ("plain", || alone("redis/plain", Layout::Plain)),
        ("redisson", || alone("redis/redisson", Layout::Redisson)),
        ("tls", tls),
        ("sentinel", sentinel),
        ("cluster", || cluster("redis/cluster", Layout::Native)),
    ];
    let mut content = true;
    for (name, run) in stores {
        if chosen.as_ref().is_none_or(|chosen| chosen == name) {
            content &= run()?;
        }
    }
    if content { Ok(()) } else { Err("a case has failed".into()) }
}
