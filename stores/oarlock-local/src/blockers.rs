//! The sessions whose end a waiter must notice.
//!
//! The first waiter watches the holders. Each other waiter watches only the waiter just before it. So one death wakes
//! one waiter, not a thousand, and every death is noticed.

use oarlock_core::driver::Cursor;
use oarlock_core::model::{Entry, Notified, Session};
use oarlock_core::{ClaimId, Lifetime};

/// The sessions that the claim at `at` must watch.
pub(crate) fn watched(entries: &[Entry], at: usize) -> Vec<Session> {
    let before = entries.iter().take(at).rev().find(|entry| !entry.is_held());
    let me = entries.get(at).map(|entry| entry.session);
    let mut sessions = Vec::new();
    match before {
        Some(waiter) => push(&mut sessions, waiter, me),
        None => entries.iter().filter(|entry| entry.is_held()).for_each(|entry| push(&mut sessions, entry, me)),
    }
    sessions.sort_unstable();
    sessions.dedup();
    sessions
}

/// The sessions to probe for the claim at `at`: those that it watches, and those of all holders, so that each attempt
/// notices a dead holder.
pub(crate) fn suspects(entries: &[Entry], at: usize, me: Session) -> Vec<Session> {
    let mut sessions = watched(entries, at);
    entries.iter().filter(|entry| entry.is_held()).for_each(|entry| push(&mut sessions, entry, Some(me)));
    sessions.retain(|session| *session != me);
    sessions.sort_unstable();
    sessions.dedup();
    sessions
}

/// Its own session is alive while it asks, and a claim with the lifetime of its lease does not end with its session.
fn push(sessions: &mut Vec<Session>, entry: &Entry, me: Option<Session>) {
    if entry.lifetime == Lifetime::Process && Some(entry.session) != me {
        sessions.push(entry.session);
    }
}

/// Sessions as a cursor, which the engine carries from an attempt to its watch.
pub(crate) fn to_cursor(sessions: &[Session]) -> Cursor {
    Cursor(sessions.iter().flat_map(|session| session.to_be_bytes()).collect())
}

/// The sessions of a cursor.
pub(crate) fn from_cursor(cursor: &Cursor) -> Vec<Session> {
    cursor.0.as_chunks().0.iter().map(|bytes| Session::from_be_bytes(*bytes)).collect()
}

/// The sessions that each waiter watches, before a step.
#[derive(Debug, Default)]
pub(crate) struct Watches(Vec<(ClaimId, Vec<Session>)>);

impl Watches {
    pub(crate) fn of(entries: &[Entry]) -> Self {
        let waiting = entries.iter().enumerate().filter(|(_, entry)| !entry.is_held());
        Self(waiting.map(|(at, entry)| (entry.id, watched(entries, at))).collect())
    }

    /// Notifies the waiters that must watch another session after a step: their next attempt tells them which.
    pub(crate) fn notify_changed(&self, entries: &[Entry], notified: &mut Notified) {
        if self.0.is_empty() {
            return;
        }
        let mut before = self.0.iter();
        for (at, entry) in entries.iter().enumerate().filter(|(_, entry)| !entry.is_held()) {
            // Waiters leave, but never change their order.
            let Some((_, watching)) = before.find(|(id, _)| *id == entry.id) else { return };
            let is_new = |session: &Session| !watching.contains(session);
            if watched(entries, at).iter().any(is_new) && !notified.iter().any(|(id, _)| *id == entry.id) {
                notified.push((entry.id, entry.session));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use oarlock_core::clock::Moment;
    use oarlock_core::driver::{Attempt, End};
    use oarlock_core::model::{Now, Resource};
    use oarlock_core::{Claim, ResourceName};

    use super::*;

    const NOW: Now = Now { boot: Moment::from_nanos(1), wall_micros: 1 };

    /// A resource on which these sessions asked for everything, in order. The id of a claim is its position.
    fn queue(sessions: &[Session]) -> Resource {
        let mut resource = Resource::default();
        for (at, session) in sessions.iter().enumerate() {
            let mut claim = claim(at);
            claim.wait = true;
            resource.attempt(&claim, *session, NOW, &mut Notified::new()).unwrap();
        }
        resource
    }

    fn claim(at: usize) -> Claim {
        let mut claim = Claim::new(id(at), ResourceName::new("x").unwrap());
        claim.ttl = Duration::from_secs(30);
        claim
    }

    fn id(at: usize) -> ClaimId {
        ClaimId::from_bits(u128::from(at as u64))
    }

    #[test]
    fn the_first_waiter_watches_the_holder_and_each_other_the_one_before() {
        let resource = queue(&[7, 8, 9, 9, 5]);
        let watch = |at| watched(resource.entries(), at);
        assert_eq!([watch(1), watch(2), watch(3), watch(4)], [vec![7], vec![8], vec![], vec![9]]);
        assert_eq!(suspects(resource.entries(), 4, 5), [7, 9]);
        assert_eq!(suspects(resource.entries(), 5, 7), [5]);
    }

    #[test]
    fn a_claim_with_the_lifetime_of_its_lease_has_no_session_to_watch() {
        let mut resource = Resource::default();
        let mut held = claim(0);
        held.lifetime = Lifetime::Lease;
        resource.attempt(&held, 7, NOW, &mut Notified::new()).unwrap();
        assert!(suspects(resource.entries(), 1, 8).is_empty());
    }

    #[test]
    fn a_waiter_that_must_watch_another_session_is_notified() {
        let mut resource = queue(&[7, 8, 9, 5]);
        let before = Watches::of(resource.entries());
        let mut notified = Notified::new();
        resource.release(id(1), &End::Withdrawn, NOW, &mut notified);
        before.notify_changed(resource.entries(), &mut notified);
        assert_eq!(notified, [(id(2), 9)]);
    }

    #[test]
    fn a_waiter_is_not_notified_when_the_one_before_becomes_the_holder() {
        let mut resource = queue(&[7, 8, 9]);
        let before = Watches::of(resource.entries());
        let mut notified = Notified::new();
        resource.release(id(0), &End::Withdrawn, NOW, &mut notified);
        let granted = resource.attempt(&claim(1), 8, NOW, &mut Notified::new()).unwrap();
        assert!(matches!(granted, Attempt::Granted(_)));
        before.notify_changed(resource.entries(), &mut notified);
        assert_eq!(notified, [(id(1), 8)]);
    }

    #[test]
    fn a_cursor_carries_sessions_both_ways() {
        let sessions = vec![1, u128::MAX, 3];
        assert_eq!(from_cursor(&to_cursor(&sessions)), sessions);
    }
}
