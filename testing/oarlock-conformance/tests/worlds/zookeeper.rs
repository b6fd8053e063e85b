//! Locks that live by a session: ephemeral nodes, in the order of their numbers.
//!
//! Two clients, the first of which holds. The leader ends a session that it has not heard of for its time-out. A server
//! that is cut off from the leader still answers reads. When a connection is lost, the fate of a request is unknown, and
//! the client may go on with its session or begin another.

use oarlock_conformance::explore::{Event, World, changes};

const SESSION: u8 = 3;
/// Less than it: the leader may count from earlier than the client knows.
const BELIEF: u8 = 2;
const CLIENTS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Rule {
    Right,
    /// A node of an earlier session of the same client counts as its own.
    AnySession,
    /// A read of the server at hand proves that the session lives.
    ReadProves,
    /// Belief counts from the reply.
    FromTheReply,
    /// Belief in a turn counts from the listing, and not from the last proof of the session.
    FromTheListing,
}

/// A request on its way, or its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Request {
    #[default]
    None,
    /// Sent then, in this session.
    Renews(u8, u8),
    Renewed(u8),
    Lists(u8),
    /// The own node is first.
    First(u8),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    /// Which session it is in, and when the leader ends that one.
    session: u8,
    expires: u8,
    /// The session that keeps its node.
    node: Option<u8>,
    /// When the request was sent that last proved its session.
    proof: u8,
    believes: Option<u8>,
    request: Request,
    /// When the leader ends its earlier session, while that has a node.
    old_expires: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Ensemble {
    rule: Rule,
    /// When the world ends.
    end: u8,
    now: u8,
    /// The server at hand of the first client does not hear of the leader any more; since then nothing changes there.
    cut_off: bool,
    clients: [Client; CLIENTS],
    took_over: bool,
}

impl Ensemble {
    fn new(rule: Rule, end: u8) -> Self {
        let first = Client { expires: SESSION, node: Some(0), believes: Some(BELIEF), ..Client::default() };
        let second = Client { expires: SESSION, node: Some(0), ..Client::default() };
        Self { rule, end, now: 0, cut_off: false, clients: [first, second], took_over: false }
    }

    fn expire(&mut self) {
        let now = self.now;
        for client in &mut self.clients {
            let ends = if client.node == Some(client.session) { client.expires } else { client.old_expires };
            if client.node.is_some() && ends <= now {
                client.node = None;
            }
        }
    }

    fn believes(&self, at: usize) -> bool {
        self.clients[at].believes.is_some_and(|until| until > self.now)
    }

    /// Whether the node of this client counts for it and is the first.
    fn is_first(&self, at: usize) -> bool {
        let client = &self.clients[at];
        let own = client.node.is_some_and(|session| session == client.session || self.rule == Rule::AnySession);
        own && (at == 0 || self.clients[0].node.is_none())
    }

    fn believe(&mut self, at: usize, from: u8) {
        if from + BELIEF > self.now {
            self.clients[at].believes = Some(from + BELIEF);
            self.took_over |= at == 1;
        }
    }
}

impl World for Ensemble {
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
        if !self.cut_off {
            add("its server is cut off", 0, &|world| world.cut_off = true);
        }
        for at in 0..CLIENTS {
            let client = &self.clients[at];
            let reaches = at == 1 || !self.cut_off;
            match client.request {
                Request::None => {
                    add("renews", at, &|world| {
                        let session = world.clients[at].session;
                        world.clients[at].request = Request::Renews(world.now, session);
                    });
                    if client.believes.is_none() {
                        add("lists", at, &|world| world.clients[at].request = Request::Lists(world.now));
                    }
                }
                // A transaction that checks the node and changes nothing: it needs a majority.
                Request::Renews(sent, session) if reaches => add("the leader checks", at, &|world| {
                    let now = world.now;
                    let client = &mut world.clients[at];
                    let lives = session == client.session && client.expires > now;
                    client.expires = if lives { now + SESSION } else { client.expires };
                    let own = client.node.is_some_and(|node| node == session || self.rule == Rule::AnySession);
                    client.request = if lives && own { Request::Renewed(sent) } else { Request::None };
                }),
                Request::Renews(sent, _) if self.rule == Rule::ReadProves && client.believes.is_some() => {
                    add("the server at hand answers", at, &|world| world.clients[at].request = Request::Renewed(sent));
                }
                Request::Renewed(sent) => add("learns of it", at, &|world| {
                    let from = if world.rule == Rule::FromTheReply { world.now } else { sent };
                    world.clients[at].request = Request::None;
                    world.clients[at].proof = world.clients[at].proof.max(from);
                    // Of a holder; a waiter has proof for when its turn comes.
                    if world.believes(at) {
                        world.believe(at, from);
                    }
                }),
                Request::Lists(sent) => add("the list is answered", at, &|world| {
                    let first = world.is_first(at);
                    world.clients[at].request = if first { Request::First(sent) } else { Request::None };
                }),
                Request::First(sent) => add("learns that it is first", at, &|world| {
                    world.clients[at].request = Request::None;
                    let from = if world.rule == Rule::FromTheListing { sent } else { world.clients[at].proof };
                    world.believe(at, from);
                }),
                Request::Renews(..) => {}
            }
            if client.request != Request::None {
                add("connection is lost", at, &|world| world.clients[at].request = Request::None);
            }
            if client.session == 0 && client.believes.is_none() {
                // Another session is proved by its own beginning; its node must be its own.
                add("begins another session", at, &|world| {
                    let now = world.now;
                    let client = &mut world.clients[at];
                    (client.old_expires, client.expires) = (client.expires, now + SESSION);
                    (client.session, client.proof, client.request) = (1, now, Request::None);
                });
            }
            if self.believes(at) && at == 0 {
                add("releases", at, &|world| {
                    let client = &mut world.clients[at];
                    (client.node, client.believes, client.request) = (None, None, Request::None);
                });
            }
        }
        let wrong = (0..CLIENTS).find(|at| self.believes(*at) && self.clients[*at].node.is_none());
        wrong.map_or(Ok(()), |at| Err(format!("{at} believes, and its node is gone")))
    }
}

#[test]
fn a_session_is_believed_in_no_longer_than_it_lasts() {
    crate::holds("zookeeper", Ensemble::new(Rule::Right, crate::ticks(3, 6)));
}

#[test]
fn wrong_sessions_are_found() {
    for rule in [Rule::AnySession, Rule::ReadProves, Rule::FromTheReply, Rule::FromTheListing] {
        crate::is_found(&format!("zookeeper, {rule:?}"), Ensemble::new(rule, 3));
    }
}
