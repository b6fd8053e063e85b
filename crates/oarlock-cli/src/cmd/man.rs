//! `oarlock man`: from the same definitions as the help.

use clap::CommandFactory;

use crate::args::Args;
use crate::cmd::{self, Examples};
use crate::exit::{Code, Exit, Failure};
use crate::output;

/// Print a manual page
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// The subcommand; without it, the page of oarlock itself
    pub(crate) subcommand: Option<String>,
}

pub(crate) const EXAMPLES: Examples = &[("oarlock man run | man -l -", "Read a page.")];

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
    let mut page = String::from_utf8_lossy(&page).into_owned();
    let examples = cmd::examples(args.subcommand.as_deref().unwrap_or("run"));
    page.push_str(".SH EXAMPLES\n");
    for (line, says) in examples {
        page.push_str(&format!(".PP\n{}\n.RS 4\n.nf\n{}\n.fi\n.RE\n", roff(says), roff(line)));
    }
    output::print(&page)?;
    Ok(Code::Success.into())
}

/// A line as roff prints it: no escape, no request, and the quotes and dashes that a shell needs.
fn roff(line: &str) -> String {
    let escaped = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if escaped.starts_with('.') { format!("\\&{escaped}") } else { escaped }
}
