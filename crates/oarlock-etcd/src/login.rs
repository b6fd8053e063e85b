//! Who asks: a user, known to the cluster by a token that ends.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Code, Status};

/// A user and what the cluster gave for the password.
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) password: String,
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
    /// Nothing: this cluster asks nobody who he is.
    NotNeeded,
}

impl Login {
    pub(crate) fn new(user: &str, password: &str) -> Self {
        Self { user: user.to_owned(), password: password.to_owned(), token: Mutex::default() }
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
    let says = |text| status.message().contains(text);
    match status.code() {
        Code::Unauthenticated => true,
        // Users were changed since the token was given; or there are users since then.
        Code::InvalidArgument => says("revision of auth store is old") || says("user name is empty"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_token_is_forgotten_once() {
        let login = Login::new("me", "swordfish");
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
    }
}
