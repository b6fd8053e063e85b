//! Authentication: a user, and the token that the cluster gave for the password.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use oarlock_core::url::current_password;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Code, Status};

/// A user and what the cluster gave for the password.
pub(crate) struct Login {
    pub(crate) user: String,
    password: String,
    password_file: Option<PathBuf>,
    token: Mutex<Pass>,
}

/// What a request shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Pass {
    /// Nothing yet: ask for a token first.
    #[default]
    None,
    /// This token.
    Token(MetadataValue<Ascii>),
    /// None: the cluster has authentication disabled.
    NotNeeded,
}

impl Login {
    pub(crate) fn new(user: &str, password: &str, password_file: Option<PathBuf>) -> Self {
        Self { user: user.to_owned(), password: password.to_owned(), password_file, token: Mutex::default() }
    }

    /// The password of now.
    pub(crate) fn password(&self) -> String {
        current_password(self.password_file.as_deref(), Some(&self.password)).unwrap_or_default()
    }

    pub(crate) fn pass(&self) -> Pass {
        self.token.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn keep(&self, pass: Pass) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = pass;
    }

    /// Forgets a token that was refused, unless another has it replaced already.
    pub(crate) fn refused(&self, pass: &Pass) {
        let mut kept = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        if *kept == *pass {
            *kept = Pass::None;
        }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Whether a request was turned away because of its token. It has had no effect, and gets through with a new one.
pub(crate) fn is_stale(status: &Status) -> bool {
    match status.code() {
        Code::Unauthenticated => true,
        Code::InvalidArgument => says_stale(status.message()),
        _ => false,
    }
}

/// The same for the text of a cancelled watch, which has no code. Servers from 3.6 on give the reason; earlier ones
/// report a missing permission.
pub(crate) fn says_stale(text: &str) -> bool {
    // The token has ended; or users were changed since it was given; or there are users since then.
    ["invalid auth token", "revision of auth store is old", "user name is empty"]
        .iter()
        .any(|words| text.contains(words))
}

/// Whether a password was refused because the cluster knows no users. The code is that of a learner, too.
pub(crate) fn is_without_users(status: &Status) -> bool {
    status.code() == Code::FailedPrecondition && status.message().contains("authentication is not enabled")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_token_is_forgotten_once() {
        let login = Login::new("me", "swordfish", None);
        let (old, new) = (MetadataValue::from_static("old"), MetadataValue::from_static("new"));
        login.keep(Pass::Token(old.clone()));
        login.refused(&Pass::Token(old.clone()));
        assert_eq!(login.pass(), Pass::None);
        login.keep(Pass::Token(new.clone()));
        login.refused(&Pass::Token(old));
        assert_eq!(login.pass(), Pass::Token(new));
        assert!(!format!("{login:?}").contains("swordfish"));
    }

    #[test]
    fn only_tokens_are_stale() {
        assert!(is_stale(&Status::unauthenticated("etcdserver: invalid auth token")));
        assert!(is_stale(&Status::invalid_argument("etcdserver: revision of auth store is old")));
        assert!(!is_stale(&Status::invalid_argument("etcdserver: duplicate key given in txn request")));
        assert!(!is_stale(&Status::permission_denied("etcdserver: permission denied")));
        assert!(says_stale("rpc error: code = InvalidArgument desc = etcdserver: revision of auth store is old"));
        assert!(says_stale("rpc error: code = InvalidArgument desc = etcdserver: user name is empty"));
        assert!(says_stale("rpc error: code = Unauthenticated desc = etcdserver: invalid auth token"));
        assert!(!says_stale("rpc error: code = PermissionDenied desc = etcdserver: permission denied"));
    }

    #[test]
    fn a_learner_is_not_a_cluster_without_users() {
        assert!(is_without_users(&Status::failed_precondition("etcdserver: authentication is not enabled")));
        assert!(!is_without_users(&Status::failed_precondition("etcdserver: rpc not supported for learner")));
    }
}
