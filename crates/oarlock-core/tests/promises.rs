//! What the engine promises over a store that answers late, answers what is no longer true, or does not answer.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

#[path = "promises/belief.rs"]
mod belief;
#[path = "promises/bounds.rs"]
mod bounds;
#[path = "promises/breaks.rs"]
mod breaks;
#[path = "promises/choices.rs"]
mod choices;
#[path = "promises/ends.rs"]
mod ends;
#[path = "promises/fall_back.rs"]
mod fall_back;
#[path = "promises/observers.rs"]
mod observers;
#[path = "promises/renewals.rs"]
mod renewals;
#[path = "promises/sessions.rs"]
mod sessions;
#[path = "promises/spy.rs"]
mod spy;
