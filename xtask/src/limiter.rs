//! How many test programs run at once.
//!
//! A test mostly waits: for a lease to end, for a server to come back. A few programs at a time leave the cores of a
//! small machine idle for half of the run, and many at a time let tests of timing fail for want of a core. So a few
//! always run, and more start while the machine has nothing to do.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// So many programs run at once on any machine.
const FEWEST: usize = 2;

/// Never more than this: each starts servers, which need memory.
const MOST: usize = 4;

/// How much of the processor time must be idle for one more program to start.
const IDLE: f64 = 0.5;

/// How long the load is observed before one more program starts. It also covers the start of the last one.
const OBSERVED: Duration = Duration::from_secs(4);

/// Decides when one more program may run.
#[derive(Default)]
pub(crate) struct Limiter {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    running: usize,
    /// The processor time when the last program started, or when the load was last observed.
    before: Option<(Instant, Ticks)>,
}

/// A program that runs. Dropping it lets the next one start.
pub(crate) struct Permit<'a>(&'a Limiter);

/// Processor time since the machine started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticks {
    all: u64,
    idle: u64,
}

impl Limiter {
    /// How many threads can have a permit at once.
    pub(crate) const MOST: usize = MOST;

    /// Sleeps until one more program may run.
    pub(crate) fn enter(&self) -> Permit<'_> {
        let mut state = self.state();
        while !state.admits(Instant::now(), Ticks::now) {
            let waited = self.changed.wait_timeout(state, OBSERVED / 4);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.running += 1;
        state.before = Ticks::now().map(|ticks| (Instant::now(), ticks));
        Permit(self)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.state().running -= 1;
        self.0.changed.notify_one();
    }
}

impl State {
    /// Whether one more program may run. Where the load cannot be read, the fewest run.
    fn admits(&mut self, now: Instant, ticks: impl Fn() -> Option<Ticks>) -> bool {
        if self.running < FEWEST || self.running >= MOST {
            return self.running < FEWEST;
        }
        let (Some((since, before)), Some(ticks)) = (self.before, ticks()) else { return false };
        if now.duration_since(since) < OBSERVED {
            return false;
        }
        self.before = Some((now, ticks));
        ticks.idle_since(before) > IDLE
    }
}

impl Ticks {
    /// As the kernel counts them, on Linux.
    fn now() -> Option<Self> {
        Self::read(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// From the first line of `/proc/stat`. Niced processes give way to the tests: their time counts as idle.
    fn read(stat: &str) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = line.split_whitespace().map_while(|number| number.parse().ok()).collect();
        let &[_user, nice, _system, idle, waiting, ..] = ticks.as_slice() else { return None };
        Some(Self { all: ticks.iter().take(8).sum(), idle: nice + idle + waiting })
    }

    /// The idle part of the time since `before`, from 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "a few seconds of ticks")]
    fn idle_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all);
        if all == 0 { 0.0 } else { self.idle.saturating_sub(before.idle) as f64 / all as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_is_read_as_the_kernel_writes_it() {
        let stat = "cpu  100 20 30 400 50 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(Ticks::read(stat), Some(Ticks { all: 621, idle: 470 }));
        assert_eq!(Ticks::read("intr 1 2 3"), None);
        assert_eq!(Ticks::read("cpu  1 2"), None);
    }

    #[test]
    fn more_programs_run_while_the_machine_is_idle_only() {
        let start = Instant::now();
        let at = |seconds: u64, idle: u64| {
            let (now, ticks) = (start + Duration::from_secs(seconds), Ticks { all: seconds * 200, idle });
            move |state: &mut State| state.admits(now, || Some(ticks))
        };
        let mut state = State { running: FEWEST - 1, before: Some((start, Ticks { all: 0, idle: 0 })) };
        assert!(at(0, 0)(&mut state), "the fewest run whatever the load is");
        state.running = FEWEST;
        assert!(!at(1, 200)(&mut state), "not observed for long enough");
        assert!(!at(5, 300)(&mut state), "three tenths idle");
        assert!(!at(6, 500)(&mut state), "observed anew");
        assert!(at(10, 900)(&mut state), "six tenths idle");
        state.running = MOST;
        assert!(!at(20, 3000)(&mut state));
        state.running = FEWEST;
        assert!(!state.admits(start + Duration::from_secs(60), || None), "the load is not known");
    }

    #[test]
    fn a_program_that_ends_lets_the_next_program_start() {
        let limiter = Limiter::default();
        let first: Vec<_> = (0..FEWEST).map(|_| limiter.enter()).collect();
        assert_eq!(limiter.state().running, FEWEST);
        drop(first);
        assert_eq!(limiter.state().running, 0);
    }
}
