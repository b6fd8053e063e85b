//! `oarlock wait`: until a lock is free or held, without taking it.

use std::time::{Duration, Instant};

use oarlock::Locks;
use oarlock::state::ResourceName;
use oarlock::state::ResourceState;
use oarlock_core::text;

use crate::args::{StoreArgs, span};
use crate::cmd::Examples;
use crate::exit::{Code, Exit, Failure};
use crate::progress;
use crate::signals::{FORWARDED, Signals};
use crate::store::{Store, block_on};

/// How often to poll where no hint comes.
const POLL: Duration = Duration::from_secs(1);

/// Wait until a lock is free, or held; without taking it
#[derive(Debug, clap::Args)]
pub(crate) struct WaitArgs {
    /// The lock
    pub(crate) name: String,
    /// Wait until the lock is free; the default
    #[arg(long, conflicts_with = "held")]
    pub(crate) free: bool,
    /// Wait until the lock is held
    #[arg(long)]
    pub(crate) held: bool,
    /// Give up after DUR, with exit code 75
    #[arg(short, long, value_name = "DUR", value_parser = span)]
    pub(crate) wait: Option<Duration>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

pub(crate) const EXAMPLES: Examples =
    &[("oarlock wait --free -w 5m deploy/prod", "Wait until it is free, and take nothing.")];

pub(crate) fn main(args: &WaitArgs) -> Result<Exit, Failure> {
    let store = Store::new(&args.store)?;
    let name = ResourceName::new(&args.name)?;
    block_on(async {
        let mut signals = Signals::new(FORWARDED.iter().copied())?;
        let locks = store.connect().await?;
        let late = args.wait.and_then(|wait| Instant::now().checked_add(wait));
        let other = tokio::select! {
            biased;
            signal = signals.stop() => return Ok(Exit::signal(signal.as_raw())),
            other = until(&locks, &name, args.held, late) => other?,
        };
        let Some(state) = other else { return Ok(Code::Success.into()) };
        let message = match state.holders.is_empty() {
            true => format!("gave up waiting: {} is still free.", text::quoted(name.as_str())),
            false => format!("busy: {}.", progress::sentence(&state, None)),
        };
        store.messages.note(&message);
        Ok(Code::Busy.into())
    })
}

/// Resolves when `name` is held, or free; with what was seen last if that is not so at `late`. Looks at
/// least once.
async fn until(
    locks: &Locks,
    name: &ResourceName,
    held: bool,
    late: Option<Instant>,
) -> Result<Option<ResourceState>, Failure> {
    loop {
        // Armed before looking, so that no change slips through between the two.
        let mut watch = locks.watch(name).await?;
        loop {
            let state = locks.inspect(name).await?;
            if state.holders.is_empty() != held {
                return Ok(None);
            }
            let left = late.map_or(Duration::MAX, |late| late.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(Some(state));
            }
            let lease = state.holders.iter().map(|holder| holder.lease_left).min().unwrap_or(POLL);
            // A lease that ends, or a holder that dies, sends no notification.
            let pause = lease.clamp(Duration::from_millis(20), POLL).min(left);
            if let Ok(None) = tokio::time::timeout(pause, watch.changed()).await {
                break;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
