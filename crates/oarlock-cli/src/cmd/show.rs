//! `oarlock show`: everything about one lock.

use oarlock::state::ResourceName;
use oarlock_core::text;

use crate::args::StoreArgs;
use crate::cmd::Examples;
use crate::exit::{Code, Exit, Failure};
use crate::output::{self, Format};
use crate::store::{Store, block_on};

/// Show everything about a lock: holders, the queue in order, labels
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// The lock
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

pub(crate) const EXAMPLES: Examples = &[("oarlock show deploy/prod", "Who holds it, who waits, and why.")];

pub(crate) fn main(args: &ShowArgs) -> Result<Exit, Failure> {
    let store = Store::new(&args.store)?;
    let name = ResourceName::new(&args.name)?;
    let state = block_on(async { Ok(store.connect().await?.inspect(&name).await?) })?;
    match store.messages.format {
        Format::Table => output::print(&output::resource_text(&state))?,
        Format::Json => output::print_json(&output::resource_json(&state))?,
        Format::Jsonl => output::print_line(&output::resource_json(&state).to_string())?,
        Format::Name => output::print_line(&text::plain(name.as_str()))?,
    }
    Ok(Code::Success.into())
}
