//! The fewest requests that a lock on etcd needs, for `oarlock bench`. Not a lock.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oarlock_core::driver::BoxFuture;
use oarlock_core::floor::{Floor, Rival};
use oarlock_core::{Error, ErrorKind, Result};

use crate::api::{
    BY_CREATION, Compare, DELETED, DESCENDING, DeleteRequest, Is, Op, PutRequest, Range, RangeRequest, WatchCreate,
    WatchRequest,
};
use crate::config::Config;
use crate::error::{SCHEME, failed};
use crate::link::Link;

/// Longer than any run; nothing keeps it alive, as that would cost requests.
const LEASE_SECONDS: u64 = 3600;

/// Nobody waits for longer: a turn may be lost with whoever had it.
const TAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A key on a lease that is there already.
struct Key {
    config: Config,
    link: Link,
    lease: i64,
    prefix: String,
    /// Everything that was made stands on these.
    leases: Mutex<Vec<i64>>,
}

/// The floor beneath the store with this configuration.
///
/// # Errors
/// As for [`Etcd::open`](crate::Etcd::open).
pub async fn open(config: Config) -> Result<Arc<dyn Floor>> {
    let link = Link::open(&config).await?;
    let lease = link.grant(LEASE_SECONDS).await?.id;
    let (prefix, leases) = (format!("{}floor:", config.prefix), Mutex::new(vec![lease]));
    Ok(Arc::new(Key { config, link, lease, prefix, leases }))
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

    fn rival(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<Option<Arc<dyn Rival>>>> {
        Box::pin(async move {
            let link = Link::open(&self.config).await?;
            let lease = link.grant(LEASE_SECONDS).await?.id;
            self.leases.lock().unwrap_or_else(PoisonError::into_inner).push(lease);
            let folder = format!("{}{name}/", self.prefix);
            let own = Range::key(format!("{folder}{lease:x}"));
            Ok(Some(Arc::new(Seat { link, lease, folder, own }) as Arc<dyn Rival>))
        })
    }

    fn close(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let leases = std::mem::take(&mut *self.leases.lock().unwrap_or_else(PoisonError::into_inner));
            for lease in leases {
                self.link.revoke(lease).await?;
            }
            Ok(())
        })
    }
}

/// One in a line of keys: each watches the one before it, as Go's `concurrency` does.
struct Seat {
    link: Link,
    lease: i64,
    folder: String,
    own: Range,
}

impl Seat {
    /// Whoever came last before `revision`, and what is the newest there.
    async fn before(&self, revision: i64) -> Result<(Option<Vec<u8>>, i64)> {
        let range = Range::under(&self.folder);
        let last = RangeRequest {
            key: range.key,
            range_end: range.end,
            limit: 1,
            sort_order: DESCENDING,
            sort_target: BY_CREATION,
            max_create_revision: revision - 1,
            ..RangeRequest::default()
        };
        let found = self.link.range(last).await?;
        let now = found.header.map_or(revision, |header| header.revision);
        Ok((found.kvs.into_iter().next().map(|kv| kv.key), now))
    }

    /// Waits until a key is gone.
    async fn gone(&self, key: Vec<u8>, since: i64) -> Result<()> {
        let create = WatchCreate { key, start_revision: since, ..WatchCreate::default() };
        let mut watching = self.link.watch(vec![WatchRequest { create: Some(create) }]).await?;
        while let Some(answer) = watching.answers.message().await.map_err(failed)? {
            if answer.canceled || answer.events.iter().any(|event| event.what == DELETED) {
                break;
            }
        }
        Ok(())
    }
}

impl Rival for Seat {
    fn what(&self) -> &'static str {
        "a key in a line, and a watch on the one before it"
    }

    fn take(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let wait = async {
                let put = PutRequest { key: self.own.key.clone(), lease: self.lease, ..PutRequest::default() };
                let revision = self.link.txn(Vec::new(), vec![Op::Put(put)], Vec::new()).await?.revision;
                while let (Some(before), now) = self.before(revision).await? {
                    self.gone(before, now + 1).await?;
                }
                Ok(())
            };
            let lost = || Error::unreachable("the turn of the floor was lost").on(SCHEME);
            tokio::time::timeout(TAKE_TIMEOUT, wait).await.map_err(|_| lost())?
        })
    }

    fn give(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let delete = Op::Delete(DeleteRequest { key: self.own.key.clone() });
            self.link.txn(Vec::new(), vec![delete], Vec::new()).await.map(drop)
        })
    }
}
