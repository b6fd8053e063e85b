//! `oarlock renew`: a whole lease more for a lock of which we have the ticket.

use oarlock_core::text;
use serde_json::json;

use crate::args::StoreArgs;
use crate::cmd::Examples;
use crate::exit::{Code, Exit, Failure};
use crate::output::{self, Format};
use crate::store::{Store, block_on};
use crate::ticket::{self, TicketArgs};

/// Renew a lock by its ticket: it lives for another whole lease from now on
#[derive(Debug, clap::Args)]
#[command(after_help = "Exits with 76 if the lock is lost. The ticket stays as it is.")]
pub(crate) struct RenewArgs {
    #[command(flatten)]
    pub(crate) ticket: TicketArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

pub(crate) const EXAMPLES: Examples = &[("oarlock renew \"$ticket\"", "A whole lease more.")];

pub(crate) fn main(args: &RenewArgs) -> Result<Exit, Failure> {
    let store = Store::new(&args.store)?;
    let ticket = ticket::read(&args.ticket)?;
    if !ticket.is_renewed() {
        let name = text::quoted(ticket.resource().as_str());
        return Err(Failure::usage(format!("{name} was acquired with --no-renew: it ends after its lease")));
    }
    block_on(async {
        let locks = store.connect().await?;
        // Adopting renews it; handing over at once leaves it to the ticket again.
        let guard = locks.adopt(&ticket).await?;
        let (name, fence, left) = (guard.resource().clone(), guard.fence(), guard.time_left());
        let _same = guard.hand_over()?;
        match store.messages.format {
            Format::Json | Format::Jsonl => {
                let answer = json!({ "name": name, "fence": fence, "lease_left_ms": output::millis(left) });
                output::print_line(&answer.to_string())?;
            }
            Format::Table | Format::Name => {
                let (name, left) = (text::quoted(name.as_str()), text::span(left));
                store.messages.note(&format!("renewed {name}, fence {fence}, for {left}"));
            }
        }
        Ok(Code::Success.into())
    })
}
