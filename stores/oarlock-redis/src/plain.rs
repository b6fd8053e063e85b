//! Calls of the scripts of the plain layout, with few arguments: a server needs time for each.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{Cursor, End, Pending};
use oarlock_core::{Claim, ClaimId, Error, ErrorKind, ResourceName, Result, Weight};

use crate::Redis;
use crate::dispatch::ScriptCall;
use crate::error::SCHEME;
use crate::scripts::{Script, micros, optional};

/// A waiter looks at the lock at least this often: other programs send no notification when they release it.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The position of a claim that is in the queue beside the lock.
const QUEUED: &[u8] = b"queued";

/// Notes that a pending claim was put into the queue beside the lock: it is notified of its turn.
pub(crate) fn queued(pending: &mut Pending, is_notified: bool) {
    (pending.cursor, pending.watched) = (Cursor(QUEUED.to_vec()), is_notified);
    pending.recheck_after = Some(pending.recheck_after.map_or(POLL_INTERVAL, |after| after.min(POLL_INTERVAL)));
}

/// Whether a claim at this position is in the queue beside the lock.
pub(crate) fn is_queued(cursor: &Cursor) -> bool {
    cursor.0 == QUEUED
}

/// Refuses a claim that this layout does not support.
pub(crate) fn check_claim(claim: &Claim) -> Result<()> {
    if claim.weight == Weight::All {
        return Ok(());
    }
    let message = "the layout plain cannot share a resource: its key stores one holder";
    Err(Error::new(ErrorKind::Unsupported, message).on(SCHEME))
}

impl Redis {
    /// Whether claims may wait in a queue beside the lock. In a cluster a mailbox is not in the slot of the lock.
    fn has_plain_queue(&self) -> bool {
        self.pool.config.queue && !self.pool.is_cluster()
    }

    /// Whether this claim may wait in the queue beside the lock.
    pub(crate) fn queues_plain(&self, claim: &Claim) -> bool {
        claim.wait && self.has_plain_queue()
    }

    /// A claim as the queue keeps it: its id, and the channel on which it hears of its turn.
    fn plain_waiter(&self, id: ClaimId) -> Vec<u8> {
        [&id.bits().to_be_bytes(), self.pool.mailbox().as_bytes()].concat()
    }

    /// An attempt of a claim that `joins` the queue, if it has to wait.
    pub(crate) fn plain_attempt(&self, claim: &Claim, joins: bool) -> ScriptCall {
        let owner = format!("{} {} {}", self.pool.session, claim.kind.as_str(), self.label(&claim.label));
        let mut call = self.pool.plain_call(&self.scripts.attempt, &claim.resource);
        let command = &mut call.command;
        command.arg(claim.id.to_string()).arg(u64::try_from(claim.ttl.as_millis()).unwrap_or(u64::MAX));
        match claim.least_fence {
            Some(fence) => command.arg(fence.get()),
            None => command.arg(""),
        };
        command.arg(owner);
        command
            .arg(if self.queues_plain(claim) { self.plain_waiter(claim.id) } else { Vec::new() })
            .arg(u8::from(joins));
        if let Some(value) = &claim.value {
            command.arg(&**value);
        }
        call
    }

    /// A release. A claim that is withdrawn may be in the queue, whatever this client knows of it.
    pub(crate) fn plain_release(&self, name: &ResourceName, id: ClaimId, end: &End) -> ScriptCall {
        let mut call = self.pool.plain_call(&self.scripts.release, name);
        let command = call.command.arg(id.to_string());
        match end {
            End::Done { memo: None } => command,
            End::Done { memo: Some(memo) } => command.arg("memo").arg(&**memo),
            End::Withdrawn => {
                command.arg("withdrawn").arg(if self.has_plain_queue() { self.plain_waiter(id) } else { Vec::new() })
            }
            End::Broken { ending, grace } => {
                let mail = self.pool.mail(&self.pool.keys(name));
                command.arg("broken").arg(&ending.by).arg(&ending.why).arg(micros(*grace)).arg(mail)
            }
        };
        call
    }

    /// A release that leaves this memo, and a claim that joins the queue, in one call.
    pub(crate) fn plain_joint(
        &self,
        script: &Arc<Script>,
        id: ClaimId,
        memo: Option<&[u8]>,
        next: &Claim,
    ) -> ScriptCall {
        let mut call = self.pool.plain_call(script, &next.resource);
        call.command.arg(id.to_string()).arg(optional(memo)).arg(self.plain_waiter(next.id));
        call
    }
}
