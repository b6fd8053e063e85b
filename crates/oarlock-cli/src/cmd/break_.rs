//! `oarlock break`: end the hold of another process.

use std::io::{BufRead, IsTerminal, Write};
use std::time::{Duration, Instant};

use oarlock::Released;
use oarlock::state::ResourceName;
use oarlock::state::{Ending, HolderState};
use oarlock::{Fence, Label, Locks};
use oarlock_core::text;

use crate::args::{StoreArgs, span};
use crate::exit::{Code, Exit, Failure};
use crate::store::{Store, block_on};

/// How much later than the grace a holder may be gone.
const SLACK: Duration = Duration::from_secs(5);

/// End the hold of another process: ask the holder first, take the lock away when the grace is over
#[derive(Debug, clap::Args)]
pub(crate) struct BreakArgs {
    /// The lock
    pub(crate) name: String,
    /// The fence of the hold to end, as ls and show print it; a hold with another fence is not ended
    #[arg(long, value_name = "N")]
    pub(crate) fence: u64,
    /// How long the holder may take to finish; 0 ends the hold at once
    #[arg(long, value_name = "DUR", default_value = "5s", value_parser = span)]
    pub(crate) grace: Duration,
    /// Reason, shown to the holder
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) reason: String,
    /// Do not ask for confirmation
    #[arg(long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

pub(crate) fn main(args: &BreakArgs) -> Result<Exit, Failure> {
    let store = Store::new(&args.store)?;
    let name = ResourceName::new(&args.name)?;
    let fence = Fence::new(args.fence);
    if !args.yes && !std::io::stdin().is_terminal() {
        return Err(Failure::usage("standard input is no terminal: confirm with --yes"));
    }
    block_on(async {
        let locks = store.connect().await?;
        let holder = find(&locks, &name, fence).await?;
        if !args.yes && !confirmed(&name, &holder) {
            store.messages.note("nothing was done");
            return Ok(Code::Success.into());
        }
        let ending = Ending::new(who(), args.reason.clone());
        let (quoted, held_by) = (text::quoted(name.as_str()), text::holder(&holder.label));
        // The grace counts from the asking, which the store hears later than this.
        let asked = Instant::now();
        match locks.break_hold(&name, fence, ending, args.grace).await? {
            Released::NotHeld => {
                store.messages.note(&format!("{held_by} released {quoted} before it was asked"));
            }
            Released::Asked => {
                let span = text::span(args.grace);
                store.messages.note(&format!("asked {held_by} to release {quoted} within {span}"));
                await_end(&locks, &name, fence, asked + args.grace, &store, &held_by).await?;
            }
            Released::Released => {
                store.messages.note(&format!("took {quoted} from {held_by}, fence {fence}"));
            }
            other => {
                store.messages.warning(&format!("unexpected answer of the store to a break of {quoted}: {other:?}"));
            }
        }
        Ok(Code::Success.into())
    })
}

/// The hold that `fence` names, or why there is none.
async fn find(locks: &Locks, name: &ResourceName, fence: Fence) -> Result<HolderState, Failure> {
    let state = locks.inspect(name).await?;
    if let Some(holder) = state.holders.iter().find(|holder| holder.fence == Some(fence)) {
        return Ok(holder.clone());
    }
    let quoted = text::quoted(name.as_str());
    let now = state.holders.iter().filter_map(|holder| holder.fence).map(|fence| fence.to_string());
    let now = now.collect::<Vec<_>>().join(", ");
    let held = if now.is_empty() { "it is free now".to_owned() } else { format!("it is held with fence {now} now") };
    Err(Failure::new(Code::Busy, format!("not broken: no hold of {quoted} has fence {fence}; {held}.")))
}

async fn await_end(
    locks: &Locks,
    name: &ResourceName,
    fence: Fence,
    over: Instant,
    store: &Store,
    held_by: &str,
) -> Result<(), Failure> {
    let quoted = text::quoted(name.as_str());
    loop {
        let mut watch = locks.watch(name).await?;
        let state = locks.inspect(name).await?;
        if !state.holders.iter().any(|holder| holder.fence == Some(fence)) {
            let how = if Instant::now() < over { "released" } else { "was made to release" };
            store.messages.note(&format!("{held_by} {how} {quoted}, fence {fence}"));
            return Ok(());
        }
        if Instant::now() > over + SLACK {
            let message = format!("{held_by} still holds {quoted} although its grace is over");
            return Err(Failure::new(Code::Busy, message));
        }
        let _ = tokio::time::timeout(Duration::from_millis(100), watch.changed()).await;
    }
}

fn who() -> String {
    let Label { user, host, pid, .. } = Label::of_this_process();
    format!("{user}@{host} (pid {pid})")
}

fn confirmed(name: &ResourceName, holder: &HolderState) -> bool {
    let name = text::quoted(name.as_str());
    let (who, held) = (text::holder(&holder.label), text::span(holder.held_for));
    let mut error = std::io::stderr();
    let asked = write!(error, "{name} is held by {who} for {held}. End that? [y/N] ").and_then(|()| error.flush());
    let mut answer = String::new();
    asked.is_ok()
        && std::io::stdin().lock().read_line(&mut answer).is_ok()
        && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}
