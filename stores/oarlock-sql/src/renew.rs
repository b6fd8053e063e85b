//! Renews a batch of claims.

use std::time::Duration;

use oarlock_core::driver::{Gone, Lease, Renewal, Renewed};
use oarlock_core::model::FORGET_AFTER;
use oarlock_core::state::Ending;
use oarlock_core::{Claim, Fence, Result};

use crate::attempt::exhausted;
use crate::row::{Row, to_span};

/// The server keeps the names of a batch locked until it has answered: not too many at once.
pub(crate) const BATCH: usize = 128;

/// The answers to some renewals; `None` for a name that another transaction has locked.
pub(crate) type Answers = Vec<Option<Result<Renewed>>>;

/// How much longer than a day the memo of a renewal must be remembered at least: every name is, for a day.
pub(crate) fn beyond_a_day(renewal: &Renewal) -> Duration {
    renewal.keep.saturating_sub(FORGET_AFTER)
}

/// Renews a batch, unless the client is not `open`. `is_over` says whether the session has ended, `ends_with_session`
/// whether a claim ends with it, and `ask` sends a batch; its first argument says whether to wait for names that other
/// transactions have locked.
pub(crate) async fn renew<'a, R: Row, F: Future<Output = Result<Answers>>>(
    open: Result<()>,
    batch: &'a [Renewal],
    is_over: impl Fn() -> bool,
    ends_with_session: impl Fn(&Claim) -> bool,
    ask: impl Fn(bool, Vec<&'a Renewal>) -> F,
) -> Vec<Result<Renewed>> {
    if let Err(error) = open {
        return vec![Err(error.during("renew")); batch.len()];
    }
    let lost = || Ok(Renewed::Gone(Gone::Session));
    if is_over() && batch.iter().all(|renewal| ends_with_session(&renewal.claim)) {
        return batch.iter().map(|_| lost()).collect();
    }
    let answers = renew_all::<R, F>(batch, ask).await;
    let answers = answers.unwrap_or_else(|error| vec![Err(error.during("renew")); batch.len()]);
    // The end of a session is the loss of the claims that end with it, whatever the server answered before.
    let is_over = is_over();
    let answers = answers.into_iter().zip(batch);
    answers
        .map(|(answer, renewal)| if is_over && ends_with_session(&renewal.claim) { lost() } else { answer })
        .collect()
}

async fn renew_all<'a, R: Row, F: Future<Output = Result<Answers>>>(
    batch: &'a [Renewal],
    ask: impl Fn(bool, Vec<&'a Renewal>) -> F,
) -> Result<Vec<Result<Renewed>>> {
    let mut answers = ask(false, batch.iter().collect()).await?;
    let (busy, renewals): (Vec<_>, Vec<_>) =
        answers.iter_mut().zip(batch).filter(|(answer, _)| answer.is_none()).unzip();
    if !busy.is_empty() {
        // In a transaction of its own: while it waits for a name, it keeps no other name locked.
        let count = renewals.len();
        let late = ask(true, renewals).await;
        let late = late.unwrap_or_else(|error| vec![Some(Err(error.during("renew"))); count]);
        busy.into_iter().zip(late).for_each(|(busy, late)| *busy = late);
    }
    let unanswered = || Err(R::STORE.unexpected("no reply to a renewal").during("renew"));
    Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect())
}

/// The answer to one renewal; `None` if another transaction has the name locked. `alive` reads the lease and the fence
/// of a claim that goes on.
pub(crate) fn renewed<R: Row>(
    outcome: &str,
    alive: impl FnOnce() -> Result<(i64, Option<Fence>)>,
    ending: impl FnOnce() -> Result<Option<Ending>>,
) -> Option<Result<Renewed>> {
    Some(match outcome {
        "alive" => alive().and_then(|(lease, fence)| {
            Ok(Renewed::Alive { lease: Lease::of(to_span(lease)), fence, ending: ending()? })
        }),
        "gone" => Ok(Renewed::Gone(Gone::Unknown)),
        "broken" => ending().map(|ending| Renewed::Gone(ending.map_or(Gone::Unknown, Gone::Broken))),
        "session" => Ok(Renewed::Gone(Gone::Session)),
        "exhausted" => Err(exhausted::<R>()),
        "newer" => Err(R::STORE.newer()),
        "busy" => return None,
        other => Err(R::STORE.unexpected(format!("unexpected reply to a renewal: {other}"))),
    })
}
