//! Names that this client has lately failed to get, and which node to ask for those first.
//!
//! Clients that ask all nodes at once split the votes, return them, and split them again. Therefore a client asks one
//! node first for a contended name, and all clients ask the same one. The client that gets its vote goes on to the
//! other nodes, and mostly gets their votes. The other clients have taken no vote and return none: one request tells
//! them.
//!
//! A client that released a contended name would be the first to ask for it again: the other clients must hear of the
//! release before they can. So it stands back for a moment, and another client gets its turn.
//!
//! A vote on that node may be left over from a lost round, and must not block all clients. A client that meets the same
//! vote again, after longer than a round takes, asks all nodes.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use oarlock_core::claim::{ClaimId, ResourceName};

/// How long a name counts as contended after a round was lost.
const A_WHILE: Duration = Duration::from_secs(1);

/// A vote that is older than this is not one of a round under way.
const A_ROUND: Duration = Duration::from_millis(25);

/// How long a client stands back from a contended name that it released: other clients hear of the release in this time.
const STANDS_BACK: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(super) struct Crowd {
    lost: Mutex<HashMap<ResourceName, Lost>>,
}

#[derive(Debug)]
struct Lost {
    at: Instant,
    /// The claim that last held the vote of the first node, and since when.
    met: Option<(ClaimId, Instant)>,
    /// This client took it while others wanted it, too.
    among_rivals: bool,
    /// When such a hold ended.
    released: Option<Instant>,
}

impl Lost {
    fn is_recent(&self) -> bool {
        self.at.elapsed() < A_WHILE
    }
}

impl Crowd {
    fn edit<T>(&self, edit: impl FnOnce(&mut HashMap<ResourceName, Lost>) -> T) -> T {
        edit(&mut self.lost.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether others want this name, too.
    pub(super) fn is_contended(&self, name: &ResourceName) -> bool {
        self.edit(|lost| lost.get(name).is_some_and(Lost::is_recent))
    }

    /// A round for this name was lost.
    pub(super) fn lost(&self, name: &ResourceName) {
        self.edit(|lost| {
            let at = Instant::now();
            if let Some(known) = lost.get_mut(name) {
                known.at = at;
                return;
            }
            lost.insert(name.clone(), Lost { at, met: None, among_rivals: false, released: None });
            if lost.len().is_power_of_two() {
                lost.retain(|_, lost| lost.is_recent());
            }
        });
    }

    /// A hold of this client begins.
    pub(super) fn taken(&self, name: &ResourceName) {
        self.edit(|lost| lost.get_mut(name).into_iter().for_each(|lost| lost.among_rivals = lost.is_recent()));
    }

    /// A hold of this client has ended, and the nodes know it. A long hold sees no rivals, so those count that were there
    /// when it began.
    pub(super) fn released(&self, name: &ResourceName) {
        self.edit(|lost| {
            if let Some(lost) = lost.get_mut(name) {
                lost.released = std::mem::take(&mut lost.among_rivals).then(Instant::now);
            }
        });
    }

    /// Until when this client leaves a name to others, because it had it last.
    pub(super) fn stands_back(&self, name: &ResourceName) -> Option<Instant> {
        let until = |lost: &Lost| lost.released.map(|released| released + STANDS_BACK);
        self.edit(|lost| lost.get(name).and_then(until)).filter(|until| *until > Instant::now())
    }

    /// Whether this holder has only just come: then it has, or is about to get, the other votes as well.
    pub(super) fn is_new(&self, name: &ResourceName, holder: Option<ClaimId>) -> bool {
        // Of one that is not named nothing is known.
        let Some(holder) = holder else { return false };
        self.edit(|lost| {
            let Some(lost) = lost.get_mut(name) else { return false };
            if let Some((_, since)) = lost.met.filter(|(met, _)| *met == holder) {
                return since.elapsed() < A_ROUND;
            }
            lost.met = Some((holder, Instant::now()));
            true
        })
    }
}

/// A number for each node and name, by which all clients agree on the first node, in whatever order they name the
/// nodes.
pub(super) fn weight(name: &ResourceName, address: &str) -> u64 {
    let bytes = name.as_str().bytes().chain([0]).chain(address.bytes());
    let mut hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    // The last bytes of the addresses are what differs, and have not reached the upper bits yet.
    hash ^= hash >> 32;
    hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ (hash >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> ResourceName {
        ResourceName::new(format!("x{number}")).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_is_contended_for_a_while_and_forgotten() {
        let crowd = Crowd::default();
        assert!(!crowd.is_contended(&name(0)));
        crowd.lost(&name(0));
        assert!(crowd.is_contended(&name(0)) && !crowd.is_contended(&name(1)));
        for id in [7, 8].map(|bits| Some(ClaimId::from_bits(bits))) {
            assert!(crowd.is_new(&name(0), id) && crowd.is_new(&name(0), id) && !crowd.is_new(&name(0), None));
            tokio::time::advance(A_ROUND).await;
            assert!(!crowd.is_new(&name(0), id), "it is there for longer than a round takes");
        }
        tokio::time::advance(A_WHILE).await;
        assert!(!crowd.is_contended(&name(0)));
        for number in 1..1000 {
            crowd.lost(&name(number));
            tokio::time::advance(A_WHILE / 10).await;
        }
        assert!(crowd.edit(|lost| lost.len()) < 520, "names pile up");
    }

    #[tokio::test(start_paused = true)]
    async fn who_releases_a_contended_name_stands_back_for_a_moment() {
        let crowd = Crowd::default();
        let hold = || {
            crowd.taken(&name(0));
            crowd.released(&name(0));
            crowd.stands_back(&name(0))
        };
        assert_eq!(hold(), None, "no other client wants it");
        crowd.lost(&name(0));
        assert_eq!(crowd.stands_back(&name(0)), None, "another client had it");
        assert_eq!(hold(), Some(Instant::now() + STANDS_BACK));
        assert_eq!(crowd.stands_back(&name(1)), None);
        tokio::time::advance(STANDS_BACK).await;
        assert_eq!(crowd.stands_back(&name(0)), None);
        crowd.taken(&name(0));
        tokio::time::advance(A_WHILE).await;
        crowd.released(&name(0));
        assert_eq!(crowd.stands_back(&name(0)), Some(Instant::now() + STANDS_BACK), "a long hold");
        tokio::time::advance(STANDS_BACK).await;
        assert_eq!(hold(), None, "no other client has wanted it for a while");
    }

    #[test]
    fn each_node_is_first_for_its_part_of_the_names() {
        let addresses = ["10.0.0.1:6379", "10.0.0.2:6379", "10.0.0.3:6379"];
        let mut first = [0; 3];
        for number in 0..3000 {
            let at = (0..3).max_by_key(|at| weight(&name(number), addresses[*at])).unwrap();
            first[at] += 1;
        }
        assert!(first.iter().all(|count| (800..1200).contains(count)), "{first:?}");
    }
}
