//! Whose death a waiter must notice.
//!
//! If nothing waits before it, the holders'; otherwise that of the waiter just before it, which in turn watches what is
//! before *it*. So a thousand waiters do not all wake up for one death, and every death has one who notices.

use oarlock_core::Tether;
use oarlock_core::driver::Cursor;
use oarlock_core::model::{Calls, Entry, Session};
use oarlock_core::ClaimId;

/// The sessions to watch for whoever stands at `at`.
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

/// The sessions whose death would help whoever stands at `at`: those it watches, and the holders' in any case, so that
/// whoever looks notices a dead one.
pub(crate) fn suspects(entries: &[Entry], at: usize, me: Session) -> Vec<Session> {
    let mut sessions = watched(entries, at);
    entries.iter().filter(|entry| entry.is_held()).for_each(|entry| push(&mut sessions, entry, Some(me)));
    sessions.retain(|session| *session != me);
    sessions.sort_unstable();
    sessions.dedup();
    sessions
}

/// Its own session is alive while it asks, and a claim tethered to its lease alone does not end with its session.
fn push(sessions: &mut Vec<Session>, entry: &Entry, me: Option<Session>) {
    if entry.tether == Tether::Process && Some(entry.session) != me {
        sessions.push(entry.session);
    }
}

/// Sessions as the engine carries them from an attempt to its watch.
pub(crate) fn to_cursor(sessions: &[Session]) -> Cursor {
    Cursor(sessions.iter().flat_map(|session| session.to_be_bytes()).collect())
}

/// The sessions of a cursor.
pub(crate) fn from_cursor(cursor: &Cursor) -> Vec<Session> {
    cursor.0.as_chunks().0.iter().map(|bytes| Session::from_be_bytes(*bytes)).collect()
}

/// Who watches whom, before a step.
#[derive(Debug, Default)]
pub(crate) struct Watches(Vec<(ClaimId, Vec<Session>)>);

impl Watches {
    pub(crate) fn of(entries: &[Entry]) -> Self {
        let waiting = entries.iter().enumerate().filter(|(_, entry)| !entry.is_held());
        Self(waiting.map(|(at, entry)| (entry.id, watched(entries, at))).collect())
    }

    /// Adds the waiters that have somebody new to watch after a step: they must look again to learn whom.
    pub(crate) fn call_changed(&self, entries: &[Entry], calls: &mut Calls) {
        if self.0.is_empty() {
            return;
        }
        let mut before = self.0.iter();
        for (at, entry) in entries.iter().enumerate().filter(|(_, entry)| !entry.is_held()) {
            // Waiters leave, but never change their order.
            let Some((_, watching)) = before.find(|(id, _)| *id == entry.id) else { return };
            let is_new = |session: &Session| !watching.contains(session);
            if watched(entries, at).iter().any(is_new) && !calls.iter().any(|(id, _)| *id == entry.id) {
                calls.push((entry.id, entry.session));
            }
        }
    }
}
