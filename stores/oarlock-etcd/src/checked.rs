//! Values that refuse writes of a holder that has lost its lock: the protected side of a fence.

use std::sync::Arc;

use oarlock_core::fenced::Written;
use oarlock_core::{Error, ErrorKind, Fence, Result};

use crate::api::{Compare, Is, Op, Range};
use crate::config::Config;
use crate::connection::{Connection, transaction};
use crate::error::SCHEME;
use crate::operations::put;

/// Values in etcd that are written only with a fence that is not smaller than the last one.
///
/// The key has the value as it was given, so other programs can read it; `<key>/fence` has the fence, in 16 decimal
/// digits. A program with a transaction of its own adds this condition to it: the value of `<key>/fence` is less than
/// the next larger fence.
///
/// # Guarantees
/// Of two writes with different fences, in whichever order they arrive, the one with the larger fence stays. Two
/// writes with the same fence come from the same holder, and the later one stays.
///
/// # Examples
/// ```no_run
/// # async fn example(guard: oarlock_core::Guard) -> oarlock_core::Result<()> {
/// use oarlock_etcd::{Checked, Config, Written};
///
/// let values = Checked::open(Config::new(["localhost:2379"])).await?;
/// match values.set("balance", guard.fence(), b"42").await? {
///     Written::Stored => {}
///     Written::Refused { stored } => eprintln!("refused: fence {stored} was stored before"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Checked {
    connection: Arc<Connection>,
}

impl Checked {
    /// Connects, as [`Etcd::open`](crate::Etcd::open) does. Keys are used as they are given, without a prefix.
    ///
    /// # Errors
    /// Those of [`Etcd::open`](crate::Etcd::open).
    pub async fn open(config: Config) -> Result<Self> {
        let connection = Connection::open(&config).await.map_err(|error| error.during("open"))?;
        Ok(Self { connection: Arc::new(connection) })
    }

    /// Writes `value` to `key`, unless a larger fence was there before.
    ///
    /// # Cancel safety
    /// A write that was sent arrives, also when this future is dropped. Sending it again is safe.
    ///
    /// # Errors
    /// [`ErrorKind::Foreign`] if the key exists without a fence; any error of a request.
    pub async fn set(&self, key: &str, fence: Fence, value: &[u8]) -> Result<Written> {
        if fence.get() >= Fence::LIMIT {
            return Err(Error::new(ErrorKind::FenceExhausted, "a fence is below 2^53").on(SCHEME).during("set"));
        }
        let (own, guard) = keys(key);
        let write = || vec![put(&own, value.to_vec(), 0), put(&guard, text(fence.get()), 0)];
        let read = vec![guard.get(), own.get()];
        // A comparison with a missing key fails.
        let absent = vec![Compare::created(&guard, Is::Equal, 0), Compare::created(&own, Is::Equal, 0)];
        let first = Op::Txn(transaction(absent, write(), read));
        let newest = vec![Compare::holds(&guard, Is::Less, text(fence.get() + 1))];
        let found = self.connection.txn(newest, write(), vec![first]).await.map_err(|error| error.during("set"))?;
        if found.reads.is_empty() {
            return Ok(Written::Stored);
        }
        match stored(key, found.reads).map_err(|error| error.during("set"))? {
            Some((stored, _)) => Ok(Written::Refused { stored }),
            None => Err(unfenced(key).during("set")),
        }
    }

    /// Reads the value at `key`, and the fence it was written with.
    ///
    /// # Errors
    /// [`ErrorKind::Foreign`] if the key exists without a fence; any error of a request.
    pub async fn get(&self, key: &str) -> Result<Option<(Fence, Vec<u8>)>> {
        let (own, guard) = keys(key);
        let found = self.connection.txn(Vec::new(), vec![guard.get(), own.get()], Vec::new()).await;
        found.and_then(|found| stored(key, found.reads)).map_err(|error| error.during("get"))
    }
}

fn keys(key: &str) -> (Range, Range) {
    (Range::key(key), Range::key(format!("{key}/fence")))
}

/// Padded to the length of the largest fence, so that texts have the order of the numbers.
fn text(fence: u64) -> Vec<u8> {
    format!("{fence:016}").into_bytes()
}

fn stored(key: &str, reads: Vec<crate::api::RangeResponse>) -> Result<Option<(Fence, Vec<u8>)>> {
    let mut values = reads.into_iter().map(|range| range.kvs.into_iter().next().map(|kv| kv.value));
    match (values.next().flatten(), values.next().flatten()) {
        (None, None) => Ok(None),
        (Some(fence), Some(value)) => {
            let number = std::str::from_utf8(&fence).ok().filter(|fence| fence.len() == 16);
            let number = number.and_then(|fence| fence.parse().ok()).ok_or_else(|| unfenced(key))?;
            Ok(Some((Fence::new(number), value)))
        }
        _ => Err(unfenced(key)),
    }
}

fn unfenced(key: &str) -> Error {
    Error::new(ErrorKind::Foreign, format!("the key {key:?} holds a value without a fence")).on(SCHEME)
}
