//! Clocks that drift and jump.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use oarlock_core::clock::{Clock, Moment, TokioClock};

/// The clocks of the store: one for leases, which may jump ahead, and one for fences, which may jump both ways.
#[derive(Debug)]
pub(super) struct StoreClock {
    inner: TokioClock,
    ahead_nanos: AtomicU64,
    wall_micros: AtomicI64,
}

impl StoreClock {
    pub(super) fn new(inner: TokioClock) -> Self {
        Self { inner, ahead_nanos: AtomicU64::new(0), wall_micros: AtomicI64::new(0) }
    }

    /// The leases of the store are this much older.
    pub(super) fn jump(&self, span: Duration) {
        self.ahead_nanos.fetch_add(u64::try_from(span.as_nanos()).unwrap_or(0), Ordering::Relaxed);
    }

    /// The wall clock of the store is set.
    pub(super) fn set_wall(&self, micros: i64) {
        self.wall_micros.fetch_add(micros, Ordering::Relaxed);
    }
}

impl Clock for StoreClock {
    fn now(&self) -> Moment {
        self.inner.now() + Duration::from_nanos(self.ahead_nanos.load(Ordering::Relaxed))
    }

    fn wall_micros(&self) -> u64 {
        self.inner.wall_micros().saturating_add_signed(self.wall_micros.load(Ordering::Relaxed))
    }
}

/// The clock of a client, which does not run at quite the rate of the store's and may jump ahead.
#[derive(Debug)]
pub(super) struct ClientClock {
    inner: TokioClock,
    origin: Moment,
    rate: f64,
    ahead_nanos: AtomicU64,
}

impl ClientClock {
    pub(super) fn new(inner: TokioClock, rate: f64) -> Self {
        Self { inner, origin: inner.now(), rate, ahead_nanos: AtomicU64::new(0) }
    }

    pub(super) fn jump(&self, span: Duration) {
        self.ahead_nanos.fetch_add(u64::try_from(span.as_nanos()).unwrap_or(0), Ordering::Relaxed);
    }
}

impl Clock for ClientClock {
    fn now(&self) -> Moment {
        let ahead = Duration::from_nanos(self.ahead_nanos.load(Ordering::Relaxed));
        self.origin + self.inner.now().since(self.origin).mul_f64(self.rate) + ahead
    }

    fn wall_micros(&self) -> u64 {
        self.inner.wall_micros()
    }
}
