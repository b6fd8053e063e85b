//! The verb `attempt`.

use std::sync::Arc;

use oarlock_core::driver::Attempt;
use oarlock_core::model::{Notified, Now, Resource};
use oarlock_core::{Applied, Claim, ErrorKind, Result};

use crate::blockers::{suspects, to_cursor, watched};
use crate::error::SCHEME;
use crate::session::closed;
use crate::store::{Needs, Store};
use crate::turn::Answer;

impl Store {
    /// Asks for a claim. A grant that came with a notification is answered without a step.
    pub(crate) async fn attempt(self: &Arc<Self>, claim: &Claim) -> Result<Attempt> {
        // A closed store answers at once, also while another process has the shard. The step checks again, and more.
        if self.session.is_closed() {
            return Err(closed());
        }
        // The step that frees a lock grants nothing to a claim that may not be handed its grant: `may_be_handed` of the
        // stored claim decides there.
        if claim.wait
            && let Some(grant) = self.hub.handed(claim.id, || self.boot_now())
        {
            self.sessions.check_ours()?;
            return Ok(Attempt::Granted(grant));
        }
        let is_new = self.session.add(claim)?;
        // Before the step, so that no notification is lost between its answer and the watch.
        let watched = claim.wait && self.hub.expect(claim.id);
        let (store, mut asked) = (self.clone(), claim.clone());
        // A claim that would not receive the notification must ask for its grant.
        asked.renews &= watched;
        let run = move |resource: &mut Resource, now: Now, notified: &mut Notified| {
            let attempt = store.attempt_on(&asked, resource, now, notified);
            (attempt, Answer { at: now.boot, last_fence: resource.last_fence() })
        };
        let step = self.clone().step(claim.resource.clone(), Needs::Session, run).await;
        let mut answer = match step {
            Ok((answer, at)) => {
                self.hub.waiters.kept(claim.id, |received| received.answer = Some(at));
                answer
            }
            Err(error) => Err(error),
        };
        match &mut answer {
            Ok(Attempt::Pending(pending)) => pending.watched = watched,
            Err(error) if error.applied() == Applied::Unknown => {}
            // The engine does not release a claim whose attempt had no effect.
            Ok(Attempt::Granted(_)) => self.hub.waiters.forget(claim.id),
            Err(_) => self.hub.waiters.unexpect(claim.id),
        }
        let is_stored = match &answer {
            Ok(Attempt::Granted(_)) => true,
            Ok(Attempt::Pending(_)) => claim.wait,
            Err(error) => error.applied() != Applied::No,
        };
        if is_new && !is_stored {
            self.session.remove(claim.id);
        }
        answer.map_err(|error| error.on(SCHEME))
    }

    /// Attempts under the shard's lock. Ends the sessions in the way whose process is dead, then attempts again.
    fn attempt_on(&self, claim: &Claim, resource: &mut Resource, now: Now, notified: &mut Notified) -> Result<Attempt> {
        let me = self.session.id;
        let mut alive = Vec::new();
        loop {
            let mut answer = resource.attempt(claim, me, now, notified);
            let entries = resource.entries();
            let at = entries.iter().position(|entry| entry.id == claim.id).unwrap_or(entries.len());
            match &mut answer {
                Ok(Attempt::Granted(_)) => {
                    notified.retain(|(id, _)| *id != claim.id);
                    return answer;
                }
                Ok(Attempt::Pending(pending)) => pending.cursor = to_cursor(&watched(entries, at)),
                Err(error) if matches!(error.kind(), ErrorKind::SpecMismatch | ErrorKind::TooHeavy) => {}
                Err(_) => return answer,
            }
            let suspects = suspects(entries, at, me).into_iter().filter(|session| !alive.contains(session));
            let (dead, living): (Vec<_>, Vec<_>) = suspects.partition(|session| self.sessions.is_dead(*session));
            if dead.is_empty() {
                return answer;
            }
            alive.extend(living);
            resource.end_sessions(now, notified, |session| !dead.contains(&session));
        }
    }
}
