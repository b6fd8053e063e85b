//! Two holders at once, of which the first may have known that its lock was lost.
//!
//! Another library is asked now and then. From the last question that it answered with "yes" until its "no", or until it
//! gave the lock back, nobody knows whether it believed: it may have told its user of the loss, or have noticed nothing,
//! also while its process was stopped or a question hung.
//!
//! Of Oarlock beside it more is known: the store must not have granted it a lock that the library certainly had.

use std::collections::BTreeMap;

use super::excuse::Excuses;
use super::holds::Belief;
use super::{Finding, excused};
use crate::record::{Record, named};

const MAY_HAVE_HELD: &str =
    "this library is asked now and then: after its last \"yes\" it may have held, or have told its user of the loss";

/// Who was granted which lock, and when.
type Grants<'a> = BTreeMap<(&'a str, u64), Vec<&'a Belief>>;

/// Grants between the end of a belief that is certain and the end of one that is possible; and grants to a library, while
/// another one certainly held, after which it never said "yes".
pub(super) fn findings(record: &Record, beliefs: &[Belief], excuses: &Excuses<'_>) -> Vec<Finding> {
    let uncertain = || beliefs.iter().filter(|belief| belief.granted.is_some() && belief.ended < belief.perhaps);
    if uncertain().next().is_none() {
        return Vec::new();
    }
    let (mut grants, mut doubtful) = (Grants::new(), Grants::new());
    for belief in beliefs {
        if let Some((granted, _)) = belief.granted.filter(|(granted, _)| *granted < belief.perhaps) {
            let at = (belief.lock.as_str(), granted);
            grants.entry(at).or_default().push(belief);
            if granted == belief.ended {
                doubtful.entry(at).or_default().push(belief);
            }
        }
    }
    let libraries = record.libraries();
    let of = |first: &Belief, second: &Belief, at: u64| {
        // Two that share do not exclude each other.
        if second.w == first.w || first.units.is_some() && second.units.is_some() {
            return None;
        }
        let (lock, asked, yes) = (named(&first.lock), seconds(first.asked), seconds(first.ended));
        let got = format!("at {} worker {} got {lock} while worker {}", seconds(at), second.w, first.w);
        if at < first.ended {
            let what = format!("{got} held it: worker {} is a library that never said \"yes\" after that", second.w);
            return Some(excused(Some(MAY_HAVE_HELD), "PerhapsOverlap", at, what));
        }
        if !libraries.contains(second.w) && excuses.certainly_had(first.w, first.asked, at) {
            let ttl = record.header.ttl_ms;
            let what = format!(
                "{got} had it: worker {} is the other library, asked at {asked} for a lease of {ttl} ms, and said \"yes\" at \
                 {yes}; worker {} is Oarlock",
                first.w, second.w
            );
            return Some(excused(None, "Stolen", at, what));
        }
        let until = seconds(first.perhaps);
        let what = format!("{got} may have held it until {until}: its last \"yes\" was of {yes}");
        Some(excused(Some(MAY_HAVE_HELD), "PerhapsOverlap", at, what))
    };
    let within = |grants: &Grants<'_>, first: &Belief, from: u64, to: u64| {
        let during = grants.range((first.lock.as_str(), from)..(first.lock.as_str(), to.max(from)));
        during.flat_map(|((_, at), all)| all.iter().filter_map(|second| of(first, second, *at))).collect::<Vec<_>>()
    };
    let held = beliefs.iter().filter_map(|first| Some((first, first.granted?.0)));
    let certain = held.flat_map(|(first, granted)| within(&doubtful, first, granted, first.ended));
    certain.chain(uncertain().flat_map(|first| within(&grants, first, first.ended, first.perhaps))).collect()
}

fn seconds(nanos: u64) -> String {
    format!("{}.{:06} s", nanos / 1_000_000_000, nanos % 1_000_000_000 / 1000)
}
