//! The rule of the others on a list of children: a pure function.
//!
//! Who is exclusive holds when it is first, who shares when nobody exclusive is before it. Sequences are compared as text,
//! as the others do it, and two nodes may have the same: a writer that became a reader keeps its own.

use oarlock_core::ClaimId;

use super::names::{Dialect, Entry, Tag};

/// The claims in one folder, in order.
#[derive(Debug, Default)]
pub(crate) struct Line {
    pub(crate) entries: Vec<Entry>,
    strays: Vec<String>,
}

impl Line {
    pub(crate) fn read(dialect: Dialect, children: &[String]) -> Self {
        let mut line = Self::default();
        for child in children {
            match dialect.parse(child) {
                Some(entry) => line.entries.push(entry),
                None => line.strays.push(child.clone()),
            }
        }
        line.entries.sort_by(|a, b| (&a.sequence, &a.node).cmp(&(&b.sequence, &b.node)));
        line
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

    /// What must go before the one at `at` can hold: nothing if it holds.
    pub(crate) fn obstacle(&self, at: usize) -> Option<&Entry> {
        let shares = self.entries.get(at)?.tag.shares();
        self.entries.iter().take(at).rev().find(|other| !shares || !other.tag.shares())
    }

    /// Whether anybody but `id` waits.
    pub(crate) fn others_wait(&self, id: ClaimId) -> bool {
        self.entries.iter().enumerate().any(|(at, entry)| entry.id != id && !self.holds(at))
    }

    /// A child that does not belong here, and may stall or be overlooked by the others.
    pub(crate) fn stranger(&self, dialect: Dialect, tag: Tag) -> Option<&str> {
        let other = self.entries.iter().find(|entry| !dialect.same_recipe(entry.tag, tag));
        self.strays.first().or(other.map(|entry| &entry.node)).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(nodes: &[&str]) -> Line {
        let node = |(at, tagged): (usize, &&str)| format!("{:032x}{tagged}", at + 1);
        Line::read(Dialect::Kazoo, &nodes.iter().enumerate().map(node).collect::<Vec<_>>())
    }

    fn seen(line: &Line) -> Vec<(u128, Option<u128>)> {
        let one = |(at, entry): (usize, &Entry)| (entry.id.bits(), line.obstacle(at).map(|other| other.id.bits()));
        line.entries.iter().enumerate().map(one).collect()
    }

    #[test]
    fn the_first_holds_and_each_other_watches_the_one_before() {
        let line = line(&["__lock__0000000009", "__lock__0000000002", "__lock__0000000010"]);
        assert_eq!(seen(&line), [(2, None), (1, Some(2)), (3, Some(1))]);
        assert!(line.others_wait(ClaimId::from_bits(2)));
    }

    #[test]
    fn readers_hold_together_and_wait_for_the_nearest_writer() {
        let line = line(&[
            "__rlock__0000000001",
            "__rlock__0000000002",
            "__lock__0000000003",
            "__rlock__0000000004",
            "__lock__0000000005",
            "__rlock__0000000006",
        ]);
        assert_eq!(seen(&line), [(1, None), (2, None), (3, Some(2)), (4, Some(3)), (5, Some(4)), (6, Some(5))]);
    }

    #[test]
    fn a_writer_that_became_a_reader_has_its_own_sequence_twice() {
        let nodes = ["_c_x-__WRIT__0000000003", "_c_x-__READ__0000000003", "_c_y-__WRIT__0000000004"];
        let line = Line::read(Dialect::Curator, &nodes.map(str::to_owned));
        assert!(!line.holds(2) && line.stranger(Dialect::Curator, Tag::Read).is_none());
        let lighter = Line::read(Dialect::Curator, &[nodes[1].to_owned(), "_c_z-__READ__0000000005".to_owned()]);
        assert!(lighter.holds(0) && lighter.holds(1));
    }

    #[test]
    fn who_does_not_belong_is_named() {
        let nodes = |stray: &str| ["_c_x-lock-0000000001".to_owned(), stray.to_owned()];
        for stray in ["000", "locks", "_c_y-__WRIT__0000000002", "x__lock__0000000002"] {
            let line = Line::read(Dialect::Curator, &nodes(stray));
            assert_eq!(line.stranger(Dialect::Curator, Tag::Lock), Some(stray));
        }
        let friend = Line::read(Dialect::Curator, &nodes("_c_y-lock-0000000002"));
        assert_eq!(friend.stranger(Dialect::Curator, Tag::Lock), None);
    }
}
