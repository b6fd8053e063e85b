//! The subcommands. Each one is a file with its options, its examples and its `main`, and has a line in the table here.

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

/// Lines to type, each with what it is for. The manual page of the subcommand shows them.
pub(crate) type Examples = &'static [(&'static str, &'static str)];

macro_rules! subcommands {
    (
        $args:ident, $job:ident:
        $($(#[$cfg:meta])? $name:ident($options:ty) => $module:ident::$main:ident($($with:expr),+);)+
    ) => {
        #[derive(Debug, Subcommand)]
        pub(crate) enum Command {
            $($(#[$cfg])? $name($options),)+
        }

        impl Command {
            /// Runs the subcommand; `job` is that of a `run`, `once` or `elect` that was started by another process of
            /// this program.
            pub(crate) fn main(self, $job: Option<&front::Job>) -> Result<Exit, Failure> {
                match self {
                    $($(#[$cfg])? Self::$name($args) => $module::$main($($with),+),)+
                }
            }
        }

        /// The examples of a subcommand.
        pub(crate) fn examples(subcommand: &str) -> Examples {
            let all: &[(&str, Examples)] = &[$($(#[$cfg])? (stringify!($name), $module::EXAMPLES)),+];
            let found = all.iter().find(|(name, _)| name.eq_ignore_ascii_case(subcommand));
            found.map_or(&[], |(_, examples)| examples)
        }
    };
}

// In the order of the help.
subcommands! {
    args, job:
    Run(run::RunArgs) => run::main(args, job);
    Once(once::OnceArgs) => once::main(args, job);
    Elect(elect::ElectArgs) => elect::main(args, job);
    Hold(hold::HoldArgs) => hold::main(args);
    Acquire(acquire::AcquireArgs) => acquire::main(args);
    Renew(renew::RenewArgs) => renew::main(&args);
    Release(release::ReleaseArgs) => release::main(&args);
    Ls(ls::LsArgs) => ls::main(&args);
    Show(show::ShowArgs) => show::main(&args);
    Wait(wait::WaitArgs) => wait::main(&args);
    Watch(watch::WatchArgs) => watch::main(&args);
    Top(top::TopArgs) => top::main(&args);
    Break(break_::BreakArgs) => break_::main(&args);
    Init(init::InitArgs) => init::main(&args);
    Doctor(doctor::DoctorArgs) => doctor::main(&args);
    #[cfg(feature = "serve")]
    Serve(serve::ServeArgs) => serve::main(&args);
    Bench(bench::BenchArgs) => bench::main(&args, None);
    #[cfg(feature = "torture")]
    Torture(Box<torture::TortureArgs>) => torture::main(*args, false);
    #[cfg(feature = "demo")]
    Demo(crate::demo::args::DemoArgs) => demo::main(&args);
    Url(url::UrlArgs) => url::main(&args);
    Completions(completions::CompletionsArgs) => completions::main(&args);
    Man(man::ManArgs) => man::main(&args);
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
}
