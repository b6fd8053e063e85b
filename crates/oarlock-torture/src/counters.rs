//! The data behind the locks: for each name a counter that checks fences, and one that does not.

use std::collections::BTreeMap;

use oarlock_core::{Fence, Fenced};

/// The counters of a run. A worker reads both and writes both, one larger.
#[derive(Debug, Default)]
pub struct Counters(BTreeMap<String, Pair>);

#[derive(Debug, Default)]
struct Pair {
    fenced: Fenced<u64>,
    plain: u64,
}

impl Counters {
    /// Reads both. The fenced one remembers the fence: from then on no smaller one may read or write, or a holder would
    /// read what an older one is about to change.
    /// Without a fence only the plain one is read.
    pub fn read(&mut self, lock: &str, fence: impl Into<Option<Fence>>) -> (Option<u64>, u64) {
        let pair = self.pair(lock);
        (fence.into().and_then(|fence| pair.fenced.change(fence, |value| *value).ok()), pair.plain)
    }

    /// Writes both, and says whether the fenced one accepted it; `None` where its value was not read.
    /// Without a fence only the plain one is written.
    pub fn write(&mut self, lock: &str, fence: impl Into<Option<Fence>>, fenced: Option<u64>, plain: u64) -> bool {
        let pair = self.pair(lock);
        pair.plain = plain;
        let write = fence.into().zip(fenced);
        write.is_some_and(|(fence, value)| pair.fenced.change(fence, |stored| *stored = value).is_ok())
    }

    fn pair(&mut self, lock: &str) -> &mut Pair {
        self.0.entry(lock.to_owned()).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The picture of every page about fences: a holder reads, sleeps, and writes after the next holder.
    #[test]
    fn the_fenced_one_loses_nothing_and_the_other_does() {
        let mut counters = Counters::default();
        let (old, new) = (Fence::new(7), Fence::new(8));
        let (fenced, plain) = counters.read("a", old);
        let (next_fenced, next_plain) = counters.read("a", new);
        assert!(counters.write("a", new, next_fenced.map(|value| value + 1), next_plain + 1));
        assert!(!counters.write("a", old, fenced.map(|value| value + 1), plain + 1));
        assert_eq!(counters.read("a", new), (Some(1), 1), "two writes, and the plain one has one");
        assert_eq!(counters.read("a", old), (None, 1));
        assert_eq!(counters.read("b", old), (Some(0), 0));
    }

    #[test]
    fn a_write_without_a_fence_changes_the_plain_one_alone() {
        let mut counters = Counters::default();
        assert_eq!(counters.read("a", None), (None, 0));
        assert!(!counters.write("a", None, Some(1), 1));
        assert_eq!(counters.read("a", Fence::new(1)), (Some(0), 1));
    }
}
