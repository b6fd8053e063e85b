//! The rule over a list of children: a pure function.
//!
//! A claim is a child `<claim id>-<weight>-<capacity>-<sequence>`, so that one listing decides: weight `a` (all) or
//! `u<units>`, capacity `n` (not stated), `i` (unlimited) or a number. A held claim that was made lighter has a second
//! child `<node>~<weight>~<any>`. Other children are no claims.
//!
//! The order of the claims is that of their sequences. A claim holds if it fits together with all before it. So the
//! holders are always the first few, and a holder goes on holding whatever happens behind it.

use std::collections::HashSet;
use std::num::NonZeroU32;

use oarlock_core::queue::{Load, Obstacle, is_lighter, obstacle};
use oarlock_core::{ClaimId, Limit, Weight};
use zookeeper_client as zk;

use crate::record::ClaimRecord;

/// The child that keeps a memo.
pub(crate) const MEMO: &str = "m";

/// A server has no sequence after 2^31 - 1. No claim is made near it.
const LAST: i32 = i32::MAX - (1 << 20);

/// One claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) node: String,
    pub(crate) id: ClaimId,
    pub(crate) weight: Weight,
    pub(crate) capacity: Option<Limit>,
    sequence: i32,
}

/// A child that makes a claim lighter.
#[derive(Clone, Debug)]
struct Mark {
    node: String,
    /// The node of that claim.
    of: String,
    weight: Weight,
}

/// The claims on one resource, in order.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) entries: Vec<Entry>,
    /// How many of them hold.
    pub(crate) held: usize,
    marks: Vec<Mark>,
    pub(crate) has_memo: bool,
    /// Unknown nodes were left out, which other clients may still count.
    pub(crate) thinned: bool,
    /// The parent was never written to: no claim below it was ever marked.
    pub(crate) untouched: bool,
    /// The transaction that last added or removed a child.
    last_change: i64,
}

/// An obstacle as a text that stays the same while nothing changes: the node, and what it is watched for.
pub(crate) fn cursor(obstacle: Obstacle<&Entry>) -> String {
    match obstacle {
        Obstacle::Rival(rival) => format!("{}/{}", rival.node, write_weight(rival.weight)),
        Obstacle::Waiter(waiter) => format!("{}/", waiter.node),
        Obstacle::Any => String::new(),
    }
}

/// A cursor, read: the node to watch, and which record in it would be news already.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Watched<'a> {
    pub(crate) node: &'a str,
    /// What it weighed; `None` if it is watched for its grant.
    weight: Option<Weight>,
}

impl<'a> Watched<'a> {
    /// `None`: all children are watched.
    pub(crate) fn parse(cursor: &'a str) -> Option<Self> {
        let (node, weight) = cursor.split_once('/')?;
        Some(Self { node, weight: parse_weight(weight) })
    }

    /// Whether what is waited for had happened when this was written.
    pub(crate) fn has_changed(&self, record: &ClaimRecord) -> bool {
        match self.weight {
            Some(seen) => record.lighter.is_some_and(|lighter| lighter != seen),
            None => record.granted,
        }
    }
}

impl Queue {
    /// What a parent and its children say.
    pub(crate) fn of(children: Vec<String>, above: &zk::Stat) -> Self {
        Self { untouched: above.mzxid == above.czxid, last_change: above.pzxid, ..Self::read(children) }
    }

    pub(crate) fn read(children: Vec<String>) -> Self {
        let mut queue = Self { entries: Vec::with_capacity(children.len()), ..Self::default() };
        for child in children {
            if child == MEMO {
                queue.has_memo = true;
            } else if let Some(mark) = Mark::parse(&child) {
                queue.marks.push(mark);
            } else if let Some(entry) = Entry::read(child) {
                queue.entries.push(entry);
            }
        }
        for Mark { of, weight, .. } in &queue.marks {
            for entry in queue.entries.iter_mut().filter(|entry| entry.node == *of && is_lighter(*weight, entry.weight))
            {
                entry.weight = *weight;
            }
        }
        // An unknown node may have the sequence of a claim: then the names decide, in the same way for every client.
        queue.entries.sort_unstable_by(|one, other| (one.sequence, &one.node).cmp(&(other.sequence, &other.node)));
        queue.held = queue.count_holders();
        queue
    }

    /// The same without these children.
    pub(crate) fn without(&self, unknown: &HashSet<String>) -> Self {
        let entries = self.entries.iter().map(|entry| &entry.node);
        let all = entries.chain(self.marks.iter().map(|mark| &mark.node));
        let rest: Vec<_> = all.filter(|node| !unknown.contains(*node)).cloned().collect();
        let Self { has_memo, untouched, last_change, .. } = *self;
        Self { has_memo, thinned: true, untouched, last_change, ..Self::read(rest) }
    }

    /// Puts the claims in another order; those without a position are removed.
    pub(crate) fn order_by(&mut self, position: impl Fn(&Entry) -> Option<i64>) {
        self.entries.retain(|entry| position(entry).is_some());
        self.entries.sort_by_key(|entry| position(entry));
        self.held = self.count_holders();
    }

    fn count_holders(&self) -> usize {
        let (mut load, mut limit) = (Load::default(), None);
        for (at, entry) in self.entries.iter().enumerate() {
            if disagree(limit, entry.capacity) {
                return at;
            }
            limit = limit.or(entry.capacity);
            // A single claim was found light enough when it was created, and only an exclusive one may omit the
            // capacity.
            if at > 0 && !load.bears(entry.weight, limit.unwrap_or(Limit::Unlimited)) {
                return at;
            }
            load.add(entry.weight);
        }
        self.entries.len()
    }

    /// Whether the claim at `at`, which holds, was granted by the transaction that `made` its node, so that this is its
    /// fence. Else it needs a mark, which is a later transaction.
    ///
    /// Fences must rise from grant to grant. The order of arrival is not enough where claims share: they take their
    /// turns in any order, and later waiters were created before those were marked. It is enough for the first in the
    /// queue in two cases:
    /// - if no child was added or removed since its `new` node was created: all earlier grants were made before that;
    /// - or if no claim here was ever marked: all earlier grants were firsts, and were created before. The first mark
    ///   of all writes to the parent first, and a parent with claims stays.
    pub(crate) fn grants(&self, at: usize, made: i64, new: bool) -> bool {
        at == 0 && (self.untouched || (new && self.last_change == made))
    }

    pub(crate) fn position(&self, node: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.node == node)
    }

    /// The first of the claims before `at` that states a capacity, and which.
    pub(crate) fn stated_before(&self, at: usize) -> Option<(&Entry, Limit)> {
        self.entries.iter().take(at).find_map(|entry| Some((entry, entry.capacity?)))
    }

    /// Whether any of the claims before `at` states another capacity.
    pub(crate) fn disputes(&self, at: usize, limit: Limit) -> bool {
        self.entries.iter().take(at).any(|entry| disagree(Some(limit), entry.capacity))
    }

    /// The claims among these that a mark makes lighter, each with its mark.
    pub(crate) fn marked<'a>(
        &'a self,
        claims: impl Iterator<Item = &'a Entry>,
    ) -> impl Iterator<Item = (&'a Entry, &'a str)> {
        claims.flat_map(|entry| {
            self.marks.iter().filter(|mark| mark.of == entry.node).map(move |mark| (entry, mark.node.as_str()))
        })
    }

    /// Everything that belongs to a claim.
    pub(crate) fn nodes_of(&self, id: ClaimId) -> impl Iterator<Item = &str> {
        let entries = self.entries.iter().filter(move |entry| entry.id == id).map(|entry| entry.node.as_str());
        let is_its = move |mark: &&Mark| Entry::parse(&mark.of).is_some_and(|entry| entry.id == id);
        entries.chain(self.marks.iter().filter(is_its).map(|mark| mark.node.as_str()))
    }

    /// Whether a claim other than `id` waits.
    pub(crate) fn others_wait(&self, id: ClaimId) -> bool {
        self.entries.iter().skip(self.held).any(|entry| entry.id != id)
    }

    /// What must change before the waiter at `at` can hold. Any change of the children, for the first waiter.
    pub(crate) fn obstacle(&self, at: usize) -> Obstacle<&Entry> {
        let Some(mine) = self.entries.get(at) else { return Obstacle::Any };
        let is_rival =
            |other: &&Entry| !mine.weight.coexists_with(other.weight) || disagree(mine.capacity, other.capacity);
        obstacle(&self.entries[..at], is_rival, || at <= self.held)
    }
}

impl Entry {
    /// The name of a new child, but for the sequence that the server adds.
    pub(crate) fn prefix(id: ClaimId, weight: Weight, capacity: Option<Limit>) -> String {
        let capacity = match capacity {
            None => "n".to_owned(),
            Some(Limit::Unlimited) => "i".to_owned(),
            Some(Limit::Units(units)) => units.to_string(),
        };
        format!("{id}-{}-{capacity}-", write_weight(weight))
    }

    /// Whether the server will soon have no more numbers for this name, so that its order would be lost.
    pub(crate) fn is_last(node: &str) -> bool {
        Self::parse(node).is_none_or(|entry| entry.sequence > LAST)
    }

    fn parse(node: &str) -> Option<Self> {
        Self::read(node.to_owned())
    }

    /// The length of each part is known, but for weight and capacity: nothing is searched in a long list.
    fn read(node: String) -> Option<Self> {
        let (rest, digits) = node.split_at_checked(node.len().checked_sub(10)?)?;
        if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        let sequence = digits.parse().ok()?;
        let (id, rest) = rest.strip_suffix('-')?.split_at_checked(32)?;
        let id = parse_id(id)?;
        let (weight, capacity) = rest.strip_prefix('-')?.split_once('-')?;
        let weight = parse_weight(weight)?;
        let capacity = match capacity {
            "n" => None,
            "i" => Some(Limit::Unlimited),
            units => Some(Limit::Units(units.parse().ok()?)),
        };
        Some(Self { node, id, weight, capacity, sequence })
    }
}

/// The name of the child that makes the claim of `node` lighter. `one` makes the name unique: a child that exists
/// already cannot block it.
pub(crate) fn mark(node: &str, weight: Weight, one: u64) -> String {
    format!("{node}~{}~{one:x}", write_weight(weight))
}

impl Mark {
    fn parse(child: &str) -> Option<Self> {
        let mut parts = child.splitn(3, '~');
        let (of, weight) = (parts.next()?, parts.next()?);
        Entry::parse(of)?;
        Some(Self { node: child.to_owned(), of: of.to_owned(), weight: parse_weight(weight)? })
    }
}

/// The same as the parser of [`ClaimId`], and much faster in a long list: two numbers of 64 bits instead of one of 128.
fn parse_id(text: &str) -> Option<ClaimId> {
    let digits: &[u8; 32] = text.as_bytes().try_into().ok()?;
    let number = |half: &[u8]| {
        let mut digits = half.iter().map(|digit| char::from(*digit).to_digit(16));
        digits.try_fold(0_u64, |number, digit| Some(number << 4 | u64::from(digit?)))
    };
    let (high, low) = digits.split_at(16);
    Some(ClaimId::from_bits(u128::from(number(high)?) << 64 | u128::from(number(low)?)))
}

fn write_weight(weight: Weight) -> String {
    match weight {
        Weight::All => "a".to_owned(),
        Weight::Units(units) => format!("u{units}"),
    }
}

fn parse_weight(text: &str) -> Option<Weight> {
    match text.strip_prefix('u') {
        Some(units) => Some(Weight::Units(units.parse::<NonZeroU32>().ok()?)),
        None => (text == "a").then_some(Weight::All),
    }
}

fn disagree(one: Option<Limit>, other: Option<Limit>) -> bool {
    matches!((one, other), (Some(one), Some(other)) if one != other)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Claims with ids 1, 2, 3… as `weight capacity sequence`.
    fn queue(claims: &[(&str, &str, i32)]) -> Queue {
        let node = |(at, (weight, capacity, sequence)): (usize, &(&str, &str, i32))| {
            format!("{:032x}-{weight}-{capacity}-{sequence:010}", at + 1)
        };
        Queue::read(claims.iter().enumerate().map(node).collect())
    }

    fn ids(queue: &Queue) -> Vec<u128> {
        queue.entries.iter().map(|entry| entry.id.bits()).collect()
    }

    fn watched(queue: &Queue, at: usize) -> Option<u128> {
        queue.obstacle(at).claim().map(|other| other.id.bits())
    }

    #[test]
    fn ids_are_read_as_they_are_elsewhere() {
        let id = "0123456789abcdeffedcba9876543210";
        for text in
            [id, &id.to_uppercase(), &id[1..], &format!("{id}0"), "", &id.replace('0', "+"), &id.replace('f', "g")]
        {
            assert_eq!(parse_id(text), text.parse().ok(), "{text}");
        }
        assert_eq!(parse_id("ééééééééééééééée"), None);
    }

    #[test]
    fn one_of_those_that_want_all_holds() {
        let queue = queue(&[("a", "n", 7), ("a", "n", 3), ("a", "n", 5)]);
        assert_eq!((ids(&queue), queue.held), (vec![2, 3, 1], 1));
        assert_eq!((watched(&queue, 1), watched(&queue, 2)), (Some(2), Some(3)));
    }

    #[test]
    fn units_hold_up_to_the_capacity_and_in_order() {
        let queue = queue(&[("u2", "4", 1), ("u1", "4", 2), ("u2", "4", 3), ("u1", "4", 4)]);
        assert_eq!(queue.held, 2, "the heavy one at the head holds back the light one behind it");
        assert_eq!(watched(&queue, 2), None, "the first waiter watches everything");
        assert_eq!(watched(&queue, 3), Some(3), "later ones the one before");
    }

    #[test]
    fn readers_share_until_a_writer_comes() {
        let queue = queue(&[("u1", "i", 1), ("u1", "i", 2), ("a", "i", 3), ("u1", "i", 4), ("u1", "i", 5)]);
        assert_eq!(queue.held, 2);
        assert_eq!((watched(&queue, 2), watched(&queue, 4)), (Some(2), Some(3)));
    }

    #[test]
    fn a_lighter_writer_lets_readers_in() {
        let children = ["0000000001", "0000000002"].map(|sequence| {
            let (id, weight) = if sequence.ends_with('1') { (1, "a") } else { (2, "u1") };
            format!("{id:032x}-{weight}-i-{sequence}")
        });
        let with_mark = [children[0].clone(), children[1].clone(), mark(&children[0], Weight::ONE, 7)];
        assert_eq!((Queue::read(children.to_vec()).held, Queue::read(with_mark.to_vec()).held), (1, 2));
        let queue = Queue::read(with_mark.to_vec());
        assert_eq!(queue.nodes_of(ClaimId::from_bits(1)).count(), 2);
    }

    #[test]
    fn two_capacities_never_hold_together() {
        let queue = queue(&[("u1", "3", 1), ("u1", "5", 2), ("u1", "3", 3)]);
        assert_eq!((queue.held, watched(&queue, 1), watched(&queue, 2)), (1, Some(1), Some(2)));
        let stated = queue.stated_before(2).map(|(entry, limit)| (entry.id.bits(), Some(limit)));
        assert_eq!(stated, Some((1, NonZeroU32::new(3).map(Limit::Units))));
    }

    /// All clients see the same order, however the server lists the children and whatever unknown nodes are among
    /// them.
    #[test]
    fn nothing_changes_the_order_of_the_claims() {
        let node = |id: u32, sequence: i32| format!("{id:032x}-a-n-{sequence:010}");
        let mut seed = 5_u32;
        let mut random = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed.cast_signed()
        };
        for _ in 0..2000 {
            let start = random().rem_euclid(LAST);
            let claims: Vec<_> = (0..5).map(|at| node(50 - at, start + at.cast_signed())).collect();
            let mut children: Vec<_> = (0..4).map(|at| node(at + 100, random())).collect();
            children.extend([start, start + 2, i32::MIN, i32::MIN + 9, i32::MAX].map(|number| node(200, number)));
            children.extend(claims.iter().cloned());
            children.sort_by_key(|_| random());
            let queue = Queue::read(children.clone());
            let seen = queue.entries.iter().map(|entry| &entry.node).filter(|node| claims.contains(node));
            assert!(seen.eq(&claims), "{children:?}");
        }
    }

    #[test]
    fn no_claim_is_made_near_the_last_sequence() {
        let node = |number: i32| format!("{}{number:010}", Entry::prefix(ClaimId::from_bits(1), Weight::All, None));
        assert_eq!(
            [0, LAST, LAST + 1, i32::MAX, -1].map(|n| Entry::is_last(&node(n))),
            [false, false, true, true, true]
        );
    }

    #[test]
    fn unknown_nodes_are_no_claims() {
        let id = ClaimId::from_bits(9);
        let strange = [
            "000",
            "m",
            "lock-0000000001",
            &format!("{id}-a-n-1"),
            &format!("{id}-u0-n-0000000001"),
            "x~a",
            &format!("{id}~a"),
        ];
        let queue = Queue::read(strange.map(str::to_owned).to_vec());
        assert_eq!((queue.entries.len(), queue.marks.len(), queue.held, queue.has_memo), (0, 0, 0, true));
    }

    /// A holder goes on holding when other claims end: the rule never takes a grant back.
    #[test]
    fn holding_never_ends_by_others_leaving() {
        let weights = ["a", "u1", "u2", "u3"];
        let capacities = ["3", "3", "3", "5", "n"];
        let mut seed = 7_u32;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) as usize % below
        };
        for _ in 0..5000 {
            let claims: Vec<_> = (1..7)
                .map(|sequence| {
                    let weight = weights[random(4)];
                    // Only claims of everything may keep silent about the capacity.
                    let capacity = if weight == "a" { capacities[random(5)] } else { capacities[random(4)] };
                    (weight, capacity, sequence)
                })
                .collect();
            let before = queue(&claims);
            let leaver = random(claims.len());
            let nodes: Vec<_> = before.entries.iter().map(|entry| entry.node.clone()).collect();
            let rest: Vec<_> =
                nodes.iter().enumerate().filter(|(at, _)| *at != leaver).map(|(_, n)| n.clone()).collect();
            let after = Queue::read(rest);
            for node in nodes.iter().take(before.held).filter(|node| **node != nodes[leaver]) {
                assert!(after.position(node).unwrap() < after.held, "{nodes:?} without {leaver}");
            }
            let most = |queue: &Queue| {
                let held = &queue.entries[..queue.held];
                let units: u32 = held.iter().map(|e| if let Weight::Units(u) = e.weight { u.get() } else { 0 }).sum();
                let limit = held.iter().find_map(|entry| entry.capacity);
                let alone = held.len() == 1 || held.iter().all(|entry| entry.weight != Weight::All);
                alone && (held.len() == 1 || !matches!(limit, Some(Limit::Units(most)) if units > most.get()))
            };
            assert!(most(&before) && most(&after));
        }
    }

    /// The same arrivals and releases in the model, where every claim asks for order, give the same holders.
    #[test]
    fn it_agrees_with_the_model() {
        use oarlock_core::clock::Moment;
        use oarlock_core::driver::{Attempt, End};
        use oarlock_core::model::{Notified, Now, Resource};
        use oarlock_core::{Capacity, Claim, ResourceName};

        let now = Now { boot: Moment::from_nanos(1), wall_micros: 1 };
        let units = |units| NonZeroU32::new(units).map_or(Weight::All, Weight::Units);
        let limit = Limit::Units(NonZeroU32::MIN.saturating_add(3));
        let mut seed = 11_u32;
        let mut random = |below: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) % below
        };
        let (mut granted, mut refused) = (0, 0);
        for _ in 0..200 {
            let (mut model, mut children, mut claims) = (Resource::default(), Vec::new(), Vec::new());
            for step in 0..60_i32 {
                if claims.is_empty() || random(3) > 0 {
                    let id = ClaimId::from_bits(u128::from(step.unsigned_abs()) + 1);
                    let mut claim = Claim::new(id, ResourceName::new("x").unwrap());
                    (claim.wait, claim.weight) = (true, units(random(5)));
                    claim.capacity = Capacity::Fixed(limit);
                    children.push(format!("{}{step:010}", Entry::prefix(id, claim.weight, Some(limit))));
                    claims.push(claim);
                } else {
                    let gone = claims.remove(random(u32::try_from(claims.len()).unwrap()) as usize);
                    model.release(gone.id, &End::Withdrawn, now, &mut Notified::new());
                    children.retain(|child| !child.starts_with(&gone.id.to_string()));
                }
                let queue = Queue::read(children.clone());
                for (at, claim) in claims.iter().enumerate() {
                    let answer = model.attempt(claim, 1, now, &mut Notified::new()).unwrap();
                    let holds = matches!(answer, Attempt::Granted(_));
                    assert_eq!(at < queue.held, holds, "{children:?}, number {at}");
                    if holds { granted += 1 } else { refused += 1 }
                }
            }
        }
        assert!(granted > 1000 && refused > 1000, "{granted} granted, {refused} refused");
    }
}
