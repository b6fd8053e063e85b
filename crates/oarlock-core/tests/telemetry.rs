//! What the metrics of a client say.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

#[path = "telemetry/client.rs"]
mod client;
#[path = "telemetry/exporter.rs"]
mod exporter;
#[path = "telemetry/metrics.rs"]
mod metrics_of_locks;
#[path = "telemetry/recorder.rs"]
mod recorder;
