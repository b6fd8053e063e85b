//! The suite on a real server, each connection through a proxy of its own; on one member as a user with no more rights
//! than locks need.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oarlock_conformance::{Connection, Deviations, Fixture, Pace, Power, Powers};
use oarlock_core::Result;
use oarlock_core::driver::BoxFuture;
use oarlock_etcd::{Config, Etcd, Layout};
use oarlock_testbed::proxied::{done, failed};
use oarlock_testbed::{ProxiedConnection, Proxy};

#[path = "shared/user.rs"]
mod shared;

struct Server {
    name: &'static str,
    members: Vec<SocketAddr>,
    config: Config,
    /// Where there is one member, which can be restarted and stopped.
    alone: Option<Arc<oarlock_testbed::Etcd>>,
}

impl Fixture for Server {
    fn name(&self) -> String {
        self.name.into()
    }

    fn powers(&self) -> Powers {
        let powers = Powers::none().kill(Power::Has).cut(Power::Has).drop_reply(Power::Has);
        let server = match self.alone {
            Some(_) => Power::Has,
            None => Power::Lacks("one member of three is nothing to stop a cluster"),
        };
        powers.restart(server).pause(server)
    }

    /// Leases have whole seconds, at least two, and are ended every half second.
    fn pace(&self) -> Pace {
        // Every write waits for the disk.
        Pace::of(Duration::from_secs(3)).soon(Duration::from_secs(6))
    }

    fn deviations(&self) -> Deviations {
        // A lease from the pool is a quarter of a second old at most.
        Deviations::of_the_model().queues().ends(Duration::from_millis(300), Duration::from_millis(800))
    }

    fn connect(&self) -> BoxFuture<Result<Arc<dyn Connection>>> {
        let (members, mut config) = (self.members.clone(), self.config.clone());
        Box::pin(async move {
            let proxies = members.into_iter().map(Proxy::start).collect::<Result<Vec<_>, _>>().map_err(failed)?;
            config.members = proxies.iter().map(|proxy| proxy.addr().to_string()).collect();
            Ok(ProxiedConnection::new(Etcd::open(config).await?, proxies) as Arc<dyn Connection>)
        })
    }

    fn restart(&self) -> BoxFuture<Result<()>> {
        let Some(server) = self.alone.clone() else { return done(Err(failed("there are three"))) };
        Box::pin(async move {
            let restarted = tokio::task::spawn_blocking(move || server.restart()).await.map_err(failed)?;
            restarted.map_err(failed)
        })
    }

    fn pause(&self) -> BoxFuture<Result<()>> {
        done(self.alone.as_ref().map_or(Ok(()), |server| server.pause().map_err(failed)))
    }

    fn resume(&self) -> BoxFuture<Result<()>> {
        done(self.alone.as_ref().map_or(Ok(()), |server| server.resume().map_err(failed)))
    }
}

type Failure = Box<dyn std::error::Error>;

/// Runs the suite, or the cases whose names contain one of `only`; returns whether all passed.
fn run(store: impl Fn() -> Server, only: &[&str]) -> bool {
    let (name, started) = (store().name, Instant::now());
    let mut args = oarlock_conformance::args();
    // Leases of seconds are mostly waited for.
    args.test_threads = args.test_threads.or(Some(16));
    println!("\n{name}");
    let mut content = true;
    if only.is_empty() || args.filter.is_some() {
        content &= !oarlock_conformance::run_with(store(), &args).has_failed();
    } else {
        for topic in only {
            args.filter = Some((*topic).to_owned());
            content &= !oarlock_conformance::run_with(store(), &args).has_failed();
        }
    }
    println!("{name}: {:.1} s", started.elapsed().as_secs_f64());
    content
}

fn alone(name: &'static str, layout: Layout) -> Result<bool, Failure> {
    // Each connection logs in, which takes a tenth of a second of the server by default.
    let Some(server) = oarlock_testbed::Etcd::start_with_or_skip(&[("bcrypt-cost", "4")])? else { return Ok(true) };
    let server = Arc::new(server);
    let mut config = Config::new(Vec::<String>::new());
    if layout == Layout::Go {
        (config.layout, config.prefix) = (layout, "team/".to_owned());
    }
    shared::with_user(&server, &mut config)?;
    let members = vec![server.addr()];
    Ok(run(|| Server { name, members: members.clone(), config: config.clone(), alone: Some(server.clone()) }, &[]))
}

/// All cases in the long tier; else those where it matters most that there are three.
fn three() -> Result<bool, Failure> {
    let Some(context) = oarlock_testbed::EtcdCluster::start_or_skip()? else { return Ok(true) };
    let members: Vec<_> = context.members.iter().map(oarlock_testbed::server::Server::addr).collect();
    let config = Config::new(Vec::<String>::new());
    let only: &[_] = if std::env::var_os("OARLOCK_LONG").is_some() { &[] } else { &["belief::", "lost_reply::"] };
    let store = || Server { name: "etcd/three", members: members.clone(), config: config.clone(), alone: None };
    Ok(run(store, only))
}

type Run = fn() -> Result<bool, Failure>;

fn main() -> Result<(), Failure> {
    let chosen = std::env::var("OARLOCK_ETCD").ok();
    let stores: [(&str, Run); 3] =
        [("alone", || alone("etcd", Layout::Native)), ("go", || alone("etcd/go", Layout::Go)), ("three", three)];
    let mut content = true;
    for (name, run) in stores {
        if chosen.as_ref().is_none_or(|chosen| chosen == name) {
            content &= run()?;
        }
    }
    if content { Ok(()) } else { Err("a case has failed".into()) }
}
