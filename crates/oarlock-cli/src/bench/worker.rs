//! One process of a contended load: this program once more, with the same words after ours.
//!
//! It says `ready` when it is connected. An order is `oarlock START END NAME` or `floor START END NAME`, in nanoseconds
//! of the boot-time clock; the answer is a line for each grant, and `done`. It goes when its orders end, and is killed
//! with whoever started it.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::bench::contend::{Contender, contend};
use crate::bench::grants::{Grant, Window};
use crate::bench::ground::Ground;
use crate::bench::pairs::Who;
use crate::bench::plan::Plan;
use crate::child::shim::die_with;
use crate::exit::{Code, Exit, Failure};
use crate::signals::{FORWARDED, Signals};

/// The hidden subcommand.
pub(crate) const WORD: &str = "__bench";

pub(crate) const READY: &str = "ready";
pub(crate) const DONE: &str = "done";

/// The number of this process among those of the load, from the words after [`WORD`].
pub(crate) fn number(parent: Option<&OsString>, number: Option<&OsString>) -> Result<u32, Failure> {
    let alone = || Failure::usage(format!("{WORD} is not for people"));
    if !parent.is_some_and(die_with) {
        return Err(alone());
    }
    number.and_then(|number| number.to_str()?.parse().ok()).ok_or_else(alone)
}

pub(crate) async fn work(plan: &Plan, number: u32) -> Result<Exit, Failure> {
    // Whoever started us hears the signals of the terminal too, and ends our orders.
    let _unmoved = Signals::new(FORWARDED.iter().copied())?;
    let mut ground = Ground::ours(plan).await?;
    let worked = obey(plan, &mut ground, number).await;
    ground.close().await?;
    worked.map(|()| Code::Success.into())
}

async fn obey(plan: &Plan, ground: &mut Ground, number: u32) -> Result<(), Failure> {
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    let mut floor: Option<(Arc<str>, Vec<Contender>)> = None;
    let count = plan.per_process;
    answer(&format!("{READY}\n")).await?;
    // The end of the orders may come while we contend.
    let mut next = orders.next_line().await.unwrap_or_default();
    while let Some(order) = next {
        let Some((who, window, name)) = read(&order) else { return Err(Failure::usage("this is no order")) };
        if who == Who::Floor && ground.floor.is_none() {
            ground.floor = oarlock::floor::floor_of(plan.store.url.clone()).await?;
        }
        let contenders = match (who, floor.take()) {
            (Who::Floor, Some((known, contenders))) if *known == *name => contenders,
            (Who::Floor, _) => {
                let rivals: Vec<_> = ground.rivals(&name, count).await?.into_iter().map(Contender::Floor).collect();
                if rivals.is_empty() {
                    return Err(Failure::usage("this store has no such floor"));
                }
                rivals
            }
            _ => vec![Contender::Ours(ground.lock(&name)?); count as usize],
        };
        if who == Who::Floor {
            floor = Some((name, contenders.clone()));
        }
        let numbers = (number * count)..;
        let stop = || ground.stop();
        let contending = ground.all(numbers.zip(contenders).map(|(number, one)| contend(number, one, window, stop())));
        let grants = tokio::select! {
            grants = contending => grants?,
            // Nothing else is said to us meanwhile.
            _ = orders.next_line() => return Ok(()),
        };
        answer(&write(grants.iter().flatten())).await?;
        next = orders.next_line().await.unwrap_or_default();
    }
    Ok(())
}

fn read(order: &str) -> Option<(Who, Window, Arc<str>)> {
    let mut words = order.splitn(4, ' ');
    let who = words.next()?;
    let who = [Who::Oarlock, Who::Floor].into_iter().find(|known| known.word() == who)?;
    let window = Window { start: words.next()?.parse().ok()?, end: words.next()?.parse().ok()? };
    Some((who, window, words.next()?.into()))
}

fn write<'a>(grants: impl Iterator<Item = &'a Grant>) -> String {
    let mut text = String::new();
    for grant in grants {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{grant}");
    }
    text.push_str(DONE);
    text.push('\n');
    text
}

async fn answer(text: &str) -> Result<(), Failure> {
    let mut out = tokio::io::stdout();
    let written = async {
        out.write_all(text.as_bytes()).await?;
        out.flush().await
    };
    // Nobody is left to be told.
    written.await.map_err(|_| Failure::quiet(Code::Internal))
}
