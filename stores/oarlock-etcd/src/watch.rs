//! Watches: one stream of changes for each.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use oarlock_core::driver::{BoxFuture, Cursor, Hint, Interest, Watch};
use oarlock_core::{Error, ErrorKind, Result, Weight};
use tokio::sync::oneshot;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::Etcd;
use crate::api::{DELETED, KeyValue, NO_PUT, Range, RangeResponse, WatchCreate, WatchRequest, WatchResponse};
use crate::connection::{Connection, Watching};
use crate::error::{SCHEME, failed, missing};
use crate::keys::{claim_of, lease_in};
use crate::login::{Pass, says_stale};

/// What to watch, as the engine carries it. It names no revision, so that it stays the same while the same claim is in
/// the way; the revision is kept with the claim.
pub(crate) fn cursor(range: &Range) -> Cursor {
    let length = u32::try_from(range.key.len()).unwrap_or(u32::MAX).to_be_bytes();
    Cursor([&length[..], &range.key, &range.end].concat())
}

pub(crate) fn read_cursor(cursor: &Cursor) -> Option<Range> {
    let (length, rest) = cursor.0.split_first_chunk()?;
    let (key, end) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
    Some(Range { key: key.to_vec(), end: end.to_vec() })
}

impl Etcd {
    /// Arms a watch.
    pub(crate) async fn watch_interest(&self, interest: &Interest) -> Result<Watch> {
        self.connection.check_open()?;
        let (ranges, about, since) = match interest {
            Interest::Turn(claim, cursor) => {
                let range = read_cursor(cursor).unwrap_or_else(|| self.keys(&claim.resource).queue());
                let entry = self.leases.get(claim.id).unwrap_or_default();
                let (own, seen) = (entry.named_after, entry.waits_for);
                let seen = seen.filter(|(what, _)| *what == range);
                let since = seen.map_or(Since::Unknown, |(_, revision)| Since::Revision(revision));
                // An exclusive claim waits for an end: that its predecessor is granted is no news.
                let ends = claim.weight == Weight::All && range.end.is_empty();
                (vec![range], if ends { About::Ends } else { About::Others(own) }, since)
            }
            Interest::Resource(name) => (self.keys(name).watched(), About::All, Since::Now),
            Interest::Mailbox => (vec![self.space.mailbox(&self.client)], About::Notifications, Since::Now),
        };
        arm(&self.connection, ranges, about, since).await
    }
}

/// Whose changes are worth a hint.
#[derive(Clone, Copy, Debug)]
pub(crate) enum About {
    /// Those of all claims but the one whose keys are named after this lease.
    Others(i64),
    /// The end of any claim.
    Ends,
    /// All.
    All,
    /// New notifications, each about the claim in its key.
    Notifications,
}

/// Where a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    /// With the next change.
    Now,
    /// After this revision.
    Revision(i64),
    /// The revision that was seen last is unknown: begins with a hint to poll.
    Unknown,
}

/// Arms a watch: it is armed when the server confirms it.
///
/// Every watch begins with the present, because the server takes a tenth of a second to send earlier changes. If the
/// store has changed since the revision that was seen, the key is read once more, at the same member: changes that
/// this member has not seen yet will come over the watch.
pub(crate) async fn arm(connection: &Connection, ranges: Vec<Range>, about: About, since: Since) -> Result<Watch> {
    let filters = if matches!(about, About::Ends) { vec![NO_PUT] } else { Vec::new() };
    let create = |range: &Range| {
        let (key, range_end, filters) = (range.key.clone(), range.end.clone(), filters.clone());
        WatchRequest { create: Some(WatchCreate { key, range_end, filters, ..WatchCreate::default() }) }
    };
    let watches: Vec<_> = ranges.iter().map(create).collect();
    let mut armed = open(connection, watches.clone(), about).await?;
    // Here an expired token looks like a missing permission.
    if matches!(&armed.0, Err(error) if error.kind() == ErrorKind::Denied)
        && connection.another_pass(&armed.1).await?.is_some()
    {
        armed = open(connection, watches, about).await?;
    }
    let (hints, pass) = armed;
    let mut hints = hints?;
    let changed = match (since, &ranges[..]) {
        (Since::Now, _) => false,
        // Nothing has happened since.
        (Since::Revision(seen), _) if hints.revision == seen => false,
        (Since::Revision(seen), [key]) if key.end.is_empty() && hints.revision > seen => {
            let found = connection.peek(&hints.member, &pass, key).await;
            found.map_or(true, |found| is_news(&found, about, seen))
        }
        // A revision before the one that was seen is another past: a member that lags, or a store that was restored.
        (Since::Revision(_) | Since::Unknown, _) => true,
    };
    if changed {
        hints.ready.push_back(Hint::ANY);
    }
    Ok(Watch::new(hints))
}

/// Whether there is news, by what a member has of the key that was seen at revision `seen`.
fn is_news(found: &RangeResponse, about: About, seen: i64) -> bool {
    // An answer older than what was seen says nothing about later changes.
    let is_older = found.header.as_ref().is_none_or(|header| header.revision < seen);
    // One that was granted, or became lighter, is news to a waiter that does not wait for its end.
    let has_changed = |kv: &KeyValue| match about {
        About::Ends => kv.create_revision > seen,
        _ => kv.mod_revision > seen,
    };
    is_older || found.kvs.iter().all(has_changed)
}

async fn open(connection: &Connection, watches: Vec<WatchRequest>, about: About) -> Result<(Result<Hints>, Pass)> {
    let mut unarmed = watches.len();
    let Watching { answers, left, pass, member, open } = connection.watch(watches).await?;
    let (ready, left, revision) = (VecDeque::new(), Some(left), 0);
    let mut hints = Hints { answers, left, about, ready, member, revision, _open: open };
    while unarmed > 0 {
        let answer = hints.answers.message().await.map_err(failed)?.ok_or_else(|| missing("a watch"))?;
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
    /// The member it listens to, and the revision it began at.
    member: Channel,
    revision: i64,
    _open: oneshot::Sender<()>,
}

impl Hints {
    fn take(&mut self, answer: WatchResponse) {
        for event in answer.events {
            let Some(kv) = event.kv else { continue };
            let hint = match self.about {
                About::Others(own) if lease_in(&kv.key) == Some(own) => continue,
                About::Ends if event.what != DELETED => continue,
                About::Notifications if event.what == DELETED => continue,
                About::Notifications => claim_of(&kv.key).map_or(Hint::ANY, Hint::about),
                About::Others(_) | About::Ends | About::All => Hint::ANY,
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
                // A waiter whose watch has ended polls.
                _ => return Poll::Ready(None),
            }
        }
    }
}

/// A few requests on a stream that stays open until the watch is dropped. The sending side has to end: otherwise the
/// server keeps the stream, with all its watchers, for as long as the connection lives.
pub(crate) struct OpenRequests {
    pub(crate) requests: VecDeque<WatchRequest>,
    pub(crate) until: oneshot::Receiver<()>,
}

impl Stream for OpenRequests {
    type Item = WatchRequest;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<WatchRequest>> {
        match self.requests.pop_front() {
            Some(request) => Poll::Ready(Some(request)),
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
