//! Every way in which rounds can meet: an exhaustive search for fences that repeat or fall.
//!
//! Three nodes, each with a key and a counter. Two or three clients, each with one round and a number that it proposes
//! as its fence: a node gives that, or one more than the last it gave. Requests are carried out in any order and at any
//! time, keys vanish at any moment (a lease that ended, a release, a break: the fence must not depend on which), a
//! round may go on with any majority of the votes it has, and may stop at any point by never being carried on. There is
//! no clock. States that differ only in the names of nodes or clients are one state.
//!
//! What must hold: no two grants have the same fence, and a round that began after another was granted has a larger
//! one.

use oarlock_conformance::explore::{self, Event};

const NODES: usize = 3;
const MAJORITY: usize = 2;

/// What a round does between its votes and its grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// Takes the largest vote, and that is that.
    Maximum,
    /// Writes the largest vote to any majority.
    Anywhere,
    /// Writes it only where the vote is still there, except where it comes from: what this crate does.
    WhereHeld,
    /// The same, and counts a vote that came after the fence was chosen, although it is larger.
    CountsLateVotes,
    /// The same, and takes what it proposed as soon as one node of its majority has given it that.
    FewAgree,
    /// The same, and a node that has given the proposed number before gives it again.
    GivesAgain,
}

impl Rule {
    fn vote(self, last: u8, proposed: u8) -> u8 {
        let next = if self == Self::GivesAgain && last > 0 { last } else { last + 1 };
        next.max(proposed)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Phase {
    Votes,
    Writes,
    Granted,
    Failed,
}

/// How a node voted.
const OUT: u8 = 0;
const REFUSED: u8 = 15;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Client {
    phase: Phase,
    /// The fence in each vote, while it matters; then only whether the vote is still on its way.
    votes: [u8; NODES],
    fence: u8,
    /// Where the fence is still to be written.
    writes: [bool; NODES],
    /// Where it counts.
    counts: [bool; NODES],
    /// The largest fence granted before it began.
    floor: u8,
    /// Where its key is.
    keys: [bool; NODES],
    /// The fence that it would have.
    proposed: u8,
}

/// The same in 34 bits, so that a world fits into 128 and many worlds into memory.
fn packed(client: &Client) -> u128 {
    let bits = |flags: [bool; NODES]| flags.iter().fold(0, |bits, flag| bits << 1 | u128::from(*flag));
    let votes = client.votes.iter().fold(0, |votes, vote| votes << 4 | u128::from(*vote));
    let words = [(client.phase as u128, 2), (votes, 12), (u128::from(client.fence), 4), (bits(client.writes), 3)];
    let more = [(bits(client.counts), 3), (u128::from(client.floor), 4), (bits(client.keys), 3)];
    // It matters no more when all nodes have voted.
    let out = client.votes.contains(&OUT);
    let last = [(if out { u128::from(client.proposed) } else { 0 }, 3)];
    words.into_iter().chain(more).chain(last).fold(0, |all, (word, width)| all << width | word)
}

#[derive(Clone, Debug)]
struct World {
    counters: [u8; NODES],
    clients: Vec<Client>,
    /// The fences of all grants, one bit each.
    granted: u16,
}

impl World {
    fn new(counters: [u8; NODES], proposals: &[u8]) -> Self {
        let client = |proposed: &u8| Client {
            phase: Phase::Votes,
            votes: [OUT; NODES],
            fence: 0,
            writes: [false; NODES],
            counts: [false; NODES],
            floor: 0,
            keys: [false; NODES],
            proposed: *proposed,
        };
        Self { counters, clients: proposals.iter().map(client).collect(), granted: 0 }
    }

    /// The smallest of all worlds that are the same but for names.
    fn canonical(&self) -> u128 {
        const ORDERS: [[usize; NODES]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        let renamed = |order: &[usize; NODES]| {
            let mut clients = [0; 3];
            for (at, client) in self.clients.iter().enumerate() {
                let mut client = *client;
                let by = |flags: [bool; NODES]| order.map(|node| flags[node]);
                client.votes = order.map(|node| client.votes[node]);
                (client.writes, client.counts, client.keys) = (by(client.writes), by(client.counts), by(client.keys));
                clients[at] = packed(&client);
            }
            clients.sort_unstable();
            let counters = order.iter().fold(0, |all, node| all << 4 | u128::from(self.counters[*node]));
            // No fence is 0 or 15.
            let nodes = u128::from(self.granted >> 1) << 12 | counters;
            clients.iter().fold(nodes, |all, client| all << 34 | client)
        };
        ORDERS.iter().map(renamed).min().unwrap_or_default()
    }

    fn key(&self, node: usize) -> Option<usize> {
        self.clients.iter().position(|client| client.keys[node])
    }

    fn voted(&self, at: usize, node: usize, rule: Rule) -> Self {
        let mut world = self.clone();
        let began = self.clients[at].votes.iter().any(|vote| *vote != OUT);
        let client = &mut world.clients[at];
        if !began {
            client.floor = u8::try_from(15 - self.granted.leading_zeros().min(15)).unwrap_or(0);
        }
        if self.key(node).is_some() {
            client.votes[node] = REFUSED;
            return world;
        }
        let client = &mut world.clients[at];
        world.counters[node] = rule.vote(world.counters[node], client.proposed);
        client.votes[node] = world.counters[node];
        client.keys[node] = true;
        if client.phase != Phase::Votes {
            client.votes[node] = REFUSED;
            client.writes[node] |= client.phase == Phase::Writes && rule == Rule::CountsLateVotes;
        }
        world
    }

    /// The client goes on with the votes it has, without that of one node.
    fn chosen(&self, at: usize, without: Option<usize>, rule: Rule) -> Result<Option<Self>, String> {
        let votes = self.clients[at].votes;
        let used = |node: usize| Some(node) != without && votes[node] != OUT && votes[node] != REFUSED;
        let used: [bool; NODES] = [used(0), used(1), used(2)];
        let count = used.iter().filter(|used| **used).count();
        if count < MAJORITY || without.is_some_and(|node| votes[node] == OUT || votes[node] == REFUSED) {
            return Ok(None);
        }
        let mut fence = (0..NODES).filter(|node| used[*node]).map(|node| votes[node]).max().unwrap_or(0);
        let proposed = self.clients[at].proposed;
        let early = rule == Rule::FewAgree && (0..NODES).any(|node| used[node] && votes[node] == proposed);
        if early {
            fence = proposed;
        }
        let mut world = self.clone();
        let client = &mut world.clients[at];
        (client.fence, client.phase) = (fence, Phase::Writes);
        for node in 0..NODES {
            let has = used[node] && votes[node] == fence;
            match rule {
                Rule::Maximum => client.counts[node] = used[node],
                Rule::Anywhere => client.writes[node] = true,
                Rule::FewAgree if early => client.counts[node] = used[node],
                Rule::WhereHeld | Rule::CountsLateVotes | Rule::FewAgree | Rule::GivesAgain => {
                    client.counts[node] = has;
                    client.writes[node] = used[node] && !has;
                }
            }
            client.votes[node] = if votes[node] == OUT { OUT } else { REFUSED };
        }
        world.granted_if_counted(at)?;
        Ok(Some(world))
    }

    fn written(&self, at: usize, node: usize, rule: Rule) -> Result<Self, String> {
        let mut world = self.clone();
        let client = &mut world.clients[at];
        client.writes[node] = false;
        if rule == Rule::Anywhere || client.keys[node] {
            world.counters[node] = world.counters[node].max(client.fence);
            client.counts[node] = true;
            world.granted_if_counted(at)?;
        } else if client.phase == Phase::Writes && rule != Rule::CountsLateVotes {
            client.phase = Phase::Failed;
        }
        Ok(world)
    }

    fn granted_if_counted(&mut self, at: usize) -> Result<(), String> {
        let client = &mut self.clients[at];
        if client.phase != Phase::Writes || client.counts.iter().filter(|counts| **counts).count() < MAJORITY {
            return Ok(());
        }
        let (fence, floor) = (client.fence, client.floor);
        // What counted is of no interest any more.
        (client.phase, client.counts, client.floor) = (Phase::Granted, [false; NODES], 0);
        if self.granted & 1 << fence != 0 {
            return Err(format!("fence {fence} was given twice"));
        }
        if fence <= floor {
            return Err(format!("fence {fence} after {floor}"));
        }
        self.granted |= 1 << fence;
        Ok(())
    }
}

/// A world under a rule.
#[derive(Clone, Debug)]
struct Ruled(Rule, World);

impl explore::World for Ruled {
    type Key = u128;

    fn key(&self) -> u128 {
        self.1.canonical()
    }

    /// Every client was granted, one after the other.
    fn is_goal(&self) -> bool {
        self.1.granted.count_ones() as usize == self.1.clients.len()
    }

    fn steps(&self, next: &mut Vec<(Event, Self)>) -> Result<(), String> {
        let Self(rule, world) = self;
        let mut add = |what, at, world| next.push(((what, at), Self(*rule, world)));
        for node in 0..NODES {
            if let Some(holder) = world.key(node) {
                let mut without = world.clone();
                without.clients[holder].keys[node] = false;
                add("a key vanishes of node", node, without);
            }
        }
        for client in 0..world.clients.len() {
            for node in 0..NODES {
                if world.clients[client].votes[node] == OUT {
                    add("a vote is given to client", client, world.voted(client, node, *rule));
                }
                if world.clients[client].writes[node] {
                    add("a fence is written for client", client, world.written(client, node, *rule)?);
                }
            }
            if world.clients[client].phase == Phase::Votes {
                // Any majority of the votes it has, or all of them.
                for without in [None, Some(0), Some(1), Some(2)] {
                    if let Some(chosen) = world.chosen(client, without, *rule)? {
                        add("goes on with its votes: client", client, chosen);
                    }
                }
            }
        }
        Ok(())
    }
}

/// How many worlds can come about, if all clients are granted in some of them; or what went wrong.
fn search(rule: Rule, counters: [u8; NODES], proposals: &[u8]) -> Result<usize, String> {
    let explored = explore::search(Ruled(rule, World::new(counters, proposals)))?;
    assert!(explored.goals > 0, "all can be granted, one after the other");
    Ok(explored.worlds)
}

/// All starting counters up to two that differ in more than names.
fn starts() -> impl Iterator<Item = [u8; NODES]> {
    (0..=2).flat_map(|a| (a..=2).flat_map(move |b| (b..=2).map(move |c| [a, b, c])))
}

/// Proposals of two clients: below all counters, among them, above them; the same, in order, far apart.
const PROPOSALS: [[u8; 2]; 4] = [[0, 0], [0, 2], [3, 3], [3, 5]];

/// The first thing that goes wrong under a rule.
fn found(rule: Rule) -> Option<String> {
    let all = PROPOSALS.iter().flat_map(|proposals| starts().map(move |start| (start, proposals)));
    let found = all.into_iter().find_map(|(start, proposals)| {
        let wrong = search(rule, start, proposals).err()?;
        Some(format!("{wrong}, from {start:?} with {proposals:?} proposed"))
    });
    println!("{rule:?}: {found:?}");
    found
}

#[test]
fn the_largest_vote_alone_repeats_fences() {
    assert!(found(Rule::Maximum).is_some());
}

#[test]
fn writing_to_any_majority_repeats_fences() {
    assert!(found(Rule::Anywhere).is_some());
}

#[test]
fn a_late_vote_that_is_larger_must_not_count() {
    assert!(found(Rule::CountsLateVotes).is_some());
}

#[test]
fn what_fewer_than_a_majority_agree_on_must_not_count() {
    assert!(found(Rule::FewAgree).is_some());
}

#[test]
fn a_number_must_not_be_given_again_because_it_was_proposed_again() {
    assert!(found(Rule::GivesAgain).is_some());
}

#[test]
fn writing_where_the_vote_still_is_keeps_two_clients_apart() {
    let mut all = 0;
    for proposals in PROPOSALS {
        for start in starts() {
            all += search(Rule::WhereHeld, start, &proposals).unwrap();
        }
    }
    println!("two clients: {all} worlds from {} starts with {} proposals", starts().count(), PROPOSALS.len());
}

/// In the long tier alone: `OARLOCK_LONG=1`.
#[test]
fn writing_where_the_vote_still_is_keeps_three_clients_apart() {
    if std::env::var_os("OARLOCK_LONG").is_none() {
        println!("three clients: only in the long tier (OARLOCK_LONG=1)");
        return;
    }
    for (start, proposals) in
        [([0, 0, 0], [0, 0, 0]), ([0, 0, 2], [2, 2, 2]), ([0, 1, 2], [1, 2, 3]), ([0, 0, 0], [3, 3, 4])]
    {
        let worlds = search(Rule::WhereHeld, start, &proposals).unwrap();
        println!("three clients from {start:?} with {proposals:?}: {worlds} worlds");
    }
}
