//! `oarlock hold`: a lock without a command, for scripts and people.

use std::io::{IsTerminal, Read};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use oarlock::state::ResourceName;
use oarlock::{ErrorKind, MultiGuard};
use oarlock_core::text;
use rustix::fs::FileType;
use serde_json::json;
use tokio::sync::oneshot;

use crate::args::{LockArgs, StoreArgs};
use crate::child::cause::Cause;
use crate::cmd::Examples;
use crate::exit::{Code, Exit, Failure};
use crate::observe::EngineEvents;
use crate::output::{self, Format};
use crate::settings::Asking;
use crate::signals::{FORWARDED, Signals};
use crate::store::{Store, block_on, farewell};
use crate::{messages, multi, progress};

/// Hold a lock until a signal, or until standard input ends where that is a pipe or a terminal
#[derive(Debug, clap::Args)]
pub(crate) struct HoldArgs {
    /// The lock
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

pub(crate) const EXAMPLES: Examples = &[("oarlock hold migrate", "Hold a lock until Ctrl-C.")];

pub(crate) fn main(args: HoldArgs) -> Result<Exit, Failure> {
    let store = Store::new(&args.store)?;
    let names = [ResourceName::new(&args.name)?];
    let asking = Asking::new(args.lock, &store)?;
    block_on(async {
        let mut signals = Signals::new(FORWARDED.iter().copied())?;
        let until = asking.wait.map(|wait| Instant::now() + wait);
        let events = EngineEvents::new(store.messages);
        let locks = tokio::select! {
            biased;
            signal = signals.stop() => return Ok(Exit::signal(signal.as_raw())),
            locks = store.hold(&asking, until, events.clone()) => locks?,
        };
        let announce = async {
            progress::announce(&locks, &events, store.messages).await;
            std::future::pending::<()>().await;
        };
        let exit = tokio::select! {
            biased;
            signal = signals.stop() => Ok(Exit::signal(signal.as_raw())),
            held = multi::acquire(&locks, &names, &asking, until) => match held {
                Ok(multi) => hold(&store, &asking, &mut signals, &events, multi).await,
                Err(error) if error.kind() == ErrorKind::Busy => {
                    let show = messages::shell_word(names[0].as_str());
                    store.messages.note(&format!("{error}. Wait longer with -w, see the holder with \"oarlock show {show}\"."));
                    Ok(if asking.skip_if_busy { Code::Success.into() } else { Exit(asking.busy_code) })
                }
                Err(error) => Err(error.into()),
            },
            () = announce => Ok(Code::Internal.into()),
        };
        if let Err(error) = farewell(&locks, &events).await {
            store.messages.parting(&error, exit.is_err());
        }
        exit
    })
}

async fn hold(
    store: &Store,
    asking: &Asking,
    signals: &mut Signals,
    events: &EngineEvents,
    multi: MultiGuard,
) -> Result<Exit, Failure> {
    let said = say(store, &multi);
    let mut endings = events.endings();
    let lost = tokio::select! {
        biased;
        () = multi.ends_within(Duration::ZERO) => true,
        // Another process asks for the lock: nothing keeps us from releasing it.
        Ok(()) = endings.changed() => true,
        _ = signals.stop() => false,
        () = end_of_input() => false,
    };
    let asked = endings.borrow().as_ref().map(|ending| Cause::from(ending).to_string());
    let reason = asked.or_else(|| multi.loss().map(|(_, reason)| reason.to_string()));
    let name = multi.iter().next().map(|held| text::quoted(held.resource().as_str())).unwrap_or_default();
    let done = multi::release(multi, events).await;
    for error in &done.errors {
        store.messages.warning(&format!("cannot release the lock; it ends with its lease: {error}"));
    }
    if lost || !done.gone.is_empty() {
        let reason = reason.unwrap_or_else(|| "it was gone before it was released".to_owned());
        store.messages.error(&format!("lost: {name}: {reason}"));
        return Ok(Exit(asking.lost_code));
    }
    said.map(|()| Code::Success.into())
}

fn say(store: &Store, multi: &MultiGuard) -> Result<(), Failure> {
    for held in multi.iter() {
        let (name, fence) = (held.resource(), held.fence());
        let quoted = text::quoted(name.as_str());
        store.messages.note(&format!("holding {quoted}, fence {fence}"));
        let waited = output::millis(held.waited());
        match store.messages.format {
            Format::Table => output::print_line(&format!("{}\t{fence}", text::plain(name.as_str())))?,
            Format::Name => output::print_line(&text::plain(name.as_str()))?,
            Format::Json | Format::Jsonl => {
                let value = json!({ "name": name, "fence": fence, "kind": held.kind(), "waited_ms": waited });
                output::print_line(&value.to_string())?;
            }
        }
    }
    Ok(())
}

/// Standard input ends where it is a pipe or a terminal; elsewhere, as from `/dev/null`, its end means nothing.
async fn end_of_input() {
    let input = std::io::stdin();
    let is_pipe = rustix::fs::fstat(input.as_fd())
        .is_ok_and(|stat| matches!(FileType::from_raw_mode(stat.st_mode), FileType::Fifo | FileType::Socket));
    if !is_pipe && !input.is_terminal() {
        return std::future::pending().await;
    }
    let (ended, end) = oneshot::channel();
    // A thread of its own, because reading cannot be cancelled; it ends with the process.
    std::thread::spawn(move || {
        let mut input = std::io::stdin().lock();
        let mut bytes = [0; 1024];
        while input.read(&mut bytes).is_ok_and(|count| count > 0) {}
        let _ = ended.send(());
    });
    let _ = end.await;
}
