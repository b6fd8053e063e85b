//! Watches that are not of the past.
//!
//! A server before 3.7.1 reads its revision first, and then opens a watch from there on. If a transaction of another
//! client ends between these two steps, the watch is one of the past: it reports its first change only after up to
//! 100 ms. So the client requests two watches in a row. If the server confirms both with the same revision, no
//! transaction came between the two steps of the first.

use oarlock_core::Result;

use crate::api::WatchResponse;

/// So many pairs are opened at most. The watches of a pair are requested together, so that the server opens one right
/// after the other: a check that came a round trip later would fail beside busy clients for nearly every watch.
const PAIRS: usize = 3;

/// A watch that was requested.
pub(crate) trait Requested {
    /// The answer that confirms it.
    fn confirmed(&mut self) -> impl Future<Output = Result<WatchResponse>> + Send;
}

/// Opens a watch that is not one of the past, with its confirmation. If no pair shows one, it is the last watch that
/// was opened. The others end when they are dropped.
pub(crate) async fn open_in_time<W: Requested>(open: impl Fn() -> Result<W>) -> Result<(W, WatchResponse)> {
    let mut pairs = 1;
    loop {
        let (mut first, mut second) = (open()?, open()?);
        let confirmed = first.confirmed().await?;
        // A server that denies a watch may answer nothing more.
        if confirmed.canceled {
            return Ok((first, confirmed));
        }
        let later = second.confirmed().await?;
        if later.canceled || revision(&confirmed) == revision(&later) {
            return Ok((first, confirmed));
        }
        if pairs == PAIRS {
            return Ok((second, later));
        }
        pairs += 1;
    }
}

fn revision(answer: &WatchResponse) -> Option<i64> {
    answer.header.as_ref().map(|header| header.revision)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::api::Header;

    /// What the server answers to one watch.
    #[derive(Clone, Copy)]
    enum Answer {
        Revision(i64),
        Denied,
        /// It never comes.
        Nothing,
    }
    use Answer::{Denied, Nothing, Revision};

    struct Scripted {
        number: usize,
        answer: Answer,
    }

    impl Requested for Scripted {
        async fn confirmed(&mut self) -> Result<WatchResponse> {
            let (revision, canceled) = match self.answer {
                Revision(revision) => (revision, false),
                Denied => (1, true),
                Nothing => std::future::pending().await,
            };
            let header = Some(Header { revision, ..Header::default() });
            Ok(WatchResponse { header, canceled, created: true, ..WatchResponse::default() })
        }
    }

    /// Which watch is kept, and how many were opened.
    async fn kept(script: &[Answer]) -> (usize, usize) {
        let opened = Cell::new(0);
        let open = || {
            let number = opened.replace(opened.get() + 1);
            Ok(Scripted { number, answer: script[number] })
        };
        let kept = open_in_time(open);
        let (watch, confirmed) = tokio::time::timeout(std::time::Duration::from_secs(10), kept).await.unwrap().unwrap();
        if let Revision(expected) = script[watch.number] {
            assert_eq!(revision(&confirmed), Some(expected), "the confirmation of another watch");
        }
        (watch.number, opened.get())
    }

    #[tokio::test]
    async fn a_watch_is_kept_if_the_one_right_after_it_has_its_revision() {
        assert_eq!(kept(&[Revision(5), Revision(5)]).await, (0, 2));
        // The second of a pair does not vouch for the first of the next one: a round trip is between them.
        assert_eq!(kept(&[Revision(5), Revision(6), Revision(6), Revision(6)]).await, (2, 4));
        let busy: Vec<_> = (5..=10).map(Revision).collect();
        assert_eq!(kept(&[&busy[..4], &[Revision(9), Revision(9)]].concat()).await, (4, 6));
        assert_eq!(kept(&busy).await, (5, 6), "it gives up with the last one");
    }

    #[tokio::test]
    async fn a_watch_that_is_denied_is_answered_at_once() {
        assert_eq!(kept(&[Denied, Nothing]).await, (0, 2));
        assert_eq!(kept(&[Revision(5), Denied]).await, (0, 2));
        assert_eq!(kept(&[Revision(5), Revision(6), Denied, Nothing]).await, (2, 4));
    }
}
