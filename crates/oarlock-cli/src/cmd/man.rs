//! `oarlock man`: from the same definitions as the help.

use clap::CommandFactory;

use crate::args::Args;
use crate::exit::{Code, Exit, Failure};
use crate::output;

/// Print a manual page
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// The subcommand; without it, the page of oarlock itself
    pub(crate) subcommand: Option<String>,
}

pub(crate) fn main(args: &ManArgs) -> Result<Exit, Failure> {
    let mut command = Args::command();
    command.build();
    if let Some(name) = &args.subcommand {
        let Some(found) = command.find_subcommand(name) else {
            return Err(Failure::usage(format!("there is no subcommand {}", oarlock_core::text::quoted(name))));
        };
        command = found.clone();
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page).map_err(|error| Failure::os("cannot write the page", error))?;
    output::print(&String::from_utf8_lossy(&page))?;
    Ok(Code::Success.into())
}
