//! One server alone.

use std::time::Duration;

use anyhow::{Context as _, bail};
use oarlock_testbed::server::{Clocked, PROGRAM, Program, Server, Settings};

use super::{Deployment, Newer, ServerFault, init, version, wait};

struct Single<P: Program> {
    server: Server<P>,
    /// Options of the URL.
    query: &'static str,
    move_clock: Option<MoveClock<P>>,
    /// The version at the beginning, and a newer program.
    newer: Option<(String, Newer)>,
}

/// Moves the wall clock of a server by so many microseconds.
type MoveClock<P> = fn(&Server<P>, i64) -> anyhow::Result<()>;

type Started = anyhow::Result<Box<dyn Deployment>>;

type Start<P> = fn(Settings<'_>) -> anyhow::Result<Server<P>>;

pub(super) fn start<P: Program + 'static>(start: Start<P>, settings: Settings<'_>) -> Started {
    ready(Single { server: start(settings)?, query: "", move_clock: None, newer: None })
}

pub(super) fn start_with_query<P: Program + 'static>(start: Start<P>, query: &'static str) -> Started {
    ready(Single { server: start(&[])?, query, move_clock: None, newer: None })
}

pub(super) fn start_clocked<P: Program + 'static>(start: Start<Clocked<P>>) -> Started {
    ready(Single { server: start(&[])?, query: "", move_clock: Some(Server::set_clock), newer: None })
}

pub(super) fn start_older<P: Program + 'static>(start: Start<P>, newer: Newer) -> Started {
    let server = start(&[])?;
    let older = version(&server.url())?;
    ready(Single { server, query: "", move_clock: None, newer: Some((older, newer)) })
}

fn ready<P: Program + 'static>(single: Single<P>) -> Started {
    init(&single.url())?;
    Ok(Box::new(single))
}

impl<P: Program> Deployment for Single<P> {
    fn url(&self) -> String {
        let url = self.server.url();
        let session = if P::SCHEME == "zk" { "ttl=2s" } else { self.query };
        match session {
            "" => url,
            query if url.contains('?') => format!("{url}&{query}"),
            query => format!("{url}?{query}"),
        }
    }

    fn inject(&mut self, fault: ServerFault, lease: Duration, random: &mut fastrand::Rng) -> anyhow::Result<()> {
        match fault {
            ServerFault::Kill => {
                self.server.kill()?;
                wait(lease, 0.0, 0.5, random);
                self.server.restart()
            }
            // At once: who held must still believe.
            ServerFault::Forget => {
                self.server.kill()?;
                self.server.restart()
            }
            ServerFault::Freeze => {
                self.server.pause()?;
                wait(lease, 0.3, 2.0, random);
                self.server.resume()
            }
            ServerFault::Restart => self.server.restart(),
            ServerFault::Upgrade => {
                let (_, newer) = self.newer.as_ref().context("this server is the newest")?;
                let program = newer.program().context("there is no newer server")?;
                self.server.restart_with(&[(PROGRAM, &program.to_string_lossy())])
            }
            ServerFault::Clock => {
                let Some(move_clock) = self.move_clock else { bail!("this server has no clock of its own") };
                let step = i64::try_from((lease * 3).as_micros())?;
                move_clock(&self.server, if random.bool() { step } else { -step })?;
                wait(lease, 0.2, 0.5, random);
                move_clock(&self.server, 0)
            }
            other => bail!("{} is no fault of one server", other.name()),
        }
    }

    fn version(&self) -> String {
        let now = version(&self.url()).unwrap_or_default();
        self.newer.as_ref().map_or_else(|| now.clone(), |(older, _)| format!("{older} to {now}"))
    }
}
