//! The parts of `cargo xtask test`, in the order they run: the quick ones first.

use crate::args::TestOptions;
use crate::interop::{self, InteropOptions};
use crate::workspace::{Failure, Workspace, stream};
use crate::{features, programs, readme};

/// Programs that fail if what they show is not so.
const EXAMPLES: &[&str] = &["paused_holder", "redlock_flaws"];

/// One part of the test run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The code is formatted.
    Format,
    /// The linter has nothing to say.
    Clippy,
    /// A build without features stays small.
    Features,
    /// The tests.
    Tests,
    /// The documentation builds without a warning.
    Docs,
    /// The first commands of the README work.
    Readme,
    /// The programs that check themselves do so.
    Examples,
    /// Locks are shared with the libraries of other languages.
    Interop,
}

impl Part {
    /// Every part, in order.
    pub(crate) const ALL: &[Self] = &[
        Self::Format,
        Self::Clippy,
        Self::Features,
        Self::Tests,
        Self::Docs,
        Self::Readme,
        Self::Examples,
        Self::Interop,
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
            Self::Clippy => "no warning from the compiler or the linter",
            Self::Features => "without features: no client of a store, no TLS",
            Self::Tests => "every test of every crate",
            Self::Docs => "the documentation builds without a warning",
            Self::Readme => "the first commands of README.md do what it says",
            Self::Examples => "the examples that check themselves end well",
            Self::Interop => "locks are shared with the libraries of other languages",
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

    /// Whether it needs Debian packages.
    pub(crate) fn needs_packages(self) -> bool {
        matches!(self, Self::Tests | Self::Examples | Self::Interop)
    }

    /// Runs it, with its output passed through.
    pub(crate) fn run(self, workspace: &Workspace, options: &TestOptions) -> Result<(), Failure> {
        match self {
            Self::Format => stream(&mut workspace.cargo(["fmt", "--all", "--check"])),
            Self::Clippy => stream(&mut workspace.cargo([
                "clippy",
                "--workspace",
                "--all-targets",
                "--locked",
                "--",
                "-D",
                "warnings",
            ])),
            Self::Features => features::run(workspace),
            Self::Tests => programs::run(workspace, options.long),
            Self::Docs => stream(
                workspace.cargo(["doc", "--workspace", "--no-deps", "--locked"]).env("RUSTDOCFLAGS", "-D warnings"),
            ),
            Self::Readme => readme::run(workspace),
            // Not by package: other features would build half of the workspace again.
            Self::Examples => EXAMPLES.iter().try_for_each(|example| {
                stream(&mut workspace.cargo(["run", "--quiet", "--locked", "--example", example]))
            }),
            Self::Interop => {
                interop::run(workspace, &InteropOptions { all: options.long, ..InteropOptions::default() })
            }
        }
    }
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
}
