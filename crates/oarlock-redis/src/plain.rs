//! What is sent to the scripts of the plain layout: as few words as can be, since a server needs time for each.

use oarlock_core::driver::End;
use oarlock_core::{Claim, ClaimId, Error, ErrorKind, ResourceName, Result, Weight};

use crate::driver::{Redis, micros};
use crate::error::SCHEME;
use crate::link::Call;

/// Whether a claim can be had here at all.
pub(crate) fn check_claim(claim: &Claim) -> Result<()> {
    if claim.weight == Weight::All {
        return Ok(());
    }
    let message = "the layout plain cannot share a resource: its key has room for one holder";
    Err(Error::new(ErrorKind::Unsupported, message).on(SCHEME))
}

impl Redis {
    pub(crate) fn plain_attempt(&self, claim: &Claim) -> Call {
        let who = format!("{} {} {}", self.link.session, claim.kind.as_str(), self.label(&claim.label));
        let mut call = self.link.call_bare(&self.scripts.attempt, &claim.resource);
        let command = &mut call.command;
        command.arg(claim.id.to_string()).arg(u64::try_from(claim.ttl.as_millis()).unwrap_or(u64::MAX));
        match claim.least_fence {
            Some(fence) => command.arg(fence.get()),
            None => command.arg(""),
        };
        command.arg(who);
        if let Some(value) = &claim.value {
            command.arg(&**value);
        }
        call
    }

    pub(crate) fn plain_release(&self, name: &ResourceName, id: ClaimId, end: &End) -> Result<Call> {
        let mut call = self.link.call_bare(&self.scripts.release, name);
        let command = call.command.arg(id.to_string());
        match end {
            End::Done { memo: None } => command,
            End::Done { memo: Some(memo) } => command.arg("memo").arg(&**memo),
            End::Withdrawn => command.arg("withdrawn"),
            End::Broken { ending, grace } => {
                let mail = self.link.mail_of(name);
                command.arg("broken").arg(&ending.by).arg(&ending.why).arg(micros(*grace)).arg(mail)
            }
            _ => return Err(Error::new(ErrorKind::Unsupported, "this end is not known here").on(SCHEME)),
        };
        Ok(call)
    }
}
