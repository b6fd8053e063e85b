//! Locks shared with other programs, by the recipes of Apache Curator and kazoo. The kind of a claim chooses the recipe.
//!
//! The id of a claim is what those programs put into a name to find their own node again, so a claim is found by it here as
//! well. The fence is the transaction that made the node: the number that others can read of theirs, too.

mod line;
mod names;
mod permits;
mod queueing;
mod show;

use std::time::Duration;

use oarlock_core::driver::{Attempt, Cursor, Pending, Release, Released, Watch};
use oarlock_core::state::Ending;
use oarlock_core::{Claim, ClaimId, Error, ErrorKind, Kind, ResourceName, Result};

use self::line::Line;
pub(crate) use self::names::Dialect;
use self::names::{Tag, unsupported};
use crate::driver::ZooKeeper;
use crate::error::{SCHEME, changed_meanwhile, from_zk};
use crate::link::{Known, Place, Session, if_there};
use crate::record::{ClaimRecord, read, write};

/// What Curator writes into the node of a holder that should let go.
const REVOKE: &[u8] = b"__REVOKE__";

impl ZooKeeper {
    pub(crate) async fn stand_abroad(&self, dialect: Dialect, claim: &Claim) -> Result<Attempt> {
        match dialect.tag(claim)? {
            Tag::Lease => self.permit(dialect, claim).await,
            tag => self.queue_up(dialect, tag, claim).await,
        }
    }

    /// Takes away everything of a claim, whatever its recipe, and whoever's it is.
    pub(crate) async fn leave_abroad(&self, dialect: Dialect, resource: &ResourceName, id: ClaimId) -> Result<Release> {
        let session = self.link.session().await?;
        let base = session.base(dialect, resource)?;
        if let Known::At(place) = self.link.known(id)
            && place.session == session.id
            && let Some(release) = session.leave_place(dialect, &base, &place, id).await?
        {
            self.link.forget(id);
            return Ok(release);
        }
        let (mut outcome, mut others) = (Released::NotHeld, false);
        // Permits before places at the gate: who still waits there cannot be taken for a holder.
        for folder in [base.clone(), dialect.leases(&base), dialect.gate(&base)] {
            let line = session.line(dialect, &folder).await.map_err(Error::applied_unknown)?;
            // All who stand before a gate wait, the first of them too.
            let at_gate = folder == dialect.gate(&base) && line.entries.iter().any(|entry| entry.id != id);
            others |= at_gate || line.others_wait(id);
            for entry in line.of(id) {
                let deleted = session.client.delete(&format!("{folder}/{}", entry.node), None).await;
                if if_there(deleted).map_err(Error::applied_unknown)?.is_some() {
                    outcome = Released::Released;
                }
            }
        }
        self.link.forget(id);
        Ok(Release::new(outcome, Some(others)))
    }

    /// Asks the holder to end, in the way that it understands: Curator's mutexes by their own sign, our own by a record.
    pub(crate) async fn ask_abroad(
        &self,
        dialect: Dialect,
        resource: &ResourceName,
        id: ClaimId,
        ending: (Ending, Duration),
    ) -> Result<Release> {
        let session = self.link.session().await?;
        let base = session.base(dialect, resource)?;
        for folder in [base.clone(), dialect.leases(&base)] {
            let line = session.line(dialect, &folder).await?;
            let waiting = Some(line.others_wait(id));
            let Some(entry) = line.of(id).next() else { continue };
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
    async fn leave_place(&self, dialect: Dialect, base: &str, place: &Place, id: ClaimId) -> Result<Option<Release>> {
        if place.sole {
            let deleted = if_there(self.client.delete(&place.node, None).await)?;
            return Ok(deleted.map(|()| Release::new(Released::Released, None)));
        }
        let Some((folder, node)) = place.node.rsplit_once('/') else { return Ok(None) };
        let gate = dialect.gate(base);
        let is_permit = dialect.parse(node).is_some_and(|entry| entry.tag == Tag::Lease);
        let waiting = match place.fence {
            Some(_) if is_permit => gate.as_str(),
            _ if folder == base && !is_permit => folder,
            _ => return Ok(None),
        };
        let (deleted, listed) = (self.client.delete(&place.node, None), self.client.list_children(waiting));
        let deleted = if_there(deleted.await)?;
        let mut listed = if_there(listed.await).map_err(Error::applied_unknown)?.unwrap_or_default();
        if is_permit {
            let waits = !listed.is_empty();
            return Ok(deleted.map(|()| Release::new(Released::Released, Some(waits))));
        }
        // As it was before: those who waited then are to be told.
        listed.extend(deleted.map(|()| node.to_owned()));
        let line = Line::read(dialect, &listed);
        let all = deleted.is_some() && line.of(id).count() == 1;
        Ok(all.then(|| Release::new(Released::Released, Some(line.others_wait(id)))))
    }

    /// The claims in a folder as a majority has them now, which also proves that the session lives.
    async fn line(&self, dialect: Dialect, folder: &str) -> Result<Line> {
        let (agreed, line) = (self.agree(folder), self.line_at_hand(dialect, folder));
        agreed.await.map_err(from_zk)?;
        line.await
    }

    /// The claims in a folder as the server at hand has them.
    fn line_at_hand(&self, dialect: Dialect, folder: &str) -> impl Future<Output = Result<Line>> + Send {
        // Sent at once, and not when the answer is waited for.
        let children = self.client.list_children(folder);
        async move { Ok(Line::read(dialect, &if_there(children.await)?.unwrap_or_default())) }
    }

    /// The node of a claim in a line, if this session made it. One of an earlier session is about to vanish, and is worth
    /// nothing.
    async fn own(&self, line: &Line, folder: &str, id: ClaimId, known: &Known) -> Result<Option<Place>> {
        let before = match known {
            Known::At(place) if place.session == self.id => Some(place),
            _ => None,
        };
        for entry in line.of(id) {
            let path = format!("{folder}/{}", entry.node);
            if let Some(place) = before.filter(|place| place.node == path) {
                return Ok(Some(place.clone()));
            }
            let Some(stat) = self.client.check_stat(&path).await.map_err(from_zk)? else { continue };
            if stat.ephemeral_owner == self.id {
                // A writer that became a reader has another node, and its fence.
                let (fence, made) = (before.and_then(|place| place.fence), stat.czxid);
                return Ok(Some(Place { session: self.id, node: path, made, fence, sole: false }));
            }
            if_there(self.client.delete(&path, None).await)?;
        }
        Ok(None)
    }

    /// Where a claim is that is not where it was known to be.
    pub(crate) async fn find_abroad(&self, dialect: Dialect, claim: &Claim, known: &Known) -> Result<Option<Place>> {
        let base = self.base(dialect, &claim.resource)?;
        let folders = match dialect.tag(claim)? {
            Tag::Lease => vec![dialect.leases(&base), dialect.gate(&base)],
            _ => vec![base],
        };
        for folder in folders {
            let line = self.line(dialect, &folder).await?;
            if let Some(place) = self.own(&line, &folder, claim.id, known).await? {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// Makes a folder and what is above it, as the others do: Curator's vanish when they are empty, kazoo's stay.
    async fn make_folder(&self, dialect: Dialect, folder: &str) -> Result<()> {
        let mode = match dialect {
            Dialect::Curator => zookeeper_client::CreateMode::Container,
            Dialect::Kazoo => zookeeper_client::CreateMode::Persistent,
        };
        self.client.mkdir(folder, &self.options(mode)).await.map_err(from_zk)
    }

    /// Watches what a cursor of ours names: a node, or the children of one.
    pub(crate) async fn watch_abroad(&self, cursor: &[u8]) -> Result<Watch> {
        let cursor = String::from_utf8_lossy(cursor);
        match cursor.split_at_checked(1) {
            Some(("=", node)) => self.watch_node(node, |_, _| false).await,
            Some(("*", folder)) => self.watch_children(folder).await,
            _ => Err(Error::new(ErrorKind::Internal, "a cursor of another layout").on(SCHEME)),
        }
    }

    /// Watches the comings and goings at a resource; permits of a semaphore are further down with Curator.
    pub(crate) async fn watch_resource_abroad(&self, dialect: Dialect, resource: &ResourceName) -> Result<Watch> {
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

/// Whether somebody asked for the end of a hold in Curator's way.
pub(crate) fn is_revoked(data: &[u8]) -> bool {
    data == REVOKE
}

/// A child that does not belong there is reported: the others may wait for it for ever, or not see it at all.
fn intruder(folder: &str, node: &str) -> Error {
    let message =
        format!("{folder}/{node} does not belong to this kind of lock, and others might overlook or wait for it");
    Error::new(ErrorKind::Foreign, message).on(SCHEME)
}

fn pending(ahead: usize, cursor: String) -> Attempt {
    let mut pending = Pending::default();
    // A single node is in nobody's way any more when it is gone, which whoever watches it then sees.
    pending.watched = cursor.starts_with('=');
    (pending.ahead, pending.cursor) = (u32::try_from(ahead).ok(), Cursor(cursor.into_bytes()));
    Attempt::Pending(pending)
}

/// The node at the end of a path.
fn node_of(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, node)| node)
}
