//! What the advisory lock of a name is called.

use std::fmt;

use oarlock_core::{Error, ErrorKind, ResourceName, Result};
use sha2::{Digest as _, Sha256};

use crate::postgres::config::Keys;
use crate::postgres::error::SCHEME;

/// The two kinds of keys, which never meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// One number.
    One(i64),
    /// Two smaller ones.
    Two(i32, i32),
}

impl Key {
    pub(crate) fn of(keys: Keys, prefix: &str, name: &ResourceName) -> Result<Self> {
        match keys {
            Keys::Named => Ok(Self::hashed(prefix, name.as_str())),
            Keys::Raw => Self::read(name.as_str()).ok_or_else(|| {
                let message = "a raw key is a whole number of 64 bits, or two of 32 bits as in 7,42";
                Error::new(ErrorKind::InvalidName, message).on(SCHEME).about(name)
            }),
        }
    }

    fn hashed(prefix: &str, name: &str) -> Self {
        let digest = Sha256::new().chain_update(prefix).chain_update(name).finalize();
        let bytes = digest.first_chunk().copied().unwrap_or_default();
        Self::One(i64::from_be_bytes(bytes))
    }

    fn read(name: &str) -> Option<Self> {
        match name.split_once(',') {
            None => name.parse().ok().map(Self::One),
            Some((one, two)) => Some(Self::Two(one.trim().parse().ok()?, two.trim().parse().ok()?)),
        }
    }

    /// As the server shows it: two halves without a sign, and which kind it is.
    pub(crate) fn shown(self) -> (i64, i64, i16) {
        match self {
            Self::One(one) => ((one >> 32) & 0xffff_ffff, one & 0xffff_ffff, 1),
            Self::Two(one, two) => (i64::from(one.cast_unsigned()), i64::from(two.cast_unsigned()), 2),
        }
    }
}

/// As arguments of the server's functions.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(one) => write!(f, "{one}"),
            Self::Two(one, two) => write!(f, "{one}, {two}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(name: &str) -> Result<Key> {
        Key::of(Keys::Raw, "oarlock:", &ResourceName::new(name).unwrap())
    }

    #[test]
    fn a_name_is_its_hash() {
        let key = Key::of(Keys::Named, "oarlock:", &ResourceName::new("nightly").unwrap()).unwrap();
        // SELECT ('x' || left(encode(sha256('oarlock:nightly'), 'hex'), 16))::bit(64)::bigint
        assert_eq!(key, Key::One(6_087_727_334_608_681_367));
    }

    #[test]
    fn a_raw_key_is_the_number_itself() {
        assert_eq!(raw("42").unwrap(), Key::One(42));
        assert_eq!(raw("-9223372036854775808").unwrap(), Key::One(i64::MIN));
        assert_eq!(raw("7,-42").unwrap(), Key::Two(7, -42));
        for bad in ["", "nightly", "9223372036854775808", "1,2,3", "1,4294967296", "0x10"] {
            assert!(ResourceName::new(bad).is_err() || raw(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_server_shows_halves_without_a_sign() {
        assert_eq!(Key::One(-1).shown(), (0xffff_ffff, 0xffff_ffff, 1));
        assert_eq!(Key::One(0x1_0000_0002).shown(), (1, 2, 1));
        assert_eq!(Key::Two(-1, 2).shown(), (0xffff_ffff, 2, 2));
    }
}
