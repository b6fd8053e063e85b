//! Locks on leases of a cluster that elects leaders: the claims are keys, and a key lives as long as its lease.
//!
//! Two clients, the first of which holds. A leader may be deposed once without learning it: it goes on to answer
//! keep-alives, while its successor has started every lease anew and does not get them. A renewal is a keep-alive and a
//! read that needs a majority, sent together and answered in any order. One renewal of a client at a time is on its way.

use oarlock_conformance::explore::{Event, World, changes};

const TTL: u8 = 2;
const CLIENTS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Rule {
    Right,
    /// A keep-alive counts whichever leader answered it.
    AnyLeader,
    /// Belief counts from the reply.
    FromTheReply,
    /// The read is sent before the keep-alive.
    ReadBefore,
    /// A waiter that sees its predecessor go believes, and does not look for its own key.
    TurnNotChecked,
}

/// A request on its way: when it was sent, and its answer.
type Request<T> = Option<(u8, Option<T>)>;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    /// When the lease ends at the leader that counts, and so the key.
    expires: u8,
    has_key: bool,
    /// When the lease ends for a leader that was deposed.
    old_expires: u8,
    /// The keep-alive, answered by the leader of this term.
    keep: Request<u8>,
    /// The read, answered in this term, and whether the key is there and first.
    read: Request<(u8, bool)>,
    believes: Option<u8>,
    /// A notification that the predecessor has gone is on its way.
    turn: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Cluster {
    rule: Rule,
    /// When the world ends.
    end: u8,
    now: u8,
    term: u8,
    /// The deposed leader has not learned it yet.
    old_answers: bool,
    clients: [Client; CLIENTS],
    took_over: bool,
}

impl Cluster {
    fn new(rule: Rule, end: u8) -> Self {
        let first = Client { expires: TTL, has_key: true, believes: Some(TTL), ..Client::default() };
        let second = Client { expires: TTL, has_key: true, ..Client::default() };
        Self { rule, end, now: 0, term: 0, old_answers: false, clients: [first, second], took_over: false }
    }

    /// The keys whose lease has ended are gone.
    fn expire(&mut self) {
        for at in 0..CLIENTS {
            if self.clients[at].has_key && self.clients[at].expires <= self.now {
                self.remove(at);
            }
        }
    }

    fn remove(&mut self, at: usize) {
        self.clients[at].has_key = false;
        if at == 0 {
            self.clients[1].turn = true;
        }
    }

    fn is_first(&self, at: usize) -> bool {
        self.clients[at].has_key && (at == 0 || !self.clients[0].has_key)
    }

    fn believes(&self, at: usize) -> bool {
        self.clients[at].believes.is_some_and(|until| until > self.now)
    }

    /// A renewal was answered by both.
    fn renewed(&mut self, at: usize) {
        let client = &mut self.clients[at];
        let (Some((sent, Some(term))), Some((_, Some((read_term, first))))) = (client.keep, client.read) else {
            return;
        };
        (client.keep, client.read) = (None, None);
        let kept = term == read_term || self.rule == Rule::AnyLeader;
        let from = if self.rule == Rule::FromTheReply { self.now } else { sent };
        if kept && first && from + TTL > self.now {
            self.clients[at].believes = Some(from + TTL);
            self.took_over |= at == 1;
        }
    }
}

impl World for Cluster {
    type Key = Self;

    fn key(&self) -> Self {
        self.clone()
    }

    fn is_goal(&self) -> bool {
        self.took_over
    }

    fn steps(&self, next: &mut Vec<(Event, Self)>) -> Result<(), String> {
        if self.believes(0) && self.believes(1) {
            return Err("two believe".to_owned());
        }
        let mut add = changes(self, next);
        if self.now < self.end {
            add("time passes", self.now.into(), &|world| {
                world.now += 1;
                world.expire();
            });
        }
        if self.term == 0 {
            add("a leader is elected", 1, &|world| {
                (world.term, world.old_answers) = (1, true);
                for client in world.clients.iter_mut().filter(|client| client.has_key) {
                    (client.old_expires, client.expires) = (client.expires, world.now + TTL);
                }
            });
        }
        if self.old_answers {
            add("the old leader learns it", 0, &|world| world.old_answers = false);
        }
        for at in 0..CLIENTS {
            let client = &self.clients[at];
            // A holder whose belief has ended claims anew, which is another world.
            let renews = at == 1 || self.believes(at);
            if renews && client.keep.is_none() && client.read.is_none() {
                add("renews", at, &|world| {
                    let now = world.now;
                    world.clients[at].read = Some((now, None));
                    world.clients[at].keep = Some((now, None)).filter(|_| world.rule != Rule::ReadBefore);
                });
            }
            if renews && client.keep.is_none() && client.read.is_some() {
                add("sends the keep-alive", at, &|world| world.clients[at].keep = Some((world.now, None)));
            }
            if let Some((sent, None)) = client.keep {
                add("the leader keeps it alive", at, &|world| {
                    let (now, term) = (world.now, world.term);
                    let client = &mut world.clients[at];
                    if client.has_key {
                        (client.expires, client.keep) = (now + TTL, Some((sent, Some(term))));
                    } else {
                        // The lease has ended, and the client is told so.
                        (client.keep, client.read) = (None, None);
                    }
                });
                if self.old_answers && client.old_expires > self.now {
                    add("the old leader answers", at, &|world| {
                        let client = &mut world.clients[at];
                        (client.keep, client.old_expires) = (Some((sent, Some(0))), world.now + TTL);
                    });
                }
            }
            if let Some((sent, None)) = client.read {
                add("a majority answers", at, &|world| {
                    world.clients[at].read = Some((sent, Some((world.term, world.is_first(at)))));
                });
            }
            if matches!((client.keep, client.read), (Some((_, Some(_))), Some((_, Some(_))))) {
                add("learns of both", at, &|world| world.renewed(at));
            }
            if client.keep.is_some() || client.read.is_some() {
                add("renewal is lost", at, &|world| (world.clients[at].keep, world.clients[at].read) = (None, None));
            }
            if self.believes(at) && at == 0 {
                add("releases", at, &|world| {
                    let client = &mut world.clients[at];
                    (client.believes, client.keep, client.read) = (None, None, None);
                    world.remove(at);
                });
            }
        }
        if self.clients[1].turn {
            add("the turn is told", 1, &|world| {
                let client = &mut world.clients[1];
                client.turn = false;
                if world.rule == Rule::TurnNotChecked {
                    client.believes = Some(world.now + TTL);
                }
            });
        }
        // What is believed in must be held, or the next claim would be granted beside it.
        let wrong = (0..CLIENTS).find(|at| self.believes(*at) && !self.clients[*at].has_key);
        wrong.map_or(Ok(()), |at| Err(format!("{at} believes, and its key is gone")))
    }
}

#[test]
fn a_lease_is_believed_in_no_longer_than_it_lasts() {
    crate::holds("etcd", Cluster::new(Rule::Right, crate::ticks(3, 6)));
}

#[test]
fn wrong_leases_are_found() {
    for rule in [Rule::AnyLeader, Rule::FromTheReply, Rule::ReadBefore, Rule::TurnNotChecked] {
        crate::is_found(&format!("etcd, {rule:?}"), Cluster::new(rule, 3));
    }
}
