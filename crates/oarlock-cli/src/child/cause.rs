//! Why a command is ended for its lock's sake: each cause has its own words, for people and in the report.

use std::fmt;
use std::time::Duration;

use oarlock::state::Ending;
use oarlock_core::text;
use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub(crate) enum Cause {
    /// Another process asked for the lock.
    Asked { by: String, why: String },
    /// The store does not confirm renewals.
    Unreachable { error: String },
    /// `--max-hold` is nearly over.
    MaxHold,
    /// The lease is nearly over, and is not to be renewed.
    NotRenewed,
    /// The lock is lost already.
    Lost { reason: String },
    /// The lease is nearly over, for a reason that is not known here.
    Ending,
}

impl From<&Ending> for Cause {
    fn from(ending: &Ending) -> Self {
        Self::Asked { by: ending.by.clone(), why: ending.why.clone() }
    }
}

impl Cause {
    /// The warning before the command is ended.
    pub(crate) fn warning(&self, name: &str, left: Duration) -> String {
        let (name, left) = (text::quoted(name), text::span(left));
        match self {
            Self::Asked { .. } | Self::MaxHold => format!("{name}: {self}"),
            Self::Unreachable { .. } | Self::NotRenewed => format!("{name} ends in {left}: {self}"),
            Self::Lost { reason } => format!("{name} is lost: {reason}"),
            Self::Ending => format!("{name} ends in {left}"),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked { by, why } => {
                write!(f, "{} asked for its end", text::plain(by))?;
                if why.is_empty() { Ok(()) } else { write!(f, ": {}", text::quoted(why)) }
            }
            Self::Unreachable { error } => write!(f, "the store did not confirm a renewal: {error}"),
            Self::MaxHold => f.write_str("it was held for as long as --max-hold allows"),
            Self::NotRenewed => f.write_str("its lease is over, and --no-renew was given"),
            Self::Lost { reason } => f.write_str(reason),
            Self::Ending => f.write_str("its lease was about to end"),
        }
    }
}
