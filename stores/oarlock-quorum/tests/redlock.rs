//! The suite on Redlock, over three, four and five servers; each connection has proxies of its own, and logs in as a
//! user with the rights that `oarlock init --print` gives, and needs all of them.
//!
//! `OARLOCK_REDLOCK=5` runs it on that many alone, and `OARLOCK_LONG=1` all of it on each number.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use oarlock_conformance::{Connection, Fixture, Pace, Power, Powers, SAME_ANYWHERE};
use oarlock_core::Result;
use oarlock_core::driver::BoxFuture;
use oarlock_core::url::{Stores, Url};
use oarlock_quorum::{STORE, redlock};
use oarlock_redis::{Address, Config, Layout};
use oarlock_testbed::proxied::failed;
use oarlock_testbed::server::{RedisUser, UsedCommands};
use oarlock_testbed::{ProxiedConnection, Proxy, Redis as Server};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Servers under test.
struct Store {
    servers: Arc<Vec<Server>>,
    used: Arc<UsedCommands>,
}

/// A client leaves a channel when it joins the next: not every run of the suite needs that.
const ELSEWHERE: &[&str] = &["unsubscribe"];

fn config(addr: SocketAddr) -> Config {
    let mut config = Config::new(Address::Tcp(addr.ip().to_string(), addr.port()));
    (config.layout, config.prefix) = (Layout::Plain, "locks:".to_owned());
    (config.user, config.password) = (Some("app".to_owned()), Some(RedisUser::PASSWORD.to_owned()));
    config
}

/// Enough for a busy machine, and small beside a lease.
const NODE_TIMEOUT: Duration = Duration::from_millis(500);

impl Store {
    /// Does something to all servers at once.
    fn all(&self, what: impl Fn(&Server) -> Result<(), Failure> + Send + Sync + 'static) -> BoxFuture<Result<()>> {
        let servers = self.servers.clone();
        Box::pin(async move {
            let done = tokio::task::spawn_blocking(move || {
                std::thread::scope(|scope| {
                    let running: Vec<_> = servers.iter().map(|server| scope.spawn(|| what(server))).collect();
                    running.into_iter().try_for_each(|thread| {
                        thread.join().unwrap_or_else(|_| Err("a server could not be handled".into()))
                    })
                })
            });
            done.await.map_err(failed)?.map_err(failed)
        })
    }
}

impl Fixture for Store {
    fn name(&self) -> String {
        format!("redlock/{}", self.servers.len())
    }

    fn powers(&self) -> Powers {
        let has = Power::Has;
        Powers::none().kill(has).cut(has).drop_reply(has).restart(has).pause(has)
    }

    fn pace(&self) -> Pace {
        Pace::of(Duration::from_millis(1500))
    }

    fn connect(&self) -> BoxFuture<Result<Arc<dyn Connection>>> {
        let addrs: Vec<_> = self.servers.iter().map(Server::addr).collect();
        Box::pin(async move {
            let proxies: Vec<_> =
                addrs.iter().map(|addr| Proxy::start(*addr)).collect::<Result<_, _>>().map_err(failed)?;
            let quorum = redlock(proxies.iter().map(|proxy| config(proxy.addr()))).await?;
            Ok(ProxiedConnection::new(quorum.node_timeout(NODE_TIMEOUT), proxies) as Arc<dyn Connection>)
        })
    }

    fn restart(&self) -> BoxFuture<Result<()>> {
        let used = self.used.clone();
        self.all(move |server| {
            used.note(server.addr())?;
            Ok(server.restart()?)
        })
    }

    fn pause(&self) -> BoxFuture<Result<()>> {
        self.all(|server| Ok(server.pause()?))
    }

    fn resume(&self) -> BoxFuture<Result<()>> {
        self.all(|server| Ok(server.resume()?))
    }
}

static STORES: Stores = Stores { built_in: &[&STORE], missing: &[] };

fn main() -> Result<(), Failure> {
    let chosen: Option<usize> = std::env::var("OARLOCK_REDLOCK").ok().map(|count| count.parse()).transpose()?;
    let rights = STORE.granted_by().ok_or("no rights are printed for Redlock")?;
    let user = RedisUser::new(&rights(&Url::parse("redlock://a,b,c?prefix=locks:", &STORES)?, "app")?)?;
    let (mut content, used) = (true, Arc::<UsedCommands>::default());
    for count in [3, 4, 5] {
        if chosen.is_some_and(|chosen| chosen != count) {
            continue;
        }
        let mut servers = Vec::new();
        for _ in 0..count {
            match Server::start_with_or_skip(&[("aclfile", &user.file())])? {
                Some(server) => servers.push(server),
                None => return Ok(()),
            }
        }
        // What a quorum decides is tried with each number of servers.
        let is_engines = |topic: &&&str| !["dead_waiters::", "expiry::", "memo::"].contains(topic);
        let others: Vec<_> = SAME_ANYWHERE.iter().filter(is_engines).copied().collect();
        let args = oarlock_conformance::args_without(if count == 5 { &[] } else { &others });
        let servers = Arc::new(servers);
        let store = Store { servers: servers.clone(), used: used.clone() };
        content &= !oarlock_conformance::run_with(store, &args).has_failed();
        servers.iter().try_for_each(|server| used.note(server.addr()))?;
    }
    let mut unused = used.unused(user.rights());
    unused.retain(|command| !ELSEWHERE.contains(command));
    if !unused.is_empty() && oarlock_conformance::args().filter.is_none() {
        return Err(format!("no case needs the rights {unused:?}").into());
    }
    if content { Ok(()) } else { Err("a case has failed".into()) }
}
