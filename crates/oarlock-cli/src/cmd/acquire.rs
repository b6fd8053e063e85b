//! `oarlock acquire`: a lock that outlives this process, with a ticket for the one that continues with it.

use std::time::Instant;

use oarlock::state::ResourceName;
use oarlock::{Error, ErrorKind, Guard, Lifetime, LockTicket, Locks};
use oarlock_core::text;
use serde_json::{Value, json};

use crate::args::{LockArgs, StoreArgs};
use crate::cmd::Examples;
use crate::cmd::run::{busy_words, forever};
use crate::exit::{Code, Exit, Failure};
use crate::observe::EngineEvents;
use crate::output::{self, Format};
use crate::settings::{Asking, Mode};
use crate::signals::{FORWARDED, Signals};
use crate::store::{Store, block_on, farewell};
use crate::{nest, progress, ticket};

/// Acquire a lock and exit; print a ticket with which renew and release continue
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The lock lives for its lease (-t) and is not renewed by itself: choose a lease that is longer \
than the work, or call renew in time. A process that has the ticket can release the lock: treat it as a secret."
)]
pub(crate) struct AcquireArgs {
    /// The lock
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

pub(crate) const EXAMPLES: Examples =
    &[("ticket=$(oarlock acquire deploy/prod -t 15m)", "Take a lock that another job releases.")];

pub(crate) fn main(args: AcquireArgs) -> Result<Exit, Failure> {
    if args.lock.max_hold.is_some() {
        return Err(Failure::usage("--max-hold does not go with acquire: the lease (-t) bounds the hold"));
    }
    let store = Store::new(&args.store)?;
    let name = ResourceName::new(&args.name)?;
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
        if let Some(nested) = nest::held_by_ancestor(&locks, std::slice::from_ref(&name)).await {
            let (name, fence) = (text::quoted(nested.name.as_str()), nested.fence);
            let message = format!("busy: {name} is held by the oarlock that runs this command, fence {fence}.");
            store.messages.note(&message);
            return Ok(if asking.skip_if_busy { Code::Success.into() } else { Exit(asking.busy_code) });
        }
        let exit = tokio::select! {
            biased;
            signal = signals.stop() => Ok(Exit::signal(signal.as_raw())),
            guard = acquire(&locks, &name, &asking, until) => match guard {
                Ok(guard) => hand_over(&store, &locks, &asking, guard).await,
                Err(error) if error.kind() == ErrorKind::Busy => {
                    store.messages.note(&busy_words(&error));
                    Ok(if asking.skip_if_busy { Code::Success.into() } else { Exit(asking.busy_code) })
                }
                Err(error) => Err(error.into()),
            },
            () = forever(progress::announce(&locks, &events, store.messages)) => Ok(Code::Internal.into()),
        };
        if let Err(error) = farewell(&locks, &events).await {
            store.messages.parting(&error, exit.is_err());
        }
        exit
    })
}

/// The choices that every kind of lock has.
macro_rules! tuned {
    ($lock:expr, $asking:expr, $until:expr) => {{
        let mut lock = $lock.lifetime(Lifetime::Lease).label($asking.label.clone()).whole_lease();
        lock = if $asking.renew { lock.ttl($asking.ttl) } else { lock.ttl($asking.ttl).no_renewal() };
        lock = if $asking.fair { lock.fair() } else { lock };
        match $until {
            Some(until) => lock.wait(Instant::saturating_duration_since(&until, Instant::now())),
            None => lock.wait_forever(),
        }
    }};
}

async fn acquire(locks: &Locks, name: &ResourceName, asking: &Asking, until: Option<Instant>) -> Result<Guard, Error> {
    let name = name.as_str();
    match asking.mode {
        Mode::Exclusive => tuned!(locks.mutex(name), asking, until).lock().await,
        Mode::Spin => tuned!(locks.mutex(name).spin(), asking, until).lock().await,
        Mode::Shared => tuned!(locks.rwlock(name), asking, until).read().await,
        Mode::Permits { of, take } => tuned!(locks.semaphore(name, of), asking, until).acquire(take).await,
    }
}

/// Prints the ticket. A lock whose ticket could not be printed is released.
async fn hand_over(store: &Store, locks: &Locks, asking: &Asking, guard: Guard) -> Result<Exit, Failure> {
    let (name, fence, waited) = (guard.resource().clone(), guard.fence(), output::millis(guard.waited()));
    let ticket = guard.hand_over()?;
    if let Err(failure) = print(store.messages.format, &ticket, asking, waited) {
        // If this fails too, the lock ends with its lease.
        if let Ok(guard) = locks.adopt(&ticket).await {
            let _ = guard.release().await;
        }
        return Err(failure);
    }
    let (quoted, lease) = (text::quoted(name.as_str()), text::span(asking.ttl));
    store.messages.note(&format!("acquired {quoted}, fence {fence}, for {lease}"));
    Ok(Code::Success.into())
}

fn print(format: Format, ticket: &LockTicket, asking: &Asking, waited: u64) -> Result<(), Failure> {
    match format {
        Format::Table | Format::Name => output::print_line(&ticket::word(ticket)?),
        Format::Json | Format::Jsonl => {
            let written: Value =
                serde_json::to_value(ticket).map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
            let answer = json!({
                "name": ticket.resource(),
                "fence": ticket.fence(),
                "lease_ms": output::millis(asking.ttl),
                "waited_ms": waited,
                "ticket": written,
            });
            output::print_line(&answer.to_string())
        }
    }
}
