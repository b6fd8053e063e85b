//! `watch`: which channels tell of a claim, a resource, or all claims of this client.

use futures_util::stream::{select_all, unfold};
use oarlock_core::driver::{Interest, Watch};
use oarlock_core::{ResourceName, Result};

use crate::Redis;
use crate::config::Layout;
use crate::keys::Keys;
use crate::notifications::Topic;
use crate::{plain, redisson};

impl Redis {
    pub(crate) async fn arm(&self, interest: &Interest) -> Result<Watch> {
        if self.pool.config.layout == Layout::Redisson {
            return self.arm_redisson(interest).await;
        }
        let is_plain = self.pool.config.layout == Layout::Plain;
        let (topic, keys) = match interest {
            Interest::Turn(claim, cursor) if is_plain && !plain::is_queued(cursor) => {
                let keys = self.pool.keys(&claim.resource);
                (Topic::Freed(keys.side.clone()), Some(keys))
            }
            Interest::Turn(claim, _) => (Topic::Turn(claim.id), Some(self.pool.keys(&claim.resource))),
            Interest::Mailbox if is_plain && self.pool.is_cluster() => return Ok(Watch::never()),
            Interest::Mailbox => (Topic::Mailbox, None),
            Interest::Resource(name) if is_plain => return self.observe_plain(name).await,
            Interest::Resource(name) => return self.observe(name).await,
        };
        self.pool.listen(topic, keys.as_ref()).await
    }

    /// A watch on the channel of a resource. The scripts publish there while a client listens: the first that finds none
    /// notes it, and the listener that comes later removes that note.
    async fn observe(&self, name: &ResourceName) -> Result<Watch> {
        let keys = self.pool.keys(name);
        let watch = self.pool.listen(Topic::Channel(keys.key.clone()), Some(&keys)).await?;
        if let Some(script) = &self.scripts.observe {
            // A key of another program is never changed by these scripts: its watch is silent.
            self.pool.run_one(self.pool.native_call(script, name).call).await?;
        }
        Ok(watch)
    }

    /// The same for the plain layout, which has one channel for releases and one for other changes.
    async fn observe_plain(&self, name: &ResourceName) -> Result<Watch> {
        let keys = self.pool.keys(name);
        let watch = self.listen_all(&keys, [keys.side.clone(), format!("{}:changes", keys.side)]).await?;
        if let Some(script) = &self.scripts.observe {
            self.pool.run_one(self.pool.plain_call(script, name)).await?;
        }
        Ok(watch)
    }

    /// A watch on all of these channels.
    async fn listen_all(&self, keys: &Keys, channels: impl IntoIterator<Item = String>) -> Result<Watch> {
        let mut watches = Vec::new();
        for channel in channels {
            let watch = self.pool.listen(Topic::Channel(channel), Some(keys)).await?;
            watches
                .push(Box::pin(unfold(watch, |mut watch| async { watch.changed().await.map(|hint| (hint, watch)) })));
        }
        Ok(Watch::new(select_all(watches)))
    }

    /// A watch on the channels of Redisson.
    async fn arm_redisson(&self, interest: &Interest) -> Result<Watch> {
        let (keys, channels) = match interest {
            Interest::Turn(claim, _) => {
                let keys = self.pool.keys(&claim.resource);
                let channel = redisson::channel(claim.kind, &keys.key);
                (keys, vec![channel])
            }
            Interest::Resource(name) => {
                let keys = self.pool.keys(name);
                let channels = redisson::channels(&keys);
                (keys, channels)
            }
            // In a cluster mailboxes are not in the slots of the locks: a holder learns of its end from its next
            // renewal.
            Interest::Mailbox if self.pool.is_cluster() => return Ok(Watch::never()),
            Interest::Mailbox => return self.pool.listen(Topic::Mailbox, None).await,
        };
        self.listen_all(&keys, channels).await
    }
}
