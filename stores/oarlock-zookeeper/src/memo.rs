//! Memos. A memo is written in the same transaction that checks its claim: a holder that has lost its lock, and does
//! not know it yet, cannot overwrite the memo of a later holder.

use oarlock_core::driver::{Release, Released};
use oarlock_core::state::Memo;
use oarlock_core::{ClaimId, ResourceName, Result};
use zookeeper_client as zk;

use crate::ZooKeeper;
use crate::error::{changed_meanwhile, from_zk};
use crate::queue::{MEMO, Queue};
use crate::route::Known;
use crate::session::Session;

/// Whatever its version, a node that is checked must be there.
pub(crate) const ANY: i32 = -1;

impl ZooKeeper {
    /// Writes a memo, if the claim holds, and releases the claim.
    pub(crate) async fn release_with_memo(&self, resource: &ResourceName, id: ClaimId, memo: &Memo) -> Result<Release> {
        let session = self.route.session().await?;
        let parent = session.parent(resource);
        let queue = session.poll_for_claim(&parent, id).await?;
        self.remove_with_memo(&session, resource, id, memo, &queue).await
    }

    async fn remove_with_memo(
        &self,
        session: &Session,
        resource: &ResourceName,
        id: ClaimId,
        memo: &Memo,
        seen: &Queue,
    ) -> Result<Release> {
        let parent = session.parent(resource);
        let was_granted = matches!(self.route.known(id), Known::At(node) if node.fence.is_some());
        let holders = if was_granted { seen.entries.len() } else { seen.held };
        if !seen.entries.iter().take(holders).any(|entry| entry.id == id) {
            return self.remove_claim(resource, id).await;
        }
        let delete = |end: &mut zk::MultiWriter<'_>| {
            // Its own node is first.
            seen.nodes_of(id).try_for_each(|node| end.add_delete(&format!("{parent}/{node}"), None))
        };
        if !session.add_memo(&parent, memo, seen.has_memo, delete).await? {
            return self.remove_claim(resource, id).await;
        }
        self.route.forget(id);
        Ok(Release::new(Released::Released, Some(seen.others_wait(id))))
    }
}

impl Session {
    /// Leaves a memo if the `own` node of a claim is there; whether it is.
    pub(crate) async fn write_memo(&self, parent: &str, own: &str, memo: &Memo) -> Result<bool> {
        self.add_memo(parent, memo, true, |write| write.add_check_version(own, ANY)).await
    }

    /// Leaves a memo together with what `first` adds, of which the first node must be there; whether it is.
    async fn add_memo(
        &self,
        parent: &str,
        memo: &Memo,
        exists: bool,
        first: impl Fn(&mut zk::MultiWriter<'_>) -> Result<(), zk::Error>,
    ) -> Result<bool> {
        let path = format!("{parent}/{MEMO}");
        // The second step is for a memo that is there, or is not, against expectation: nothing was done by the first.
        for exists in [exists, !exists] {
            let mut write = self.client.new_multi_writer();
            first(&mut write).map_err(from_zk)?;
            let added = if exists {
                write.add_set_data(&path, memo, None)
            } else {
                write.add_create(&path, memo, &self.options(zk::CreateMode::Persistent))
            };
            added.map_err(from_zk)?;
            match write.commit().await {
                Ok(_) => return Ok(true),
                Err(zk::MultiWriteError::OperationFailed { index: 0, source: zk::Error::NoNode }) => return Ok(false),
                Err(zk::MultiWriteError::OperationFailed {
                    source: zk::Error::NoNode | zk::Error::NodeExists, ..
                }) => {}
                Err(error) => return Err(from_zk(error.into())),
            }
        }
        Err(changed_meanwhile())
    }
}

#[cfg(test)]
mod tests;
