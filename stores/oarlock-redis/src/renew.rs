//! `renew`: one script for each claim of a batch, sent together.

use std::time::Duration;

use oarlock_core::Result;
use oarlock_core::driver::{Fences, Gone, Lease, Renewal, Renewed};
use redis::Value;

use crate::Redis;
use crate::attempt::{confirm_timeout, sent};
use crate::config::Layout;
use crate::dispatch::ScriptCall;
use crate::scripts::{Reply, micros, optional};

impl Redis {
    pub(crate) async fn renew_batch(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        let calls = batch.iter().map(|renewal| self.renew_call(renewal)).collect();
        let lease = |Renewal { claim, held, .. }: &Renewal| if *held { claim.ttl } else { claim.waiter_ttl() };
        let (shortest, longest) = (batch.iter().map(lease).min(), batch.iter().map(lease).max());
        let (shortest, longest) = (shortest.unwrap_or_default(), longest.unwrap_or_default());
        // The longest lease decides: a wait ends as soon as enough replicas have the writes, so only a wait in vain
        // takes longer.
        let confirm = self.pool.confirms().then(|| confirm_timeout(longest));
        // The engine repeats the renewals of a node that takes longer, on their own, and waits for them then.
        let others = (shortest / 4).min(Duration::from_secs(2));
        let replies = self.pool.run_by_node(calls, confirm, others).await;
        self.pool.subscribe_mailboxes(batch.iter().map(|renewal| &renewal.claim.resource));
        replies.into_iter().map(|reply| reply.and_then(read)).collect()
    }

    fn renew_call(&self, renewal: &Renewal) -> ScriptCall {
        let Renewal { claim, fences, memo, keep, held, .. } = renewal;
        let expected = !held && self.pool.notifications().expects(claim.id);
        let sent = sent(self.clock(), claim, expected, self.pool.confirms());
        if self.pool.config.layout == Layout::Native {
            return self.native_renew(renewal, sent);
        }
        let (how, number) = match fences {
            Fences::Keep => ("keep", 0),
            Fences::AtLeast(fence) => ("least", fence.get()),
            Fences::Reserve(count) => ("reserve", u64::from(*count)),
        };
        let mut call = self.pool.call(&self.scripts.renew, &claim.resource);
        let command = &mut call.command;
        command.arg(claim.id.to_string()).arg(claim.behind).arg(micros(claim.ttl)).arg(micros(claim.waiter_ttl()));
        command
            .arg(how)
            .arg(number)
            .arg(optional(claim.value.as_deref().map(str::as_bytes)))
            .arg(optional(memo.as_deref()))
            .arg(u8::from(*held))
            .arg(sent)
            .arg(micros(*keep));
        call
    }
}

pub(crate) fn read(reply: Value) -> Result<Renewed> {
    let (outcome, mut reply) = Reply::of(reply)?;
    match &*outcome {
        "alive" => {
            let (lease, fence) = (Lease::of(reply.span()?), reply.fence()?);
            Ok(Renewed::Alive { lease, fence, ending: reply.ending()? })
        }
        "gone" => Ok(Renewed::Gone(reply.ending()?.map_or(Gone::Unknown, Gone::Broken))),
        _ => Err(reply.refusal(&outcome)),
    }
}
