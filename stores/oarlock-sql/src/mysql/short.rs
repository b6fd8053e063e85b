//! The short way: one statement without a procedure takes a name that has no claims, and one releases it.
//!
//! The claim is in the row of its name then. The next step of another kind moves it to the table of claims. A statement
//! that meets anything else changes nothing, and the procedure follows on the same connection. So the client takes the
//! short way only where it is likely to suffice: a name that was free when this client last released it.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Value};
use oarlock_core::{Claim, ClaimId, ResourceName, Weight};

use crate::mysql::wake::lock_name;
use crate::row::id_bytes;

const TAKE: &str = include_str!("sql/take.sql");
const GIVE: &str = include_str!("sql/give.sql");

/// So many free names are remembered.
const NAMES: usize = 4096;

/// From so many claims on, those that have ended are looked for.
const CLAIMS: usize = 1024;

/// Lets the server read the statements now instead of under the first lock.
pub(super) async fn warm(conn: &mut Conn) -> mysql_async::Result<()> {
    for statement in [TAKE, GIVE] {
        conn.prep(statement).await?;
    }
    Ok(())
}

/// Where this client takes the short way.
#[derive(Debug, Default)]
pub(crate) struct ShortWay(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Names that had no claims, and no memo, when this client last released one.
    free: HashSet<ResourceName>,
    /// Claims that may be in the row of their name, and when they end by themselves.
    sole: HashMap<ClaimId, Instant>,
}

impl ShortWay {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an attempt is likely to find nothing in its way. If so, the claim may be in the row of its name from now
    /// on, and for `span` at most.
    pub(crate) fn takes(&self, claim: &Claim, span: Duration) -> bool {
        let mut inner = self.lock();
        let now = Instant::now();
        let Some(until) = now.checked_add(span) else { return false };
        if claim.weight != Weight::All || !inner.free.contains(&claim.resource) {
            return false;
        }
        if inner.sole.len() >= CLAIMS {
            inner.sole.retain(|_, until| *until > now);
        }
        inner.sole.insert(claim.id, until);
        true
    }

    /// Whether the claim may be in the row of its name.
    pub(crate) fn has(&self, id: ClaimId) -> bool {
        self.lock().sole.contains_key(&id)
    }

    /// The claim is not in the row of its name: it has left, or is in the table of claims.
    pub(crate) fn left(&self, id: ClaimId) {
        self.lock().sole.remove(&id);
    }

    /// Whether any claim may be in the row of its name.
    pub(crate) fn has_any(&self) -> bool {
        let now = Instant::now();
        self.lock().sole.values().any(|until| *until > now)
    }

    /// Whether a name has no claims any more, and no memo.
    pub(crate) fn note(&self, name: &ResourceName, is_free: bool) {
        let mut inner = self.lock();
        if !is_free {
            inner.free.remove(name);
        } else if !inner.free.contains(name) {
            if inner.free.len() >= NAMES {
                inner.free.clear();
            }
            inner.free.insert(name.clone());
        }
    }
}

/// What the short way of an attempt is given.
pub(crate) struct Take {
    pub(crate) name: Vec<u8>,
    pub(crate) capacity: Option<i64>,
    pub(crate) session: i64,
    pub(crate) tethered: bool,
    pub(crate) kind: &'static str,
    pub(crate) behind: u32,
    pub(crate) label: String,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) lease: i64,
}

impl Take {
    /// The fence, if the name was free. `wake`: whether this connection takes the lock of the claim.
    pub(super) async fn send(self, conn: &mut Conn, id: ClaimId, wake: bool) -> mysql_async::Result<Option<u64>> {
        let params: Vec<Value> = vec![
            self.capacity.into(),
            id_bytes(id).into(),
            self.session.into(),
            self.tethered.into(),
            self.kind.into(),
            self.behind.into(),
            self.label.into(),
            self.value.into(),
            self.lease.into(),
            self.lease.into(),
            wake.into(),
            lock_name(id).into(),
            self.name.into(),
        ];
        conn.exec_drop(TAKE, params).await?;
        Ok(if conn.affected_rows() > 0 { conn.last_insert_id() } else { None })
    }
}

/// Releases a claim that is in the row of its name, and answers whether the wake-up lock was released with it. `None` if
/// it is not there. `wake`: whether this connection holds that lock.
pub(super) async fn give(conn: &mut Conn, name: Vec<u8>, id: ClaimId, wake: bool) -> mysql_async::Result<Option<bool>> {
    let params: Vec<Value> = vec![wake.into(), lock_name(id).into(), name.into(), id_bytes(id).into()];
    conn.exec_drop(GIVE, params).await?;
    Ok((conn.affected_rows() > 0).then(|| conn.last_insert_id() == Some(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn only_names_that_were_free_are_taken_the_short_way() {
        let short = ShortWay::default();
        let claim = Claim::new(ClaimId::from_bits(1), ResourceName::new("a").unwrap());
        assert!(!short.takes(&claim, LONG) && !short.has_any());
        short.note(&claim.resource, true);
        assert!(short.takes(&claim, LONG) && short.has(claim.id) && short.has_any());
        short.left(claim.id);
        assert!(!short.has(claim.id) && !short.has_any());
        short.note(&claim.resource, false);
        assert!(!short.takes(&claim, LONG));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let short = ShortWay::default();
        let name = |number: usize| ResourceName::new(format!("{number}")).unwrap();
        for number in 0..=NAMES {
            short.note(&name(number), true);
        }
        assert_eq!(short.lock().free.len(), 1);
        for number in 0..=CLAIMS {
            let claim = Claim::new(ClaimId::from_bits(number as u128), name(NAMES));
            assert!(short.takes(&claim, Duration::ZERO));
        }
        assert_eq!(short.lock().sole.len(), 1);
        assert!(!short.has_any(), "a claim that has ended by itself");
    }
}
