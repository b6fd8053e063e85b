//! The moment at which belief ended.

use std::time::Duration;

use oarlock_core::Held;
use oarlock_core::clock::Moment;

use crate::context::now;

/// Waits for the end of belief and returns its moment. Blocks its thread.
///
/// A thread that the machine delays sees the end late. So the announced end counts, unless belief was seen after it.
#[must_use]
pub fn end_of_belief(held: &Held) -> Moment {
    let mut believed_at = Moment::ZERO;
    loop {
        let before = now();
        if !held.is_held() {
            return now().min(believed_at.max(held.ends_at()));
        }
        believed_at = before;
        std::thread::sleep(Duration::from_micros(200));
    }
}
