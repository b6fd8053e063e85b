//! `oarlock break`: end the hold of another process.

use std::io::{BufRead, IsTerminal, Write};
use std::time::{Duration, Instant};

use oarlock::Released;
use oarlock::state::{ClaimId, Ending, HolderState, ResourceName};
use oarlock::{Fence, Label, Locks};
use oarlock_core::text;

use crate::args::{StoreArgs, span};
use crate::cmd::Examples;
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
    #[arg(long, value_name = "N", required_unless_present = "id", conflicts_with = "id")]
    pub(crate) fence: Option<u64>,
    /// The claim id of the hold to end, as show prints it: for holds of other programs, which have no fence
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<ClaimId>,
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

pub(crate) const EXAMPLES: Examples =
    &[("oarlock break deploy/prod --fence 1767225600000088 --reason 'stuck since noon'", "Ask the holder to end.")];

pub(crate) fn main(args: &BreakArgs) -> Result<Exit, Failure> {
    let store = Store::new(&args.store)?;
    let name = ResourceName::new(&args.name)?;
    let nonce = match (args.id, args.fence) {
        (Some(id), _) => Nonce::Id(id),
        (None, fence) => Nonce::Fence(Fence::new(fence.unwrap_or_default())),
    };
    confirmation_is_possible(args.yes)?;
    block_on(async {
        let locks = store.connect().await?;
        let holder = find(&locks, &name, nonce).await?;
        let (quoted, held_by) = (text::quoted(name.as_str()), text::holder(&holder.label));
        let question = format!("{quoted} is held by {held_by} for {}. End that?", text::span(holder.held_for));
        if !args.yes && !confirmed(&question) {
            store.messages.note("nothing was done");
            return Ok(Code::Success.into());
        }
        // The answer may have taken minutes: a claim that was granted again meanwhile is another hold.
        if find(&locks, &name, nonce).await?.fence != holder.fence {
            let message = format!("not broken: {} was granted again meanwhile.", text::quoted(name.as_str()));
            return Err(Failure::new(Code::Busy, message));
        }
        let ending = Ending::new(who(), args.reason.clone());
        // The grace counts from the asking, which the store hears later than this.
        let asked = Instant::now();
        match locks.break_claim(&name, holder.id, ending, args.grace).await? {
            Released::NotHeld => {
                store.messages.note(&format!("{held_by} released {quoted} before it was asked"));
            }
            Released::Asked => {
                let span = text::span(args.grace);
                store.messages.note(&format!("asked {held_by} to release {quoted} within {span}"));
                await_end(&locks, &name, &holder, asked + args.grace, &store).await?;
            }
            Released::Released => {
                store.messages.note(&format!("took {quoted} from {held_by}{}", fence_of(&holder)));
            }
            other => {
                store.messages.warning(&format!("unexpected answer of the store to a break of {quoted}: {other:?}"));
            }
        }
        Ok(Code::Success.into())
    })
}

/// Which hold the caller has seen: one that came later is not ended.
#[derive(Clone, Copy)]
enum Nonce {
    Fence(Fence),
    Id(ClaimId),
}

impl Nonce {
    fn names(self, holder: &HolderState) -> bool {
        match self {
            Self::Fence(fence) => holder.fence == Some(fence),
            Self::Id(id) => holder.id == id,
        }
    }
}

/// The hold that `nonce` names, or why there is none.
async fn find(locks: &Locks, name: &ResourceName, nonce: Nonce) -> Result<HolderState, Failure> {
    let state = locks.inspect(name).await?;
    if let Some(holder) = state.holders.iter().find(|holder| nonce.names(holder)) {
        return Ok(holder.clone());
    }
    let wanted = match nonce {
        Nonce::Fence(fence) => format!("fence {fence}"),
        Nonce::Id(id) => format!("id {id}"),
    };
    let now = state.holders.iter().map(|holder| match holder.fence {
        Some(fence) => format!("with fence {fence} now"),
        None => format!("without a fence now: name it with --id {}", holder.id),
    });
    let now = now.collect::<Vec<_>>().join(", ");
    let held = if now.is_empty() { "it is free now".to_owned() } else { format!("it is held {now}") };
    let quoted = text::quoted(name.as_str());
    Err(Failure::new(Code::Busy, format!("not broken: no hold of {quoted} has {wanted}; {held}.")))
}

fn fence_of(holder: &HolderState) -> String {
    holder.fence.map(|fence| format!(", fence {fence}")).unwrap_or_default()
}

async fn await_end(
    locks: &Locks,
    name: &ResourceName,
    broken: &HolderState,
    over: Instant,
    store: &Store,
) -> Result<(), Failure> {
    let (quoted, held_by) = (text::quoted(name.as_str()), text::holder(&broken.label));
    loop {
        let mut watch = locks.watch(name).await?;
        let state = locks.inspect(name).await?;
        // A claim that was granted again after its end has another fence.
        if !state.holders.iter().any(|holder| holder.id == broken.id && holder.fence == broken.fence) {
            let how = if Instant::now() < over { "released" } else { "was made to release" };
            store.messages.note(&format!("{held_by} {how} {quoted}{}", fence_of(broken)));
            return Ok(());
        }
        if Instant::now() > over + SLACK {
            let message = format!("{held_by} still holds {quoted} although its grace is over");
            return Err(Failure::new(Code::Busy, message));
        }
        let _ = tokio::time::timeout(Duration::from_millis(100), watch.changed()).await;
    }
}

/// Who ends a hold, for its holder to see.
pub(crate) fn who() -> String {
    let Label { user, host, pid, .. } = Label::of_this_process();
    format!("{user}@{host} (pid {pid})")
}

/// Where there is no terminal, `--yes` is needed.
pub(crate) fn confirmation_is_possible(yes: bool) -> Result<(), Failure> {
    if yes || std::io::stdin().is_terminal() {
        return Ok(());
    }
    Err(Failure::usage("standard input is no terminal: confirm with --yes"))
}

/// Asks, on a terminal.
pub(crate) fn confirmed(question: &str) -> bool {
    let mut error = std::io::stderr();
    let asked = write!(error, "{question} [y/N] ").and_then(|()| error.flush());
    let mut answer = String::new();
    asked.is_ok()
        && std::io::stdin().lock().read_line(&mut answer).is_ok()
        && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}
