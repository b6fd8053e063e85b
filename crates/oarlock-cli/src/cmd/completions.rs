//! `oarlock completions`: from the same definitions as the help.

use clap::CommandFactory;

use crate::args::Args;
use crate::exit::{Code, Exit, Failure};
use crate::output;

/// Print the completions for a shell
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

pub(crate) fn main(args: &CompletionsArgs) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "oarlock", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(Code::Success.into())
}
