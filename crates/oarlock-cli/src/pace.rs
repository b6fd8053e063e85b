//! How often a store is listed: a view must not keep a server busy.

use std::time::{Duration, Instant};

/// A store is asked for at most a quarter of the time: after each poll it rests for this many times as long.
const REST: u32 = 3;

/// When to poll again, after a poll that took from `begun` to `ended`: every so often, and not before the store has
/// rested.
pub(crate) fn next_poll(begun: Instant, ended: Instant, every: Duration) -> Instant {
    (begun + every).max(ended + ended.saturating_duration_since(begun) * REST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_store_is_left_alone_for_three_quarters_of_the_time() {
        let (begun, second) = (Instant::now(), Duration::from_secs(1));
        let after = |took: Duration, every| next_poll(begun, begun + took, every) - begun;
        assert_eq!(after(second / 100, second), second, "a quick one is asked when it was asked for");
        assert_eq!(after(second * 2, second), second * 8);
        assert_eq!(after(second * 2, Duration::ZERO), second * 8, "also where the store says that something changed");
    }
}
