//! The fewest requests that a lock on etcd needs, for `oarlock bench`. Not a lock.

use std::sync::Arc;

use oarlock_core::driver::BoxFuture;
use oarlock_core::floor::{Floor, Rival};
use oarlock_core::{Error, ErrorKind, Result};

use crate::api::{Compare, DeleteRequest, Is, Op, PutRequest, Range};
use crate::config::Config;
use crate::error::SCHEME;
use crate::link::Link;

/// Longer than any run; nothing keeps it alive, as that would cost requests.
const LEASE_SECONDS: u64 = 3600;

/// A key on a lease that is there already.
struct Key {
    link: Link,
    lease: i64,
    prefix: String,
}

/// The floor beneath the store with this configuration.
///
/// # Errors
/// As for [`Etcd::open`](crate::Etcd::open).
pub async fn open(config: Config) -> Result<Arc<dyn Floor>> {
    let link = Link::open(&config).await?;
    let lease = link.grant(LEASE_SECONDS).await?.id;
    // Apart from every prefix of locks that begins like this one.
    Ok(Arc::new(Key { link, lease, prefix: format!("floor:{}", config.prefix) }))
}

impl Floor for Key {
    fn what(&self) -> &'static str {
        "a transaction that makes a key on a lease, and one that removes it"
    }

    fn pair(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let key = Range::key(format!("{}{name}", self.prefix));
            let put = PutRequest { key: key.key.clone(), value: Vec::new(), lease: self.lease, ignore_lease: false };
            let absent = vec![Compare::created(&key, Is::Equal, 0)];
            let made = self.link.txn(absent, vec![Op::Put(put)], Vec::new()).await?;
            let ours = vec![Compare::created(&key, Is::Equal, made.revision)];
            let delete = Op::Delete(DeleteRequest { key: key.key });
            let removed = self.link.txn(ours, vec![delete], Vec::new()).await?;
            if made.succeeded && removed.succeeded {
                return Ok(());
            }
            Err(Error::new(ErrorKind::Foreign, "somebody else uses the key of the floor").on(SCHEME))
        })
    }

    /// A queue of keys and watches is no longer the fewest requests of anything.
    fn rival(self: Arc<Self>, _: Arc<str>) -> BoxFuture<Result<Option<Arc<dyn Rival>>>> {
        Box::pin(async { Ok(None) })
    }

    fn close(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move { self.link.revoke(self.lease).await })
    }
}
