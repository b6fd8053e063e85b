//! Where the repository is, and how commands are run in it.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use anyhow::Context as _;

/// The exit code of what failed, and a sentence about it.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Never 0.
    pub(crate) code: u8,
    /// What failed.
    pub(crate) why: String,
}

impl Failure {
    /// A failure that no child process gave a code for.
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self { code: 1, why: why.into() }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::new(format!("{error:#}"))
    }
}

/// The repository this was built from.
#[derive(Debug)]
pub(crate) struct Workspace {
    root: PathBuf,
    cargo: OsString,
}

impl Workspace {
    /// Finds the repository and the cargo that runs us.
    pub(crate) fn find() -> anyhow::Result<Self> {
        // The value at run time wins: a built binary may be started for another clone.
        let manifest_dir = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = manifest_dir.parent().context("the manifest of xtask has no folder above it")?;
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        Ok(Self { root: root.to_owned(), cargo })
    }

    /// The folder that holds `README.md` and the workspace manifest.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Where build products go.
    pub(crate) fn target(&self) -> PathBuf {
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| self.root.join("target"), |folder| self.root.join(folder))
    }

    /// `cargo` with these arguments, at the root of the repository.
    pub(crate) fn cargo<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(&self.cargo);
        command.args(args).current_dir(&self.root);
        command
    }
}

/// Runs `command` with its output passed through.
///
/// # Errors
/// When it cannot be started, or with its exit code when that is not 0.
pub(crate) fn stream(command: &mut Command) -> Result<(), Failure> {
    let line = shown(command);
    println!("$ {line}");
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    succeeded(status, &line)
}

/// Turns the end of `line` into a result.
pub(crate) fn succeeded(status: ExitStatus, line: &str) -> Result<(), Failure> {
    match exit_code(status) {
        0 => Ok(()),
        code => Err(Failure { code, why: format!("`{line}` ended with exit code {code}") }),
    }
}

/// The exit code as a shell reports it: 128+N when signal N ended the process.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// The command as a person would type it.
pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    std::iter::once(name)
        .chain(command.get_args())
        .map(|argument| {
            let argument = argument.to_string_lossy();
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@".contains(c);
            if !argument.is_empty() && argument.chars().all(plain) {
                argument.into_owned()
            } else {
                format!("'{}'", argument.replace('\'', r"'\''"))
            }
        })
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_shown_as_typed() {
        let mut command = Command::new("/opt/rust/bin/cargo");
        command.args(["run", "--", "echo", "it's one"]);
        assert_eq!(shown(&command), r"cargo run -- echo 'it'\''s one'");
    }

    #[test]
    fn a_signal_is_a_failure() {
        assert_eq!(exit_code(ExitStatus::from_raw(0)), 0);
        assert_eq!(exit_code(ExitStatus::from_raw(101 << 8)), 101);
        assert_eq!(exit_code(ExitStatus::from_raw(9)), 137);
    }
}
