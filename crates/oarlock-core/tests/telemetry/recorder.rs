//! A recorder that keeps every value.

#![allow(dead_code, reason = "each program uses a part of it")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};

/// The values of each series, by `name{label="value",…}`.
#[derive(Clone, Default)]
pub(crate) struct Recorded(Arc<Mutex<BTreeMap<String, Vec<f64>>>>);

/// One series.
struct Series(Recorded, String);

impl Recorded {
    /// The values of a series, in order.
    pub(crate) fn values(&self, series: &str) -> Vec<f64> {
        self.0.lock().unwrap().get(series).cloned().unwrap_or_default()
    }

    /// The sum of a series: the value of a counter or a gauge.
    pub(crate) fn sum(&self, series: &str) -> f64 {
        self.values(series).iter().sum()
    }

    /// The names of all series.
    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().keys().cloned().collect()
    }

    /// Waits until a series has a value.
    pub(crate) fn wait_for(&self, series: &str) {
        let began = Instant::now();
        while self.values(series).is_empty() {
            assert!(began.elapsed() < Duration::from_secs(30), "no {series} in {:?}", self.all());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn series(&self, key: &Key) -> Arc<Series> {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={:?}", label.key(), label.value())).collect();
        Arc::new(Series(self.clone(), format!("{}{{{}}}", key.name(), labels.join(","))))
    }
}

impl Series {
    fn add(&self, value: f64) {
        self.0.0.lock().unwrap().entry(self.1.clone()).or_default().push(value);
    }
}

impl CounterFn for Series {
    fn increment(&self, value: u64) {
        self.add(f64::from(u32::try_from(value).unwrap()));
    }

    fn absolute(&self, _: u64) {
        unreachable!("no counter is set");
    }
}

impl GaugeFn for Series {
    fn increment(&self, value: f64) {
        self.add(value);
    }

    fn decrement(&self, value: f64) {
        self.add(-value);
    }

    fn set(&self, _: f64) {
        unreachable!("no gauge is set");
    }
}

impl HistogramFn for Series {
    fn record(&self, value: f64) {
        self.add(value);
    }
}

impl Recorder for Recorded {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.series(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.series(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.series(key))
    }
}
