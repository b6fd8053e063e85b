//! Word of changes: one stream for each watch.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use oarlock_core::driver::{BoxFuture, Cursor, Hint, Watch};
use oarlock_core::{Error, ErrorKind, Result};
use tokio::sync::oneshot;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::api::{DELETED, KeyValue, NO_PUT, Range, RangeResponse, WatchCreate, WatchRequest, WatchResponse};
use crate::error::{SCHEME, failed, strange};
use crate::keys::{claim_of, seat_of};
use crate::link::{Link, Watching};
use crate::login::{Pass, says_stale};

/// What to look at, as the engine carries it about. It names no revision, so that it stays the same as long as the same
/// thing is in the way; the revision is kept with the claim.
pub(crate) fn cursor(range: &Range) -> Cursor {
    let length = u32::try_from(range.key.len()).unwrap_or(u32::MAX).to_be_bytes();
    Cursor([&length[..], &range.key, &range.end].concat())
}

pub(crate) fn read_cursor(cursor: &Cursor) -> Option<Range> {
    let (length, rest) = cursor.0.split_first_chunk()?;
    let (key, end) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
    Some(Range { key: key.to_vec(), end: end.to_vec() })
}

/// Whose changes are worth a hint.
#[derive(Clone, Copy, Debug)]
pub(crate) enum About {
    /// Everybody's but those of the claim whose keys are named after this lease.
    Others(i64),
    /// Everybody's end.
    Ends,
    /// All.
    All,
    /// New letters, each about the claim it is named after.
    Letters,
}

/// Where a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    /// With the next change.
    Now,
    /// After this revision.
    Revision(i64),
    /// Nobody knows what was seen last: with a hint to look.
    Unknown,
}

/// Arms a watch; it is armed when the server says so.
///
/// Every watch begins with the present: the server is slow to tell what has been before, by a tenth of a second. If something
/// has happened since the revision that was seen, the key is looked at once more, at the same member: what it has not seen yet
/// it will tell.
pub(crate) async fn arm(link: &Link, ranges: Vec<Range>, about: About, since: Since) -> Result<Watch> {
    let filters = if matches!(about, About::Ends) { vec![NO_PUT] } else { Vec::new() };
    let create = |range: &Range| {
        let (key, range_end, filters) = (range.key.clone(), range.end.clone(), filters.clone());
        WatchRequest { create: Some(WatchCreate { key, range_end, filters, ..WatchCreate::default() }) }
    };
    let watches: Vec<_> = ranges.iter().map(create).collect();
    let mut armed = open(link, watches.clone(), about).await?;
    // A token that has ended looks like a lack of rights here.
    if matches!(&armed.0, Err(error) if error.kind() == ErrorKind::Denied)
        && link.another_pass(&armed.1).await?.is_some()
    {
        armed = open(link, watches, about).await?;
    }
    let (hints, pass) = armed;
    let mut hints = hints?;
    let changed = match (since, &ranges[..]) {
        (Since::Now, _) => false,
        // Nothing has happened since.
        (Since::Revision(seen), _) if hints.revision == seen => false,
        (Since::Revision(seen), [key]) if key.end.is_empty() && hints.revision > seen => {
            let found = link.peek(&hints.member, &pass, key).await;
            found.map_or(true, |found| is_news(&found, about, seen))
        }
        // A revision before the one that was seen is another past: a member that lags, or a store that was restored.
        (Since::Revision(_) | Since::Unknown, _) => true,
    };
    if changed {
        hints.ready.push_back(Hint { claim: None });
    }
    Ok(Watch::new(hints))
}

/// Whether there is something to look at, by what a member has of the key that was seen at revision `seen`.
fn is_news(found: &RangeResponse, about: About, seen: i64) -> bool {
    // Read before what was seen, it says nothing of what came after.
    let is_older = found.header.as_ref().is_none_or(|header| header.revision < seen);
    // One that was granted, or became lighter, is news to a waiter that does not wait for its end.
    let has_changed = |kv: &KeyValue| match about {
        About::Ends => kv.create_revision > seen,
        _ => kv.mod_revision > seen,
    };
    is_older || found.kvs.iter().all(has_changed)
}

async fn open(link: &Link, watches: Vec<WatchRequest>, about: About) -> Result<(Result<Hints>, Pass)> {
    let mut unarmed = watches.len();
    let Watching { answers, left, pass, member, open } = link.watch(watches).await?;
    let (ready, left, revision) = (VecDeque::new(), Some(left), 0);
    let mut hints = Hints { answers, left, about, ready, member, revision, _open: open };
    while unarmed > 0 {
        let answer = hints.answers.message().await.map_err(failed)?.ok_or_else(|| strange("a watch"))?;
        if answer.canceled {
            let denied = answer.reason.contains("permission denied") || says_stale(&answer.reason);
            let kind = if denied { ErrorKind::Denied } else { ErrorKind::Internal };
            return Ok((Err(Error::new(kind, answer.reason).on(SCHEME)), pass));
        }
        if answer.created {
            unarmed -= 1;
            hints.revision = hints.revision.max(answer.header.map_or(i64::MAX, |header| header.revision));
        }
        hints.take(answer);
    }
    Ok((Ok(hints), pass))
}

struct Hints {
    answers: Streaming<WatchResponse>,
    /// Nothing once it has been left.
    left: Option<BoxFuture<()>>,
    about: About,
    ready: VecDeque<Hint>,
    /// Whom it listens to, and the revision it began at.
    member: Channel,
    revision: i64,
    _open: oneshot::Sender<()>,
}

impl Hints {
    fn take(&mut self, answer: WatchResponse) {
        for event in answer.events {
            let Some(kv) = event.kv else { continue };
            let hint = match self.about {
                About::Others(own) if seat_of(&kv.key) == Some(own) => continue,
                About::Ends if event.what != DELETED => continue,
                About::Letters if event.what == DELETED => continue,
                About::Letters => Hint { claim: claim_of(&kv.key) },
                About::Others(_) | About::Ends | About::All => Hint { claim: None },
            };
            self.ready.push_back(hint);
        }
    }
}

impl Stream for Hints {
    type Item = Hint;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Hint>> {
        loop {
            if let Some(hint) = self.ready.pop_front() {
                return Poll::Ready(Some(hint));
            }
            let Some(left) = &mut self.left else { return Poll::Ready(None) };
            if left.as_mut().poll(cx).is_ready() {
                self.left = None;
                return Poll::Ready(None);
            }
            match ready!(Pin::new(&mut self.answers).poll_next(cx)) {
                Some(Ok(answer)) if !answer.canceled => self.take(answer),
                // Whoever is told that a watch has ended looks for itself.
                _ => return Poll::Ready(None),
            }
        }
    }
}

/// A few questions, on a line that stays open until nobody listens any more. What is sent on a stream has to end, or the
/// server keeps it, with all its watchers, for as long as the connection lives.
pub(crate) struct Open {
    pub(crate) questions: VecDeque<WatchRequest>,
    pub(crate) until: oneshot::Receiver<()>,
}

impl Stream for Open {
    type Item = WatchRequest;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<WatchRequest>> {
        match self.questions.pop_front() {
            Some(question) => Poll::Ready(Some(question)),
            None => Pin::new(&mut self.until).poll(cx).map(|_| None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Header;

    #[test]
    fn a_peek_that_is_older_than_what_was_seen_is_news() {
        let found = |revision, changed| RangeResponse {
            header: Some(Header { revision, ..Header::default() }),
            kvs: vec![KeyValue { create_revision: 3, mod_revision: changed, ..KeyValue::default() }],
            ..RangeResponse::default()
        };
        assert!(!is_news(&found(9, 5), About::All, 7), "unchanged");
        assert!(is_news(&found(9, 8), About::All, 7), "changed since");
        assert!(!is_news(&found(9, 8), About::Ends, 7), "still there");
        assert!(is_news(&found(6, 5), About::All, 7), "of a store that fell back");
        assert!(is_news(&RangeResponse { kvs: Vec::new(), ..found(9, 5) }, About::Ends, 7), "gone");
    }

    #[test]
    fn cursors_come_back() {
        for range in [Range::key("a/q/1"), Range::under("a/q/")] {
            assert_eq!(read_cursor(&cursor(&range)), Some(range));
        }
        assert_eq!(read_cursor(&Cursor::default()), None);
    }
}
