//! `oarlock init`: create what the store needs, or print it, with the rights that locks need.

use crate::args::StoreArgs;
use crate::cmd::Examples;
use crate::exit::{Code, Exit, Failure};
use crate::output;
use crate::progress;
use crate::store::{Store, block_on};

/// Create the tables and procedures that locks need in a database; print the rights that they need in any store
#[derive(Debug, clap::Args)]
pub(crate) struct InitArgs {
    /// Print what would be done, and do nothing
    #[arg(long)]
    pub(crate) print: bool,
    /// Also give USER the rights that locks need, and no more
    #[arg(long, value_name = "USER")]
    pub(crate) grant: Option<String>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

pub(crate) const EXAMPLES: Examples = &[
    ("oarlock init -u postgres://admin@db/app --grant app", "Create what locks need, for the user app."),
    ("oarlock init -u mysql://admin@db/app --print", "Print it, and do nothing."),
];

pub(crate) fn main(args: &InitArgs) -> Result<Exit, Failure> {
    let store = Store::new(&args.store)?;
    let needs = if args.print {
        let script = oarlock::setup::script(&store.url, args.grant.as_deref())?;
        script.map(|script| output::print(&script)).transpose()?.is_some()
    } else {
        let what = format!("creating what locks need in {}", store.url);
        let init = oarlock::setup::init(&store.url, args.grant.as_deref());
        block_on(async { Ok(progress::during(store.messages, &what, init).await?) })?
    };
    if needs && !args.print {
        store.messages.note(&format!("the tables in {} are ready", store.url));
    } else if !needs {
        store.messages.note(&format!("{} needs no set-up", store.url));
    }
    Ok(Code::Success.into())
}
