//! A release that carries the next claim of this process: one request with two answers, for two callers.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use crate::driver::{Attempt, BoxFuture, Release};
use crate::error::Result;

type Answers = (Result<Release>, Result<Attempt>);

/// The request. Each of its two callers drives it, because the other may not be polled: it may be in a branch of a
/// `select!` that is not looked at.
struct Joint {
    state: Mutex<State>,
    wakers: Arc<Wakers>,
}

struct State {
    request: Option<BoxFuture<Answers>>,
    release: Option<Result<Release>>,
    attempt: Option<Result<Attempt>>,
}

/// Splits a request into the answer to the release and the answer to the attempt. `answered` is woken when the answer
/// is there, if the attempt has not been polled by then.
pub(crate) fn split(
    request: BoxFuture<Answers>,
    answered: Waker,
) -> (BoxFuture<Result<Release>>, BoxFuture<Result<Attempt>>) {
    let state = Mutex::new(State { request: Some(request), release: None, attempt: None });
    let callers = Callers { release: None, attempt: None, answered: Some(answered) };
    let joint = Arc::new(Joint { state, wakers: Arc::new(Wakers(Mutex::new(callers))) });
    let release =
        Half { joint: joint.clone(), take: |state| state.release.take(), waker: |wakers| &mut wakers.release };
    let attempt = Half { joint, take: |state| state.attempt.take(), waker: |wakers| &mut wakers.attempt };
    (Box::pin(release), Box::pin(attempt))
}

/// One of the two answers.
struct Half<T> {
    joint: Arc<Joint>,
    take: fn(&mut State) -> Option<T>,
    waker: fn(&mut Callers) -> &mut Option<Waker>,
}

impl<T> Future for Half<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        // Before the request is polled: an answer that comes to the other caller from now on wakes this one.
        self.joint.wakers.lock().polled(self.waker, cx.waker());
        let mut state = self.joint.lock();
        if let Some(request) = &mut state.request {
            let waker = Waker::from(self.joint.wakers.clone());
            let Poll::Ready((release, attempt)) = request.as_mut().poll(&mut Context::from_waker(&waker)) else {
                return Poll::Pending;
            };
            *state = State { request: None, release: Some(release), attempt: Some(attempt) };
            let mut callers = self.joint.wakers.lock();
            // Only the other caller needs to be woken.
            (self.waker)(&mut callers).take();
            let other = callers.release.take().or(callers.attempt.take()).or(callers.answered.take());
            drop(callers);
            if let Some(other) = other {
                other.wake();
            }
        }
        (self.take)(&mut state).map_or(Poll::Pending, Poll::Ready)
    }
}

impl Joint {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Wakers(Mutex<Callers>);

struct Callers {
    release: Option<Waker>,
    attempt: Option<Waker>,
    /// Until the attempt is polled.
    answered: Option<Waker>,
}

impl Callers {
    fn polled(&mut self, caller: fn(&mut Self) -> &mut Option<Waker>, waker: &Waker) {
        caller(self).replace(waker.clone());
        if self.attempt.is_some() {
            self.answered = None;
        }
    }
}

impl Wakers {
    fn lock(&self) -> MutexGuard<'_, Callers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        let mut callers = self.lock();
        let (release, attempt) = (callers.release.take(), callers.attempt.take());
        drop(callers);
        // The next holder last: the runtime runs the task first that was woken last.
        for waker in [release, attempt].into_iter().flatten() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::driver::{Pending, Released};

    fn request() -> (oneshot::Sender<()>, BoxFuture<Result<Release>>, BoxFuture<Result<Attempt>>) {
        let (answer, answered) = oneshot::channel();
        let request = Box::pin(async move {
            let _ = answered.await;
            (Ok(Release::new(Released::Released, None)), Ok(Attempt::Pending(Pending::default())))
        });
        let (release, attempt) = split(request, Waker::noop().clone());
        (answer, release, attempt)
    }

    #[tokio::test]
    async fn a_caller_that_has_not_polled_is_told_of_the_answer() {
        let told = Arc::new(Told::default());
        let answers = (Ok(Release::new(Released::Released, None)), Ok(Attempt::Pending(Pending::default())));
        let (release, attempt) = split(Box::pin(std::future::ready(answers)), Waker::from(told.clone()));
        assert!(release.await.is_ok() && told.0.load(std::sync::atomic::Ordering::Relaxed));
        assert!(attempt.await.is_ok());
    }

    #[derive(Default)]
    struct Told(std::sync::atomic::AtomicBool);

    impl Wake for Told {
        fn wake(self: Arc<Self>) {
            self.0.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn both_callers_are_answered() {
        let (answer, release, attempt) = request();
        let (release, attempt) = (tokio::spawn(release), tokio::spawn(attempt));
        tokio::task::yield_now().await;
        answer.send(()).unwrap();
        assert!(release.await.unwrap().is_ok() && attempt.await.unwrap().is_ok());
    }

    /// The future of a caller may be kept without being polled, or be dropped.
    #[tokio::test]
    async fn one_caller_does_not_need_the_other() {
        for first_polled in [false, true] {
            let (answer, mut release, attempt) = request();
            if first_polled {
                assert!(std::future::poll_fn(|cx| Poll::Ready(release.as_mut().poll(cx).is_pending())).await);
            }
            let attempt = tokio::spawn(attempt);
            tokio::task::yield_now().await;
            answer.send(()).unwrap();
            assert!(attempt.await.unwrap().is_ok());
            assert!(release.await.is_ok());
        }
        let (answer, release, attempt) = request();
        drop(attempt);
        answer.send(()).unwrap();
        assert!(release.await.is_ok());
    }
}
