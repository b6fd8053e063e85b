//! The suite on real servers, each connection through proxies of its own: one server, three of them, and the layouts
//! that are shared with other programs; with the feature `tls` also an encrypted server. On one server it runs as a
//! user with no more rights than locks need.
//!
//! `OARLOCK_ZOOKEEPER=ensemble` runs it on that one alone, and `OARLOCK_LONG=1` all of it everywhere.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use oarlock_conformance::{Connection, Fixture, Pace, Power, Powers, SAME_ANYWHERE};
use oarlock_core::Result;
use oarlock_core::driver::BoxFuture;
use oarlock_testbed::proxied::{done, failed};
use oarlock_testbed::{ProxiedConnection, Proxy, ZooKeeperEnsemble};
use oarlock_zookeeper::{Config, Layout, ZooKeeper};

/// Six ticks of the test server, and more than a busy machine needs to ping it.
const SESSION: Duration = Duration::from_secs(3);

/// Three servers that have everything to do at once, on two cores and one disk, leave each other waiting.
const OF_THREE: Duration = Duration::from_secs(4);

/// A server that just started needs seconds for handshakes that come all at once: there are few at a time besides.
#[cfg(feature = "tls")]
const ENCRYPTED: Duration = Duration::from_secs(5);

/// What takes long here besides, and is the same wherever the server is.
const LONG: &[&str] = &["loss::", "renewal::", "crowd"];

/// What waits for sessions to end, and is the same however nodes are called.
const SESSIONS: &[&str] = &["belief::", "takeover::"];

/// What recipes of other programs do not have, and why.
const ABROAD: &[&str] = &[
    // Names are paths.
    "names::",
    // A claim has one unit, and the capacity is not stored, or stays.
    "sharers_are_shown",
    "spec::",
    "permits_add_up",
    "crowd_stays_within_the_capacity",
    "a_heavy_head_holds_back_the_light",
    "a_light_claim_is_not_called_past_a_heavy_one",
    "kinds_can_be_mixed",
    // A client that breaks a claim deletes its node, and leaves no record.
    "breaking::",
    "a_break_",
];

/// What Curator's recipes lack besides: a node of another kind is an error there, and not waited for; and a
/// participant of an election is only its id.
const CURATOR: &[&str] = &[
    "a_plain_lock_is_no_leader",
    "at_every_await_of_a_campaign",
    "at_every_await_of_a_downgrade",
    "at_every_await_of_a_proclamation",
    "every_observer_sees_the_leader",
    "it_excludes_every_other_kind",
];

#[path = "shared/user.rs"]
mod shared;

/// Servers under test.
struct Store {
    name: &'static str,
    addrs: Vec<SocketAddr>,
    config: Config,
    session: Duration,
    /// The one server, where there is only one to be stopped.
    alone: Option<Arc<oarlock_testbed::ZooKeeper>>,
}

async fn connect(addrs: Vec<SocketAddr>, mut config: Config) -> Result<Arc<dyn Connection>> {
    let proxies: Vec<_> = addrs.into_iter().map(Proxy::start).collect::<std::io::Result<_>>().map_err(failed)?;
    config.hosts = proxies.iter().map(|proxy| proxy.addr().to_string()).collect();
    Ok(ProxiedConnection::new(ZooKeeper::open(config).await?, proxies))
}

impl Fixture for Store {
    fn name(&self) -> String {
        self.name.into()
    }

    fn powers(&self) -> Powers {
        let stop = match self.alone {
            Some(_) => Power::Has,
            None => Power::Lacks("stopping a server of several has tests of its own"),
        };
        Powers::none().kill(Power::Has).cut(Power::Has).drop_reply(Power::Has).restart(stop).pause(stop)
    }

    fn pace(&self) -> Pace {
        // What the driver makes of such a session.
        Pace::of(self.session * 3 / 4)
    }

    fn connect(&self) -> BoxFuture<Result<Arc<dyn Connection>>> {
        Box::pin(connect(self.addrs.clone(), self.config.clone().session_timeout(self.session)))
    }

    fn restart(&self) -> BoxFuture<Result<()>> {
        let server = self.alone.clone();
        Box::pin(async move {
            let restart = move || server.map_or(Ok(()), |server| server.restart());
            tokio::task::spawn_blocking(restart).await.map_err(failed)?.map_err(failed)
        })
    }

    fn pause(&self) -> BoxFuture<Result<()>> {
        done(self.alone.as_ref().map_or(Ok(()), |server| server.pause()).map_err(failed))
    }

    fn resume(&self) -> BoxFuture<Result<()>> {
        done(self.alone.as_ref().map_or(Ok(()), |server| server.resume()).map_err(failed))
    }
}

fn main() -> anyhow::Result<()> {
    let args = oarlock_conformance::args();
    let wanted = std::env::var("OARLOCK_ZOOKEEPER").ok();
    let wants = |name: &str| wanted.as_deref().is_none_or(|wanted| wanted == name);
    let long = std::env::var_os("OARLOCK_LONG").is_some();
    let mut failed = false;
    let mut run = |store: Store| {
        let mut args = args.clone();
        let whole = store.name == "one" || long || args.filter.is_some();
        args.skip.extend(SAME_ANYWHERE.iter().chain(LONG).filter(|_| !whole).map(ToString::to_string));
        args.skip.extend(
            SESSIONS.iter().filter(|_| !whole && store.config.layout != Layout::Native).map(ToString::to_string),
        );
        args.skip.extend(ABROAD.iter().filter(|_| store.config.layout != Layout::Native).map(ToString::to_string));
        args.skip.extend(CURATOR.iter().filter(|_| store.config.layout == Layout::Curator).map(ToString::to_string));
        if store.name == "tls" {
            args.test_threads = args.test_threads.or(Some(4));
        }
        println!("{}:", store.name);
        failed |= oarlock_conformance::run_with(store, &args).has_failed();
    };
    if wants("one") || wants("curator") || wants("kazoo") {
        let Some(server) = oarlock_testbed::ZooKeeper::start_or_skip()? else { return Ok(()) };
        let (server, runtime) = (Arc::new(server), tokio::runtime::Runtime::new()?);
        let stores = [("one", Layout::Native), ("curator", Layout::Curator), ("kazoo", Layout::Kazoo)];
        for (name, layout) in stores.into_iter().filter(|(name, _)| wants(name)) {
            let alone = Some(server.clone()).filter(|_| layout == Layout::Native);
            // Each has a root of its own, whose user has no more rights than locks need.
            let config = Config::new(Vec::<String>::new()).root(format!("/team/{name}")).layout(layout);
            let config = runtime.block_on(shared::with_user(server.addr(), config))?;
            run(Store { name, addrs: vec![server.addr()], config, session: SESSION, alone });
        }
    }
    if wants("ensemble") {
        let Some(ensemble) = ZooKeeperEnsemble::start_or_skip()? else { return Ok(()) };
        let addrs = ensemble.members.iter().map(oarlock_testbed::ZooKeeper::addr).collect();
        let config = Config::new(Vec::<String>::new());
        run(Store { name: "ensemble", addrs, config, session: OF_THREE, alone: None });
    }
    #[cfg(feature = "tls")]
    if wants("tls") {
        let Some(server) = oarlock_testbed::ZooKeeperTls::start_or_skip()? else { return Ok(()) };
        let mut config = Config::new(Vec::<String>::new());
        config.tls = Some(oarlock_zookeeper::Tls::new(server.ca()));
        run(Store { name: "tls", addrs: vec![server.addr()], config, session: ENCRYPTED, alone: None });
    }
    // Only now: the servers are stopped when they are dropped.
    if failed {
        std::process::exit(101);
    }
    Ok(())
}
