//! Word of changes: one stream for each watch.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use oarlock_core::driver::{BoxFuture, Cursor, Hint, Watch};
use oarlock_core::{ClaimId, Error, ErrorKind, Result};
use tonic::Streaming;

use crate::api::{Range, WatchCreate, WatchRequest, WatchResponse};
use crate::error::{SCHEME, failed, strange};
use crate::keys::claim_of;
use crate::link::{Link, Watching};
use crate::login::Pass;

/// What to look at, as the engine carries it about. It names no revision, so that it stays the same as long as the same
/// thing is in the way; whoever arms a watch looks once more after that.
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
    /// Everybody's but this claim's own.
    Others(ClaimId),
    /// All.
    All,
    /// New letters, each about the claim it is named after.
    Letters,
}

/// Arms a watch; it is armed when the server says so.
pub(crate) async fn arm(link: &Link, ranges: Vec<Range>, about: About) -> Result<Watch> {
    let create = |range: Range| {
        let create = WatchCreate { key: range.key, range_end: range.end, ..WatchCreate::default() };
        WatchRequest { create: Some(create) }
    };
    let watches: Vec<_> = ranges.into_iter().map(create).collect();
    let (armed, pass) = open(link, watches.clone(), about).await?;
    // A token that has ended looks like a lack of rights here.
    if matches!(&armed, Err(error) if error.kind() == ErrorKind::Denied) && link.another_pass(&pass).await?.is_some() {
        return open(link, watches, about).await?.0.map(Watch::new);
    }
    armed.map(Watch::new)
}

async fn open(link: &Link, watches: Vec<WatchRequest>, about: About) -> Result<(Result<Hints>, Pass)> {
    let mut unarmed = watches.len();
    let Watching { answers, left, pass } = link.watch(watches).await?;
    let mut hints = Hints { answers, left: Some(left), about, ready: VecDeque::new() };
    while unarmed > 0 {
        let answer = hints.answers.message().await.map_err(failed)?.ok_or_else(|| strange("a watch"))?;
        if answer.canceled {
            let denied = answer.reason.contains("permission denied") || answer.reason.contains("auth token");
            let kind = if denied { ErrorKind::Denied } else { ErrorKind::Internal };
            return Ok((Err(Error::new(kind, answer.reason).on(SCHEME)), pass));
        }
        unarmed -= usize::from(answer.created);
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
}

impl Hints {
    fn take(&mut self, answer: WatchResponse) {
        for event in answer.events {
            let claim = event.kv.and_then(|kv| claim_of(&kv.key));
            let hint = match self.about {
                About::Others(own) if claim == Some(own) => continue,
                About::Letters if event.what != 0 => continue,
                About::Letters => Hint { claim },
                About::Others(_) | About::All => Hint { claim: None },
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

/// A few questions, on a line that stays open.
pub(crate) struct Open(pub(crate) VecDeque<WatchRequest>);

impl Stream for Open {
    type Item = WatchRequest;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<WatchRequest>> {
        self.0.pop_front().map_or(Poll::Pending, |request| Poll::Ready(Some(request)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_come_back() {
        for range in [Range::key("a/q/1"), Range::under("a/q/")] {
            assert_eq!(read_cursor(&cursor(&range)), Some(range));
        }
        assert_eq!(read_cursor(&Cursor::default()), None);
    }
}
