//! The verb `renew`.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use oarlock_core::driver::{Gone, Renewal, Renewed};
use oarlock_core::model::{Entry, Notified, Now, Resource};
use oarlock_core::{Error, ErrorKind, Lifetime, ResourceName, Result};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::error::SCHEME;
use crate::store::{Needs, Store};

/// The longest time that a renewal waits for a shard that another process has locked.
const MAX_RENEWAL_WAIT: Duration = Duration::from_secs(1);

impl Store {
    /// Renews claims: one step for each name.
    pub(crate) async fn renew(self: &Arc<Self>, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        let session_lost = match self.begin_renewal(batch) {
            Ok(session_lost) => session_lost,
            Err(error) => return vec![Err(error.during("renew")); batch.len()],
        };
        let mut by_name: HashMap<&ResourceName, Vec<usize>> = HashMap::new();
        for (at, renewal) in batch.iter().enumerate() {
            by_name.entry(&renewal.claim.resource).or_default().push(at);
        }
        let mut answers = vec![None; batch.len()];
        let mut late = JoinSet::new();
        for (name, indexes) in by_name {
            let renewals: Vec<_> = indexes.iter().filter_map(|at| batch.get(*at).cloned()).collect();
            let mut step = Box::pin(self.clone().renew_name(name.clone(), renewals));
            match std::future::poll_fn(|cx| Poll::Ready(step.as_mut().poll(cx))).await {
                Poll::Ready(renewed) => settle(&mut answers, &indexes, renewed),
                Poll::Pending => {
                    late.spawn(async move { (indexes, step.await) });
                }
            }
        }
        // A stopped process that has locked one shard must not delay the renewals in the other shards.
        let shortest = batch.iter().map(|renewal| renewal.claim.ttl).min().unwrap_or_default();
        let until = Instant::now() + MAX_RENEWAL_WAIT.min(shortest / 6);
        while !late.is_empty() {
            match timeout_at(until, late.join_next()).await {
                Ok(Some(Ok((indexes, renewed)))) => settle(&mut answers, &indexes, renewed),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        let stuck = || Error::unreachable("another process does not release the shard of this name").on(SCHEME);
        let answer = |(answer, renewal): (Option<Result<Renewed>>, &Renewal)| {
            if session_lost && renewal.claim.lifetime == Lifetime::Process {
                return Ok(Renewed::Gone(Gone::Session));
            }
            answer.unwrap_or_else(|| Err(stuck())).map_err(|error| error.during("renew").about(&renewal.claim.resource))
        };
        let answers: Vec<_> = answers.into_iter().zip(batch).map(answer).collect();
        for (answer, renewal) in answers.iter().zip(batch) {
            if let Ok(Renewed::Gone(_)) = answer {
                self.session.remove(renewal.claim.id);
            }
        }
        answers
    }

    /// Whether the session is lost, and with it each claim that lives as long as its process.
    fn begin_renewal(&self, batch: &[Renewal]) -> Result<bool> {
        self.sessions.check_ours()?;
        let session_lost = match self.session.check() {
            Err(error) if self.session.is_closed() => return Err(error),
            // After any other failure, such as a full disk, the claims last until their leases expire.
            session => session.is_err_and(|error| error.kind() == ErrorKind::Closed),
        };
        let longest = batch.iter().map(|renewal| renewal.claim.ttl).max().unwrap_or_default();
        self.session.covers(longest)?;
        Ok(session_lost)
    }

    /// Renews claims of one name.
    async fn renew_name(self: Arc<Self>, name: ResourceName, renewals: Vec<Renewal>) -> Result<Vec<Result<Renewed>>> {
        let needs = if renewals.iter().any(|it| it.memo.is_some()) { Needs::Disk } else { Needs::Nothing };
        let run = move |resource: &mut Resource, now: Now, notified: &mut Notified| {
            let renewed = renewals.iter().map(|renewal| resource.renew(renewal, now, notified)).collect::<Vec<_>>();
            let untaken = resource.entries().iter().filter(|entry| entry.untaken);
            let asks = |entry: &&Entry| renewals.iter().any(|renewal| renewal.claim.id == entry.id);
            // The claim holds, but its client does not know: the notification was lost.
            notified.extend(untaken.filter(asks).map(|entry| (entry.id, entry.session)));
            renewed
        };
        self.step(name, needs, run).await
    }
}

/// Puts the answers for one name where the batch has its claims.
fn settle(answers: &mut [Option<Result<Renewed>>], indexes: &[usize], renewed: Result<Vec<Result<Renewed>>>) {
    let renewed = renewed.unwrap_or_else(|error| vec![Err(error); indexes.len()]);
    for (at, renewed) in indexes.iter().zip(renewed) {
        if let Some(answer) = answers.get_mut(*at) {
            *answer = Some(renewed);
        }
    }
}
