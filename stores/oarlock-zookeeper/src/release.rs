//! Releases: a claim of this client, or another's that is broken, now or after a grace.

use std::time::Duration;

use oarlock_core::driver::{End, Release, Released};
use oarlock_core::state::Ending;
use oarlock_core::{ClaimId, Error, ResourceName, Result};
use zookeeper_client as zk;

use crate::ZooKeeper;
use crate::error::from_zk;
use crate::queue::Queue;
use crate::record::{ClaimRecord, ResourceRecord, read, write};
use crate::route::Known;
use crate::session::{Session, if_there};

impl ZooKeeper {
    /// Releases a claim, or breaks another client's claim.
    pub(crate) async fn release_claim(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        match (end, self.route.dialect()) {
            (End::Broken { ending, grace }, Some(dialect)) if !grace.is_zero() => {
                self.ask_to_end_compat(dialect, resource, id, (ending.clone(), *grace)).await
            }
            (_, Some(dialect)) => self.release_compat(dialect, resource, id).await,
            (End::Done { memo: Some(memo) }, None) => self.release_with_memo(resource, id, memo).await,
            (End::Broken { ending, grace }, None) if !grace.is_zero() => {
                self.ask_to_end(resource, id, (ending.clone(), *grace)).await
            }
            (End::Broken { ending, .. }, None) => self.break_claim(resource, id, ending).await,
            (_, None) => self.remove_claim(resource, id).await,
        }
    }

    /// Removes everything of a claim.
    pub(crate) async fn remove_claim(&self, resource: &ResourceName, id: ClaimId) -> Result<Release> {
        let session = self.route.session().await?;
        let parent = session.parent(resource);
        let known = match self.route.known(id) {
            Known::At(node) if node.session == session.id && node.sole => {
                // Whether others wait need not be known: they watch this node.
                let deleted = session.client.delete(&format!("{parent}/{}", node.name), None).await;
                let outcome = if_there(deleted)?.map_or(Released::NotHeld, |()| Released::Released);
                self.route.forget(id);
                return Ok(Release::new(outcome, None));
            }
            Known::At(node) if node.session == session.id => node.name,
            _ => {
                let queue = session.poll(&parent).await?;
                return self.finish(&session, &parent, id, None, &queue).await;
            }
        };
        let path = format!("{parent}/{known}");
        let (deleted, listed) = (session.client.delete(&path, None), session.client.list_children(&parent));
        let deleted = if_there(deleted.await)?;
        let mut listed = if_there(listed.await).map_err(Error::applied_unknown)?.unwrap_or_default();
        let gone = deleted.map(|()| known);
        // The queue as it was before: those that waited then are to be notified, although the rule may grant them now.
        listed.extend(gone.clone());
        self.finish(&session, &parent, id, gone, &Queue::read(listed)).await
    }

    /// Removes the rest of a claim, apart from the node that is `gone`, and says whether others wait.
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
                // A node with children was never a claim.
                continue;
            }
            if if_there(deleted).map_err(Error::applied_unknown)?.is_some() {
                outcome = Released::Released;
            }
        }
        self.route.forget(id);
        Ok(Release::new(outcome, Some(queue.others_wait(id))))
    }

    /// Breaks another client's claim: its end is noted with the resource, and its client is notified.
    async fn break_claim(&self, resource: &ResourceName, id: ClaimId, ending: &Ending) -> Result<Release> {
        let session = self.route.session().await?;
        let parent = session.parent(resource);
        let queue = session.poll_for_claim(&parent, id).await?;
        let Some(entry) = queue.entries.iter().find(|entry| entry.id == id) else {
            return self.remove_claim(resource, id).await;
        };
        let path = format!("{parent}/{}", entry.node);
        let (stat, above) = (session.client.check_stat(&path), session.client.get_data(&parent));
        let (stat, above) = (stat.await.map_err(from_zk)?, above.await.map_err(from_zk)?);
        let mut record = read(&parent, &above.0).unwrap_or_else(|_| ResourceRecord::of(resource));
        record.note_end(id, ending.clone());
        let mut end = session.client.new_multi_writer();
        end.add_set_data(&parent, &write(&record)?, Some(above.1.version)).map_err(from_zk)?;
        for node in queue.nodes_of(id) {
            end.add_delete(&format!("{parent}/{node}"), None).map_err(from_zk)?;
        }
        end.commit().await.map_err(|error| from_zk(error.into()))?;
        self.route.forget(id);
        if let Some(stat) = stat {
            session.notify(stat.ephemeral_owner).await;
        }
        Ok(Release::new(Released::Released, Some(queue.others_wait(id))))
    }

    /// Asks the holder to end; nothing here forces it.
    async fn ask_to_end(&self, resource: &ResourceName, id: ClaimId, ending: (Ending, Duration)) -> Result<Release> {
        let session = self.route.session().await?;
        let parent = session.parent(resource);
        let queue = session.poll_for_claim(&parent, id).await?;
        let waiting = Some(queue.held < queue.entries.len());
        let Some(entry) = queue.entries.iter().find(|entry| entry.id == id) else {
            return Ok(Release::new(Released::NotHeld, waiting));
        };
        let path = format!("{parent}/{}", entry.node);
        let (data, stat) = session.client.get_data(&path).await.map_err(from_zk)?;
        let mut record: ClaimRecord = read(&path, &data)?;
        (record.fence, record.ending) = (record.mark(&stat), Some(ending));
        session.client.set_data(&path, &write(&record)?, Some(stat.version)).await.map_err(from_zk)?;
        session.notify(stat.ephemeral_owner).await;
        Ok(Release::new(Released::Asked, waiting))
    }
}

impl Session {
    /// Notifies a client. If that fails, the client learns it from its next renewal.
    async fn notify(&self, session: i64) {
        let _ = self.client.set_data(&self.mailbox(session), b"", None).await;
    }
}
