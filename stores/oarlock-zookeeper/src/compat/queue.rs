//! The rule of the other programs over a list of children: a pure function.
//!
//! An exclusive claim holds when it is first, a shared one when no exclusive claim is before it. Sequences are
//! compared as text, as the other programs do, and two nodes may have the same: a writer that became a reader keeps
//! its own.

use oarlock_core::ClaimId;

use super::names::{Dialect, Entry, Tag};

/// The claims in one folder, in order.
#[derive(Debug, Default)]
pub(crate) struct CompatQueue {
    pub(crate) entries: Vec<Entry>,
    strays: Vec<String>,
}

impl CompatQueue {
    pub(crate) fn read(dialect: Dialect, children: &[String]) -> Self {
        let mut queue = Self::default();
        for child in children {
            match dialect.parse(child) {
                Some(entry) => queue.entries.push(entry),
                None => queue.strays.push(child.clone()),
            }
        }
        queue.entries.sort_by(|a, b| (&a.sequence, &a.node).cmp(&(&b.sequence, &b.node)));
        queue
    }

    pub(crate) fn position(&self, node: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.node == node)
    }

    pub(crate) fn of(&self, id: ClaimId) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| entry.id == id)
    }

    pub(crate) fn holds(&self, at: usize) -> bool {
        self.obstacle(at).is_none()
    }

    /// The claim that must end before the one at `at` can hold; `None` if it holds.
    pub(crate) fn obstacle(&self, at: usize) -> Option<&Entry> {
        let shares = self.entries.get(at)?.tag.shares();
        self.entries.iter().take(at).rev().find(|other| !shares || !other.tag.shares())
    }

    /// Whether a claim other than `id` waits.
    pub(crate) fn others_wait(&self, id: ClaimId) -> bool {
        self.entries.iter().enumerate().any(|(at, entry)| entry.id != id && !self.holds(at))
    }

    /// A child that does not belong here: other programs may wait for it, or overlook it.
    pub(crate) fn unknown(&self, dialect: Dialect, tag: Tag) -> Option<&str> {
        let other = self.entries.iter().find(|entry| !dialect.same_recipe(entry.tag, tag));
        self.strays.first().or(other.map(|entry| &entry.node)).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(nodes: &[&str]) -> CompatQueue {
        let node = |(at, tagged): (usize, &&str)| format!("{:032x}{tagged}", at + 1);
        CompatQueue::read(Dialect::Kazoo, &nodes.iter().enumerate().map(node).collect::<Vec<_>>())
    }

    fn seen(queue: &CompatQueue) -> Vec<(u128, Option<u128>)> {
        let one = |(at, entry): (usize, &Entry)| (entry.id.bits(), queue.obstacle(at).map(|other| other.id.bits()));
        queue.entries.iter().enumerate().map(one).collect()
    }

    #[test]
    fn the_first_holds_and_each_other_watches_the_one_before() {
        let queue = queue(&["__lock__0000000009", "__lock__0000000002", "__lock__0000000010"]);
        assert_eq!(seen(&queue), [(2, None), (1, Some(2)), (3, Some(1))]);
        assert!(queue.others_wait(ClaimId::from_bits(2)));
    }

    #[test]
    fn readers_hold_together_and_wait_for_the_nearest_writer() {
        let queue = queue(&[
            "__rlock__0000000001",
            "__rlock__0000000002",
            "__lock__0000000003",
            "__rlock__0000000004",
            "__lock__0000000005",
            "__rlock__0000000006",
        ]);
        assert_eq!(seen(&queue), [(1, None), (2, None), (3, Some(2)), (4, Some(3)), (5, Some(4)), (6, Some(5))]);
    }

    #[test]
    fn a_writer_that_became_a_reader_has_its_own_sequence_twice() {
        let nodes = ["_c_x-__WRIT__0000000003", "_c_x-__READ__0000000003", "_c_y-__WRIT__0000000004"];
        let queue = CompatQueue::read(Dialect::Curator, &nodes.map(str::to_owned));
        assert!(!queue.holds(2) && queue.unknown(Dialect::Curator, Tag::Read).is_none());
        let lighter = CompatQueue::read(Dialect::Curator, &[nodes[1].to_owned(), "_c_z-__READ__0000000005".to_owned()]);
        assert!(lighter.holds(0) && lighter.holds(1));
    }

    #[test]
    fn a_node_that_does_not_belong_is_named() {
        let nodes = |stray: &str| ["_c_x-lock-0000000001".to_owned(), stray.to_owned()];
        for stray in ["000", "locks", "_c_y-__WRIT__0000000002", "x__lock__0000000002"] {
            let queue = CompatQueue::read(Dialect::Curator, &nodes(stray));
            assert_eq!(queue.unknown(Dialect::Curator, Tag::Lock), Some(stray));
        }
        let friend = CompatQueue::read(Dialect::Curator, &nodes("_c_y-lock-0000000002"));
        assert_eq!(friend.unknown(Dialect::Curator, Tag::Lock), None);
    }
}
