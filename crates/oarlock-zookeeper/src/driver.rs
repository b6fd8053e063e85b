//! The seven verbs.

use oarlock_core::capabilities::{Capabilities, Consistency, Fencing, Liveness, Notify, WaiterView};
use oarlock_core::driver::{Attempt, Cursor, Driver, End, Info, Interest, Release, Released, Renewal, Renewed, Watch};
use oarlock_core::state::{Ending, Page, Query};
use oarlock_core::{Claim, ClaimId, Error, ErrorKind, ResourceName, Result};
use zookeeper_client as zk;

use crate::config::Config;
use crate::error::{SCHEME, from_zk};
use crate::link::{Known, Link, Session, if_there};
use crate::queue::Queue;
use crate::record::{ClaimRecord, ResourceRecord, read, write};

/// A ZooKeeper ensemble. See the [crate](crate) for what it promises.
#[derive(Debug)]
pub struct ZooKeeper {
    pub(crate) link: Link,
}

impl ZooKeeper {
    /// Opens a session, and makes the root node if there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] if no server answers within the session time-out, [`ErrorKind::Denied`] if the
    /// credentials or rights do not suffice, [`ErrorKind::NewerFormat`] if a newer version wrote the root.
    pub async fn open(config: Config) -> Result<Self> {
        Ok(Self { link: Link::open(config).await.map_err(|error| error.during("open"))? })
    }
}

impl Driver for ZooKeeper {
    fn info(&self) -> Info {
        let mut capabilities = Capabilities::of_the_model();
        capabilities.fencing = Fencing::Strict;
        capabilities.liveness = Liveness::Session;
        (capabilities.raises_fences, capabilities.tether_lease) = (false, false);
        capabilities.waiters = WaiterView::Listed;
        capabilities.notify = Notify::Push;
        capabilities.consistency = Consistency::Consensus;
        if self.link.dialect().is_some() {
            // Nothing may stand beside the nodes of the others, and names are paths anywhere in the tree.
            (capabilities.memo, capabilities.listing, capabilities.one_rule) = (false, false, false);
        }
        Info::new(SCHEME, self.link.address(), capabilities)
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        self.stand(claim).await.map_err(|error| error.on(SCHEME).during("attempt").about(&claim.resource))
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        self.keep_all(batch).await
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        let ended = match (end, self.link.dialect()) {
            (End::Broken { ending, grace }, Some(dialect)) if !grace.is_zero() => {
                self.ask_abroad(dialect, resource, id, (ending.clone(), *grace)).await
            }
            (_, Some(dialect)) => self.leave_abroad(dialect, resource, id).await,
            (End::Done { memo: Some(memo) }, None) => self.leave_with(resource, id, memo).await,
            (End::Broken { ending, grace }, None) if !grace.is_zero() => {
                self.ask_to_end(resource, id, (ending.clone(), *grace)).await
            }
            (End::Broken { ending, .. }, None) => self.bury(resource, id, ending).await,
            (_, None) => self.leave(resource, id).await,
        };
        ended.map_err(|error| error.during("release").about(resource))
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        let session = self.link.session().await;
        let armed = match (session, interest) {
            (Err(error), _) => Err(error),
            (Ok(session), Interest::Turn(claim, Cursor(node))) => match session.dialect() {
                Some(_) => session.watch_abroad(node).await,
                None => session.watch_turn(&claim.resource, &String::from_utf8_lossy(node)).await,
            },
            (Ok(session), Interest::Resource(name)) => match session.dialect() {
                Some(dialect) => session.watch_resource_abroad(dialect, name).await,
                None => session.watch_resource(name).await,
            },
            (Ok(session), Interest::Mailbox) => session.watch_mailbox().await,
            (Ok(_), _) => Err(Error::new(ErrorKind::Unsupported, "nothing to watch").on(SCHEME)),
        };
        armed.map_err(|error| error.during("watch"))
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let shown = async {
            let session = self.link.session().await?;
            match session.dialect() {
                Some(dialect) => session.show_abroad(dialect, query).await,
                None => session.show(query).await,
            }
        };
        shown.await.map_err(|error| error.during("inspect"))
    }

    async fn close(&self) -> Result<()> {
        self.link.close().await;
        Ok(())
    }
}

impl ZooKeeper {
    /// Takes away everything of a claim.
    pub(crate) async fn leave(&self, resource: &ResourceName, id: ClaimId) -> Result<Release> {
        let session = self.link.session().await?;
        let parent = session.parent(resource);
        let known = match self.link.known(id) {
            Known::At(place) if place.session == session.id && place.sole => {
                // Nobody needs to know whether others wait: they watch this node.
                let deleted = session.client.delete(&format!("{parent}/{}", place.node), None).await;
                let outcome = if_there(deleted)?.map_or(Released::NotHeld, |()| Released::Released);
                self.link.forget(id);
                return Ok(Release::new(outcome, None));
            }
            Known::At(place) if place.session == session.id => place.node,
            _ => {
                let queue = session.look(&parent).await?;
                return self.finish(&session, &parent, id, None, &queue).await;
            }
        };
        let path = format!("{parent}/{known}");
        let (deleted, listed) = (session.client.delete(&path, None), session.client.list_children(&parent));
        let deleted = if_there(deleted.await)?;
        let mut listed = if_there(listed.await).map_err(Error::applied_unknown)?.unwrap_or_default();
        let gone = deleted.map(|()| known);
        // As it was before: those who waited then are to be told, although the rule may let them in now.
        listed.extend(gone.clone());
        self.finish(&session, &parent, id, gone, &Queue::read(&listed)).await
    }

    /// Takes away what is still there of a claim, beyond the node that is `gone`, and says whether others wait.
    async fn finish(
        &self,
        session: &Session,
        parent: &str,
        id: ClaimId,
        gone: Option<String>,
        queue: &Queue,
    ) -> Result<Release> {
        let mut outcome = if gone.is_some() { Released::Released } else { Released::NotHeld };
        for node in queue.nodes_of(id).filter(|node| gone.as_deref() != Some(*node)) {
            let deleted = session.client.delete(&format!("{parent}/{node}"), None).await;
            if deleted == Err(zk::Error::NotEmpty) {
                // What has children was never a claim.
                continue;
            }
            if if_there(deleted).map_err(Error::applied_unknown)?.is_some() {
                outcome = Released::Released;
            }
        }
        self.link.forget(id);
        Ok(Release::new(outcome, Some(queue.others_wait(id))))
    }

    /// Ends a claim of another: a note of it stays with the resource, and its client is told to look.
    async fn bury(&self, resource: &ResourceName, id: ClaimId, ending: &Ending) -> Result<Release> {
        let session = self.link.session().await?;
        let parent = session.parent(resource);
        let queue = session.look_for_claim(&parent, id).await?;
        let Some(entry) = queue.entries.iter().find(|entry| entry.id == id) else {
            return self.leave(resource, id).await;
        };
        let path = format!("{parent}/{}", entry.node);
        let (stat, home) = (session.client.check_stat(&path), session.client.get_data(&parent));
        let (stat, home) = (stat.await.map_err(from_zk)?, home.await.map_err(from_zk)?);
        let mut record = read(&parent, &home.0).unwrap_or_else(|_| ResourceRecord::of(resource));
        record.bury(id, ending.clone());
        let mut end = session.client.new_multi_writer();
        end.add_set_data(&parent, &write(&record)?, Some(home.1.version)).map_err(from_zk)?;
        for node in queue.nodes_of(id) {
            end.add_delete(&format!("{parent}/{node}"), None).map_err(from_zk)?;
        }
        end.commit().await.map_err(|error| from_zk(error.into()))?;
        self.link.forget(id);
        if let Some(stat) = stat {
            session.call(stat.ephemeral_owner).await;
        }
        Ok(Release::new(Released::Released, Some(queue.others_wait(id))))
    }

    /// Asks the holder to end; nothing here ends it for him.
    async fn ask_to_end(
        &self,
        resource: &ResourceName,
        id: ClaimId,
        ending: (Ending, std::time::Duration),
    ) -> Result<Release> {
        let session = self.link.session().await?;
        let parent = session.parent(resource);
        let queue = session.look_for_claim(&parent, id).await?;
        let waiting = Some(queue.held < queue.entries.len());
        let Some(entry) = queue.entries.iter().find(|entry| entry.id == id) else {
            return Ok(Release::new(Released::NotHeld, waiting));
        };
        let path = format!("{parent}/{}", entry.node);
        let (data, stat) = session.client.get_data(&path).await.map_err(from_zk)?;
        let mut record: ClaimRecord = read(&path, &data)?;
        (record.fence, record.ending) = (record.mark(&stat), Some(ending));
        session.client.set_data(&path, &write(&record)?, Some(stat.version)).await.map_err(from_zk)?;
        session.call(stat.ephemeral_owner).await;
        Ok(Release::new(Released::Asked, waiting))
    }
}

impl Session {
    /// Gets the attention of a client. If that fails, its next renewal tells it.
    async fn call(&self, session: i64) {
        let _ = self.client.set_data(&self.mailbox(session), b"", None).await;
    }
}
