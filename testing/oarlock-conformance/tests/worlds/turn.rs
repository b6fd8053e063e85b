//! A turn that comes with its grant: the step that releases a lock grants it to the next waiter, and the notification
//! carries the grant.
//!
//! Two clients with two claims each. Requests, answers and notifications take any time or are lost. The grant lasts a
//! turn unless the client asks or renews; belief in it counts from the last request that the store had seen.

use oarlock_conformance::explore::{Event, World};

const TURN: u8 = 1;
const LEASE: u8 = 2;
const CLIENTS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Rule {
    /// Belief counts from the last request of this claim that the store had seen.
    Right,
    /// Belief counts from the notification.
    FromTheNotification,
    /// A notification is believed whichever claim of the client it is for.
    AnyClaim,
    /// Belief in an answer counts from the answer.
    FromTheAnswer,
    /// A turn that passes on keeps its fence.
    SameFence,
}

/// One claim: which client, and which of its claims.
type Claim = (usize, u8);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    claim: u8,
    believes: Option<(u8, u8)>,
    /// An attempt on its way, with the time at which it was sent.
    asked: Option<(Claim, u8)>,
    /// A grant on its way: the claim, its fence, from when and how long.
    answer: Option<(Claim, u8, u8, u8)>,
    /// The same, with a notification.
    note: Option<(Claim, u8, u8)>,
    release: Option<Claim>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Turns {
    rule: Rule,
    /// When the world ends.
    end: u8,
    now: u8,
    /// Who holds, with which fence, until when.
    holder: Option<(Claim, u8, u8)>,
    queue: Vec<Claim>,
    /// When the last request of each client's claim was sent that the store has seen.
    heard: [(u8, u8); CLIENTS],
    fence: u8,
    clients: [Client; CLIENTS],
    /// The largest fence that was believed in, and by whom.
    top: (u8, Claim),
    handed: bool,
}

impl Turns {
    fn new(rule: Rule, end: u8) -> Self {
        let mut world = Self {
            rule,
            end,
            now: 0,
            holder: Some(((0, 0), 1, LEASE)),
            queue: vec![(1, 0)],
            heard: [(0, 0); CLIENTS],
            fence: 1,
            clients: Default::default(),
            top: (1, (0, 0)),
            handed: false,
        };
        world.clients[0].believes = Some((LEASE, 1));
        world
    }

    /// The store frees what has ended and gives the next its turn.
    fn expire(&mut self) {
        if self.holder.is_some_and(|(_, _, until)| until <= self.now) {
            self.free();
        }
    }

    fn free(&mut self) {
        self.holder = None;
        if self.queue.is_empty() {
            return;
        }
        let next = self.queue.remove(0);
        self.fence += u8::from(self.rule != Rule::SameFence);
        self.holder = Some((next, self.fence, self.now + TURN));
        let (claim, sent) = self.heard[next.0];
        if claim == next.1 {
            self.clients[next.0].note = Some((next, self.fence, sent));
        }
    }

    fn attempted(&mut self, claim: Claim, sent: u8) {
        self.expire();
        self.heard[claim.0] = (claim.1, sent);
        if self.holder.is_none() && self.queue.first().is_none_or(|first| *first == claim) {
            self.queue.retain(|other| *other != claim);
            self.fence += 1;
            self.holder = Some((claim, self.fence, self.now + LEASE));
        }
        match &mut self.holder {
            Some((holder, fence, until)) if *holder == claim => {
                *until = self.now + LEASE;
                self.clients[claim.0].answer = Some((claim, *fence, sent, LEASE));
            }
            _ if !self.queue.contains(&claim) => self.queue.push(claim),
            _ => {}
        }
    }

    /// Belief begins or goes on, unless it would have ended by now. Its fence is larger than all before it.
    fn believe(&mut self, at: usize, fence: u8, until: u8) -> Result<(), String> {
        if until <= self.now {
            return Ok(());
        }
        let claim = (at, self.clients[at].claim);
        if fence < self.top.0 || fence == self.top.0 && self.top.1 != claim {
            return Err(format!("fence {fence} after {}", self.top.0));
        }
        (self.top, self.clients[at].believes) = ((fence, claim), Some((until, fence)));
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let believers = self.clients.iter().filter(|client| client.believes.is_some_and(|(until, _)| until > self.now));
        if believers.count() > 1 {
            return Err("two believe".to_owned());
        }
        Ok(())
    }
}

impl World for Turns {
    type Key = Self;

    fn key(&self) -> Self {
        self.clone()
    }

    fn is_goal(&self) -> bool {
        self.handed
    }

    fn steps(&self, next: &mut Vec<(Event, Self)>) -> Result<(), String> {
        self.check()?;
        if self.now < self.end {
            let mut world = self.clone();
            world.now += 1;
            next.push((("time passes", world.now.into()), world));
        }
        for at in 0..CLIENTS {
            let client = &self.clients[at];
            let mut add = |what, change: &dyn Fn(&mut Self)| {
                let mut world = self.clone();
                change(&mut world);
                next.push(((what, at), world));
            };
            let claim = (at, client.claim);
            let believes = client.believes.is_some_and(|(until, _)| until > self.now);
            // What is lost stays on its way for ever, or is replaced by the next of its kind.
            // A holder asks again to renew what it was handed. The second claim of the second client is there for
            // notifications that are too late for the first.
            let renews = believes && at == 1;
            if (renews || client.believes.is_none()) && claim != (1, 1) && client.asked != Some((claim, self.now)) {
                add("asks", &|world| world.clients[at].asked = Some((claim, world.now)));
            }
            if client.believes.is_some() && client.claim == 0 {
                add("releases", &|world| {
                    let client = &mut world.clients[at];
                    (client.believes, client.release, client.claim) = (None, Some(claim), 1);
                });
            }
            if let Some(released) = client.release {
                add("release arrives", &|world| {
                    world.expire();
                    world.clients[at].release = None;
                    world.queue.retain(|other| *other != released);
                    if world.holder.is_some_and(|(holder, ..)| holder == released) {
                        world.free();
                    }
                });
            }
            if let Some((asked, sent)) = client.asked {
                add("request arrives", &|world| {
                    world.clients[at].asked = None;
                    world.attempted(asked, sent);
                });
            }
            if let Some((granted, fence, sent, ttl)) = client.answer {
                let mut world = self.clone();
                world.clients[at].answer = None;
                if granted == claim {
                    let from = if self.rule == Rule::FromTheAnswer { self.now } else { sent };
                    world.believe(at, fence, from + ttl)?;
                }
                next.push((("answer arrives", at), world));
            }
            if let Some((granted, fence, sent)) = client.note {
                let mut world = self.clone();
                world.clients[at].note = None;
                if (granted == claim || self.rule == Rule::AnyClaim) && client.believes.is_none() {
                    let from = if self.rule == Rule::FromTheNotification { self.now } else { sent };
                    world.believe(at, fence, from + TURN)?;
                    world.handed |= world.clients[at].believes.is_some();
                }
                next.push((("notification arrives", at), world));
            }
        }
        Ok(())
    }
}

#[test]
fn a_turn_with_its_grant_is_believed_in_by_one() {
    crate::holds("turn", Turns::new(Rule::Right, crate::ticks(2, 4)));
}

#[test]
fn wrong_turns_are_found() {
    for rule in [Rule::FromTheNotification, Rule::AnyClaim, Rule::FromTheAnswer, Rule::SameFence] {
        crate::is_found(&format!("turn, {rule:?}"), Turns::new(rule, 2));
    }
}
