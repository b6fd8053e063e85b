//! A notification for a waiter: its turn has come, or it was granted.

use oarlock_core::ClaimId;
use oarlock_core::clock::{BootClock, Clock as _};
use oarlock_core::driver::Handed;
use oarlock_core::state::Memo;

/// A notification about a claim.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Notification {
    pub(crate) id: ClaimId,
    pub(crate) handed: Option<Handed>,
}

impl Notification {
    /// `id`, or `id fence sent ttl [memo]`, with id and memo in hexadecimal. Every role of the database may send
    /// notifications: what is not of this form is a hint, or nothing.
    pub(crate) fn read(payload: &str) -> Option<Self> {
        let mut parts = payload.split(' ');
        let id = parts.next()?.parse().ok()?;
        let numbers = parts.by_ref().take(3).collect::<Vec<_>>();
        let memo = match (parts.next(), parts.next()) {
            (None, _) => Some(None),
            (Some(memo), None) => from_hex(memo).map(Some),
            (Some(_), Some(_)) => None,
        };
        Some(Self { id, handed: memo.and_then(|memo| Handed::read(numbers.into_iter(), memo)) })
    }
}

fn from_hex(text: &str) -> Option<Memo> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.iter().map(byte).collect::<Option<Vec<_>>>().map(Into::into)
}

/// The time at which a request leaves, in microseconds.
pub(crate) fn sent() -> Option<i64> {
    i64::try_from(BootClock.now().as_nanos() / 1000).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "000000000000000000000000000000ff";

    #[test]
    fn notices_are_read_as_they_are_written() {
        let read = |rest: &str| {
            let notice = Notification::read(&format!("{ID}{rest}")).unwrap();
            assert_eq!(notice.id, ClaimId::from_bits(255));
            notice.handed
        };
        let handed = |memo: Option<&[u8]>| Handed::read(["7", "5", "2"].into_iter(), memo.map(Into::into));
        assert!(handed(None).is_some());
        assert_eq!(read(" 7 5 2"), handed(None));
        assert_eq!(read(" 7 5 2 "), handed(Some(b"")));
        assert_eq!(read(" 7 5 2 6100ff"), handed(Some(b"a\0\xff")));
        for hint in ["", " ", " 7", " 7 5", " 7 5 x", " 7 5 2 6", " 7 5 2 6x", " 7 5 2 61 61"] {
            assert_eq!(read(hint), None, "{hint:?}");
        }
        for nothing in ["", "something else", " 7 5 2"] {
            assert_eq!(Notification::read(nothing), None, "{nothing:?}");
        }
    }
}
