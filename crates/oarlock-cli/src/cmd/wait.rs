//! `oarlock wait`: until a lock is free or held, without taking it.

use std::time::Duration;

use oarlock::{Locks, ResourceName};

use crate::args::WaitArgs;
use crate::exit::{Code, Exit, Failure};
use crate::progress;
use crate::signals::{FORWARDED, Signals};
use crate::store::{Store, block_on};

/// How often to look where no hint comes.
const POLL: Duration = Duration::from_secs(1);

pub(crate) fn main(args: &WaitArgs) -> Result<Exit, Failure> {
    let store = Store::new(&args.store)?;
    let name = ResourceName::new(&args.name)?;
    block_on(async {
        let mut signals = Signals::new(FORWARDED.iter().copied())?;
        store.say_if_implied();
        let locks = store.look().await?;
        let time = async {
            match args.wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            signal = signals.stop() => Ok(Exit::signal(signal.as_raw())),
            seen = until(&locks, &name, args.held) => seen.map(|()| Code::Success.into()),
            () = time => {
                let state = locks.inspect(&name).await?;
                store.words.note(&format!("busy: {}.", progress::sentence(&state, None)));
                Ok(Code::Busy.into())
            }
        }
    })
}

/// Resolves when somebody holds `name`, or nobody does.
async fn until(locks: &Locks, name: &ResourceName, held: bool) -> Result<(), Failure> {
    loop {
        // Armed before looking, so that no change slips through between the two.
        let mut watch = locks.watch(name).await?;
        loop {
            let state = locks.inspect(name).await?;
            if state.holders.is_empty() != held {
                return Ok(());
            }
            let lease = state.holders.iter().map(|holder| holder.lease_left).min().unwrap_or(POLL);
            // Leases and dead holders end without anybody telling.
            let pause = lease.clamp(Duration::from_millis(20), POLL);
            if let Ok(None) = tokio::time::timeout(pause, watch.changed()).await {
                break;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
