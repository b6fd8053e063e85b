//! `oarlock completions`: from the same definitions as the help.

use clap::CommandFactory;

use crate::args::{Args, CompletionsArgs};
use crate::exit::{Code, Exit, Failure};
use crate::output;

pub(crate) fn main(args: &CompletionsArgs) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "oarlock", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(Code::Success.into())
}
