//! One process of a run: this program once more, with the same words after ours. Here it contends.
//!
//! It says `ready` when it is connected. An order is `oarlock START END NAME` or `baseline START END NAME`, in
//! nanoseconds of the boot-time clock; the answer is a line for each grant, and `done`. It goes when its orders end,
//! and is killed with the process that started it.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::process::Stdio;
use std::sync::Arc;

use oarlock_bench::Targets;
use oarlock_bench::contend::{Contender, contend};
use oarlock_bench::grants::{Grant, Window};
use oarlock_bench::pairs::Who;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

use crate::bench::plan::Plan;
use crate::child::shim::die_with;
use crate::child::this_program;
use crate::exit::{Code, Exit, Failure};
use crate::signals::{FORWARDED, Signals};

/// The hidden subcommand.
pub(crate) const SUBCOMMAND: &str = "__bench";

pub(crate) const READY: &str = "ready";
pub(crate) const DONE: &str = "done";

/// What one of the processes of a run does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    /// It contends, and has this number among those that do.
    Contends(u32),
    /// It is the server of the pairs over HTTP.
    #[cfg(feature = "serve")]
    Serves,
}

/// [`Role::Serves`] as a word.
#[cfg(feature = "serve")]
pub(crate) const SERVES: &str = "serves";

impl Role {
    /// From the words after [`SUBCOMMAND`].
    pub(crate) fn read(parent: Option<&OsString>, word: Option<&OsString>) -> Result<Self, Failure> {
        let alone = || Failure::usage(format!("{SUBCOMMAND} is internal: do not call it"));
        if !parent.is_some_and(die_with) {
            return Err(alone());
        }
        match word.and_then(|word| word.to_str()) {
            #[cfg(feature = "serve")]
            Some(SERVES) => Ok(Self::Serves),
            number => number.and_then(|number| number.parse().ok()).map(Self::Contends).ok_or_else(alone),
        }
    }
}

/// A process of this run: this program once more, with the same words, so that no other place shows the URL.
pub(crate) fn process(role: &str) -> std::io::Result<Child> {
    let mut command = this_program();
    command.args([SUBCOMMAND, &std::process::id().to_string(), role]);
    command.args(std::env::args_os().skip(1)).stdin(Stdio::piped()).stdout(Stdio::piped());
    Command::from(command).kill_on_drop(true).spawn()
}

pub(crate) async fn work(plan: &Plan, number: u32) -> Result<Exit, Failure> {
    // The process that started us hears the signals of the terminal too, and ends our orders.
    let _unmoved = Signals::new(FORWARDED.iter().copied())?;
    let mut targets = plan.connect().await?;
    let worked = obey(plan, &mut targets, number).await;
    targets.close().await?;
    worked.map(|()| Code::Success.into())
}

async fn obey(plan: &Plan, targets: &mut Targets, number: u32) -> Result<(), Failure> {
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    let mut baseline: Option<(Arc<str>, Vec<Contender>)> = None;
    let count = plan.per_process;
    answer(&format!("{READY}\n")).await?;
    // The end of the orders may come while we contend.
    let mut next = orders.next_line().await.unwrap_or_default();
    while let Some(order) = next {
        let Some((who, window, name)) = read(&order) else { return Err(Failure::usage("this is no order")) };
        if who == Who::Baseline {
            targets.need_baseline().await?;
        }
        let contenders = match (who, &baseline) {
            // In every turn the same ones: what they pass on may be with one of them.
            (Who::Baseline, Some((known, contenders))) if **known == *name => contenders.clone(),
            (Who::Baseline, _) => {
                let rivals: Vec<_> = targets.rivals(&name, count).await?.into_iter().map(Contender::Baseline).collect();
                if rivals.is_empty() {
                    return Err(Failure::usage("this store has no such baseline"));
                }
                rivals
            }
            _ => vec![Contender::Ours(targets.lock(&name)); count as usize],
        };
        if who == Who::Baseline {
            baseline = Some((name, contenders.clone()));
        }
        let numbers = (number * count)..;
        let stop = || targets.stop();
        let contending = targets.all(numbers.zip(contenders).map(|(number, one)| contend(number, one, window, stop())));
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
    let who = [Who::Oarlock, Who::Baseline].into_iter().find(|known| known.word() == who)?;
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

pub(crate) async fn answer(text: &str) -> Result<(), Failure> {
    let mut out = tokio::io::stdout();
    let written = async {
        out.write_all(text.as_bytes()).await?;
        out.flush().await
    };
    // The process that started us is gone.
    written.await.map_err(|_| Failure::quiet(Code::Internal))
}
