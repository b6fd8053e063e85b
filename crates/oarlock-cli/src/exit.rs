//! The exit codes, and how failures become one.

use std::process::ExitCode;

use oarlock::{Error, ErrorKind};

/// The codes of our own; a command's codes are its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    Success = 0,
    Usage = 64,
    Unreachable = 69,
    Internal = 70,
    Os = 71,
    CannotCreate = 73,
    Busy = 75,
    Lost = 76,
    Denied = 77,
    Config = 78,
    NotExecutable = 126,
    NotFound = 127,
}

impl Code {
    pub(crate) fn of(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Busy | ErrorKind::SelfDeadlock | ErrorKind::TooManyWaiters => Self::Busy,
            ErrorKind::Lost => Self::Lost,
            ErrorKind::InvalidName | ErrorKind::InvalidClaim | ErrorKind::TooHeavy => Self::Usage,
            ErrorKind::Config
            | ErrorKind::SpecMismatch
            | ErrorKind::Unsupported
            | ErrorKind::Foreign
            | ErrorKind::NewerFormat => Self::Config,
            ErrorKind::Unreachable | ErrorKind::Closed => Self::Unreachable,
            ErrorKind::Denied => Self::Denied,
            ErrorKind::CannotCreate => Self::CannotCreate,
            ErrorKind::Os => Self::Os,
            _ => Self::Internal,
        }
    }
}

/// What this process ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit(pub(crate) u8);

impl Exit {
    /// Ended by signal `number`.
    pub(crate) fn signal(number: i32) -> Self {
        Self(u8::try_from(number).ok().and_then(|number| number.checked_add(128)).unwrap_or(255))
    }
}

impl From<Code> for Exit {
    fn from(code: Code) -> Self {
        Self(code as u8)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.0)
    }
}

/// Why we end early, and what there is to say about it.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    exit: Exit,
    message: Option<String>,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { exit: code.into(), message: Some(message.into()) }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Code::Usage, message)
    }

    pub(crate) fn os(what: &str, error: impl Into<std::io::Error>) -> Self {
        Self::new(Code::Os, format!("{what}: {}", error.into()))
    }

    /// Everything was said, or standard error is closed.
    pub(crate) fn quiet(exit: impl Into<Exit>) -> Self {
        Self { exit: exit.into(), message: None }
    }

    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    pub(crate) fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let mut message = error.to_string();
        // The library's hint names a method.
        let hint = match error.kind() {
            ErrorKind::SpecMismatch => "Use the number of permits that the holders use: see \"oarlock show\".",
            _ => error.hint(),
        };
        if !hint.is_empty() {
            message.push_str(if message.ends_with(['.', '?', '!']) { " " } else { ". " });
            message.push_str(hint);
        }
        Self::new(Code::of(error.kind()), message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_its_code() {
        let cases = [
            (ErrorKind::Busy, 75),
            (ErrorKind::SelfDeadlock, 75),
            (ErrorKind::TooManyWaiters, 75),
            (ErrorKind::Lost, 76),
            (ErrorKind::Unreachable, 69),
            (ErrorKind::Denied, 77),
            (ErrorKind::Config, 78),
            (ErrorKind::SpecMismatch, 78),
            (ErrorKind::InvalidName, 64),
            (ErrorKind::CannotCreate, 73),
            (ErrorKind::Os, 71),
            (ErrorKind::Internal, 70),
        ];
        for (kind, code) in cases {
            assert_eq!(Failure::from(Error::new(kind, "x")).exit(), Exit(code), "{kind:?}");
        }
        let asked = Failure::from(Error::new(ErrorKind::Config, "did you mean mem?"));
        assert_eq!(asked.message(), Some("did you mean mem? Check the URL and its options."));
        assert_eq!((Exit::signal(9), Exit::signal(300)), (Exit(137), Exit(255)));
    }
}
