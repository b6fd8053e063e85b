//! `etcd:`: the fewest transactions that a lock needs, and keys that each watch the one before.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oarlock::driver::BoxFuture;
use oarlock::url::Url;
use oarlock::{Error, Result};
use oarlock_etcd::Config;
use oarlock_etcd::raw::Client;

use super::{Baseline, Rival, disturbed};

const SCHEME: &str = "etcd";

/// Longer than any run. Nothing renews a lease, as that would cost requests.
const LEASE_SECONDS: u64 = 3600;

/// A turn may be lost with the rival that had it, so a rival does not wait for longer.
const TAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A key for each name, on a lease that is there already.
struct Key {
    config: Config,
    client: Client,
    lease: i64,
    prefix: String,
    /// All leases of this run. Every key is on one of them.
    leases: Mutex<Vec<i64>>,
}

pub(super) async fn open(url: &Url) -> Result<Arc<dyn Baseline>> {
    let config = Config::from_url(url)?;
    let client = Client::open(&config).await?;
    let lease = client.grant(LEASE_SECONDS).await?;
    let (prefix, leases) = (format!("{}baseline:", config.prefix), Mutex::new(vec![lease]));
    Ok(Arc::new(Key { config, client, lease, prefix, leases }))
}

impl Baseline for Key {
    fn what(&self) -> &'static str {
        "a transaction that makes a key on a lease, and one that removes it"
    }

    fn pair(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let key = format!("{}{name}", self.prefix);
            let revision = self.client.create(&key, self.lease).await?.ok_or_else(|| disturbed(SCHEME))?;
            if self.client.delete(&key, revision).await? { Ok(()) } else { Err(disturbed(SCHEME)) }
        })
    }

    fn rival(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<Option<Arc<dyn Rival>>>> {
        Box::pin(async move {
            let client = Client::open(&self.config).await?;
            let lease = client.grant(LEASE_SECONDS).await?;
            self.leases.lock().unwrap_or_else(PoisonError::into_inner).push(lease);
            let folder = format!("{}{name}/", self.prefix);
            let (own, revision) = (format!("{folder}{lease:x}"), AtomicI64::new(0));
            Ok(Some(Arc::new(Queued { client, lease, folder, own, revision }) as Arc<dyn Rival>))
        })
    }

    fn close(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let leases = std::mem::take(&mut *self.leases.lock().unwrap_or_else(PoisonError::into_inner));
            for lease in leases {
                self.client.revoke(lease).await?;
            }
            Ok(())
        })
    }
}

/// A rival in a queue of keys. It watches the key before its own, as Go's `concurrency` does.
struct Queued {
    client: Client,
    lease: i64,
    folder: String,
    own: String,
    /// With which its own key was created last.
    revision: AtomicI64,
}

impl Rival for Queued {
    fn what(&self) -> &'static str {
        "a key in a line, and a watch on the one before it"
    }

    fn take(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let wait = async {
                let revision = self.client.create(&self.own, self.lease).await?.ok_or_else(|| disturbed(SCHEME))?;
                self.revision.store(revision, Ordering::Relaxed);
                while let (Some(before), now) = self.client.last_before(&self.folder, revision).await? {
                    self.client.deleted(before, now + 1).await?;
                }
                Ok(())
            };
            let lost = || Error::unreachable("the turn of the baseline was lost").on(SCHEME);
            tokio::time::timeout(TAKE_TIMEOUT, wait).await.map_err(|_| lost())?
        })
    }

    fn give(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move { self.client.delete(&self.own, self.revision.load(Ordering::Relaxed)).await.map(drop) })
    }
}
