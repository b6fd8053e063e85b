//! Clocks that count suspend.
//!
//! A lease runs out while a laptop sleeps or a virtual machine is paused, so belief must be counted on a clock that
//! keeps going then. `std::time::Instant` stops during suspend on Linux; [`BootClock`] does not.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A point in time on one clock: nanoseconds since an origin that only that clock knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment(u64);

impl Moment {
    /// The origin of the clock.
    pub const ZERO: Self = Self(0);
    /// Later than every other moment.
    pub const NEVER: Self = Self(u64::MAX);

    /// The moment `nanos` nanoseconds after the origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not after it.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    /// Saturates at [`Moment::NEVER`].
    fn add(self, span: Duration) -> Self {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;

    /// Saturates at [`Moment::ZERO`].
    fn sub(self, span: Duration) -> Self {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(nanos))
    }
}

/// The clock of the engine; tests inject their own.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// The present moment. Never goes back; counts suspend.
    fn now(&self) -> Moment;

    /// Microseconds since the Unix epoch: for fences and for people, never for leases.
    fn wall_micros(&self) -> u64;
}

/// The machine's boot-time clock (`CLOCK_BOOTTIME` on Linux, the monotonic clock elsewhere on Unix).
///
/// On macOS the monotonic clock of the system library already counts sleep.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Moment {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let id = rustix::time::ClockId::Boottime;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let id = rustix::time::ClockId::Monotonic;
        let time = rustix::time::clock_gettime(id);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
        Moment(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }

    fn wall_micros(&self) -> u64 {
        wall_micros()
    }
}

/// tokio's clock, for tests under paused time; the wall clock runs along with it from a fixed date.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    origin: tokio::time::Instant,
}

impl TokioClock {
    /// 2026-01-01, so that fences have realistic values.
    const EPOCH_MICROS: u64 = 1_767_225_600_000_000;

    /// A clock whose origin lies one hour back, so that subtracting from "now" stays meaningful.
    ///
    /// Must be called inside a tokio runtime with time enabled.
    #[must_use]
    pub fn new() -> Self {
        Self { origin: tokio::time::Instant::now() }
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Moment {
        Moment::ZERO + Duration::from_secs(3600) + self.origin.elapsed()
    }

    fn wall_micros(&self) -> u64 {
        let elapsed = u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX);
        Self::EPOCH_MICROS.saturating_add(elapsed)
    }
}

/// Microseconds since the Unix epoch by the machine's wall clock; zero before it.
#[must_use]
pub fn wall_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// tokio's timers stop during suspend, so a long sleep is taken in slices and the clock is read after each.
const SLICE: Duration = Duration::from_secs(1);

/// Sleeps until `clock` reads `until`; at most one second late after a suspend. For belief, which must end on time.
pub(crate) async fn sleep_until(clock: &dyn Clock, until: Moment) {
    loop {
        let left = until.since(clock.now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(SLICE)).await;
    }
}

/// Sleeps until `clock` reads `until`, without waking in between. For waiters: a suspend prolongs their wait, which
/// does no harm, while 10,000 waiters that wake every second would cost CPU.
pub(crate) async fn nap_until(clock: &dyn Clock, until: Moment) {
    loop {
        let left = until.since(clock.now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_saturate() {
        assert_eq!(Moment::NEVER + Duration::from_secs(1), Moment::NEVER);
        assert_eq!(Moment::ZERO - Duration::from_secs(1), Moment::ZERO);
        assert_eq!(Moment::ZERO.since(Moment::NEVER), Duration::ZERO);
    }

    #[test]
    fn the_boot_clock_runs_forward() {
        let before = BootClock.now();
        let after = BootClock.now();
        assert!(after >= before && before > Moment::ZERO);
    }
}
