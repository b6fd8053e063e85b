//! The parts of `cargo xtask test`, in the order they run: the quick ones first.

use std::path::Path;
use std::process::Command;

use crate::args::TestOptions;
use crate::interop::{self, InteropOptions};
use crate::workspace::{Failure, Workspace, stream};
use crate::{audit, dist, examples, features, package, programs, python, readme, versions};

/// One part of the test run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The code is formatted.
    Format,
    /// The first commands of the README work.
    Readme,
    /// The linter has nothing to say.
    Clippy,
    /// A build without features stays small.
    Features,
    /// The tests.
    Tests,
    /// The documentation builds without a warning.
    Docs,
    /// The programs that check themselves do so.
    Examples,
    /// Locks are shared with the libraries of other languages.
    Interop,
    /// The conformance suite passes on old and new servers.
    Versions,
    /// The Python package works.
    Python,
    /// Rows and stock work with sqlx and diesel.
    SqlClients,
    /// What is depended on may be used.
    Audit,
    /// Every published crate can be packed.
    Package,
    /// What users install works in a clean system.
    Dist,
}

impl Part {
    /// Every part, in order.
    pub(crate) const ALL: &[Self] = &[
        Self::Format,
        Self::Readme,
        Self::Features,
        Self::Tests,
        Self::Clippy,
        Self::Docs,
        Self::Interop,
        Self::Examples,
        Self::Versions,
        Self::Python,
        Self::SqlClients,
        Self::Audit,
        Self::Package,
        Self::Dist,
    ];

    /// The name that `--only` takes.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Format => "format",
            Self::Clippy => "clippy",
            Self::Features => "features",
            Self::Tests => "tests",
            Self::Docs => "docs",
            Self::Readme => "readme",
            Self::Examples => "examples",
            Self::Interop => "interop",
            Self::Versions => "versions",
            Self::Python => "python",
            Self::SqlClients => "sql",
            Self::Audit => "audit",
            Self::Package => "package",
            Self::Dist => "dist",
        }
    }

    /// The part with this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|part| part.name() == name)
    }

    /// What it checks, in short.
    pub(crate) fn purpose(self) -> &'static str {
        match self {
            Self::Format => "the code is formatted",
            Self::Clippy => "no warning from the compiler or the linter; with --all, or when named",
            Self::Features => "without features: no client of a store, no TLS",
            Self::Tests => "every test of every crate",
            Self::Docs => "the documentation builds without a warning; with --all, or when named",
            Self::Readme => "the first commands of README.md do what it says",
            Self::Examples => "the examples that check themselves end well",
            Self::Interop => "locks are shared with the libraries of other languages",
            Self::Versions => "old and new servers, ZooKeeper with TLS; with --all, or when named",
            Self::Python => "the Python package, on real servers; with --all, or when named",
            Self::SqlClients => "row locks and stock with sqlx and diesel; with --all, or when named",
            Self::Audit => "licences and advisories of dependencies; with --all, or when named",
            Self::Package => "every published crate as it would be uploaded; with --all, or when named",
            Self::Dist => "what users install, in a clean Debian; with --all, or when named",
        }
    }

    /// The cargo subcommand it needs and the toolchain component that brings it.
    pub(crate) fn component(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Format => Some(("fmt", "rustfmt")),
            Self::Clippy => Some(("clippy", "clippy")),
            _ => None,
        }
    }

    /// Whether it runs only with `--all`, or when `--only` names it.
    pub(crate) fn is_long(self) -> bool {
        let is_usual =
            matches!(self, Self::Format | Self::Readme | Self::Features | Self::Tests | Self::Interop | Self::Examples);
        !is_usual
    }

    /// Whether it needs Debian packages.
    pub(crate) fn needs_packages(self) -> bool {
        matches!(self, Self::Tests | Self::Examples | Self::Interop | Self::Versions | Self::Python | Self::SqlClients)
    }

    /// Whether it needs those that only the long tier needs.
    pub(crate) fn needs_long_packages(self) -> bool {
        matches!(self, Self::Python | Self::SqlClients | Self::Dist)
    }

    /// The command of a part that runs beside the tests: it mostly waits.
    /// `built` is the program for other languages that was built with the tests.
    pub(crate) fn beside_tests(self, long: bool, built: Option<&Path>) -> Option<Command> {
        match self {
            Self::Interop => interop::command(built?, long),
            _ => None,
        }
    }

    /// Runs it, with its output passed through.
    pub(crate) fn run(self, workspace: &Workspace, options: &TestOptions) -> Result<(), Failure> {
        match self {
            Self::Format => stream(&mut workspace.cargo(["fmt", "--all", "--check"])),
            Self::Clippy => stream(&mut clippy(workspace)),
            Self::Features => features::run(workspace, options.long),
            Self::Tests => programs::run(workspace, options.long, &[]).0,
            Self::Docs => stream(&mut docs(workspace)),
            Self::Readme => readme::run(workspace),
            Self::Examples => examples::run(workspace),
            Self::Versions => versions::run(workspace, &options.servers),
            Self::Python => python::run(workspace),
            Self::SqlClients => sql_clients(workspace),
            Self::Audit => audit::run(workspace),
            Self::Package => package::run(workspace),
            Self::Dist => dist::root::test(workspace),
            Self::Interop => {
                interop::run(workspace, &InteropOptions { all: options.long, ..InteropOptions::default() })
            }
        }
    }
}

fn clippy(workspace: &Workspace) -> Command {
    workspace.cargo(["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])
}

fn docs(workspace: &Workspace) -> Command {
    let mut command = workspace.cargo(["doc", "--workspace", "--no-deps", "--locked"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    command
}

/// The tests with sqlx and diesel: a workspace of its own.
fn sql_clients(workspace: &Workspace) -> Result<(), Failure> {
    let manifest = workspace.root().join("interop/sql/Cargo.toml");
    stream(workspace.cargo(["fmt", "--check", "--manifest-path"]).arg(&manifest))?;
    for arguments in [&["clippy", "--all-targets"][..], &["test"]] {
        let mut command = workspace.cargo(arguments.iter().chain(&["--locked", "--manifest-path"]));
        command.arg(&manifest).env("CARGO_TARGET_DIR", workspace.target()).env_remove("OARLOCK_URL");
        if arguments[0] == "clippy" {
            command.args(["--", "-D", "warnings"]);
        }
        stream(&mut command)?;
    }
    Ok(())
}

/// The same command at the lowest priority.
pub(crate) fn nice(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]).arg(command.get_program()).args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        nice.current_dir(folder);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    nice
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_answers_to_its_name() {
        for part in Part::ALL {
            assert_eq!(Part::named(part.name()), Some(*part));
        }
        assert_eq!(Part::named("nothing"), None);
    }

    #[test]
    fn a_nice_command_is_the_same_command() {
        let mut command = Command::new("cargo");
        command.arg("doc").current_dir("/r").env("RUSTDOCFLAGS", "-D warnings").env_remove("OARLOCK_URL");
        let nice = nice(&command);
        assert_eq!(crate::workspace::shown(&nice), "nice -n 19 cargo doc");
        assert_eq!(nice.get_current_dir(), Some(Path::new("/r")));
        let environment: Vec<_> = nice.get_envs().collect();
        assert!(environment.contains(&("RUSTDOCFLAGS".as_ref(), Some("-D warnings".as_ref()))), "{environment:?}");
        assert!(environment.contains(&("OARLOCK_URL".as_ref(), None)), "{environment:?}");
    }
}
