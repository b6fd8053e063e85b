//! Word of changes: one stream for each watch.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use oarlock_core::driver::{Cursor, Hint, Watch};
use oarlock_core::{ClaimId, Result};
use tonic::Streaming;

use crate::api::{Range, WatchCreate, WatchRequest, WatchResponse};
use crate::error::{failed, strange};
use crate::keys::claim_of;
use crate::link::Link;

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
pub(crate) async fn arm(link: &Link, range: Range, about: About) -> Result<Watch> {
    let create = WatchCreate { key: range.key, range_end: range.end };
    let mut answers = link.watch(Once(Some(WatchRequest { create: Some(create) }))).await?;
    let first = answers.message().await.map_err(failed)?;
    let first = first.filter(|first| first.created && !first.canceled).ok_or_else(|| strange("a watch"))?;
    let mut hints = Hints { answers, about, ready: VecDeque::new() };
    hints.take(first);
    Ok(Watch::new(hints))
}

struct Hints {
    answers: Streaming<WatchResponse>,
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
            match ready!(Pin::new(&mut self.answers).poll_next(cx)) {
                Some(Ok(answer)) if !answer.canceled => self.take(answer),
                // Whoever is told that a watch has ended looks for itself.
                _ => return Poll::Ready(None),
            }
        }
    }
}

/// One question, on a line that stays open.
struct Once(Option<WatchRequest>);

impl Stream for Once {
    type Item = WatchRequest;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<WatchRequest>> {
        self.0.take().map_or(Poll::Pending, |request| Poll::Ready(Some(request)))
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
