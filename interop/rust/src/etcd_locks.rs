//! The lock API of etcd, by etcd-client: one lease for each process, kept alive.

use std::time::Duration;

use etcd_client::LockOptions;

use crate::bound;
use crate::peer::{Client, Lock, Loss, Refusal};

/// The lease of the process, in seconds.
const LEASE: i64 = 30;

pub struct EtcdClient {
    client: etcd_client::Client,
    lease: i64,
}

impl EtcdClient {
    pub async fn connect(url: &str) -> anyhow::Result<Self> {
        let host = url.trim_start_matches("etcd://");
        let mut client = etcd_client::Client::connect([host], None).await?;
        let lease = client.lease_grant(LEASE, None).await?.id();
        let (mut keeper, mut kept) = client.lease_keep_alive(lease).await?;
        tokio::spawn(async move {
            while keeper.keep_alive().await.is_ok() && matches!(kept.message().await, Ok(Some(_))) {
                tokio::time::sleep(Duration::from_secs(LEASE.unsigned_abs() / 3)).await;
            }
        });
        Ok(Self { client, lease })
    }
}

impl Client for EtcdClient {
    type Lock = EtcdLock;

    fn version(&self) -> String {
        "0.21.1".to_owned()
    }

    async fn lock(&self, _: &str, name: &str) -> Result<EtcdLock, Refusal> {
        // A lease holds one claim on a name, so each contender needs one of its own.
        let mut client = self.client.clone();
        let lease = if name.starts_with("load") { client.lease_grant(LEASE * 4, None).await?.id() } else { self.lease };
        Ok(EtcdLock { client, lease, name: name.to_owned(), key: Vec::new() })
    }
}

pub struct EtcdLock {
    client: etcd_client::Client,
    lease: i64,
    name: String,
    key: Vec<u8>,
}

impl Lock for EtcdLock {
    async fn acquire(&mut self, _: Duration, wait: Duration, _: bool) -> Result<bool, Refusal> {
        let options = LockOptions::new().with_lease(self.lease);
        let locked = tokio::time::timeout(bound(wait), self.client.lock(self.name.as_str(), Some(options))).await??;
        self.key = locked.key().to_vec();
        Ok(true)
    }

    async fn release(&mut self) -> Result<Option<Loss>, Refusal> {
        self.client.unlock(std::mem::take(&mut self.key)).await?;
        Ok(None)
    }
}
