//! What the spans of a client say. A program of its own: `tracing` remembers for the whole process that an event is not
//! wanted, if the first thread that reaches it has no subscriber.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

#[path = "telemetry/client.rs"]
mod client;
#[path = "telemetry/spans.rs"]
mod spans_of_locks;
#[path = "telemetry/tracer.rs"]
mod tracer;
