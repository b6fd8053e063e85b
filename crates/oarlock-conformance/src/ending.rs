//! When belief ended.

use std::time::Duration;

use oarlock_core::Held;
use oarlock_core::clock::Moment;

use crate::bench::now;

/// Watches belief to its end, and says when that was: never before it, and no later than a busy machine forces upon whoever
/// watches. Blocks its thread.
///
/// A watcher that was kept from its processor sees the end late. So the end counts as announced, unless belief was seen
/// to last longer than that.
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
