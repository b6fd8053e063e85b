//! `oarlock release`: the end of a lock of which we have the ticket.

use oarlock::Released;
use oarlock_core::text;

use crate::args::StoreArgs;
use crate::cmd::Examples;
use crate::exit::{Code, Exit, Failure};
use crate::store::{Store, block_on};
use crate::ticket::{self, TicketArgs};

/// Release a lock by its ticket
#[derive(Debug, clap::Args)]
#[command(after_help = "Exits with 76 if the lock was lost before.")]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    pub(crate) ticket: TicketArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

pub(crate) const EXAMPLES: Examples = &[("oarlock release \"$ticket\"", "Give the lock back.")];

pub(crate) fn main(args: &ReleaseArgs) -> Result<Exit, Failure> {
    let store = Store::new(&args.store)?;
    let ticket = ticket::read(&args.ticket)?;
    let (name, fence) = (text::quoted(ticket.resource().as_str()), ticket.fence());
    block_on(async {
        let locks = store.connect().await?;
        let released = locks.adopt(&ticket).await?.release().await?;
        if released == Released::NotHeld {
            return Err(Failure::new(Code::Lost, format!("lost: {name}: it was gone before it was released")));
        }
        store.messages.note(&format!("released {name}, fence {fence}"));
        Ok(Code::Success.into())
    })
}
