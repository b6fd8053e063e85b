//! The names of what can go wrong, in plain sentences.

use std::fmt;
use std::time::Duration;

use oarlock_core::clock::Moment;
use oarlock_core::text::quoted;

use super::Hold;

/// One broken rule, with the two holds that show it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// Two holds that exclude each other were believed at once.
    Overlap {
        /// Held already.
        first: Hold,
        /// Granted too early.
        second: Hold,
    },
    /// Together they were heavier than the resource bears.
    CapacityExceeded {
        /// One that held already.
        first: Hold,
        /// The one that was too much.
        second: Hold,
        /// What they weighed together with all others.
        load: u64,
        /// What the resource bears.
        limit: u64,
    },
    /// Two grants had the same fence.
    FenceRepeated {
        /// The one.
        first: Hold,
        /// The other.
        second: Hold,
    },
    /// A later grant had a smaller fence.
    FenceOrder {
        /// Granted first.
        earlier: Hold,
        /// Granted after it, with a smaller fence.
        later: Hold,
    },
    /// A claim that came later was granted first.
    Overtaken {
        /// Came first.
        waited: Hold,
        /// Was served first.
        overtook: Hold,
    },
    /// The resource was free and a claim waited, but none was granted in time.
    Starved {
        /// What they waited for.
        resource: String,
        /// When the holder died, or from when on the resource was free while a claim waited.
        since: Moment,
        /// The next hold, if there was one.
        next: Option<Hold>,
        /// How long it should have taken.
        bound: Duration,
    },
    /// The run did not exercise what it should prove.
    Vacuous {
        /// What there was too little of.
        what: &'static str,
        /// How much there was.
        seen: usize,
        /// How much there should have been.
        least: usize,
    },
}

impl Violation {
    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Overlap { .. } => "Overlap",
            Self::CapacityExceeded { .. } => "CapacityExceeded",
            Self::FenceRepeated { .. } => "FenceRepeated",
            Self::FenceOrder { .. } => "FenceOrder",
            Self::Overtaken { .. } => "Overtaken",
            Self::Starved { .. } => "Starved",
            Self::Vacuous { .. } => "Vacuous",
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overlap { first, second } => {
                let both = first.ended.min(second.ended).since(second.granted);
                let (at, what) = (At(second.granted), quoted(&second.resource));
                let (first, second) = (Who(first), Who(second));
                write!(f, "at {at} {second} got {what} while {first} still believed in it, for {}", Ms(both))
            }
            Self::CapacityExceeded { first, second, load, limit } => {
                let (at, what) = (At(second.granted), quoted(&second.resource));
                let (first, second) = (Who(first), Who(second));
                write!(f, "at {at} {second} made the load of {what} {load} of {limit}; {first} was there")
            }
            Self::FenceRepeated { first, second } => {
                let (what, fence) = (quoted(&first.resource), first.fence);
                let (first, second) = (first.owner, second.owner);
                write!(f, "contenders {first} and {second} both got fence {fence} of {what}")
            }
            Self::FenceOrder { earlier, later } => {
                let (at, what) = (At(later.granted), quoted(&later.resource));
                let (earlier, later) = (Who(earlier), Who(later));
                write!(f, "{later} got {what} at {at}, after {earlier}, and yet its fence is smaller")
            }
            Self::Overtaken { waited, overtook } => {
                let (at, what) = (At(overtook.granted), quoted(&overtook.resource));
                let (waited, overtook) = (Who(waited), Who(overtook));
                write!(f, "{overtook} got {what} at {at} before {waited}, who had queued for it first")
            }
            Self::Starved { resource, since, next, bound } => {
                let (at, what, bound) = (At(*since), quoted(resource), Ms(*bound));
                write!(f, "{what} was free from {at} on while a claim waited, and ")?;
                match next {
                    Some(next) => {
                        let took = Ms(next.granted.since(*since));
                        write!(f, "{} got it only after {took} instead of {bound}", Who(next))
                    }
                    None => write!(f, "no claim got it, not even after {bound}"),
                }
            }
            Self::Vacuous { what, seen, least } => {
                write!(f, "there were only {seen} {what}, and less than {least} prove nothing")
            }
        }
    }
}

struct Who<'a>(&'a Hold);

impl fmt::Display for Who<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "contender {} (fence {})", self.0.owner, self.0.fence)
    }
}

struct At(Moment);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        write!(f, "{}.{:06} s", nanos / 1_000_000_000, nanos % 1_000_000_000 / 1000)
    }
}

struct Ms(Duration);

impl fmt::Display for Ms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ms", self.0.as_secs_f64() * 1000.0)
    }
}
