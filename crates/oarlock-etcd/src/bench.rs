//! What a lock on etcd is compared with: the fewest calls that one needs, and the lock service of the server itself.

use oarlock_core::Result;

use crate::api::{
    Compare, DeleteRequest, Is, LockRequest, LockResponse, Nothing, Op, PutRequest, Range, UnlockRequest,
};
use crate::config::Config;
use crate::link::Link;

/// A connection and a lease.
#[derive(Debug)]
pub struct Raw {
    link: Link,
    lease: i64,
    key: Range,
}

impl Raw {
    /// Connects, and gets a lease.
    ///
    /// # Errors
    /// As for [`Etcd::open`](crate::Etcd::open).
    pub async fn open(config: &Config) -> Result<Self> {
        let link = Link::open(config).await?;
        let lease = link.grant(60).await?.id;
        Ok(Self { link, lease, key: Range::key(format!("{}raw", config.prefix)) })
    }

    /// Makes a key unless it is there, and removes it if it is the one that was made.
    ///
    /// # Errors
    /// When a request fails.
    pub async fn pair(&self) -> Result<()> {
        let key = self.key.key.clone();
        let put = PutRequest { key: key.clone(), value: Vec::new(), lease: self.lease, ignore_lease: false };
        let absent = vec![Compare::created(&self.key, Is::Equal, 0)];
        let made = self.link.txn(absent, vec![Op::Put(put)], Vec::new()).await?.revision;
        let ours = vec![Compare::created(&self.key, Is::Equal, made)];
        self.link.txn(ours, vec![Op::Delete(DeleteRequest { key })], Vec::new()).await?;
        Ok(())
    }
}

/// The server's own lock service, which the lock calls of other clients use, with a lease that is there already.
#[derive(Debug)]
pub struct Service {
    link: Link,
    lease: i64,
    name: Vec<u8>,
}

impl Service {
    /// Connects, and gets a lease that outlasts any run.
    ///
    /// # Errors
    /// As for [`Etcd::open`](crate::Etcd::open).
    pub async fn open(config: &Config, name: &str) -> Result<Self> {
        let link = Link::open(config).await?;
        let lease = link.grant(3600).await?.id;
        Ok(Self { link, lease, name: format!("{}service:{name}", config.prefix).into_bytes() })
    }

    /// Waits for the lock: the key that it is.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn lock(&self) -> Result<Vec<u8>> {
        let lock = LockRequest { name: self.name.clone(), lease: self.lease };
        let LockResponse { key } = self.link.ask("/v3lockpb.Lock/Lock", lock).await?;
        Ok(key)
    }

    /// Gives it back.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn unlock(&self, key: Vec<u8>) -> Result<()> {
        let _: Nothing = self.link.ask("/v3lockpb.Lock/Unlock", UnlockRequest { key }).await?;
        Ok(())
    }

    /// Ends the lease.
    ///
    /// # Errors
    /// When that fails.
    pub async fn close(&self) -> Result<()> {
        self.link.revoke(self.lease).await
    }
}
