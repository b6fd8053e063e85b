//! `release`: one script that ends a claim, and hands the resource to the next waiter.

use oarlock_core::driver::{End, Release, Released};
use oarlock_core::{ClaimId, ResourceName, Result};
use redis::Value;

use crate::Redis;
use crate::config::Layout;
use crate::scripts::{Reply, micros, optional};

impl Redis {
    pub(crate) async fn end_claim(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        self.pool.notifications().forget(id);
        self.check(resource, None)?;
        match self.pool.config.layout {
            Layout::Native => return read(self.pool.run_one(self.native_release(resource, id, end)).await?),
            Layout::Plain => return read(self.pool.run_one(self.plain_release(resource, id, end)).await?),
            Layout::Redisson => {}
        }
        let mut call = self.pool.call(&self.scripts.release, resource);
        let command = call.command.arg(id.to_string());
        match end {
            End::Done { memo } => command.arg("done").arg(optional(memo.as_deref())),
            End::Withdrawn => command.arg("withdrawn"),
            End::Broken { ending, grace } => command.arg("broken").arg(&ending.by).arg(&ending.why).arg(micros(*grace)),
        };
        read(self.pool.run_one(call).await?)
    }
}

pub(crate) fn read(reply: Value) -> Result<Release> {
    // The common answers: released, and whether other claims wait.
    if let Value::Int(waiting @ 1..=3) = reply {
        return Ok(Release::new(Released::Released, (waiting > 1).then_some(waiting == 3)));
    }
    let (outcome, mut reply) = Reply::of(reply)?;
    let released = match &*outcome {
        "released" => Released::Released,
        "absent" => Released::NotHeld,
        "asked" => Released::Asked,
        _ => return Err(reply.refusal(&outcome)),
    };
    Ok(Release::new(released, reply.maybe_number()?.map(|waiting| waiting > 0)))
}
