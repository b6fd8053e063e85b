//! Mutexes, readers and writers, leaders: one queue of ephemeral sequential nodes in one folder.

use oarlock_core::clock::{BootClock, Clock};
use oarlock_core::driver::Attempt;
use oarlock_core::{Applied, Claim, Error, ErrorKind, Result};
use zookeeper_client as zk;

use super::names::{Dialect, Entry, Tag};
use super::queue::CompatQueue;
use super::{changed_meanwhile, from_zk, pending, unexpected_node};
use crate::ZooKeeper;
use crate::attempt::{claim_node, fence_of};
use crate::names::split;
use crate::record::{ClaimRecord, write};
use crate::route::{ClaimNode, Known};
use crate::session::Session;

impl ZooKeeper {
    pub(super) async fn queue_up(&self, dialect: Dialect, tag: Tag, claim: &Claim) -> Result<Attempt> {
        let session = self.route.session().await?;
        let folder = session.base(dialect, &claim.resource)?;
        let known = self.route.known(claim.id);
        let mut found = None;
        let sole = matches!(known, Known::Nothing);
        if !sole {
            let queue = if session.is_proven(&known) {
                session.peek_queue(dialect, &folder).await?
            } else {
                session.poll_queue(dialect, &folder).await?
            };
            found = session.own(&queue, &folder, claim.id, &known).await?.map(|node| (node, queue));
        }
        let new = found.is_none();
        let (node, queue) = match found {
            Some(found) => found,
            None => self.join(&session, dialect, &folder, tag, claim, sole).await?,
        };
        let mut judged = self.judge_compat(&session, dialect, (&folder, tag), claim, node, &queue).await;
        if let (Ok(Attempt::Granted(grant)), false) = (&mut judged, new) {
            grant.lease = session.lease_since_proof(claim.ttl).map_err(Error::applied_unknown)?;
        }
        judged.map_err(|error| match error.kind() {
            // Its hold is as it was, or its node is gone.
            ErrorKind::Upgrade | ErrorKind::Foreign => error,
            // It has a node, and may hold by it.
            _ => error.applied_unknown(),
        })
    }

    /// Creates a node, and lists all nodes in the next request on the same connection; it is the `sole` node of its
    /// claim if that is certain.
    pub(super) async fn join(
        &self,
        session: &Session,
        dialect: Dialect,
        folder: &str,
        tag: Tag,
        claim: &Claim,
        sole: bool,
    ) -> Result<(ClaimNode, CompatQueue)> {
        let path = format!("{folder}/{}", dialect.prefix(claim.id, tag));
        let data = session.data_of(dialect, claim)?;
        let ephemeral = session.options(zk::CreateMode::EphemeralSequential);
        let create = || (session.client.create(&path, &data, &ephemeral), session.client.list_children(folder));
        self.route.note(claim.id, Known::Doubt);
        let sent = BootClock.now();
        let (made, listed) = create();
        let (mut made, mut listed) = (made.await, listed.await);
        // It was certainly not made, so this is the second step of making it and not a second try.
        if made == Err(zk::Error::NoNode) {
            session.make_folder(dialect, folder).await.inspect_err(|_| self.route.forget(claim.id))?;
            let second = create();
            (made, listed) = (second.0.await, second.1.await);
        }
        let (stat, sequence) = made.map_err(from_zk).inspect_err(|error| {
            if error.applied() == Applied::No {
                self.route.forget(claim.id);
            }
        })?;
        let made = claim_node(session, format!("{path}{sequence}"), &stat).map_err(Error::applied_unknown)?;
        let node = ClaimNode { sole, ..made };
        session.prove(sent);
        self.route.note(claim.id, Known::At(node.clone()));
        let listed = listed.map_err(|error| from_zk(error).applied_unknown())?;
        Ok((node, CompatQueue::read(dialect, &listed)))
    }

    async fn judge_compat(
        &self,
        session: &Session,
        dialect: Dialect,
        (folder, tag): (&str, Tag),
        claim: &Claim,
        mut node: ClaimNode,
        queue: &CompatQueue,
    ) -> Result<Attempt> {
        let at = queue.position(split(&node.name).1).ok_or_else(changed_meanwhile)?;
        let Some(mine) = queue.entries.get(at) else { return Err(changed_meanwhile()) };
        if node.fence.is_none()
            && let Some(unknown) = queue.unknown(dialect, mine.tag)
        {
            self.release_compat(dialect, &claim.resource, claim.id).await?;
            return Err(unexpected_node(folder, unknown));
        }
        if let Some(obstacle) = queue.obstacle(at).filter(|_| node.fence.is_none()) {
            if !claim.wait {
                self.release_compat(dialect, &claim.resource, claim.id).await?;
            }
            return Ok(pending(at, format!("={folder}/{}", obstacle.node)));
        }
        if mine.tag == Tag::Read && tag != Tag::Read {
            return Err(Error::new(ErrorKind::Upgrade, "a held claim cannot become heavier"));
        }
        let fence = match node.fence {
            Some(fence) => fence,
            None => fence_of(node.made)?,
        };
        node.fence = Some(fence);
        self.route.note(claim.id, Known::At(node.clone()));
        if tag == Tag::Read && mine.tag != Tag::Read {
            node = session.lighten(dialect, folder, claim, node, mine).await?;
            self.route.note(claim.id, Known::At(node));
        }
        Ok(Attempt::Granted(session.grant(fence, session.lease(claim.ttl)?)))
    }
}

impl Session {
    /// A writer becomes a reader in one step, by a node that has its own sequence: no waiter behind it gets in
    /// between.
    async fn lighten(
        &self,
        dialect: Dialect,
        folder: &str,
        claim: &Claim,
        node: ClaimNode,
        mine: &Entry,
    ) -> Result<ClaimNode> {
        let mut record = ClaimRecord::of(claim, self.lease_ttl(claim.ttl));
        (record.granted, record.fence) = (true, node.fence);
        let path = format!("{folder}/{}{}", dialect.prefix(claim.id, Tag::Read), mine.sequence);
        let mut lighter = self.client.new_multi_writer();
        let ephemeral = self.options(zk::CreateMode::Ephemeral);
        lighter.add_create(&path, &write(&record)?, &ephemeral).map_err(from_zk)?;
        lighter.add_delete(&node.name, None).map_err(from_zk)?;
        lighter.commit().await.map_err(|error| from_zk(error.into()))?;
        Ok(ClaimNode { name: path, ..node })
    }
}
