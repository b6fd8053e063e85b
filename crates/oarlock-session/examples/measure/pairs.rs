//! Locks without contention, beside others who do the same job, in turns in one run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use oarlock_core::Locks;
use oarlock_core::floor::Floor;

const ROUNDS: usize = 20;
const TURN: Duration = Duration::from_millis(250);

/// Who takes and gives back.
#[derive(Clone)]
pub(crate) enum Who {
    Oarlock(Locks),
    Other(Arc<dyn Floor>),
}

impl Who {
    fn what(&self) -> &'static str {
        match self {
            Self::Oarlock(_) => "oarlock",
            Self::Other(floor) => floor.what(),
        }
    }

    async fn pair(&self, name: &Arc<str>) -> Result<()> {
        match self {
            Self::Oarlock(client) => drop(client.mutex(&**name).lock().await?.release().await?),
            Self::Other(floor) => floor.clone().pair(name.clone()).await?,
        }
        Ok(())
    }
}

/// So many tasks, each with a name of its own. The ratios are to the first of `all`.
pub(crate) async fn measure(tasks: usize, all: &[Who]) -> Result<()> {
    let mut spans = vec![Vec::new(); all.len()];
    // The first round is there to warm up.
    for round in 0..=ROUNDS {
        for (who, spans) in all.iter().zip(&mut spans) {
            let turn = turn(tasks, who).await?;
            spans.extend(turn.into_iter().filter(|_| round > 0));
        }
    }
    let mut first = None;
    for (who, spans) in all.iter().zip(&mut spans) {
        spans.sort_unstable();
        let (middle, late) = (spans[spans.len() / 2], spans[spans.len() * 99 / 100]);
        let rate = spans.len() as f64 / (TURN * ROUNDS as u32).as_secs_f64();
        let (span, count) = *first.get_or_insert((middle, rate));
        let (slower, share) = (middle.as_secs_f64() / span.as_secs_f64(), rate / count);
        println!("{tasks:5}  {rate:7.0}  {share:5.2}  {middle:9.0?}  {slower:5.2}  {late:9.0?}  {}", who.what());
    }
    Ok(())
}

async fn turn(tasks: usize, who: &Who) -> Result<Vec<Duration>> {
    let until = Instant::now() + TURN;
    let crew = (0..tasks).map(|task| {
        let (who, name) = (who.clone(), Arc::<str>::from(format!("pair {task}")));
        tokio::spawn(async move {
            let mut spans = Vec::new();
            loop {
                let start = Instant::now();
                if start >= until {
                    return anyhow::Ok(spans);
                }
                who.pair(&name).await?;
                spans.push(start.elapsed());
            }
        })
    });
    let mut spans = Vec::new();
    for task in crew.collect::<Vec<_>>() {
        spans.extend(task.await??);
    }
    Ok(spans)
}
