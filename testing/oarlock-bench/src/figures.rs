//! Spans and rates.

use std::time::Duration;

use hdrhistogram::Histogram;
use oarlock::{Error, ErrorKind, Result};

/// No wait is longer here: the engine gives up before.
const LONGEST: u64 = 600 * 1_000_000_000;

/// Spans in nanoseconds, to three digits.
#[derive(Clone, Debug)]
pub struct Spans(Box<Histogram<u64>>);

impl Spans {
    /// None yet.
    ///
    /// # Errors
    /// Never, in practice: the bounds are constants.
    pub fn new() -> Result<Self> {
        let histogram = Histogram::new_with_bounds(1, LONGEST, 3);
        histogram
            .map(|histogram| Self(Box::new(histogram)))
            .map_err(|error| Error::new(ErrorKind::Internal, "no histogram").because(error))
    }

    /// Adds one.
    pub fn add(&mut self, nanos: u64) {
        self.0.saturating_record(nanos.max(1));
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The span that this part of them does not exceed; `None` if there are none.
    #[must_use]
    pub fn at(&self, part: f64) -> Option<Duration> {
        (!self.0.is_empty()).then(|| Duration::from_nanos(self.0.value_at_quantile(part)))
    }
}

/// How many a second.
#[must_use]
pub fn rate(count: u64, time: Duration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "figures are rounded anyway")]
    let count = count as f64;
    if time.is_zero() { 0.0 } else { count / time.as_secs_f64() }
}

/// Ours by theirs, where both are there.
#[must_use]
pub fn ratio(ours: Option<f64>, theirs: Option<f64>) -> Option<f64> {
    Some(ours? / theirs.filter(|theirs| *theirs > 0.0)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_what_was_added() {
        let mut spans = Spans::new().unwrap();
        assert_eq!(spans.at(0.5), None);
        (1..=1000).for_each(|micros| spans.add(micros * 1000));
        let micros = |part| spans.at(part).unwrap().as_nanos().div_ceil(1000);
        assert!((500..=501).contains(&micros(0.5)) && (990..=991).contains(&micros(0.99)), "{:?}", spans.at(0.5));
        assert!((1000..=1001).contains(&micros(1.0)));
        assert_eq!(spans.count(), 1000);
    }

    #[test]
    fn nothing_has_no_ratio() {
        assert_eq!(ratio(Some(1.0), None), None);
        assert_eq!(ratio(Some(1.0), Some(0.0)), None);
        assert_eq!(ratio(Some(3.0), Some(2.0)), Some(1.5));
        assert!(rate(1, Duration::ZERO).abs() < f64::EPSILON);
    }
}
