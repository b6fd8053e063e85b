//! One process of a run: this program once more, with the same words after ours, so that no other place shows the URL.

use std::ffi::OsString;

use oarlock::url::Host;
use oarlock_torture::worker::{Assignment, work};

use crate::args::StoreArgs;
use crate::child::shim::{self, die_with};
use crate::child::this_program;
use crate::exit::{Code, Exit, Failure};
use crate::signals::{self, FORWARDED, Signals};
use crate::store::Store;

/// The hidden subcommand.
pub(crate) const SUBCOMMAND: &str = "__torture";

/// Whether the process that started us is there; we are killed with it.
pub(crate) fn has_parent(parent: Option<&OsString>) -> Result<(), Failure> {
    if parent.is_some_and(die_with) {
        return Ok(());
    }
    Err(Failure::usage(format!("{SUBCOMMAND} is internal: do not call it")))
}

pub(crate) fn main(args: &StoreArgs) -> Result<Exit, Failure> {
    let store = Store::new(&StoreArgs { quiet: true, verbose: false, ..args.clone() })?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(|error| Failure::os("cannot start", error))?;
    let worked = runtime.block_on(async {
        // The process that started us hears the signals of the terminal too, and ends our orders.
        let _unmoved = Signals::new(FORWARDED.iter().copied())?;
        let open = async |mine: &Assignment| {
            let routes = mine.routes.iter().cloned();
            let routes = routes.map(|(server, way)| (Host::new(server.0, server.1), Host::new(way.0, way.1)));
            oarlock::driver::open(store.url.clone().route(routes)?).await
        };
        // Killed with this process, by the step that `run` puts before its command.
        let launch = || {
            let mut command = this_program();
            command.arg(shim::SUBCOMMAND).args(shim::orders(false));
            command
        };
        work(open, launch).await?;
        Ok(Code::Success.into())
    });
    signals::block_all();
    runtime.shutdown_background();
    worked
}
