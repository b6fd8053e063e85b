//! Locks shared with other programs, by the recipes of Apache Curator and kazoo. The kind of a claim chooses the
//! recipe.
//!
//! Those programs put an id into the name of a node, to find it again: here it is the id of the claim. The fence is
//! the transaction that created the node, a number that other programs can read for their nodes, too.

mod attempt;
mod inspect;
mod names;
pub(crate) mod queue;
mod semaphore;

use std::time::Duration;

use oarlock_core::driver::{Attempt, Cursor, Pending, Release, Released, Watch};
use oarlock_core::state::Ending;
use oarlock_core::{Claim, ClaimId, Error, ErrorKind, Kind, ResourceName, Result};

pub(crate) use self::names::Dialect;
use self::names::{Tag, unsupported};
use self::queue::CompatQueue;
use crate::ZooKeeper;
use crate::error::{SCHEME, changed_meanwhile, from_zk};
use crate::record::{ClaimRecord, read, write};
use crate::route::{ClaimNode, Known};
use crate::session::{Session, if_there};

/// What Curator writes into the node of a holder that should release its lock.
const REVOKE: &[u8] = b"__REVOKE__";

impl ZooKeeper {
    pub(crate) async fn attempt_compat(&self, dialect: Dialect, claim: &Claim) -> Result<Attempt> {
        match dialect.tag(claim)? {
            Tag::Lease => self.permit(dialect, claim).await,
            tag => self.queue_up(dialect, tag, claim).await,
        }
    }

    /// Removes everything of a claim of any recipe and any client.
    pub(crate) async fn release_compat(
        &self,
        dialect: Dialect,
        resource: &ResourceName,
        id: ClaimId,
    ) -> Result<Release> {
        let session = self.route.session().await?;
        let base = session.base(dialect, resource)?;
        if let Known::At(node) = self.route.known(id)
            && node.session == session.id
            && let Some(release) = session.remove_node(dialect, &base, &node, id).await?
        {
            self.route.forget(id);
            return Ok(release);
        }
        let (mut outcome, mut others) = (Released::NotHeld, false);
        // Permits before nodes at the gate: a claim that still waits there cannot be taken for a holder.
        for folder in [base.clone(), dialect.leases(&base), dialect.gate(&base)] {
            let queue = session.poll_queue(dialect, &folder).await.map_err(Error::applied_unknown)?;
            // All claims at a gate wait, the first of them too.
            let at_gate = folder == dialect.gate(&base) && queue.entries.iter().any(|entry| entry.id != id);
            others |= at_gate || queue.others_wait(id);
            for entry in queue.of(id) {
                let deleted = session.client.delete(&format!("{folder}/{}", entry.node), None).await;
                if if_there(deleted).map_err(Error::applied_unknown)?.is_some() {
                    outcome = Released::Released;
                }
            }
        }
        self.route.forget(id);
        Ok(Release::new(outcome, Some(others)))
    }

    /// Asks the holder to end: Curator's mutexes by their own mark, holders of Oarlock by a record.
    pub(crate) async fn ask_to_end_compat(
        &self,
        dialect: Dialect,
        resource: &ResourceName,
        id: ClaimId,
        ending: (Ending, Duration),
    ) -> Result<Release> {
        let session = self.route.session().await?;
        let base = session.base(dialect, resource)?;
        for folder in [base.clone(), dialect.leases(&base)] {
            let queue = session.poll_queue(dialect, &folder).await?;
            let waiting = Some(queue.others_wait(id));
            let Some(entry) = queue.of(id).next() else { continue };
            let path = format!("{folder}/{}", entry.node);
            let Some((data, stat)) = if_there(session.client.get_data(&path).await)? else { continue };
            let request = match read::<ClaimRecord>(&path, &data) {
                Ok(mut record) => {
                    record.ending = Some(ending);
                    write(&record)?
                }
                Err(_) if dialect == Dialect::Curator && entry.tag == Tag::Lock => REVOKE.to_vec(),
                Err(_) => {
                    let why = format!(
                        "holders of the layout {} cannot be asked to end: break without a grace",
                        dialect.name()
                    );
                    return Err(unsupported(why));
                }
            };
            session.client.set_data(&path, &request, Some(stat.version)).await.map_err(from_zk)?;
            return Ok(Release::new(Released::Asked, waiting));
        }
        Ok(Release::new(Released::NotHeld, None))
    }
}

impl Session {
    /// Takes away a node that is all there is of a claim; `None` if there may be more, or it was not there.
    async fn remove_node(
        &self,
        dialect: Dialect,
        base: &str,
        node: &ClaimNode,
        id: ClaimId,
    ) -> Result<Option<Release>> {
        if node.sole {
            let deleted = if_there(self.client.delete(&node.name, None).await)?;
            return Ok(deleted.map(|()| Release::new(Released::Released, None)));
        }
        let Some((folder, name)) = node.name.rsplit_once('/') else { return Ok(None) };
        let gate = dialect.gate(base);
        let is_permit = dialect.parse(name).is_some_and(|entry| entry.tag == Tag::Lease);
        let waiting = match node.fence {
            Some(_) if is_permit => gate.as_str(),
            _ if folder == base && !is_permit => folder,
            _ => return Ok(None),
        };
        let (deleted, listed) = (self.client.delete(&node.name, None), self.client.list_children(waiting));
        let deleted = if_there(deleted.await)?;
        let mut listed = if_there(listed.await).map_err(Error::applied_unknown)?.unwrap_or_default();
        if is_permit {
            let waits = !listed.is_empty();
            return Ok(deleted.map(|()| Release::new(Released::Released, Some(waits))));
        }
        // The queue as it was before: those that waited then are to be notified.
        listed.extend(deleted.map(|()| name.to_owned()));
        let queue = CompatQueue::read(dialect, &listed);
        let all = deleted.is_some() && queue.of(id).count() == 1;
        Ok(all.then(|| Release::new(Released::Released, Some(queue.others_wait(id)))))
    }

    /// The claims in a folder as a majority has them now, which also proves that the session lives.
    async fn poll_queue(&self, dialect: Dialect, folder: &str) -> Result<CompatQueue> {
        let (agreed, queue) = (self.agree(folder), self.peek_queue(dialect, folder));
        agreed.await.map_err(from_zk)?;
        queue.await
    }

    /// The claims in a folder as the connected server has them.
    fn peek_queue(&self, dialect: Dialect, folder: &str) -> impl Future<Output = Result<CompatQueue>> + Send {
        // Sent at once, and not when the answer is waited for.
        let children = self.client.list_children(folder);
        async move { Ok(CompatQueue::read(dialect, &if_there(children.await)?.unwrap_or_default())) }
    }

    /// The node of a claim in a queue, if this session created it. A node of an earlier session will vanish soon, and
    /// does not count.
    async fn own(&self, queue: &CompatQueue, folder: &str, id: ClaimId, known: &Known) -> Result<Option<ClaimNode>> {
        let before = match known {
            Known::At(node) if node.session == self.id => Some(node),
            _ => None,
        };
        for entry in queue.of(id) {
            let path = format!("{folder}/{}", entry.node);
            if let Some(node) = before.filter(|node| node.name == path) {
                return Ok(Some(node.clone()));
            }
            let Some(stat) = self.client.check_stat(&path).await.map_err(from_zk)? else { continue };
            if stat.ephemeral_owner == self.id {
                // A writer that became a reader has another node, and its fence.
                let (fence, made) = (before.and_then(|node| node.fence), stat.czxid);
                return Ok(Some(ClaimNode { session: self.id, name: path, made, fence, sole: false }));
            }
            if_there(self.client.delete(&path, None).await)?;
        }
        Ok(None)
    }

    /// Where a claim is that is not where it was known to be.
    pub(crate) async fn find_compat(
        &self,
        dialect: Dialect,
        claim: &Claim,
        known: &Known,
    ) -> Result<Option<ClaimNode>> {
        let base = self.base(dialect, &claim.resource)?;
        let folders = match dialect.tag(claim)? {
            Tag::Lease => vec![dialect.leases(&base), dialect.gate(&base)],
            _ => vec![base],
        };
        for folder in folders {
            let queue = self.poll_queue(dialect, &folder).await?;
            if let Some(node) = self.own(&queue, &folder, claim.id, known).await? {
                return Ok(Some(node));
            }
        }
        Ok(None)
    }

    /// Creates a folder and its parents as the other programs do: Curator's vanish when they are empty, kazoo's stay.
    async fn make_folder(&self, dialect: Dialect, folder: &str) -> Result<()> {
        let mode = match dialect {
            Dialect::Curator => zookeeper_client::CreateMode::Container,
            Dialect::Kazoo => zookeeper_client::CreateMode::Persistent,
        };
        self.client.mkdir(folder, &self.options(mode)).await.map_err(from_zk)
    }

    /// Watches what a cursor of ours names: a node, or the children of one.
    pub(crate) async fn watch_compat(&self, cursor: &[u8]) -> Result<Watch> {
        let cursor = String::from_utf8_lossy(cursor);
        match cursor.split_at_checked(1) {
            Some(("=", node)) => self.watch_node(node, |_, _| false).await,
            Some(("*", folder)) => self.watch_children(folder).await,
            _ => Err(Error::new(ErrorKind::Internal, "a cursor of another layout").on(SCHEME)),
        }
    }

    /// Watches the comings and goings at a resource; permits of a semaphore are further down with Curator.
    pub(crate) async fn watch_resource_compat(&self, dialect: Dialect, resource: &ResourceName) -> Result<Watch> {
        let base = self.base(dialect, resource)?;
        let leases = dialect.leases(&base);
        let deeper = leases != base && self.client.check_stat(&leases).await.map_err(from_zk)?.is_some();
        self.watch_children(if deeper { &leases } else { &base }).await
    }

    /// What is written into the node of a claim. An election publishes its value as Curator's participants do their id.
    pub(crate) fn data_of(&self, dialect: Dialect, claim: &Claim) -> Result<Vec<u8>> {
        if (dialect, claim.kind) == (Dialect::Curator, Kind::Election) {
            let label = || format!("{}:{}", claim.label.host, claim.label.pid);
            return Ok(claim.value.as_deref().map_or_else(label, str::to_owned).into_bytes());
        }
        write(&ClaimRecord::of(claim, self.lease_ttl(claim.ttl)))
    }
}

/// Whether another client has revoked a hold in Curator's way.
pub(crate) fn is_revoked(data: &[u8]) -> bool {
    data == REVOKE
}

/// A child that does not belong there is reported: the others may wait for it for ever, or not see it at all.
fn unexpected_node(folder: &str, node: &str) -> Error {
    let message = format!("{folder}/{node} belongs to another recipe or program: remove it, or use another path");
    Error::new(ErrorKind::Foreign, message).on(SCHEME)
}

fn pending(ahead: usize, cursor: String) -> Attempt {
    let mut pending = Pending::default();
    // A watch on a single node reports also that it has gone already.
    pending.watched = cursor.starts_with('=');
    (pending.ahead, pending.cursor) = (u32::try_from(ahead).ok(), Cursor(cursor.into_bytes()));
    Attempt::Pending(pending)
}
