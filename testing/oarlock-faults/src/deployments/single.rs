//! One server alone.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use oarlock_testbed::server::{Clocked, PROGRAM, Program, Server, Settings};

use super::{Deployment, Newer, ServerFault, init, version, wait};

struct Single<P: Program> {
    server: Server<P>,
    /// Options of the URL.
    query: &'static str,
    move_clock: Option<MoveClock<P>>,
    /// The version at the beginning, and a newer program.
    newer: Option<(String, Newer)>,
    /// The number of the last mark in the data.
    marks: u64,
}

/// What is written before an upgrade and read after it.
const MARK: &str = "oarlock-faults/upgraded";

/// Moves the wall clock of a server by so many microseconds.
type MoveClock<P> = fn(&Server<P>, i64) -> anyhow::Result<()>;

type Started = anyhow::Result<Box<dyn Deployment>>;

type Start<P> = fn(Settings<'_>) -> anyhow::Result<Server<P>>;

pub(super) fn start<P: Program + 'static>(start: Start<P>, settings: Settings<'_>) -> Started {
    ready(Single { server: start(settings)?, query: "", move_clock: None, newer: None, marks: 0 })
}

pub(super) fn start_with_query<P: Program + 'static>(start: Start<P>, query: &'static str) -> Started {
    ready(Single { server: start(&[])?, query, move_clock: None, newer: None, marks: 0 })
}

pub(super) fn start_clocked<P: Program + 'static>(start: Start<Clocked<P>>) -> Started {
    ready(Single { server: start(&[])?, query: "", move_clock: Some(Server::set_clock), newer: None, marks: 0 })
}

pub(super) fn start_older<P: Program + 'static>(start: Start<P>, newer: Newer) -> Started {
    let server = start(&[])?;
    let older = version(&server.url())?;
    ready(Single { server, query: "", move_clock: None, newer: Some((older, newer)), marks: 0 })
}

/// Its tables are created later, by another build.
pub(super) fn start_without_tables<P: Program + 'static>(start: Start<P>) -> Started {
    Ok(Box::new(Single { server: start(&[])?, query: "", move_clock: None, newer: None, marks: 0 }))
}

fn ready<P: Program + 'static>(single: Single<P>) -> Started {
    init(&single.url())?;
    Ok(Box::new(single))
}

impl<P: Program> Single<P> {
    /// Starts the newer server with the data of this one, and looks for what was written last.
    fn upgrade(&mut self) -> anyhow::Result<()> {
        let (_, newer) = self.newer.as_ref().context("this server is the newest")?;
        let program = newer.program().context("there is no newer server")?;
        self.marks += 1;
        let mark = self.marks.to_string();
        newer.write(self.server.addr(), MARK, &mark)?;
        self.server.restart_with(&[(PROGRAM, &program.to_string_lossy())])?;
        let found = newer.read(self.server.addr(), MARK)?;
        ensure!(found == mark, "the newer server lost data: it has the mark {found:?} and not {mark:?}");
        Ok(())
    }
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
            ServerFault::Upgrade => self.upgrade(),
            ServerFault::RaiseFormat => init(&self.url()),
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

    /// After the run: `oarlock doctor` takes a part of the lease.
    fn check(&mut self) -> anyhow::Result<()> {
        let Some((older, _)) = self.newer.as_ref().filter(|_| self.marks > 0) else { return Ok(()) };
        let now = version(&self.url())?;
        ensure!(is_newer(&now, older), "{now:?} is no upgrade of {older:?}");
        Ok(())
    }

    fn version(&self) -> String {
        let now = version(&self.url()).unwrap_or_default();
        self.newer.as_ref().map_or_else(|| now.clone(), |(older, _)| format!("{older} to {now}"))
    }
}

/// Whether one version is greater than another. What is no version is greater than none, and none is greater than it.
fn is_newer(now: &str, older: &str) -> bool {
    let parts = |version: &str| version.split('.').map(|part| part.parse::<u64>().ok()).collect::<Option<Vec<_>>>();
    parts(now).zip(parts(older)).is_some_and(|(now, older)| now > older)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upgrade_ends_with_a_greater_version() {
        for (now, older) in [("8.0.6", "7.0.15"), ("3.5.30", "3.4.23"), ("7.0.15", "7.0.9"), ("10.0", "9.9.9")] {
            assert!(is_newer(now, older) && !is_newer(older, now), "{now} {older}");
        }
        for (now, older) in [("7.0.15", "7.0.15"), ("", "7.0.15"), ("8.0.6", ""), ("", ""), ("valkey", "7.0.15")] {
            assert!(!is_newer(now, older), "{now:?} {older:?}");
        }
    }
}
