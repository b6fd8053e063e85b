//! A process that is stopped, for simulations in one thread: its work is not polled until it goes on.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Stops all work that goes through it, as `SIGSTOP` stops a process: timers and answers are noticed when it goes on.
#[derive(Clone, Debug, Default)]
pub struct StopSwitch(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    /// What would have run meanwhile, in its order.
    waiting: Vec<Waker>,
}

impl StopSwitch {
    /// Nothing is polled from now on.
    pub fn stop(&self) {
        self.state().stopped = true;
    }

    /// Everything goes on.
    pub fn go_on(&self) {
        let waiting = {
            let mut state = self.state();
            state.stopped = false;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Whether it is stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.state().stopped
    }

    /// `work`, which stops with this.
    pub fn around<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        Around { switch: self.clone(), work: Box::pin(work) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Around<F> {
    switch: StopSwitch,
    work: Pin<Box<F>>,
}

impl<F: Future> Future for Around<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        {
            let mut state = self.switch.state();
            if state.stopped {
                state.waiting.push(context.waker().clone());
                return Poll::Pending;
            }
        }
        self.work.as_mut().poll(context)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::memory::Memory;
    use crate::{Locks, Runtime};

    #[tokio::test(start_paused = true)]
    async fn what_is_stopped_does_nothing_until_it_goes_on() {
        let (switch, count) = (StopSwitch::default(), Arc::new(AtomicU64::new(0)));
        let counting = {
            let count = count.clone();
            async move {
                loop {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        tokio::spawn(switch.around(counting));
        tokio::time::sleep(Duration::from_millis(2500)).await;
        assert_eq!(count.load(Ordering::Relaxed), 2);
        switch.stop();
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(switch.is_stopped());
        assert_eq!(count.load(Ordering::Relaxed), 2);
        switch.go_on();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(count.load(Ordering::Relaxed), 3, "what was due happens once, and at once");
    }

    /// The watchdog is stopped with the rest of its client: the lock is lost, which the client knows when it is asked.
    #[tokio::test(start_paused = true)]
    async fn a_stopped_client_does_not_renew() {
        let (switch, store) = (StopSwitch::default(), Memory::new());
        let runtime = Runtime::here().unwrap().stoppable(switch.clone());
        let clock = Arc::new(crate::clock::TokioClock::new());
        let ttl = Duration::from_secs(3);
        let stopped =
            Locks::builder_over(Arc::new(store.connect())).clock(clock).ttl(ttl).runtime(runtime).build().unwrap();
        let guard = stopped.mutex("job").lock().await.unwrap();
        tokio::time::sleep(ttl * 4).await;
        assert!(guard.is_held(), "it renews");
        switch.stop();
        tokio::time::sleep(ttl * 2).await;
        assert!(!guard.is_held());
        switch.go_on();
        tokio::time::timeout(ttl, guard.lost()).await.expect("it is told");
    }
}
