//! Watches: one watch of the server for each, armed before it is returned.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};

use futures_util::{FutureExt as _, stream};
use oarlock_core::driver::{Cursor, Hint, Interest, Watch};
use oarlock_core::{ResourceName, Result};
use zookeeper_client as zk;

use crate::ZooKeeper;
use crate::error::from_zk;
use crate::names::split;
use crate::queue::Watched;
use crate::record::read;
use crate::session::{Session, if_there};
use crate::unknown_nodes::lasts;

const POLL: Hint = Hint::ANY;

/// Fires once, and ends.
fn once(event: impl Future + Send + 'static) -> Watch {
    Watch::new(Box::pin(stream::once(async move {
        event.await;
        POLL
    })))
}

impl ZooKeeper {
    /// Arms a watch.
    pub(crate) async fn watch_interest(&self, interest: &Interest) -> Result<Watch> {
        let session = self.route.session().await;
        match (session, interest) {
            (Err(error), _) => Err(error),
            (Ok(session), Interest::Turn(claim, Cursor(node))) => match session.dialect() {
                Some(_) => session.watch_compat(node).await,
                None => session.watch_turn(&claim.resource, &String::from_utf8_lossy(node)).await,
            },
            (Ok(session), Interest::Resource(name)) => match session.dialect() {
                Some(dialect) => session.watch_resource_compat(dialect, name).await,
                None => session.watch_resource(name).await,
            },
            (Ok(session), Interest::Mailbox) => session.watch_mailbox().await,
        }
    }
}

impl Session {
    /// Watches one node of a queue, or all of them if the cursor names none.
    pub(crate) async fn watch_turn(&self, resource: &ResourceName, cursor: &str) -> Result<Watch> {
        let parent = self.parent(resource);
        if let Some(watched) = Watched::parse(cursor) {
            let path = format!("{parent}/{}", watched.node);
            let changed = |data: &[u8], stat: &zk::Stat| {
                if lasts(stat) {
                    // No claim at all: the next poll leaves it out.
                    self.note_unknown(&path);
                }
                lasts(stat) || read(&path, data).is_ok_and(|record| watched.has_changed(&record))
            };
            return self.watch_node(&path, changed).await;
        }
        let watcher = if_there(self.client.list_and_watch_children(&parent).await)?.map(|(_, watcher)| watcher);
        Ok(watcher.map_or_else(|| once(std::future::ready(())), |watcher| once(self.connection.event(watcher))))
    }

    /// Watches one node: its end, and writes to it. Fires at once if the node is gone, or has `changed`, already.
    pub(crate) async fn watch_node(&self, path: &str, changed: impl Fn(&[u8], &zk::Stat) -> bool) -> Result<Watch> {
        Ok(match self.client.get_and_watch_data(path).await {
            Err(zk::Error::NoAuth) => self.watch_unreadable(path, changed).await?,
            answer => match if_there(answer)? {
                Some((data, stat, watcher)) if !changed(&data, &stat) => once(self.connection.event(watcher)),
                _ => once(std::future::ready(())),
            },
        })
    }

    /// Watches the end of a node that may not be read. Servers do not report that; it shows in the list of its parent.
    async fn watch_unreadable(&self, path: &str, changed: impl Fn(&[u8], &zk::Stat) -> bool) -> Result<Watch> {
        match self.client.check_stat(path).await {
            Ok(Some(stat)) if !changed(b"", &stat) => {}
            Ok(_) => return Ok(once(std::future::ready(()))),
            Err(zk::Error::NoAuth) => {}
            Err(error) => return Err(from_zk(error)),
        }
        let (parent, node) = split(path);
        let listed = if_there(self.client.list_and_watch_children(parent).await)?;
        Ok(match listed {
            Some((children, watcher)) if children.iter().any(|child| child == node) => {
                once(self.connection.event(watcher))
            }
            _ => once(std::future::ready(())),
        })
    }

    /// Watches the children of a resource, which need not exist.
    pub(crate) async fn watch_resource(&self, resource: &ResourceName) -> Result<Watch> {
        self.watch_children(&self.parent(resource)).await
    }

    /// Watches the children of a node, which need not exist.
    pub(crate) async fn watch_children(&self, parent: &str) -> Result<Watch> {
        let listed = if_there(self.client.list_and_watch_children(parent).await)?;
        if let Some((_, watcher)) = listed {
            return Ok(once(self.connection.event(watcher)));
        }
        let (made, watcher) = self.client.check_and_watch_stat(parent).await.map_err(from_zk)?;
        Ok(if made.is_some() { once(std::future::ready(())) } else { once(self.connection.event(watcher)) })
    }

    /// Watches the mailbox of this client, and the session itself.
    ///
    /// The layouts of other programs have no such node: a client that breaks a claim deletes its node, and a renewal
    /// finds that.
    pub(crate) async fn watch_mailbox(self: Arc<Self>) -> Result<Watch> {
        let event: Event = match self.dialect() {
            Some(_) => Box::pin(self.connection.end().map(|()| None)),
            None => {
                let ephemeral = self.options(zk::CreateMode::Ephemeral);
                match self.client.create(&self.mailbox(self.id), b"", &ephemeral).await {
                    Ok(_) | Err(zk::Error::NodeExists) => {}
                    Err(error) => return Err(from_zk(error)),
                }
                self.arm_mailbox().await?
            }
        };
        let mailbox = Mailbox { session: Arc::downgrade(&self), event: Some(event) };
        Ok(Watch::new(Box::pin(stream::unfold(mailbox, Mailbox::next))))
    }

    async fn arm_mailbox(&self) -> Result<Event> {
        let (_, _, watcher) = self.client.get_and_watch_data(&self.mailbox(self.id)).await.map_err(from_zk)?;
        Ok(Box::pin(self.connection.event(watcher)))
    }
}

/// Ends with an event, or with the connection.
type Event = Pin<Box<dyn Future<Output = Option<zk::WatchedEvent>> + Send>>;

struct Mailbox {
    /// The session ends with its driver, not with this.
    session: Weak<Session>,
    event: Option<Event>,
}

impl Mailbox {
    async fn next(mut self) -> Option<(Hint, Self)> {
        let event = self.event.as_mut()?.await;
        self.event = match (event, self.session.upgrade()) {
            // Armed again before the client is notified: the next change is not missed.
            (Some(event), Some(session)) if event.event_type != zk::EventType::Session => {
                session.arm_mailbox().await.ok()
            }
            // After a lost connection the client renews, which continues the session on another. This watch ends with
            // its connection.
            _ => None,
        };
        Some((POLL, self))
    }
}
