//! Calls of the scripts of the plain layout, with few arguments: a server needs time for each.

use oarlock_core::driver::End;
use oarlock_core::{Claim, ClaimId, Error, ErrorKind, ResourceName, Result, Weight};

use crate::Redis;
use crate::dispatch::ScriptCall;
use crate::error::SCHEME;
use crate::scripts::micros;

/// Refuses a claim that this layout does not support.
pub(crate) fn check_claim(claim: &Claim) -> Result<()> {
    if claim.weight == Weight::All {
        return Ok(());
    }
    let message = "the layout plain cannot share a resource: its key stores one holder";
    Err(Error::new(ErrorKind::Unsupported, message).on(SCHEME))
}

impl Redis {
    pub(crate) fn plain_attempt(&self, claim: &Claim) -> ScriptCall {
        let owner = format!("{} {} {}", self.pool.session, claim.kind.as_str(), self.label(&claim.label));
        let mut call = self.pool.plain_call(&self.scripts.attempt, &claim.resource);
        let command = &mut call.command;
        command.arg(claim.id.to_string()).arg(u64::try_from(claim.ttl.as_millis()).unwrap_or(u64::MAX));
        match claim.least_fence {
            Some(fence) => command.arg(fence.get()),
            None => command.arg(""),
        };
        command.arg(owner);
        if let Some(value) = &claim.value {
            command.arg(&**value);
        }
        call
    }

    pub(crate) fn plain_release(&self, name: &ResourceName, id: ClaimId, end: &End) -> ScriptCall {
        let mut call = self.pool.plain_call(&self.scripts.release, name);
        let command = call.command.arg(id.to_string());
        match end {
            End::Done { memo: None } => command,
            End::Done { memo: Some(memo) } => command.arg("memo").arg(&**memo),
            End::Withdrawn => command.arg("withdrawn"),
            End::Broken { ending, grace } => {
                let mail = self.pool.mail(&self.pool.keys(name));
                command.arg("broken").arg(&ending.by).arg(&ending.why).arg(micros(*grace)).arg(mail)
            }
        };
        call
    }
}
