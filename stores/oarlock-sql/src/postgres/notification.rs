//! A notification for a waiter: its turn has come, or it was granted.

use oarlock_core::clock::{BootClock, Clock as _};
use oarlock_core::driver::Handed;
use oarlock_core::state::Memo;
use oarlock_core::{ClaimId, Result};

/// A notification about a claim.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Notification {
    pub(crate) id: ClaimId,
    pub(crate) grant: Option<Grant>,
}

/// A grant, and the ticket of the last request of the claim that the server had seen.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    fence: u64,
    ticket: i64,
    ttl: u64,
    memo: Option<Memo>,
}

impl Notification {
    /// `id`, or `id fence ticket ttl [memo]`, with id and memo in hexadecimal. Every role of the database may send
    /// notifications: what is not of this form is a hint, or nothing.
    pub(crate) fn read(payload: &str) -> Option<Self> {
        let mut parts = payload.split(' ');
        let id = parts.next()?.parse().ok()?;
        Some(Self { id, grant: Grant::read(parts) })
    }
}

impl Grant {
    fn read<'a>(mut parts: impl Iterator<Item = &'a str>) -> Option<Self> {
        let (fence, ticket) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let ttl = parts.next()?.parse().ok()?;
        let memo = match (parts.next(), parts.next()) {
            (None, _) => None,
            (Some(memo), None) => Some(from_hex(memo)?),
            (Some(_), Some(_)) => return None,
        };
        Some(Self { fence, ticket, ttl, memo })
    }
}

/// So many requests of a waiter are remembered: the server has seen one of the last.
const TICKETS: usize = 8;

/// What is kept for a waiter: the grant that it was handed, and a ticket for each of its last requests.
///
/// A ticket is a random number that the server stores with the claim and repeats when it grants. Other roles of the
/// database can send notifications, but not one with a ticket.
#[derive(Debug, Default)]
pub(crate) struct WaiterData {
    pub(crate) handed: Option<Handed>,
    /// Each with the time at which its request left, in microseconds.
    tickets: Vec<(i64, u64)>,
}

impl WaiterData {
    /// A ticket for a request that leaves now.
    pub(crate) fn ticket(&mut self, random: impl FnOnce() -> Result<i64>) -> Option<i64> {
        let (sent, ticket) = (BootClock.now().as_nanos() / 1000, random().ok()?);
        let many = (self.tickets.len() + 1).saturating_sub(TICKETS);
        self.tickets.drain(..many);
        self.tickets.push((ticket, sent));
        Some(ticket)
    }

    /// The last notification counts: the claim may have been broken since it was granted. A ticket is good for one
    /// grant, because others may have seen it then.
    pub(crate) fn receive(&mut self, grant: Option<Grant>) {
        self.handed = grant.and_then(|grant| {
            let (_, sent) = *self.tickets.iter().find(|(ticket, _)| *ticket == grant.ticket)?;
            self.tickets.clear();
            Some(Handed::new(grant.fence, sent, grant.ttl, grant.memo))
        });
    }
}

fn from_hex(text: &str) -> Option<Memo> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.iter().map(byte).collect::<Option<Vec<_>>>().map(Into::into)
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
            notice.grant
        };
        let grant = |memo: Option<&[u8]>| Some(Grant { fence: 7, ticket: 5, ttl: 2, memo: memo.map(Into::into) });
        assert_eq!(read(" 7 5 2"), grant(None));
        assert_eq!(read(" 7 5 2 "), grant(Some(b"")));
        assert_eq!(read(" 7 5 2 6100ff"), grant(Some(b"a\0\xff")));
        for hint in ["", " ", " 7", " 7 5", " 7 5 x", " 7 5 2 6", " 7 5 2 6x", " 7 5 2 61 61"] {
            assert_eq!(read(hint), None, "{hint:?}");
        }
        for nothing in ["", "something else", " 7 5 2"] {
            assert_eq!(Notification::read(nothing), None, "{nothing:?}");
        }
    }

    #[test]
    fn a_grant_needs_a_ticket_that_was_not_used() {
        let mut kept = WaiterData::default();
        let grant = |ticket| Some(Grant { fence: 7, ticket, ttl: 2_000_000, memo: None });
        for ticket in 1..=9 {
            assert_eq!(kept.ticket(|| Ok(ticket)), Some(ticket));
        }
        for unknown in [0, 1, 10] {
            kept.receive(grant(unknown));
            assert!(kept.handed.is_none(), "{unknown}");
        }
        kept.receive(grant(2));
        assert!(kept.handed.take().is_some());
        for used in [2, 9] {
            kept.receive(grant(used));
            assert!(kept.handed.is_none(), "others may have seen it");
        }
        kept.ticket(|| Ok(11));
        kept.receive(grant(11));
        kept.receive(None);
        assert!(kept.handed.is_none(), "it was broken since");
    }
}
