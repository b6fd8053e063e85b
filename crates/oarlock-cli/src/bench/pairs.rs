//! Loads without contention: take and give back, again and again, each task on a name of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oarlock::Mutex;
use oarlock::floor::Floor;
use tokio::task::coop::consume_budget;

use crate::bench::figures::Spans;
use crate::bench::ground::{Ground, Stop};
use crate::exit::Failure;

/// Whose pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Oarlock,
    /// The driver's requests without the engine.
    Driver,
    Floor,
}

impl Who {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Oarlock => "oarlock",
            Self::Driver => "driver",
            Self::Floor => "floor",
        }
    }
}

/// What came of the turns of one of them.
#[derive(Clone, Debug)]
pub(crate) struct Pairs {
    pub(crate) spans: Spans,
    pub(crate) time: Duration,
}

impl Pairs {
    pub(crate) fn new() -> Result<Self, Failure> {
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

/// Everybody's turns, until each has had `turns` of this length; before them one that does not count.
pub(crate) async fn load(
    ground: &Ground,
    names: &[Arc<str>],
    turns: u32,
    length: Duration,
    mut turned: impl FnMut(),
) -> Result<Vec<(Who, Pairs)>, Failure> {
    let mut all = Vec::new();
    for (who, there) in
        [(Who::Oarlock, true), (Who::Driver, ground.bare.is_some()), (Who::Floor, ground.floor.is_some())]
    {
        if there {
            all.push((who, Pairs::new()?));
        }
    }
    for round in 0..=turns {
        // Nobody is always the one that comes after somebody else.
        let first = round as usize % all.len();
        for at in 0..all.len() {
            let at = (first + at) % all.len();
            let Some((who, pairs)) = all.get_mut(at) else { continue };
            let done = turn(ground, *who, names, length).await?;
            if round > 0 {
                pairs.add(done);
            }
            turned();
        }
    }
    Ok(all)
}

async fn turn(ground: &Ground, who: Who, names: &[Arc<str>], length: Duration) -> Result<Turn, Failure> {
    let start = Instant::now();
    let until = start + length;
    let spans = match (who, &ground.bare, &ground.floor) {
        (Who::Driver, Some(floor), _) | (Who::Floor, _, Some(floor)) => {
            ground.all(names.iter().map(|name| raw(floor.clone(), name.clone(), until, ground.stop()))).await?
        }
        _ => {
            let locks = names.iter().map(|name| ground.lock(name)).collect::<Result<Vec<_>, _>>()?;
            ground.all(locks.into_iter().map(|lock| ours(lock, until, ground.stop()))).await?
        }
    };
    Ok(Turn { spans, time: start.elapsed() })
}

async fn ours(lock: Mutex, until: Instant, stop: Stop) -> oarlock::Result<Vec<u64>> {
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

async fn raw(floor: Arc<dyn Floor>, name: Arc<str>, until: Instant, stop: Stop) -> oarlock::Result<Vec<u64>> {
    let mut spans = Vec::new();
    loop {
        consume_budget().await;
        let start = Instant::now();
        if start >= until || stop.is_set() {
            return Ok(spans);
        }
        floor.clone().pair(name.clone()).await?;
        spans.push(nanos(start.elapsed()));
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
