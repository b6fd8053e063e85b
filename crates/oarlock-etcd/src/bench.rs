//! The fewest calls that a lock on etcd needs, for comparing with. Not a lock.

use oarlock_core::Result;

use crate::api::{Compare, DeleteRequest, Is, Op, PutRequest, Range};
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
