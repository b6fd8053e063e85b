//! Liveness locks: a database frees them when a connection ends, which shows that a process has died.
//!
//! A process holds a lock with a row that has a lease. It has two connections: one holds the liveness lock, the other
//! sends requests, and the row names its backend since the last request that was carried out. Each connection can be
//! cut, killed by an operator, or end with a restart of the server; the connection for requests is opened again. A second
//! client asks for the lock, and removes the row of a session that is over.
//!
//! Assumption: where the network cuts the connection of a session, its client hears of that before another client is
//! granted the lock because of it. Nothing is assumed of kills and restarts. One renewal at a time is on its way.

use oarlock_conformance::explore::{Event, World};

const LEASE: u8 = 2;
const END: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Rule {
    Right,
    /// A free liveness lock is enough.
    LockAlone,
    /// A session of an earlier run of the server counts as over, too.
    AnyRun,
    /// Connections that an operator killed count as ended by themselves.
    KillsIgnored,
    /// The lease of a row counts from the reply.
    FromTheReply,
    /// The client is not told that the connection of its session has ended.
    EndMissed,
    /// The client is told, and goes on to believe until a renewal is answered.
    EndsWithARenewal,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Database {
    rule: Rule,
    now: u8,
    /// The process lives; it believes until then.
    alive: bool,
    believes: u8,
    /// Whether the connection of the session is there, and so the liveness lock.
    session: bool,
    /// The network cut it, and its client has not heard of that yet.
    unheard: bool,
    /// Whether there is a connection for requests, and whether the backend lives that the row names.
    requests: bool,
    named: bool,
    /// The row: when its lease ends, in which run of the server its session began, how many kills there were at its last
    /// request.
    row: Option<(u8, u8, u8)>,
    run: u8,
    kills: u8,
    /// A renewal on its way, and its answer.
    renews: Option<u8>,
    renewed: Option<u8>,
    /// The second client was granted the lock, and by what.
    granted: Option<bool>,
}

impl Database {
    fn new(rule: Rule) -> Self {
        Self {
            rule,
            now: 0,
            alive: true,
            believes: LEASE,
            session: true,
            unheard: false,
            requests: true,
            named: true,
            row: Some((LEASE, 0, 0)),
            run: 0,
            kills: 0,
            renews: None,
            renewed: None,
            granted: None,
        }
    }

    /// Whether the session of the row is over: its process is dead.
    fn is_over(&self, run: u8, kills: u8) -> bool {
        let this_run = run == self.run || self.rule == Rule::AnyRun;
        let no_kill = kills == self.kills || self.rule == Rule::KillsIgnored;
        let no_backend = !self.named;
        !self.session && (this_run && no_kill && no_backend || self.rule == Rule::LockAlone)
    }
}

impl World for Database {
    type Key = Self;

    fn key(&self) -> Self {
        self.clone()
    }

    /// The death of the process was noticed before its lease ended.
    fn is_goal(&self) -> bool {
        self.granted == Some(true) && !self.alive
    }

    fn steps(&self, next: &mut Vec<(Event, Self)>) -> Result<(), String> {
        if self.granted.is_some() && self.alive && self.believes > self.now {
            return Err("the second was granted the lock while the first believes".to_owned());
        }
        let mut add = |what, change: &dyn Fn(&mut Self)| {
            let mut world = self.clone();
            change(&mut world);
            next.push(((what, usize::from(self.now)), world));
        };
        if self.now < END {
            add("time passes", &|world| world.now += 1);
        }
        if self.alive {
            add("the process dies", &|world| {
                (world.alive, world.session, world.requests, world.named) = (false, false, false, false);
            });
            if self.session {
                add("the session's connection is cut", &|world| {
                    (world.session, world.unheard) = (false, world.rule != Rule::EndMissed);
                });
            }
            if self.requests {
                add("the requests' connection is cut", &|world| (world.requests, world.named) = (false, false));
            } else {
                add("requests go on by another connection", &|world| world.requests = true);
            }
            if self.unheard {
                add("the client hears that its session has ended", &|world| {
                    world.unheard = false;
                    if world.rule != Rule::EndsWithARenewal {
                        world.believes = world.believes.min(world.now);
                    }
                });
            }
            if self.kills < 2 {
                add("an operator kills the session's connection", &|world| {
                    (world.session, world.kills) = (false, world.kills + 1);
                });
                add("an operator kills the requests' connection", &|world| {
                    (world.requests, world.named, world.kills) = (false, false, world.kills + 1);
                });
            }
            if self.run == 0 {
                add("the server restarts", &|world| {
                    (world.run, world.session, world.requests, world.named) = (1, false, false, false);
                    world.kills = 0;
                });
            }
            if self.renews.is_none() && self.believes > self.now {
                add("sends a renewal", &|world| world.renews = Some(world.now));
            }
        }
        if let Some(sent) = self.renews {
            add("the renewal is lost", &|world| world.renews = None);
            if self.requests {
                add("the renewal is carried out", &|world| {
                    world.renews = None;
                    let (now, kills) = (world.now, world.kills);
                    // A session whose connection has ended is not kept: its client learns that it is over.
                    if let Some(row) = world.row.as_mut().filter(|row| world.session && row.0 > now) {
                        (row.0, row.2) = (now + LEASE, kills);
                        (world.renewed, world.named) = (Some(sent), true);
                    }
                });
            }
        }
        if let Some(sent) = self.renewed {
            add("the answer is lost", &|world| world.renewed = None);
            add("the answer arrives", &|world| {
                let from = if world.rule == Rule::FromTheReply { world.now } else { sent };
                world.renewed = None;
                if world.believes > world.now {
                    world.believes = world.believes.max(from + LEASE);
                }
            });
        }
        if let Some((expires, run, kills)) = self.row {
            add("the second asks", &|world| {
                // The assumption: see above.
                let over = world.is_over(run, kills) && !world.unheard;
                if over || expires <= world.now {
                    (world.row, world.granted) = (None, Some(over));
                }
            });
        }
        Ok(())
    }
}

#[test]
fn only_a_dead_process_is_taken_for_dead() {
    crate::holds("sql", Database::new(Rule::Right));
}

#[test]
fn wrong_liveness_locks_are_found() {
    let wrong = [Rule::LockAlone, Rule::AnyRun, Rule::KillsIgnored, Rule::FromTheReply];
    for rule in wrong.into_iter().chain([Rule::EndMissed, Rule::EndsWithARenewal]) {
        crate::is_found(&format!("sql, {rule:?}"), Database::new(rule));
    }
}
