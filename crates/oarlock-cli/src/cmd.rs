//! The subcommands. Each one is a file with its options and its `main`, and is registered here.

pub(crate) mod acquire;
pub(crate) mod bench;
pub(crate) mod break_;
pub(crate) mod completions;
#[cfg(feature = "demo")]
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod elect;
pub(crate) mod hold;
pub(crate) mod init;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod once;
pub(crate) mod release;
pub(crate) mod renew;
pub(crate) mod run;
#[cfg(feature = "serve")]
pub(crate) mod serve;
pub(crate) mod show;
pub(crate) mod top;
#[cfg(feature = "torture")]
pub(crate) mod torture;
pub(crate) mod url;
pub(crate) mod wait;
pub(crate) mod watch;

use clap::Subcommand;

use crate::exit::{Exit, Failure};
use crate::front;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(run::RunArgs),
    Once(once::OnceArgs),
    Elect(elect::ElectArgs),
    Hold(hold::HoldArgs),
    Acquire(acquire::AcquireArgs),
    Renew(renew::RenewArgs),
    Release(release::ReleaseArgs),
    Ls(ls::LsArgs),
    Show(show::ShowArgs),
    Wait(wait::WaitArgs),
    Watch(watch::WatchArgs),
    Top(top::TopArgs),
    Break(break_::BreakArgs),
    Init(init::InitArgs),
    Doctor(doctor::DoctorArgs),
    #[cfg(feature = "serve")]
    Serve(serve::ServeArgs),
    Bench(bench::BenchArgs),
    #[cfg(feature = "torture")]
    Torture(Box<torture::TortureArgs>),
    #[cfg(feature = "demo")]
    Demo(crate::demo::args::DemoArgs),
    Url(url::UrlArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
}

impl Command {
    /// Whether it runs a command under a lock: on a terminal it needs a keeper that Ctrl-Z does not stop.
    pub(crate) fn supervises(&self) -> bool {
        match self {
            Self::Run(_) => true,
            Self::Once(args) => !args.show && args.forget.is_none(),
            Self::Elect(args) => !args.observe,
            _ => false,
        }
    }

    /// Runs the subcommand; `job` is that of a `run`, `once` or `elect` that was started by another process of this program.
    pub(crate) fn main(self, job: Option<&front::Job>) -> Result<Exit, Failure> {
        match self {
            Self::Run(args) => run::main(args, job),
            Self::Once(args) => once::main(args, job),
            Self::Elect(args) => elect::main(args, job),
            Self::Hold(args) => hold::main(args),
            Self::Acquire(args) => acquire::main(args),
            Self::Renew(args) => renew::main(&args),
            Self::Release(args) => release::main(&args),
            Self::Ls(args) => ls::main(&args),
            Self::Show(args) => show::main(&args),
            Self::Wait(args) => wait::main(&args),
            Self::Watch(args) => watch::main(&args),
            Self::Top(args) => top::main(&args),
            Self::Break(args) => break_::main(&args),
            Self::Init(args) => init::main(&args),
            Self::Doctor(args) => doctor::main(&args),
            #[cfg(feature = "serve")]
            Self::Serve(args) => serve::main(&args),
            Self::Bench(args) => bench::main(&args, None),
            #[cfg(feature = "torture")]
            Self::Torture(args) => torture::main(*args, false),
            #[cfg(feature = "demo")]
            Self::Demo(args) => demo::main(&args),
            Self::Url(args) => url::main(&args),
            Self::Completions(args) => completions::main(&args),
            Self::Man(args) => man::main(&args),
        }
    }
}
