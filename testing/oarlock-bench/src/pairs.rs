//! Loads without contention: take and give back, again and again, each task on a name of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oarlock::{Mutex, Result};
use tokio::task::coop::consume_budget;

use crate::baseline::Baseline;
use crate::figures::Spans;
use crate::targets::{Stop, Targets};

/// Whose pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Locks as a program uses them.
    Oarlock,
    /// The driver's requests without the engine.
    Driver,
    /// The fewest requests to the store.
    Baseline,
    /// Locks of a program that uses HTTP.
    Http,
}

impl Who {
    /// Its name in what is printed.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Oarlock => "oarlock",
            Self::Driver => "driver",
            Self::Baseline => "baseline",
            Self::Http => "http",
        }
    }
}

/// What came of the turns of one of them.
#[derive(Clone, Debug)]
pub struct Pairs {
    /// How long each pair took.
    pub spans: Spans,
    /// How long it was measured.
    pub time: Duration,
}

impl Pairs {
    fn new() -> Result<Self> {
        Ok(Self { spans: Spans::new()?, time: Duration::ZERO })
    }

    fn add(&mut self, turn: Turn) {
        turn.spans.into_iter().flatten().for_each(|nanos| self.spans.add(nanos));
        self.time += turn.time;
    }
}

struct Turn {
    spans: Vec<Vec<u64>>,
    time: Duration,
}

/// Runs all targets in turns, until each has had `turns` of this length; before them one that does not count.
///
/// # Errors
/// The first that a target returns.
pub async fn load(
    targets: &Targets,
    names: &[Arc<str>],
    turns: u32,
    length: Duration,
    mut turned: impl FnMut(),
) -> Result<Vec<(Who, Pairs)>> {
    let sides = [(Who::Oarlock, None)].into_iter().chain(targets.others().map(|(who, other)| (who, Some(other))));
    let sides: Vec<(Who, Option<&Arc<dyn Baseline>>)> = sides.collect();
    let mut all = Vec::new();
    for (who, _) in &sides {
        all.push((*who, Pairs::new()?));
    }
    for round in 0..=turns {
        // No target always comes after the same other one.
        let first = round as usize % all.len();
        for at in 0..all.len() {
            let at = (first + at) % all.len();
            let (Some((_, other)), Some((_, pairs))) = (sides.get(at), all.get_mut(at)) else { continue };
            let done = turn(targets, *other, names, length).await?;
            if round > 0 {
                pairs.add(done);
            }
            turned();
        }
    }
    Ok(all)
}

/// A turn of locks, or of what they are compared with.
async fn turn(
    targets: &Targets,
    other: Option<&Arc<dyn Baseline>>,
    names: &[Arc<str>],
    length: Duration,
) -> Result<Turn> {
    let start = Instant::now();
    let until = start + length;
    let spans = match other {
        Some(other) => {
            targets.all(names.iter().map(|name| raw(other.clone(), name.clone(), until, targets.stop()))).await?
        }
        None => targets.all(names.iter().map(|name| ours(targets.lock(name), until, targets.stop()))).await?,
    };
    Ok(Turn { spans, time: start.elapsed() })
}

async fn ours(lock: Mutex, until: Instant, stop: Stop) -> Result<Vec<u64>> {
    let mut spans = Vec::new();
    loop {
        // A store that answers without waiting must not keep the other tasks from running.
        consume_budget().await;
        let start = Instant::now();
        if start >= until || stop.is_set() {
            return Ok(spans);
        }
        lock.lock().await?.release().await?;
        spans.push(nanos(start.elapsed()));
    }
}

async fn raw(baseline: Arc<dyn Baseline>, name: Arc<str>, until: Instant, stop: Stop) -> Result<Vec<u64>> {
    let mut spans = Vec::new();
    loop {
        consume_budget().await;
        let start = Instant::now();
        if start >= until || stop.is_set() {
            return Ok(spans);
        }
        baseline.clone().pair(name.clone()).await?;
        spans.push(nanos(start.elapsed()));
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
