//! The cases. Each is written for two peers in two roles, and run with the roles both ways.

use std::sync::Arc;
use std::time::Duration;

use oarlock_interop::now;

use crate::clients::Terms;
use crate::process::{Answer, Peer, Trouble};

/// The result of a case: a figure, or an empty text.
pub(crate) type Outcome = Result<String, Trouble>;

/// Every case, as columns of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    WeWait,
    TheyWait,
    TheyAreKilled,
    WeAreKilled,
    TheyRenew,
    WeRenew,
    TheyEnterAgain,
    WeEnterAgain,
    WeBreakThem,
    TheyBreakUs,
    Counter,
}

impl Case {
    pub(crate) const ALL: &[Self] = &[
        Self::WeWait,
        Self::TheyWait,
        Self::TheyAreKilled,
        Self::WeAreKilled,
        Self::TheyRenew,
        Self::WeRenew,
        Self::TheyEnterAgain,
        Self::WeEnterAgain,
        Self::WeBreakThem,
        Self::TheyBreakUs,
        Self::Counter,
    ];

    /// The head of its column.
    pub(crate) fn head(self) -> &'static str {
        match self {
            Self::WeWait => "they → us",
            Self::TheyWait => "we → them",
            Self::TheyAreKilled => "they die",
            Self::WeAreKilled => "we die",
            Self::TheyRenew => "they renew",
            Self::WeRenew => "we renew",
            Self::TheyEnterAgain => "they re-enter",
            Self::WeEnterAgain => "we re-enter",
            Self::WeBreakThem => "we break",
            Self::TheyBreakUs => "they break",
            Self::Counter => "4 + 4 count",
        }
    }
}

/// Longer than anything here should take.
const PATIENCE_MS: u64 = 15_000;

/// A lease that does not run out by itself here.
pub(crate) const LONG_MS: u64 = 20_000;

/// How much later than a lease a grant may come, on a busy machine with a client that polls.
const SLACK: Duration = Duration::from_millis(1500);

pub(crate) fn failed(why: impl Into<String>) -> Trouble {
    Trouble::Failed(why.into())
}

/// A name that no other case has.
pub(crate) fn name(case: &str) -> String {
    format!("interop-{case}-{}", Peer::handle())
}

pub(crate) async fn held(peer: &Peer, line: String) -> Result<(u64, Option<u64>), Trouble> {
    match peer.request(&line).await? {
        Answer::Held { at, fence } => Ok((at, fence)),
        other => Err(failed(format!("{}, asked to `{line}`: {other:?}", peer.name))),
    }
}

pub(crate) async fn freed(peer: &Peer, line: String) -> Result<u64, Trouble> {
    match peer.request(&line).await? {
        Answer::Freed { at } => Ok(at),
        other => Err(failed(format!("{}, asked to `{line}`: {other:?}", peer.name))),
    }
}

/// One try, which must be refused.
async fn refused(peer: &Peer, kind: &str, name: &str, when: &str) -> Result<(), Trouble> {
    match peer.request(format!("lock {} {kind} {name} {LONG_MS} 0", Peer::handle())).await? {
        Answer::Busy => Ok(()),
        other => Err(failed(format!("{when}, {} was not refused {kind}: {other:?}", peer.name))),
    }
}

/// One grant after another.
pub(crate) struct HandOver {
    /// What the waiter holds it by.
    pub(crate) handle: String,
    pub(crate) fence: Option<u64>,
    /// From the call of the release to the grant.
    pub(crate) took: Duration,
}

/// While the holder holds, the waiter is refused, and waits; it has it after the release, which is `after` this long.
pub(crate) async fn hands_over(
    (holder, h): (&Peer, &str),
    (waiter, kind): (&Peer, &str),
    name: &str,
    after: Duration,
) -> Result<HandOver, Trouble> {
    let handle = Peer::handle();
    refused(waiter, kind, name, "while it was held").await?;
    let waiting = held(waiter, format!("lock {handle} {kind} {name} {LONG_MS} {PATIENCE_MS}"));
    let release = async {
        // There is no event when a waiter waits.
        tokio::time::sleep(after).await;
        if holder.request(format!("held {h}")).await? != Answer::Yes {
            return Err(failed(format!("{} does not believe in what it holds", holder.name)));
        }
        freed(holder, format!("unlock {h}")).await
    };
    let (granted, released) = tokio::join!(waiting, release);
    let ((at, fence), released) = (granted?, released?);
    let took = at.checked_sub(released).ok_or_else(|| failed("granted before it was released"))?;
    Ok(HandOver { handle, fence, took: Duration::from_nanos(took) })
}

/// The holder holds, the waiter is refused, waits, and has it soon after the release: the median of the hand-overs.
pub(crate) async fn waits(terms: Terms, holder: &Peer, waiter: &Peer, rounds: u32, bound: Duration) -> Outcome {
    let Terms { holds, waits, .. } = terms;
    let name = name("wait");
    let mut spans = Vec::new();
    let mut fences: Vec<u64> = Vec::new();
    for round in 0..rounds {
        let h = Peer::handle();
        let (_, fence) = held(holder, format!("lock {h} {holds} {name} {LONG_MS} 0")).await?;
        // Other spans each time, so that those who poll are met anywhere in their pause.
        let after = Duration::from_millis(120 + 37 * u64::from(round));
        let next = hands_over((holder, &h), (waiter, waits), &name, after).await?;
        fences.extend(fence.into_iter().chain(next.fence));
        spans.push(next.took);
        freed(waiter, format!("unlock {}", next.handle)).await?;
    }
    if let Some(pair) = fences.windows(2).find(|pair| pair[0] >= pair[1]) {
        return Err(failed(format!("fence {} after {}", pair[1], pair[0])));
    }
    spans.sort_unstable();
    let median = spans.get(spans.len() / 2).copied().unwrap_or_default();
    if median > bound {
        return Err(failed(format!("{} took {} to notice, {} at most", waiter.name, span(median), span(bound))));
    }
    Ok(span(median))
}

/// The holder holds one kind, and the waiter is refused another of the same name; it has it after the release.
pub(crate) async fn excludes((holder, its): (&Peer, &str), waiter: (&Peer, &str)) -> Outcome {
    let (name, h) = (name("kind"), Peer::handle());
    held(holder, format!("lock {h} {its} {name} {LONG_MS} 0")).await?;
    let next = hands_over((holder, &h), waiter, &name, Duration::from_millis(150)).await?;
    freed(waiter.0, format!("unlock {}", next.handle)).await?;
    Ok(span(next.took))
}

/// The holder keeps it for three leases, while the waiter waits in vain; then it is released as usual.
pub(crate) async fn renews(terms: Terms, holder: &Peer, waiter: &Peer) -> Outcome {
    let Terms { holds, waits, lease } = terms;
    let (name, h, w) = (name("renew"), Peer::handle(), Peer::handle());
    let lease = lease.as_millis();
    held(holder, format!("lock {h} {holds} {name} renew:{lease} 0")).await?;
    match waiter.request(format!("lock {w} {waits} {name} {LONG_MS} {}", lease * 3 + 200)).await? {
        Answer::Busy => {}
        other => return Err(failed(format!("within three leases of a lock that is renewed: {other:?}"))),
    }
    if holder.request(format!("held {h}")).await? != Answer::Yes {
        return Err(failed(format!("{} does not believe in it after three leases", holder.name)));
    }
    freed(holder, format!("unlock {h}")).await?;
    held(waiter, format!("lock {w} {waits} {name} {LONG_MS} {PATIENCE_MS}")).await?;
    freed(waiter, format!("unlock {w}")).await?;
    Ok(String::new())
}

/// The holder enters twice: it is free after the second release, not after the first.
pub(crate) async fn enters_again(terms: Terms, holder: &Peer, waiter: &Peer) -> Outcome {
    let Terms { holds, waits, .. } = terms;
    let (name, h, w) = (name("again"), Peer::handle(), Peer::handle());
    held(holder, format!("lock {h} {holds} {name} {LONG_MS} 0")).await?;
    held(holder, format!("again {h}")).await?;
    refused(waiter, waits, &name, "while it was held twice").await?;
    freed(holder, format!("unlock {h}")).await?;
    refused(waiter, waits, &name, "after the first of two releases").await?;
    freed(holder, format!("unlock {h}")).await?;
    held(waiter, format!("lock {w} {waits} {name} {LONG_MS} 0")).await?;
    freed(waiter, format!("unlock {w}")).await?;
    Ok(String::new())
}

/// The other side force-unlocks: the holder says that it lost the lock, and why; and the lock is free.
pub(crate) async fn is_broken(terms: Terms, holder: &Peer, breaker: &Peer) -> Outcome {
    let Terms { holds, waits, lease } = terms;
    let (name, h, b) = (name("break"), Peer::handle(), Peer::handle());
    held(holder, format!("lock {h} {holds} {name} renew:{} 0", lease.as_millis())).await?;
    if holder.request(format!("held {h}")).await? != Answer::Yes {
        return Err(failed(format!("{} does not believe in what it was just granted", holder.name)));
    }
    let broken = freed(breaker, format!("break {b} {name}")).await?;
    match holder.request(format!("loss {h} {PATIENCE_MS}")).await? {
        Answer::Lost { at, why } if !why.is_empty() => {
            let noticed = span(Duration::from_nanos(at.saturating_sub(broken)));
            held(breaker, format!("lock {b} {waits} {name} {LONG_MS} {PATIENCE_MS}")).await?;
            freed(breaker, format!("unlock {b}")).await?;
            Ok(noticed)
        }
        other => Err(failed(format!("{} did not notice the loss: {other:?}", holder.name))),
    }
}

/// SIGKILL of the holder: the waiter has it when the lease is over.
pub(crate) async fn is_killed(terms: Terms, victim: &Peer, waiter: &Peer) -> Outcome {
    let Terms { holds, waits, lease } = terms;
    let (name, v, w) = (name("kill"), Peer::handle(), Peer::handle());
    held(victim, format!("lock {v} {holds} {name} renew:{} 0", lease.as_millis())).await?;
    let waiting = held(waiter, format!("lock {w} {waits} {name} {LONG_MS} {PATIENCE_MS}"));
    let kill = async {
        // Longer than a lease: it must have been renewed.
        tokio::time::sleep(lease + lease / 3).await;
        let at = now();
        victim.kill().map(|()| at)
    };
    let (granted, killed) = tokio::join!(waiting, kill);
    let ((at, _), killed) = (granted?, killed?);
    let Some(after) = at.checked_sub(killed).map(Duration::from_nanos) else {
        return Err(failed("granted while the holder lived"));
    };
    if after > lease + SLACK {
        return Err(failed(format!("granted {} after the death, with a lease of {}", span(after), span(lease))));
    }
    freed(waiter, format!("unlock {w}")).await?;
    Ok(span(after))
}

/// All processes of both sides count together in one file: no round is lost.
pub(crate) async fn counts(terms: Terms, ours: &[Arc<Peer>], theirs: &[Arc<Peer>], rounds: u64) -> Outcome {
    let folder = tempfile::tempdir()?;
    let (file, name) = (folder.path().join("count"), name("count"));
    std::fs::write(&file, "0")?;
    let start = now();
    let mut counting = tokio::task::JoinSet::new();
    for peer in ours.iter().chain(theirs) {
        let line = format!("count {} {} {name} {} {rounds}", Peer::handle(), terms.waits, file.display());
        let peer = peer.clone();
        counting.spawn(async move { peer.request(line).await });
    }
    while let Some(counted) = counting.join_next().await {
        let counted = counted.map_err(|error| failed(error.to_string()))??;
        if counted != Answer::Counted {
            return Err(failed(format!("{counted:?}")));
        }
    }
    let expected = rounds * (ours.len() + theirs.len()) as u64;
    let counted = std::fs::read_to_string(&file)?;
    if counted != expected.to_string() {
        return Err(failed(format!("{expected} rounds were counted as {counted}")));
    }
    Ok(format!("{expected} in {}", span(Duration::from_nanos(now() - start))))
}

/// A span in three digits.
pub(crate) fn span(span: Duration) -> String {
    let ms = span.as_secs_f64() * 1e3;
    match ms {
        _ if ms < 1.0 => format!("{:.0} µs", ms * 1e3),
        _ if ms < 10.0 => format!("{ms:.1} ms"),
        _ if ms < 1000.0 => format!("{ms:.0} ms"),
        _ => format!("{:.1} s", ms / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_short() {
        for (nanos, text) in
            [(450_000, "450 µs"), (1_240_000, "1.2 ms"), (31_400_000, "31 ms"), (2_560_000_000, "2.6 s")]
        {
            assert_eq!(span(Duration::from_nanos(nanos)), text);
        }
    }
}
