//! What can go wrong beside the story, and the exit code of it.

use std::error::Error as StdError;

use crate::exit::{Code, Failure};

/// Any error on the strategy.
pub(crate) type Boxed = Box<dyn StdError + Send + Sync>;

/// An error of a row without the row, which is of no use here.
pub(crate) fn boxed<R, E: StdError + Send + Sync + 'static>(error: oarlock_rows::Error<R, E>) -> Boxed {
    match error {
        oarlock_rows::Error::Client(error) => Box::new(error),
        other => other.to_string().into(),
    }
}

/// The failure with the code that the command line promises for it.
pub(crate) fn failure(error: &Boxed) -> Failure {
    let mut at: Option<&(dyn StdError + 'static)> = Some(error.as_ref());
    while let Some(cause) = at {
        if let Some(ours) = cause.downcast_ref::<oarlock::Error>() {
            return Failure::from(ours.clone());
        }
        if let Some(code) = code_of(cause) {
            return Failure::new(code, words(error));
        }
        at = cause.source();
    }
    Failure::new(Code::Internal, words(error))
}

fn code_of(cause: &(dyn StdError + 'static)) -> Option<Code> {
    #[cfg(feature = "postgres")]
    if let Some(error) = cause.downcast_ref::<tokio_postgres::Error>() {
        // The classes: 08 no connection, 28 who are you, 3D no such database, 57P the server goes down.
        return match error.code().map(tokio_postgres::error::SqlState::code) {
            Some("42501") => Some(Code::Denied),
            Some(state) if state.starts_with("28") => Some(Code::Denied),
            Some(state) if state.starts_with("3D") => Some(Code::Config),
            Some(state) if state.starts_with("08") || state.starts_with("57P") => Some(Code::Unreachable),
            Some("53300") => Some(Code::Unreachable),
            Some(_) => Some(Code::Internal),
            None => Some(Code::Unreachable),
        };
    }
    #[cfg(feature = "mysql")]
    if let Some(error) = cause.downcast_ref::<mysql_async::Error>() {
        return Some(match error {
            mysql_async::Error::Server(error) => match error.code {
                1044 | 1045 | 1142 | 1227 | 1698 => Code::Denied,
                1049 => Code::Config,
                1040 | 1053 => Code::Unreachable,
                _ => Code::Internal,
            },
            _ => Code::Unreachable,
        });
    }
    #[cfg(feature = "redis")]
    if let Some(error) = cause.downcast_ref::<redis::RedisError>() {
        return Some(match error.kind() {
            redis::ErrorKind::AuthenticationFailed => Code::Denied,
            _ if matches!(error.code(), Some("NOAUTH" | "NOPERM" | "WRONGPASS")) => Code::Denied,
            _ if error.is_io_error() || error.is_timeout() => Code::Unreachable,
            _ => Code::Internal,
        });
    }
    if cause.downcast_ref::<std::io::Error>().is_some() {
        return Some(Code::Os);
    }
    None
}

/// With what caused it: clients often say only "db error" themselves.
fn words(error: &Boxed) -> String {
    let mut words = error.to_string();
    let mut at = error.source();
    while let Some(cause) = at {
        let more = cause.to_string();
        if !words.contains(&more) {
            words = format!("{words}: {more}");
        }
        at = cause.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn causes_are_said_once_and_have_their_code() {
        let refused = std::io::Error::other("the disk is full");
        let shown = failure(&Boxed::from(refused));
        assert_eq!((shown.exit(), shown.message()), (Exit(71), Some("the disk is full")));
        let lost = oarlock::Error::unreachable("no server is there");
        assert_eq!(failure(&Boxed::from(lost)).exit(), Exit(69));
        assert_eq!(failure(&Boxed::from("strange")).exit(), Exit(70));
    }
}
