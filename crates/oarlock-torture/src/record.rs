//! The history of a run as a file: JSON lines, a header first.
//!
//! Line 1 is the [`Header`], which says the version of the format; each other line is an [`Event`]. All times are
//! nanoseconds since the start of the run, on the boot-time clock that the processes of a machine share. The last line
//! is [`What::Done`], so that a file that was cut off is noticed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, BufRead, Read, Write};

use oarlock_core::text::quoted;
use serde::{Deserialize, Serialize};

/// The version of the format that this build writes and reads.
pub const VERSION: u32 = 1;

/// The lock that is tried unless another library is.
pub const OARLOCK: &str = "oarlock";

/// No line is longer.
const MAX_LINE: u64 = 64 * 1024;

/// No run makes more claims, so that its history can be read.
pub const MOST_CLAIMS: u64 = 2_000_000;

/// A claim has no more events, on average: asked, granted, two of each counter at most, its renewals, its end.
pub const EVENTS_OF_A_CLAIM: usize = 10;

/// No history has more events.
const MAX_EVENTS: usize = MOST_CLAIMS as usize * EVENTS_OF_A_CLAIM;

/// No history is larger.
const MAX_BYTES: u64 = 8 << 30;

/// No worker has a larger number, so that a hostile file cannot ask for more than it contains.
const MAX_WORKER: u32 = 1 << 20;

/// What was run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// The version of the format.
    pub oarlock_torture: u32,
    /// The run: part of the names of its locks.
    pub run: String,
    /// The seed of the schedule of faults.
    pub seed: u64,
    /// The store, without its password.
    pub url: String,
    /// The lock that is tried: `oarlock`, or the program of another library.
    pub lock: String,
    /// The other build of Oarlock that every second worker was, as its `--version` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub also: Option<String>,
    /// Every second worker was the program of another library, and the others were Oarlock.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beside: bool,
    /// What the store promises about its data, in the words of `docs/guarantees.md`.
    pub consistency: String,
    /// How it notices a dead holder, in the same words.
    pub liveness: String,
    /// The quality of its fences, in the same words.
    pub fencing: String,
    /// The lease that was asked for.
    pub ttl_ms: u64,
    /// How long the run should take.
    pub duration_ms: u64,
    /// How many processes contend at a time.
    pub workers: u32,
    /// How often all of them together ask for a lock, in a second, at most.
    pub rate: u32,
    /// When it began: milliseconds since 1970.
    pub started_ms: u64,
    /// A waiter must be granted the lock of a killed holder within this time, if nothing else is broken.
    pub takeover_ms: u64,
    /// The locks.
    pub locks: Vec<LockSpec>,
    /// The faults that the run is to inject, each at least once.
    pub faults: Vec<FaultKind>,
    /// The user restarts or fails over servers by hand meanwhile.
    pub by_hand: bool,
    /// The user's command makes servers lose what they had synced.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub loses_data: bool,
    /// What the run cannot try on this store, and why.
    pub untried: Vec<String>,
}

impl Header {
    /// Whether workers take locks of Oarlock: all of them, or every second one.
    #[must_use]
    pub fn has_oarlock(&self) -> bool {
        self.lock == OARLOCK || self.beside
    }

    /// Whether Oarlock has fences, and a library beside it has none that the counters could compare.
    pub(crate) fn has_fences_beside(&self) -> bool {
        self.beside && self.fencing != "none"
    }

    /// Whether the workers of a slot take the locks of another library.
    #[must_use]
    pub fn is_library(&self, slot: u32) -> bool {
        self.lock != OARLOCK && (!self.beside || slot % 2 == 1)
    }
}

/// The workers that take the locks of another library.
pub(crate) struct Libraries {
    /// It has all workers.
    all: bool,
    workers: BTreeSet<u32>,
}

impl Libraries {
    pub(crate) fn contains(&self, w: u32) -> bool {
        self.all || self.workers.contains(&w)
    }

    /// Those whose fences say nothing, by the numbers that the checker has for them.
    pub(crate) fn owners(&self) -> BTreeSet<u64> {
        self.workers.iter().copied().map(u64::from).collect()
    }
}

/// One lock of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockSpec {
    /// Its name in the history; in the store the name of the run stands before it.
    pub name: String,
    /// Its kind.
    pub kind: LockKind,
}

/// The kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockKind {
    /// One holder, who changes the counters.
    Mutex,
    /// Readers, or one writer.
    ReadWrite,
    /// So many permits.
    Semaphore(u32),
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FaultKind {
    /// A holder is stopped for longer than its lease, with a write in flight.
    Pause,
    /// A holder is killed.
    Kill,
    /// A waiter is killed.
    KillWaiter,
    /// A worker tells the driver the same thing twice.
    Repeat,
    /// A caller gives up its call.
    Cancel,
    /// Nothing passes between a worker and a server.
    Cut,
    /// No request of a worker arrives.
    CutRequests,
    /// No reply to a worker arrives.
    CutReplies,
    /// One reply is lost.
    LostReply,
    /// Everything is late.
    Delay,
    /// Connections are reset, and new ones refused.
    Refuse,
    /// Open connections fall silent, new ones pass.
    Strand,
    /// The connections of all workers are reset at once.
    Reconnect,
    /// The user's own command.
    Command,
}

impl FaultKind {
    /// Every kind.
    pub const ALL: [Self; 14] = [
        Self::Pause,
        Self::Kill,
        Self::KillWaiter,
        Self::Repeat,
        Self::Cancel,
        Self::Cut,
        Self::CutRequests,
        Self::CutReplies,
        Self::LostReply,
        Self::Delay,
        Self::Refuse,
        Self::Strand,
        Self::Reconnect,
        Self::Command,
    ];

    /// Those that happen to processes and calls: on every store.
    pub const OF_PROCESSES: [Self; 5] = [Self::Pause, Self::Kill, Self::KillWaiter, Self::Repeat, Self::Cancel];

    /// Those that happen between a worker and a server.
    pub const OF_NETWORKS: [Self; 8] = [
        Self::Cut,
        Self::CutRequests,
        Self::CutReplies,
        Self::LostReply,
        Self::Delay,
        Self::Refuse,
        Self::Strand,
        Self::Reconnect,
    ];

    /// Whether it may reset connections, when it begins or when it ends.
    #[must_use]
    pub const fn resets(self) -> bool {
        matches!(
            self,
            Self::Cut | Self::CutRequests | Self::CutReplies | Self::LostReply | Self::Refuse | Self::Reconnect
        )
    }

    /// Its name, as `--faults` takes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Kill => "kill",
            Self::KillWaiter => "kill-waiter",
            Self::Repeat => "repeat",
            Self::Cancel => "cancel",
            Self::Cut => "cut",
            Self::CutRequests => "cut-requests",
            Self::CutReplies => "cut-replies",
            Self::LostReply => "lost-reply",
            Self::Delay => "delay",
            Self::Refuse => "refuse",
            Self::Strand => "strand",
            Self::Reconnect => "reconnect",
            Self::Command => "command",
        }
    }

    /// In a few words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Pause => "holder stopped (SIGSTOP)",
            Self::Kill => "holder killed",
            Self::KillWaiter => "waiter killed",
            Self::Repeat => "request sent twice",
            Self::Cancel => "call cancelled",
            Self::Cut => "cut off both ways",
            Self::CutRequests => "requests cut off",
            Self::CutReplies => "replies cut off",
            Self::LostReply => "reply lost",
            Self::Delay => "delay",
            Self::Refuse => "connections refused",
            Self::Strand => "open connections silent",
            Self::Reconnect => "all connections reset",
            Self::Command => "fault command",
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When: nanoseconds since the start.
    pub at: u64,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// What happened. `w` is a worker, `op` one of its acquisitions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ev", rename_all = "snake_case")]
#[allow(missing_docs, reason = "each field is named in the words of the page about histories")]
pub enum What {
    /// A phase began: `calm`, `scenes`, `storm`, `drain`, `leaks`.
    Phase { name: String },
    /// A worker process was started, as the next one in a slot.
    Started { w: u32, slot: u32 },
    /// A worker asked for a lock: `units` of it, or alone.
    Asked { w: u32, op: u64, lock: String, units: Option<u32> },
    /// It got the lock, and may believe so until `until`.
    Granted { w: u32, op: u64, fence: u64, until: u64 },
    /// Its belief was prolonged.
    Until { w: u32, op: u64, until: u64 },
    /// It did not get the lock.
    GaveUp { w: u32, op: u64, why: String },
    /// It read the counters; the fenced one answers no smaller fence than it has seen.
    Read { w: u32, op: u64, lock: String, fence: u64, fenced: Option<u64>, plain: u64 },
    /// It wrote the counters: what it had read, and one.
    Wrote { w: u32, op: u64, lock: String, fence: u64, fenced: Option<u64>, plain: u64, accepted: bool },
    /// Its belief ended: released, or lost. `told` is when the holder heard of the loss. Another library is known to have
    /// believed until the time of this event, and may have believed until `perhaps`.
    Ended {
        w: u32,
        op: u64,
        lost: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        told: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        perhaps: Option<u64>,
    },
    /// It told the driver the same thing twice.
    Repeated { w: u32, verb: String },
    /// It died; what it believed died with it.
    Died { w: u32, why: String },
    /// A fault began, of one worker and one server, or of all.
    Fault { id: u64, kind: FaultKind, w: Option<u32>, host: Option<String> },
    /// A fault ended. `effect` is how much it did: replies lost, or the exit code of a command. `reset`: with its end,
    /// just after this moment, all connections that it concerned were reset.
    FaultEnded {
        id: u64,
        effect: Option<i64>,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        reset: bool,
    },
    /// After all faults, a worker got every lock once more, or `failed`.
    Drained { w: u32, failed: Option<String> },
    /// What the store still shows of a lock after the run; `None` if it cannot be asked.
    Left { lock: String, holders: Option<u64>, waiters: Option<u64> },
    /// How many bytes went to a server through the proxies.
    Carried { host: String, bytes: u64 },
    /// A line of a worker could not be read.
    Garbled { w: u32 },
    /// The end of the run.
    Done,
}

impl What {
    /// The worker that it is about.
    #[must_use]
    pub const fn worker(&self) -> Option<u32> {
        match self {
            Self::Started { w, .. }
            | Self::Asked { w, .. }
            | Self::Granted { w, .. }
            | Self::Until { w, .. }
            | Self::GaveUp { w, .. }
            | Self::Read { w, .. }
            | Self::Wrote { w, .. }
            | Self::Ended { w, .. }
            | Self::Repeated { w, .. }
            | Self::Died { w, .. }
            | Self::Garbled { w }
            | Self::Drained { w, .. } => Some(*w),
            Self::Fault { w, .. } => *w,
            _ => None,
        }
    }
}

/// A whole history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What was run.
    pub header: Header,
    /// What happened, in order of time.
    pub events: Vec<Event>,
}

/// Why a file is not a history.
#[derive(Debug)]
#[non_exhaustive]
pub struct Unreadable {
    /// The line, from 1 on; 0 for the whole file.
    pub line: usize,
    /// What is wrong with it.
    pub why: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, why } = self;
        if *line == 0 { write!(f, "this is not a whole history: {why}") } else { write!(f, "line {line}: {why}") }
    }
}

impl std::error::Error for Unreadable {}

impl Record {
    /// Reads a history.
    ///
    /// # Errors
    /// [`Unreadable`] if it is of another version, was cut off, is out of bounds, or is no history.
    pub fn read(from: impl BufRead) -> Result<Self, Unreadable> {
        let mut lines = Lines { from: from.take(MAX_BYTES), number: 0 };
        let Some(first) = lines.next_line()? else {
            return Err(Unreadable { line: 0, why: "it is empty".to_owned() });
        };
        let header = header(&first)?;
        let mut events: Vec<Event> = Vec::new();
        while let Some(line) = lines.next_line()? {
            let number = lines.number;
            let wrong = |why: String| Unreadable { line: number, why };
            if events.last().is_some_and(|last| last.what == What::Done) {
                return Err(wrong("something follows the end of the run".to_owned()));
            }
            if events.len() >= MAX_EVENTS {
                return Err(wrong(format!("more than {MAX_EVENTS} events")));
            }
            let event: Event = serde_json::from_slice(&line).map_err(|error| wrong(error.to_string()))?;
            if event.what.worker().is_some_and(|worker| worker > MAX_WORKER) {
                return Err(wrong("no run has so many workers".to_owned()));
            }
            events.push(event);
        }
        if events.last().is_none_or(|last| last.what != What::Done) {
            let why = "its end is missing: the run was stopped, or the file was cut off".to_owned();
            return Err(Unreadable { line: 0, why });
        }
        // Reports of a worker that was stopped come late. The end stays the last one, whatever a file says of its time.
        events.sort_by_key(|event| (event.what == What::Done, event.at));
        Ok(Self { header, events })
    }

    /// Writes it.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write(&self, mut to: impl Write) -> io::Result<()> {
        line(&mut to, &self.header)?;
        self.events.iter().try_for_each(|event| line(&mut to, event))
    }

    /// The workers that took the locks of another library.
    pub(crate) fn libraries(&self) -> Libraries {
        let workers = self.events.iter().filter_map(|event| match event.what {
            What::Started { w, slot } if self.header.is_library(slot) => Some(w),
            _ => None,
        });
        Libraries { all: !self.header.has_oarlock(), workers: workers.collect() }
    }

    /// The kind of each lock.
    #[must_use]
    pub fn kinds(&self) -> BTreeMap<&str, LockKind> {
        self.header.locks.iter().map(|lock| (lock.name.as_str(), lock.kind)).collect()
    }
}

fn header(text: &[u8]) -> Result<Header, Unreadable> {
    #[derive(Deserialize)]
    struct Versioned {
        oarlock_torture: u32,
    }
    let wrong = |why: String| Unreadable { line: 1, why };
    let versioned: Versioned = serde_json::from_slice(text)
        .map_err(|error| wrong(format!("this is not the first line of a history of oarlock torture: {error}")))?;
    let version = versioned.oarlock_torture;
    if version != VERSION {
        return Err(wrong(format!("the history has version {version} of the format, and this build reads {VERSION}")));
    }
    let header: Header = serde_json::from_slice(text).map_err(|error| wrong(error.to_string()))?;
    if header.locks.is_empty() || header.locks.len() > 1000 {
        return Err(wrong(format!("{} locks", header.locks.len())));
    }
    Ok(header)
}

struct Lines<R> {
    from: R,
    number: usize,
}

impl<R: BufRead> Lines<R> {
    fn next_line(&mut self) -> Result<Option<Vec<u8>>, Unreadable> {
        let mut line = Vec::new();
        self.number += 1;
        let wrong = |why: String| Unreadable { line: self.number, why };
        let read = self.from.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
        let count = read.map_err(|error| wrong(error.to_string()))?;
        if count == 0 {
            return Ok(None);
        }
        if line.pop() != Some(b'\n') {
            let why = if count as u64 == MAX_LINE { "the line is too long" } else { "the line was cut off" };
            return Err(wrong(why.to_owned()));
        }
        Ok(Some(line))
    }
}

/// Writes one line of a history.
///
/// # Errors
/// Those of `to`.
pub fn line(mut to: impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    to.write_all(&text)
}

/// A lock as messages name it.
pub(crate) fn named(lock: &str) -> String {
    quoted(lock)
}

#[cfg(test)]
mod tests;
