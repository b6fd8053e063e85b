//! Fences of a lock that both sides fence: all of them come from one counter, which is kept with the lock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;

use crate::cases::{LONG_MS, Outcome, failed, freed, hands_over, held, name};
use crate::process::{Peer, Trouble};
use crate::servers::Servers;

/// How often the lock is had, by the two sides in turn.
const TURNS: u32 = 8;

/// So far is a counter ahead of the clock that nothing but the counter can explain a fence.
const AHEAD: Duration = Duration::from_secs(3600);

/// A peer, and the kind of lock that it takes.
type Party<'a> = (&'a Peer, &'a str);

/// All that is tried, and what came of it. `minter` is one of ours that makes a counter where there is none.
pub(crate) async fn all(
    servers: &Servers,
    them: Party<'_>,
    us: Party<'_>,
    minter: Party<'_>,
) -> [(&'static str, Outcome); 3] {
    let (they, we, ahead) = tokio::join!(they_begin(them, us), we_begin(minter, them), go_on(servers, them, us));
    [("they", they), ("we, with `tokens=yes`", we), ("they, the counter ahead of the clock", ahead)]
}

/// The counter is made by their first grant.
async fn they_begin(them: Party<'_>, us: Party<'_>) -> Outcome {
    let fences = in_turns(them, us, &name("fence")).await?;
    rises(&fences, true)
}

/// The counter is made by our first grant.
async fn we_begin(us: Party<'_>, them: Party<'_>) -> Outcome {
    let fences = in_turns(us, them, &name("fence")).await?;
    rises(&fences, false)
}

/// Their counter is ahead of the clock that we count by as a rule: as after a clock that was set back.
async fn go_on(servers: &Servers, them: Party<'_>, us: Party<'_>) -> Outcome {
    let name = name("fence");
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
    let last = u64::try_from((clock + AHEAD).as_micros()).context("the clock is far ahead")?;
    tokio::task::block_in_place(|| servers.set(&format!("redisson_lock_token:{{{name}}}"), last))?;
    let fences = in_turns(them, us, &name).await?;
    goes_on(&fences, last)
}

/// Each is refused and waits while the other holds: the fences of all grants, in order.
async fn in_turns(first: Party<'_>, second: Party<'_>, name: &str) -> Result<Vec<u64>, Trouble> {
    let (mut holder, mut waiter) = (first, second);
    let mut handle = Peer::handle();
    let (_, fence) = held(holder.0, format!("lock {handle} {} {name} {LONG_MS} 0", holder.1)).await?;
    let lacks = |peer: &Peer| failed(format!("{} has a grant without a fence", peer.name));
    let mut fences = vec![fence.ok_or_else(|| lacks(holder.0))?];
    for _ in 1..TURNS {
        let next = hands_over((holder.0, &handle), waiter, name, Duration::from_millis(120)).await?;
        fences.push(next.fence.ok_or_else(|| lacks(waiter.0))?);
        handle = next.handle;
        (holder, waiter) = (waiter, holder);
    }
    freed(holder.0, format!("unlock {handle}")).await?;
    Ok(fences)
}

/// Every fence is larger than the one before, and theirs by one: they add it to what we left.
fn rises(fences: &[u64], they_began: bool) -> Outcome {
    for (place, pair) in fences.windows(2).enumerate() {
        let (before, fence) = (pair[0], pair[1]);
        if fence <= before {
            return Err(failed(format!("fence {fence} after {before}, of {fences:?}")));
        }
        let is_theirs = (place % 2 == 1) == they_began;
        if is_theirs && fence != before + 1 {
            return Err(failed(format!("their fence {fence} does not count on from ours, {before}, of {fences:?}")));
        }
    }
    Ok(format!("{} rise", fences.len()))
}

/// Every fence is one more than the one before, on both sides.
fn goes_on(fences: &[u64], last: u64) -> Outcome {
    if fences.iter().zip(last + 1..).all(|(fence, wanted)| *fence == wanted) {
        return Ok(format!("{} rise, by 1 each", fences.len()));
    }
    Err(failed(format!("the counter stood at {last}, and the fences are {fences:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_of_two_counters_are_found_out() {
        assert!(rises(&[1, 700, 701, 800, 801], true).is_ok());
        assert!(rises(&[700, 701, 800, 801, 900], false).is_ok());
        // Theirs, ours, and theirs again by a counter of their own.
        assert!(rises(&[1, 700, 2], true).is_err());
        assert!(rises(&[1, 700, 702], true).is_err());
        assert!(rises(&[700, 700], false).is_err());
        assert!(rises(&[1, 700, 701, 701], true).is_err());
        assert!(goes_on(&[8, 9, 10], 7).is_ok());
        assert!(goes_on(&[8, 10, 11], 7).is_err());
        assert!(goes_on(&[8, 9, 9], 7).is_err());
    }
}
