//! The lock of zookeeper-client, as Curator lays it out.

use std::time::Duration;

use zookeeper_client::{Acls, CreateMode, LockOptions, LockPrefix, OwnedLockClient};

use crate::bound;
use crate::peer::{Client, Lock, Loss, Refusal};

/// Where the locks are.
const FOLDER: &str = "/zookeeper-client";

pub struct ZookeeperClient {
    client: zookeeper_client::Client,
}

impl ZookeeperClient {
    pub async fn connect(hosts: &str) -> anyhow::Result<Self> {
        let client = zookeeper_client::Client::connect(hosts).await?;
        let folder = CreateMode::Persistent.with_acls(Acls::anyone_all());
        match client.create(FOLDER, &[], &folder).await {
            Ok(_) | Err(zookeeper_client::Error::NodeExists) => Ok(Self { client }),
            Err(error) => Err(error.into()),
        }
    }
}

impl Client for ZookeeperClient {
    type Lock = ZookeeperLock;

    fn version(&self) -> String {
        "0.11.2".to_owned()
    }

    async fn lock(&self, _: &str, name: &str) -> Result<ZookeeperLock, Refusal> {
        Ok(ZookeeperLock { client: self.client.clone(), folder: format!("{FOLDER}/{name}"), hold: None })
    }
}

pub struct ZookeeperLock {
    client: zookeeper_client::Client,
    folder: String,
    hold: Option<OwnedLockClient>,
}

impl Lock for ZookeeperLock {
    async fn acquire(&mut self, _: Duration, wait: Duration, _: bool) -> Result<bool, Refusal> {
        let parents = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(parents)?;
        let prefix = LockPrefix::new_curator(&self.folder, "lock-")?;
        let lock = tokio::time::timeout(bound(wait), self.client.lock(prefix, b"", options)).await??;
        self.hold = Some(lock.into_owned());
        Ok(true)
    }

    async fn release(&mut self) -> Result<Option<Loss>, Refusal> {
        // The crate deletes its node in the background. The session sends that before the next request.
        self.hold = None;
        Ok(None)
    }
}
