//! Ends belief with the session that a lock lives by.

use std::sync::Arc;

use super::Shared;
use super::entry::Entry;
use crate::belief::{BeliefCell, LossReason};
use crate::driver::SessionEnd;
use crate::event::Step;
use crate::telemetry::Deferred;

impl Shared {
    /// Ends belief in what ends with this session as soon as the driver says that it is over. The store is not asked: it
    /// may be unreachable, and other clients may have seen the end already.
    pub(super) fn await_end_of(self: &Arc<Self>, session: SessionEnd) {
        {
            let mut entries = self.lock();
            if entries.sessions.contains(&session) {
                return;
            }
            entries.sessions.push(session.clone());
        }
        let shared = self.clone();
        self.runtime.spawn_daemon(async move {
            tokio::select! {
                biased;
                () = session.ended() => {}
                // Belief in what ends with a session was ended before that.
                () = shared.stop.cancelled() => return,
            }
            shared.lock().sessions.retain(|known| *known != session);
            shared.lose(|_, belief| belief.ends_with() == Some(&session));
        });
    }

    /// Ends belief in these holds: their session is over.
    pub(super) fn lose(&self, is_lost: impl Fn(&Entry, &BeliefCell) -> bool) {
        let _deferred = Deferred::begin();
        let lost: Vec<_> = {
            // Removed before belief in them ends, so that none is handed on in between.
            let mut entries = self.lock();
            let is_lost = |entry: &Entry| entry.role.belief().is_some_and(|belief| is_lost(entry, belief));
            // In an order that is the same for the same seed.
            let ids: Vec<_> = entries.by_time.iter().map(|(_, id)| *id).collect();
            let ids = ids.into_iter().filter(|id| entries.by_id.get(id).is_some_and(is_lost)).collect::<Vec<_>>();
            let removed = ids.into_iter().filter_map(|id| entries.remove(id));
            removed.filter_map(|entry| Some((entry.claim.clone(), entry.role.belief()?.clone()))).collect()
        };
        for (claim, belief) in lost {
            belief.end(LossReason::Session);
            if let Some(reason) = belief.reason() {
                self.observers.emit(&claim, || Step::Lost { reason });
            }
        }
    }
}
