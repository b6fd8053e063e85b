//! Watches: those for turns share one stream of changes, the others have one each.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use oarlock_core::driver::{BoxFuture, Cursor, Hint, Interest, Watch};
use oarlock_core::{Error, ErrorKind, Result, Weight};
use tokio::sync::oneshot;
use tonic::Streaming;

use crate::Etcd;
use crate::api::{DELETED, KeyValue, NO_PUT, Range, RangeResponse, WatchCreate, WatchRequest, WatchResponse};
use crate::connection::{Connection, Watching};
use crate::error::{SCHEME, failed, missing};
use crate::keys::{claim_of, lease_in};
use crate::login::{Pass, says_stale};
use crate::peek::Predecessor;
use crate::turn_stream::TurnWatch;

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
        let (ranges, about) = match interest {
            Interest::Turn(claim, cursor) => {
                let range = read_cursor(cursor).unwrap_or_else(|| self.keys(&claim.resource).queue());
                let entry = self.leases.get(claim.id).unwrap_or_default();
                let (own, seen) = (entry.named_after, entry.waits_for);
                let seen = seen.filter(|(what, _)| *what == range);
                let since = seen.map_or(Since::Unknown, |(_, revision)| Since::Revision(revision));
                // An exclusive claim waits for an end: that its predecessor is granted is no news.
                let ends = claim.weight == Weight::All && range.end.is_empty();
                let before = entry.predecessor.filter(|before| ends && before.key == range);
                let about = if ends { About::Ends } else { About::Others(own) };
                return arm_turn(&self.connection, &range, about, since, before).await;
            }
            Interest::Resource(name) => (self.keys(name).watched(), About::All),
            Interest::Mailbox => (vec![self.space.mailbox(&self.client)], About::Notifications),
        };
        arm(&self.connection, &ranges, about).await
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
    /// After this revision.
    Revision(i64),
    /// The revision that was seen last is unknown: begins with a hint to poll.
    Unknown,
}

/// Arms a watch for what comes next: it is armed when the server confirms it.
async fn arm(connection: &Connection, ranges: &[Range], about: About) -> Result<Watch> {
    let create = |range: &Range| WatchRequest { create: Some(WatchCreate::of(range)), cancel: None };
    let watches: Vec<_> = ranges.iter().map(create).collect();
    let mut armed = open(connection, watches.clone(), about).await?;
    // Here an expired token looks like a missing permission.
    if is_denied(&armed.0) && connection.another_pass(&armed.1).await?.is_some() {
        armed = open(connection, watches, about).await?;
    }
    armed.0.map(Watch::new)
}

/// Arms a watch for a turn, on the stream of all of them.
///
/// It begins with the present, because the server takes a tenth of a second to send earlier changes. If the store has
/// changed since the revision that was seen, the key is read once more, at the same member: changes that this member
/// has not seen yet will come over the watch.
async fn arm_turn(
    connection: &Connection,
    range: &Range,
    about: About,
    since: Since,
    before: Option<Predecessor>,
) -> Result<Watch> {
    // One that was kept begins long before: only later changes count.
    if let (Some(_), Since::Revision(seen)) = (&before, since)
        && let Some((watch, latest)) = connection.resume_turn(&range.key).await?
    {
        let ready = if latest > seen { VecDeque::from([Hint::ANY]) } else { VecDeque::new() };
        return Ok(Watch::new(Hints { source: Source::Shared(watch), about, before, after: seen, ready }));
    }
    let mut create = WatchCreate::of(range);
    create.prev_kv = before.is_some();
    if matches!(about, About::Ends) {
        create.filters.push(NO_PUT);
    }
    let mut armed = connection.watch_turn(create.clone()).await?;
    let mut confirmed = check(&armed.1);
    if is_denied(&confirmed) && connection.another_pass(&armed.0.stream.pass).await?.is_some() {
        armed = connection.watch_turn(create).await?;
        confirmed = check(&armed.1);
    }
    confirmed?;
    let (mut watch, confirmation) = armed;
    if before.is_some() {
        watch.keep_for(range.key.clone());
    }
    let revision = confirmation.header.map_or(i64::MAX, |header| header.revision);
    let changed = match since {
        // Nothing has happened since.
        Since::Revision(seen) if revision == seen => false,
        Since::Revision(seen) if range.end.is_empty() && revision > seen => match watch.stream.member() {
            Some(member) => {
                let found = connection.peek(&member, &watch.stream.pass, range).await;
                found.map_or(true, |found| is_news(&found, about, seen))
            }
            None => true,
        },
        // A revision before the one that was seen is another past: a member that lags, or a store that was restored.
        Since::Revision(_) | Since::Unknown => true,
    };
    let mut hints = Hints { source: Source::Shared(watch), about, before, after: 0, ready: VecDeque::new() };
    hints.take(confirmation);
    if changed {
        hints.ready.push_back(Hint::ANY);
    }
    Ok(Watch::new(hints))
}

fn is_denied<T>(armed: &Result<T>) -> bool {
    armed.as_ref().is_err_and(|error| error.kind() == ErrorKind::Denied)
}

/// An error if the server refuses a watch, or ends it.
fn check(answer: &WatchResponse) -> Result<()> {
    if !answer.canceled {
        return Ok(());
    }
    let denied = answer.reason.contains("permission denied") || says_stale(&answer.reason);
    let kind = if denied { ErrorKind::Denied } else { ErrorKind::Internal };
    Err(Error::new(kind, answer.reason.clone()).on(SCHEME))
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
    let Watching { mut answers, left, pass, open } = connection.watch(watches).await?;
    let mut ready = Vec::new();
    while unarmed > 0 {
        let answer = answers.message().await.map_err(failed)?.ok_or_else(|| missing("a watch"))?;
        if let Err(error) = check(&answer) {
            return Ok((Err(error), pass));
        }
        unarmed -= usize::from(answer.created);
        ready.push(answer);
    }
    let source = Source::Own(Box::new(OwnStream { answers, left: Some(left), _open: open }));
    let mut hints = Hints { source, about, before: None, after: 0, ready: VecDeque::new() };
    ready.into_iter().for_each(|answer| hints.take(answer));
    Ok((Ok(hints), pass))
}

/// The stream of one watch.
struct OwnStream {
    answers: Streaming<WatchResponse>,
    /// Nothing once it has been left.
    left: Option<BoxFuture<()>>,
    _open: oneshot::Sender<()>,
}

/// Where the answers of a watch come from.
enum Source {
    Own(Box<OwnStream>),
    /// The stream of all watches for turns.
    Shared(TurnWatch),
}

impl Source {
    /// The next one; `None` when the watch has ended.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<WatchResponse>> {
        let answer = match self {
            Self::Shared(watch) => ready!(watch.poll_next(cx)),
            Self::Own(own) => {
                let Some(left) = &mut own.left else { return Poll::Ready(None) };
                if left.as_mut().poll(cx).is_ready() {
                    own.left = None;
                    return Poll::Ready(None);
                }
                ready!(Pin::new(&mut own.answers).poll_next(cx)).and_then(Result::ok)
            }
        };
        Poll::Ready(answer.filter(|answer| !answer.canceled))
    }
}

struct Hints {
    source: Source,
    about: About,
    /// The claim whose end it reports.
    before: Option<Predecessor>,
    /// Changes up to this revision are no news.
    after: i64,
    ready: VecDeque<Hint>,
}

impl Hints {
    fn take(&mut self, answer: WatchResponse) {
        for event in answer.events {
            let Some(kv) = event.kv.filter(|kv| kv.mod_revision > self.after) else { continue };
            if let (Some(before), Some(last), DELETED) = (&self.before, &event.prev_kv, event.what) {
                before.ended(last);
            }
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
            match ready!(self.source.poll_next(cx)) {
                Some(answer) => self.take(answer),
                // A waiter whose watch has ended polls.
                None => return Poll::Ready(None),
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
    use crate::api::{Event, Header};

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

    /// It may report the end of an earlier claim with the same key as soon as it has a wait again.
    #[tokio::test]
    async fn a_watch_that_was_kept_does_not_report_what_was_seen() {
        let Some(server) = oarlock_testbed::Etcd::start_or_skip().unwrap() else { return };
        let connection = Connection::open(&crate::Config::new([server.addr().to_string()])).await.unwrap();
        let (watch, _) = connection.watch_turn(WatchCreate::of(&Range::key("k"))).await.unwrap();
        let (source, about) = (Source::Shared(watch), About::Ends);
        let mut hints = Hints { source, about, before: None, after: 7, ready: VecDeque::new() };
        for (revision, ready) in [(6, 0), (7, 0), (8, 1)] {
            let kv = Some(KeyValue { mod_revision: revision, ..KeyValue::default() });
            let ended = Event { what: DELETED, kv, prev_kv: None };
            hints.take(WatchResponse { events: vec![ended], ..WatchResponse::default() });
            assert_eq!(hints.ready.len(), ready, "{revision}");
        }
    }

    #[test]
    fn cursors_come_back() {
        for range in [Range::key("a/q/1"), Range::under("a/q/")] {
            assert_eq!(read_cursor(&cursor(&range)), Some(range));
        }
        assert_eq!(read_cursor(&Cursor::default()), None);
    }
}
