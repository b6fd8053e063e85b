//! Keys on leases, on a connection like that of the driver, for the requests of `oarlock-bench`. Not part of the API.

use oarlock_core::Result;

use crate::api::{
    BY_CREATION, Compare, DELETED, DESCENDING, DeleteRequest, Is, Op, PutRequest, Range, RangeRequest, WatchCreate,
    WatchRequest,
};
use crate::config::Config;
use crate::connection::Connection;
use crate::error::failed;

/// A connection to the cluster.
#[derive(Debug)]
pub struct Client(Connection);

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// As for [`Etcd::open`](crate::Etcd::open).
    pub async fn open(config: &Config) -> Result<Self> {
        Connection::open(config).await.map(Self)
    }

    /// Grants a lease that nothing keeps alive.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn grant(&self, seconds: u64) -> Result<i64> {
        Ok(self.0.grant(seconds).await?.id)
    }

    /// Revokes a lease, and so deletes its keys.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn revoke(&self, lease: i64) -> Result<()> {
        self.0.revoke(lease).await
    }

    /// Creates a key on a lease; its revision, or `None` if the key is there.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn create(&self, key: &str, lease: i64) -> Result<Option<i64>> {
        let key = Range::key(key.to_owned());
        let absent = vec![Compare::created(&key, Is::Equal, 0)];
        let put = PutRequest { key: key.key, lease, ..PutRequest::default() };
        let created = self.0.txn(absent, vec![Op::Put(put)], Vec::new()).await?;
        Ok(created.succeeded.then_some(created.revision))
    }

    /// Deletes a key that was created with this revision, and says whether it was there.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn delete(&self, key: &str, revision: i64) -> Result<bool> {
        let key = Range::key(key.to_owned());
        let same = vec![Compare::created(&key, Is::Equal, revision)];
        let delete = Op::Delete(DeleteRequest { key: key.key });
        Ok(self.0.txn(same, vec![delete], Vec::new()).await?.succeeded)
    }

    /// The last key of a folder that was created before `revision`, and the newest revision.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn last_before(&self, folder: &str, revision: i64) -> Result<(Option<Vec<u8>>, i64)> {
        let range = Range::under(folder);
        let last = RangeRequest {
            key: range.key,
            range_end: range.end,
            limit: 1,
            sort_order: DESCENDING,
            sort_target: BY_CREATION,
            max_create_revision: revision - 1,
            ..RangeRequest::default()
        };
        let found = self.0.range(last).await?;
        let now = found.header.map_or(revision, |header| header.revision);
        Ok((found.kvs.into_iter().next().map(|kv| kv.key), now))
    }

    /// Waits until a key is deleted in `revision` or later.
    ///
    /// # Errors
    /// When the watch fails.
    pub async fn deleted(&self, key: Vec<u8>, revision: i64) -> Result<()> {
        let create = WatchCreate { key, start_revision: revision, ..WatchCreate::default() };
        let mut watching = self.0.watch(vec![WatchRequest { create: Some(create), cancel: None }]).await?;
        while let Some(answer) = watching.answers.message().await.map_err(failed)? {
            if answer.canceled || answer.events.iter().any(|event| event.what == DELETED) {
                break;
            }
        }
        Ok(())
    }
}
