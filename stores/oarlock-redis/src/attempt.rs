//! `attempt`: one script that grants a claim, or puts it into the queue.

use std::time::Duration;

use futures_util::future::join;
use oarlock_core::clock::Clock;
use oarlock_core::driver::{Attempt, End, Grant, Lease, Pending, Release};
use oarlock_core::{Applied, Capacity, Claim, ClaimId, Error, Fence, ResourceName, Result};
use redis::Value;

use crate::Redis;
use crate::config::Layout;
use crate::dispatch::ScriptCall;
use crate::error::unexpected;
use crate::native::{units, weight};
use crate::notifications::Source;
use crate::scripts::{Reply, micros, optional};
use crate::{plain, release};

impl Redis {
    pub(crate) async fn attempt_claim(&self, claim: &Claim) -> Result<Attempt> {
        self.check(&claim.resource, Some(claim))?;
        if !self.is_notified(claim) {
            return self.send_attempt(claim, 0).await;
        }
        let notifications = self.pool.notifications();
        // A claim that must begin with its whole lease asks for it, whatever a notification says.
        if claim.may_be_handed()
            && notifications.expects(claim.id)
            && let Some(grant) = notifications.handed(claim.id).and_then(|handed| handed.grant(self.clock().now()))
        {
            notifications.forget(claim.id);
            return Ok(Attempt::Granted(grant));
        }
        // Before the request is sent, so that no notification is missed between the reply and the watch.
        let expected = self.pool.expect(claim).await;
        let sent = sent(self.clock(), claim, expected.is_some(), self.pool.confirms());
        let answer = self.send_attempt(claim, sent).await;
        self.expected(claim, expected, answer).await
    }

    /// Whether the store keeps a waiting claim in a queue, and notifies it.
    fn is_notified(&self, claim: &Claim) -> bool {
        match self.pool.config.layout {
            Layout::Native => claim.wait,
            Layout::Plain => self.queues_plain(claim),
            Layout::Redisson => false,
        }
    }

    /// The answer to the attempt of a claim for which notifications are kept, if they were `expected`.
    async fn expected(&self, claim: &Claim, expected: Option<Source>, answer: Result<Attempt>) -> Result<Attempt> {
        let notifications = self.pool.notifications();
        let mut answer = answer;
        match &mut answer {
            Ok(Attempt::Pending(pending)) => {
                pending.watched = (self.pool.config.layout == Layout::Native || pending.watched)
                    && expected.is_some()
                    && self.pool.source(claim).await.map(|(source, _)| source) == expected
                    && notifications.expects(claim.id);
            }
            Ok(Attempt::Granted(_)) => notifications.forget(claim.id),
            // A claim that left nothing in the store is not released later.
            Err(error) if error.applied() == Applied::No => notifications.unexpect(claim.id),
            Err(_) => {}
        }
        answer
    }

    /// Whether a release can carry an attempt. Replicas confirm a request at a time, and in a cluster an attempt also
    /// subscribes.
    pub(crate) fn is_joint(&self) -> bool {
        self.scripts.joint.is_some() && !self.pool.confirms() && !self.pool.is_cluster()
    }

    /// Ends a claim and attempts another one, in one script.
    pub(crate) async fn end_and_attempt(
        &self,
        resource: &ResourceName,
        id: ClaimId,
        end: &End,
        next: &Claim,
    ) -> (Result<Release>, Result<Attempt>) {
        let script = self.scripts.joint.as_ref().filter(|_| self.is_joint() && self.is_notified(next));
        let (Some(script), End::Done { memo }, Ok(())) = (script, end, self.check(resource, Some(next))) else {
            return (self.end_claim(resource, id, end).await, self.attempt_claim(next).await);
        };
        let expected = self.pool.expect(next).await;
        let sent = sent(self.clock(), next, expected.is_some(), false);
        let call = match self.pool.config.layout {
            Layout::Plain if sent == 0 => {
                return (self.end_claim(resource, id, end).await, self.attempt_claim(next).await);
            }
            Layout::Plain => self.plain_joint(script, id, memo.as_deref(), next),
            Layout::Native | Layout::Redisson => self.native_joint(script, id, end, next, sent),
        };
        self.pool.notifications().forget(id);
        let (release, answer) = match self.pool.run_one(call).await.map(two) {
            Ok(Some((release, Value::Nil))) => return (release::read(release), self.attempt_claim(next).await),
            Ok(Some((release, answer))) => (release::read(release), read(self.pool.config.layout, next, answer)),
            Ok(None) => (Err(unexpected()), Err(unexpected())),
            Err(error) => (Err(error.clone()), Err(error)),
        };
        (release, self.expected(next, expected, answer).await)
    }

    async fn send_attempt(&self, claim: &Claim, sent: i64) -> Result<Attempt> {
        let reply = if self.pool.confirms() {
            Box::pin(self.attempt_confirmed(claim, sent)).await
        } else if self.pool.is_cluster() {
            let subscribe = Box::pin(self.pool.subscribe_mailbox(&claim.resource));
            join(self.pool.run_one(self.attempt_call(claim, sent)), subscribe).await.0
        } else {
            self.pool.run_one(self.attempt_call(claim, sent)).await
        };
        read(self.pool.config.layout, claim, reply?)
    }

    /// An attempt that counts only if enough replicas have it. The driver does not withdraw a grant that they have not
    /// confirmed: it may be an old, confirmed hold that now asks for less. The engine asks again, or releases it.
    async fn attempt_confirmed(&self, claim: &Claim, sent: i64) -> Result<Value> {
        let replies = self.pool.run_confirmed(vec![self.attempt_call(claim, sent)], confirm_timeout(claim.ttl));
        let (mut replies, ()) = join(replies, self.pool.subscribe_mailbox(&claim.resource)).await;
        replies.pop().unwrap_or_else(|| Err(unexpected()))
    }

    fn attempt_call(&self, claim: &Claim, sent: i64) -> ScriptCall {
        match self.pool.config.layout {
            Layout::Native => return self.native_attempt(claim, sent),
            Layout::Plain => return self.plain_attempt(claim, sent != 0),
            Layout::Redisson => {}
        }
        let (mode, limit) = match claim.capacity {
            Capacity::Any => ("any", 1),
            Capacity::Fixed(limit) => ("fixed", units(limit)),
            Capacity::Stored(limit) => ("adopt", units(limit)),
        };
        let label = self.label(&claim.label);
        let mut call = self.pool.call(&self.scripts.attempt, &claim.resource);
        let command = &mut call.command;
        command.arg(claim.id.to_string()).arg(&self.pool.session).arg(claim.kind.as_str()).arg(weight(claim.weight));
        command.arg(u8::from(claim.wait)).arg(claim.behind);
        command.arg(micros(claim.ttl)).arg(micros(claim.waiter_ttl())).arg(mode).arg(limit).arg(&*label);
        command.arg(optional(claim.value.as_deref().map(str::as_bytes)));
        match claim.least_fence {
            Some(fence) => command.arg(fence.get()),
            None => command.arg(""),
        };
        command.arg(sent);
        call
    }
}

/// The two parts of a reply.
fn two(reply: Value) -> Option<(Value, Value)> {
    let Value::Array(parts) = reply else { return None };
    let [first, second] = <[Value; 2]>::try_from(parts).ok()?;
    Some((first, second))
}

/// When a request was sent, in microseconds, for a claim that will be notified of its turn; 0 for other claims.
///
/// The number is negative for a claim that must not be handed its turn. A hold that is not renewed, or that outlives
/// this process, must begin with its whole lease; and replicas cannot confirm a grant that comes with a notification.
pub(crate) fn sent(clock: &dyn Clock, claim: &Claim, expected: bool, confirms: bool) -> i64 {
    if !expected {
        return 0;
    }
    let now = i64::try_from(clock.now().as_nanos() / 1000).unwrap_or(0);
    if claim.may_be_handed() && !confirms { now } else { -now }
}

/// How long replicas may take to confirm a claim of this lease: a part of it, so that there is time to try again.
pub(crate) fn confirm_timeout(ttl: Duration) -> Duration {
    (ttl / 4).min(Duration::from_secs(1))
}

pub(crate) fn read(layout: Layout, claim: &Claim, reply: Value) -> Result<Attempt> {
    if let Value::Int(number) = reply {
        let Ok(fence) = u64::try_from(number) else { return Ok(Attempt::Pending(pending(number))) };
        // The other layouts keep leases to the millisecond.
        let ttl = match layout {
            Layout::Native => Duration::from_micros(micros(claim.ttl)),
            Layout::Plain | Layout::Redisson => {
                Duration::from_millis(u64::try_from(claim.ttl.as_millis()).unwrap_or(u64::MAX))
            }
        };
        return Ok(Attempt::Granted(Grant::new(Fence::new(fence), Lease::of(ttl))));
    }
    let (outcome, mut reply) = Reply::of(reply)?;
    match (&*outcome, claim.capacity) {
        ("granted", _) => {
            let fence = reply.fence()?.ok_or_else(unexpected)?;
            let mut grant = Grant::new(fence, Lease::of(reply.span()?));
            grant.memo = reply.memo()?;
            Ok(Attempt::Granted(grant))
        }
        ("pending", _) => {
            let mut pending = Pending::default();
            pending.ahead = reply.maybe_number()?.and_then(|ahead| u32::try_from(ahead).ok());
            pending.recheck_after = reply.maybe_number()?.map(Duration::from_micros);
            pending.holder = reply.maybe_text()?.map(|id| id.parse()).transpose()?;
            if let Some(Value::Int(is_notified)) = reply.rest().next() {
                plain::queued(&mut pending, is_notified == 1);
            }
            Ok(Attempt::Pending(pending))
        }
        ("mismatch", Capacity::Fixed(asked)) => Err(Error::spec_mismatch(reply.limit()?, asked)),
        _ => Err(reply.refusal(&outcome)),
    }
}

/// The answer to a claim that waits, in one number: how many claims are ahead, and in the lower 32 bits the milliseconds
/// until to look again; as a negative number, less one.
fn pending(number: i64) -> Pending {
    let number = number.saturating_add(1).unsigned_abs();
    let mut pending = Pending::default();
    pending.ahead = u32::try_from(number >> 32).ok();
    pending.recheck_after = Some(Duration::from_millis(number & u64::from(u32::MAX)));
    pending
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::Arc;

    use oarlock_core::clock::BootClock;
    use oarlock_core::driver::{Driver, DynDriver as _, End, Interest};
    use oarlock_core::{ClaimId, Lifetime, Limit, ResourceName, Weight};

    use super::*;
    use crate::config::{Address, Config};

    #[test]
    fn a_claim_that_is_not_renewed_or_outlives_the_process_is_handed_nothing() {
        let mut claim = Claim::new(ClaimId::from_bits(1), ResourceName::new("deploy").unwrap());
        claim.wait = true;
        assert!(sent(&BootClock, &claim, true, false) > 0);
        assert!(sent(&BootClock, &claim, true, true) < 0);
        assert_eq!(sent(&BootClock, &claim, false, false), 0);
        claim.renews = false;
        assert!(sent(&BootClock, &claim, true, false) < 0);
        (claim.renews, claim.lifetime) = (true, Lifetime::Lease);
        assert!(sent(&BootClock, &claim, true, false) < 0);
    }

    /// Notifications are kept for waiting claims only.
    #[tokio::test]
    async fn nothing_is_kept_of_claims_that_were_refused_or_granted() {
        let Some(server) = oarlock_testbed::Redis::start_or_skip().unwrap() else { return };
        let addr = server.addr();
        let store = Redis::open(Config::new(Address::Tcp(addr.ip().to_string(), addr.port()))).await.unwrap();
        let _mailbox = Driver::watch(&store, &Interest::Mailbox).await.unwrap();
        let name = ResourceName::new("deploy").unwrap();
        let claim = |id: u128, capacity: u32| {
            let mut claim = Claim::new(ClaimId::from_bits(id), name.clone());
            (claim.wait, claim.weight) = (true, Weight::Units(NonZeroU32::MIN));
            claim.capacity = Capacity::Fixed(Limit::Units(NonZeroU32::new(capacity).unwrap()));
            claim
        };
        let store = Arc::new(store);
        store.clone().attempt(Arc::new(claim(1, 1))).await.unwrap();
        for id in 10..20 {
            store.clone().attempt(Arc::new(claim(id, 2))).await.unwrap_err();
        }
        assert_eq!(store.pool.notifications().expected(), 0, "the first was granted, the others refused");
        let mut mailbox = Driver::watch(&*store, &Interest::Mailbox).await.unwrap();
        store.clone().attempt(Arc::new(claim(2, 1))).await.unwrap();
        assert_eq!(store.pool.notifications().expected(), 1, "it waits");
        store.clone().release(name.clone(), ClaimId::from_bits(1), End::Done { memo: None }).await.unwrap();
        mailbox.changed().await.unwrap();
        assert!(matches!(store.clone().attempt(Arc::new(claim(2, 1))).await.unwrap(), Attempt::Granted(_)));
        assert_eq!(store.pool.notifications().expected(), 0, "it was handed its turn");
    }
}
