//! How many requests a client may send: a bucket for each, which refills with time.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// More clients than these share one bucket until some are quiet.
const MAX_BUCKETS: usize = 10_000;

/// Buckets of tokens, one for each key.
#[derive(Debug)]
pub(crate) struct Limiter {
    per_second: f64,
    burst: f64,
    buckets: Mutex<HashMap<String, Bucket>>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Limiter {
    pub(crate) fn new(per_second: u32, burst: u32) -> Self {
        Self { per_second: per_second.max(1).into(), burst: burst.max(1).into(), buckets: Mutex::default() }
    }

    /// Takes one; how long to wait if there is none.
    pub(crate) fn take(&self, key: &str, now: Instant) -> Result<(), Duration> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MAX_BUCKETS && !buckets.contains_key(key) {
            // A full bucket is the same as none.
            buckets.retain(|_, bucket| self.filled(*bucket, now) < self.burst);
        }
        let key = if buckets.len() >= MAX_BUCKETS && !buckets.contains_key(key) { "" } else { key };
        let bucket = buckets.get(key).copied().unwrap_or(Bucket { left: self.burst, at: now });
        let left = self.filled(bucket, now);
        if left < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - left) / self.per_second));
        }
        buckets.insert(key.to_owned(), Bucket { left: left - 1.0, at: now });
        Ok(())
    }

    fn filled(&self, bucket: Bucket, now: Instant) -> f64 {
        let since = now.saturating_duration_since(bucket.at).as_secs_f64();
        (bucket.left + since * self.per_second).min(self.burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_may_burst_and_then_waits_for_its_turn() {
        let (limiter, start) = (Limiter::new(10, 3), Instant::now());
        for _ in 0..3 {
            assert_eq!(limiter.take("a", start), Ok(()));
        }
        assert_eq!(limiter.take("a", start), Err(Duration::from_millis(100)));
        assert_eq!(limiter.take("b", start), Ok(()), "another client has a bucket of its own");
        assert_eq!(limiter.take("a", start + Duration::from_millis(100)), Ok(()));
        assert!(limiter.take("a", start + Duration::from_millis(100)).is_err());
    }

    #[test]
    fn many_clients_do_not_take_all_memory() {
        let (limiter, start) = (Limiter::new(1, 2), Instant::now());
        for client in 0..2 * MAX_BUCKETS {
            let _ = limiter.take(&client.to_string(), start);
        }
        assert!(limiter.buckets.lock().unwrap().len() <= MAX_BUCKETS + 1);
        assert!(limiter.take("one more", start).is_err(), "the rest share one");
        assert_eq!(limiter.take("one more", start + Duration::from_secs(9)), Ok(()));
    }
}
