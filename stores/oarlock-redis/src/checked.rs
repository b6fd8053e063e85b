//! Values that refuse the writes of a holder that lost its lock: the side that checks the fence.

use std::sync::Arc;

use oarlock_core::fenced::Written;
use oarlock_core::{Error, ErrorKind, Fence, Result};
use redis::Value;

use crate::config::{Config, Layout};
use crate::error::unexpected;
use crate::pool::Pool;
use crate::scripts::Script;

/// Values in Redis that accept a write only if its fence is not smaller than the last one.
///
/// A value is a hash with the fields `fence` and `value`, so other programs can read it.
///
/// # Guarantees
/// Of two writes with different fences, in whichever order they arrive, the one with the larger fence stays. Two writes
/// with the same fence come from the same holder, and the later one stays. A server that loses the value loses its
/// fence too.
///
/// # Examples
/// ```no_run
/// # async fn example(guard: oarlock_core::Guard) -> oarlock_core::Result<()> {
/// use oarlock_redis::{Address, Checked, Config, Written};
///
/// let values = Checked::open(Config::new(Address::Tcp("localhost".into(), 6379))).await?;
/// match values.set("balance", guard.fence(), b"42").await? {
///     Written::Stored => {}
///     Written::Refused { stored } => eprintln!("a later holder wrote with fence {stored}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Checked {
    pool: Arc<Pool>,
    set: Arc<Script>,
}

impl Checked {
    /// Connects, as [`Redis::open`](crate::Redis::open) does. Keys are used as they are given, without a prefix.
    ///
    /// # Errors
    /// Those of [`Redis::open`](crate::Redis::open).
    pub async fn open(mut config: Config) -> Result<Self> {
        // Keys are used as they are given, also in a cluster.
        (config.layout, config.prefix) = (Layout::Plain, String::new());
        let (pool, _) = Pool::open(config).await.map_err(|error| error.during("open"))?;
        let set = Arc::new(Script::new(include_str!("scripts/checked.lua").to_owned()));
        Ok(Self { pool: Arc::new(pool), set })
    }

    /// Writes `value` to `key`, unless a larger fence was there before.
    ///
    /// # Cancel safety
    /// A request that was sent takes effect, also when this future is dropped. Sending it again is safe.
    ///
    /// # Errors
    /// [`ErrorKind::Foreign`] if the key holds a value of another program; the errors of any request.
    pub async fn set(&self, key: &str, fence: Fence, value: &[u8]) -> Result<Written> {
        let mut call = self.pool.key_call(&self.set, key);
        call.command.arg(fence.get()).arg(value);
        let answer = self.pool.run_one(call).await.map_err(|error| error.during("set"))?;
        match answer {
            Value::Int(0) => Ok(Written::Stored),
            Value::Int(stored) if stored > 0 => {
                Ok(Written::Refused { stored: Fence::new(u64::try_from(stored).unwrap_or(0)) })
            }
            Value::Int(_) => {
                let message = format!("the key {key:?} holds a value without a fence");
                Err(Error::new(ErrorKind::Foreign, message).on(crate::error::SCHEME).during("set"))
            }
            _ => Err(unexpected().during("set")),
        }
    }

    /// What is stored at `key`, with the fence it was written with.
    ///
    /// # Errors
    /// [`ErrorKind::Foreign`] if the key holds a value of another program; the errors of any request.
    pub async fn get(&self, key: &str) -> Result<Option<(Fence, Vec<u8>)>> {
        let mut question = redis::cmd("HMGET");
        question.arg(key).arg("fence").arg("value");
        let answer = self.pool.query(vec![(key, question)]).await.map_err(|error| error.during("get"))?.pop();
        let stored: (Option<u64>, Option<Vec<u8>>) =
            redis::from_redis_value(answer.unwrap_or(Value::Nil)).map_err(|error| unexpected().because(error))?;
        Ok(stored.0.map(Fence::new).zip(stored.1))
    }
}
