//! The keys and channels of Redisson, and which claims its objects support.

use oarlock_core::{Capacity, Claim, Error, ErrorKind, Kind, Limit, Result, Weight};

use crate::error::SCHEME;
use crate::keys::{Keys, slot};

/// The store has one entry for each permit of a claim, and every step reads all of them.
const MOST_PERMITS: u32 = 1000;

/// The further keys of an object: token, permits with a lease, fair queue, and the time-outs of its waiters.
pub(crate) fn keys(key: &str) -> Vec<String> {
    let queue = ["redisson_lock_queue", "redisson_lock_timeout"].map(|what| before(what, key));
    [before("redisson_lock_token", key), behind(key, "timeout")].into_iter().chain(queue).collect()
}

/// The channel that notifies the waiters for a claim of this kind.
pub(crate) fn channel(kind: Kind, key: &str) -> String {
    let object = match kind {
        Kind::Read | Kind::Write => "redisson_rwlock",
        Kind::Semaphore => "redisson_sc",
        _ => "redisson_lock__channel",
    };
    before(object, key)
}

/// All channels with notifications of an object, whatever its kind: first that of this library, then those of Redisson.
pub(crate) fn channels(keys: &Keys) -> Vec<String> {
    let theirs = [Kind::Mutex, Kind::Write, Kind::Semaphore].map(|kind| channel(kind, &keys.key));
    std::iter::once(keys.side.clone()).chain(theirs).collect()
}

/// Redisson takes any brace for a hash tag, whether or not it is one.
fn before(what: &str, key: &str) -> String {
    if key.contains('{') { format!("{what}:{key}") } else { format!("{what}:{{{key}}}") }
}

fn behind(key: &str, what: &str) -> String {
    if key.contains('{') { format!("{key}:{what}") } else { format!("{{{key}}}:{what}") }
}

/// Refuses a name whose keys are not in one slot of a cluster. Redisson acquires such locks, and cannot release them.
pub(crate) fn check_slots(keys: &Keys) -> Result<()> {
    let home = slot(&keys.key);
    if keys.more.iter().all(|key| slot(key) == home) {
        return Ok(());
    }
    let message = "its braces are no hash tag, so that Redisson puts its keys into different slots of a cluster";
    Err(Error::new(ErrorKind::InvalidName, message).on(SCHEME))
}

/// Refuses a claim that no object of Redisson supports.
pub(crate) fn check_claim(claim: &Claim) -> Result<()> {
    let limited = !matches!(claim.capacity, Capacity::Fixed(Limit::Unlimited) | Capacity::Stored(Limit::Unlimited));
    let problem = match (claim.kind, claim.weight) {
        (Kind::Semaphore, Weight::Units(units)) if units.get() > MOST_PERMITS => {
            return Err(refused(format!("a claim can have at most {MOST_PERMITS} permits in the layout redisson")));
        }
        (Kind::Semaphore, Weight::Units(_)) if limited => return Ok(()),
        (Kind::Read, Weight::ONE) => return Ok(()),
        (Kind::Semaphore | Kind::Read, _) => "semaphores with a limit, and single readers",
        (_, Weight::All) => return Ok(()),
        _ => "shares of read-write locks and semaphores",
    };
    Err(refused(format!("the layout redisson supports {problem} only")))
}

fn refused(message: String) -> Error {
    Error::new(ErrorKind::Unsupported, message).on(SCHEME)
}

#[cfg(test)]
mod tests {
    use oarlock_core::ResourceName;

    use super::*;
    use crate::config::Layout;

    fn keys_of(name: &str) -> Keys {
        Keys::of(Layout::Redisson, "", &ResourceName::new(name).unwrap())
    }

    #[test]
    fn names_are_derived_as_redisson_does() {
        let queue = ["redisson_lock_queue:{deploy}", "redisson_lock_timeout:{deploy}"];
        assert_eq!(keys_of("deploy").more[..2], ["redisson_lock_token:{deploy}", "{deploy}:timeout"]);
        assert_eq!(keys_of("deploy").more[2..], queue);
        assert_eq!(keys("x{y}z")[..2], ["redisson_lock_token:x{y}z", "x{y}z:timeout"]);
        let wanted = ["oarlock:beside:{a}", "redisson_lock__channel:{a}", "redisson_rwlock:{a}", "redisson_sc:{a}"];
        assert_eq!(channels(&keys_of("a")), wanted);
        assert_eq!(channel(Kind::Spin, "{a}b"), "redisson_lock__channel:{a}b");
    }

    #[test]
    fn names_whose_keys_would_be_in_two_slots_are_refused_in_a_cluster() {
        for good in ["deploy", "{a}b", "x{y}z", "a b/c:d"] {
            assert!(check_slots(&keys_of(good)).is_ok(), "{good}");
        }
        for bad in ["a{b", "{}q", "a}b", "}", "{"] {
            assert_eq!(check_slots(&keys_of(bad)).unwrap_err().kind(), ErrorKind::InvalidName, "{bad}");
        }
    }
}
