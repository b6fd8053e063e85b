//! Semaphores: claims wait at a gate, which is a mutex of its own, and the first there takes a permit as soon as one
//! is free. So permits are given in order of arrival, and each is later than all before it.
//!
//! Curator creates the permit first and waits until there are not too many; kazoo waits first. The number of permits
//! is what each client says; kazoo also writes it into the node.

use oarlock_core::driver::Attempt;
use oarlock_core::{Capacity, Claim, Error, ErrorKind, Limit, Result};
use zookeeper_client as zk;

use super::names::{Dialect, Tag, unsupported};
use super::queue::CompatQueue;
use super::{changed_meanwhile, from_zk, if_there, pending, unexpected_node};
use crate::ZooKeeper;
use crate::attempt::{claim_node, fence_of};
use crate::names::split;
use crate::route::{ClaimNode, Known};
use crate::session::Session;

/// Where the parts of a semaphore are.
struct Folders {
    gate: String,
    leases: String,
}

impl ZooKeeper {
    pub(super) async fn permit(&self, dialect: Dialect, claim: &Claim) -> Result<Attempt> {
        let session = self.route.session().await?;
        let base = session.base(dialect, &claim.resource)?;
        let most = session.permits_of(dialect, &base, claim).await?;
        let folders = Folders { gate: dialect.gate(&base), leases: dialect.leases(&base) };
        let answer = self.pass(&session, dialect, &folders, claim, most).await;
        answer.map_err(|error| match error.kind() {
            ErrorKind::Foreign => error,
            _ if matches!(self.route.known(claim.id), Known::Nothing) => error,
            _ => error.applied_unknown(),
        })
    }

    async fn pass(
        &self,
        session: &Session,
        dialect: Dialect,
        folders: &Folders,
        claim: &Claim,
        most: usize,
    ) -> Result<Attempt> {
        let Folders { gate, leases } = folders;
        let known = self.route.known(claim.id);
        let (mut at_gate, mut lease, mut before) = (None, None, None);
        if !matches!(known, Known::Nothing) {
            let taken = session.poll_queue(dialect, leases).await?;
            lease = session.own(&taken, leases, claim.id, &known).await?;
            before = lease.as_ref().and_then(|lease| taken.position(split(&lease.name).1));
            let queue = session.poll_queue(dialect, gate).await?;
            at_gate = session.own(&queue, gate, claim.id, &known).await?.map(|node| (node, queue));
        }
        if let Some(own) = lease.clone().filter(|_| at_gate.is_none()) {
            // With Curator the node is created before a permit is free. Every client counts all nodes, so only earlier
            // claims can hold without having counted this one.
            let counted =
                dialect == Dialect::Kazoo || own.fence.is_some() || before.is_some_and(|before| before < most);
            if counted {
                let mut found = self.permitted(session, claim, own);
                if let Ok(Attempt::Granted(grant)) = &mut found {
                    grant.lease = session.lease_since_proof(claim.ttl)?;
                }
                return found;
            }
            // Its node at the gate was deleted: it starts again.
            if_there(session.client.delete(&own.name, None).await)?;
            lease = None;
        }
        let (node, queue) = match at_gate {
            Some(found) => found,
            None => self.join(session, dialect, gate, Tag::Lock, claim, false).await?,
        };
        let at = queue.position(split(&node.name).1).ok_or_else(changed_meanwhile)?;
        if let Some(unknown) = queue.unknown(dialect, Tag::Lock) {
            self.release_compat(dialect, &claim.resource, claim.id).await?;
            return Err(unexpected_node(gate, unknown));
        }
        if let Some(obstacle) = queue.obstacle(at) {
            return self.wait_for(dialect, claim, pending(at, format!("={gate}/{}", obstacle.node))).await;
        }
        let (lease, taken) = match (lease, dialect) {
            (Some(lease), _) => (Some(lease), session.poll_queue(dialect, leases).await?),
            (None, Dialect::Curator) => {
                let (lease, taken) = self.take(session, dialect, leases, claim).await?;
                (Some(lease), taken)
            }
            (None, Dialect::Kazoo) => (None, session.poll_queue(dialect, leases).await?),
        };
        if let Some(unknown) = taken.unknown(dialect, Tag::Lease) {
            self.release_compat(dialect, &claim.resource, claim.id).await?;
            return Err(unexpected_node(leases, unknown));
        }
        let others = taken.entries.iter().filter(|entry| entry.id != claim.id).count();
        if others >= most {
            return self.wait_for(dialect, claim, pending(others, format!("*{leases}"))).await;
        }
        let lease = match lease {
            Some(lease) => lease,
            None => self.take(session, dialect, leases, claim).await?.0,
        };
        // Opens the gate for the next. If this fails, the next attempt finds both nodes, and decides again.
        if_there(session.client.delete(&node.name, None).await)?;
        self.permitted(session, claim, lease)
    }

    fn permitted(&self, session: &Session, claim: &Claim, mut lease: ClaimNode) -> Result<Attempt> {
        let fence = fence_of(lease.made)?;
        lease.fence = Some(fence);
        self.route.note(claim.id, Known::At(lease));
        Ok(Attempt::Granted(session.grant(fence, session.lease(claim.ttl)?)))
    }

    async fn wait_for(&self, dialect: Dialect, claim: &Claim, answer: Attempt) -> Result<Attempt> {
        if !claim.wait {
            self.release_compat(dialect, &claim.resource, claim.id).await?;
        }
        Ok(answer)
    }

    /// Creates the node of a permit, and lists all nodes in the next request on the same connection.
    async fn take(
        &self,
        session: &Session,
        dialect: Dialect,
        leases: &str,
        claim: &Claim,
    ) -> Result<(ClaimNode, CompatQueue)> {
        if dialect == Dialect::Curator {
            return self.join(session, dialect, leases, Tag::Lease, claim, false).await;
        }
        let path = format!("{leases}/{}", dialect.prefix(claim.id, Tag::Lease));
        let ephemeral = session.options(zk::CreateMode::Ephemeral);
        let data = session.data_of(dialect, claim)?;
        let (made, listed) = (session.client.create(&path, &data, &ephemeral), session.client.list_children(leases));
        let (stat, _) = made.await.map_err(from_zk)?;
        let node = claim_node(session, path, &stat).map_err(Error::applied_unknown)?;
        Ok((node, CompatQueue::read(dialect, &listed.await.map_err(from_zk)?)))
    }
}

impl Session {
    /// The number of permits. kazoo's clients agree on what the node says, and the first of them writes it.
    async fn permits_of(&self, dialect: Dialect, base: &str, claim: &Claim) -> Result<usize> {
        let (Capacity::Fixed(Limit::Units(asked)) | Capacity::Stored(Limit::Units(asked))) = claim.capacity else {
            let why = format!("a semaphore of the layout {} needs a number of permits", dialect.name());
            return Err(unsupported(why));
        };
        let as_count = |most: u32| usize::try_from(most).unwrap_or(usize::MAX);
        if dialect == Dialect::Curator {
            return Ok(as_count(asked.get()));
        }
        let said = match if_there(self.client.get_data(base).await)? {
            Some((data, _)) => data,
            None => {
                let above = base.rsplit_once('/').map_or("", |(above, _)| above);
                if !above.is_empty() {
                    self.make_folder(dialect, above).await?;
                }
                let (mode, text) = (self.options(zk::CreateMode::Persistent), asked.to_string());
                match self.client.create(base, text.as_bytes(), &mode).await {
                    Ok(_) => text.into_bytes(),
                    Err(zk::Error::NodeExists) => self.client.get_data(base).await.map_err(from_zk)?.0,
                    Err(error) => return Err(from_zk(error)),
                }
            }
        };
        // Data that is no number counts as absent, as with kazoo.
        let stored = std::str::from_utf8(&said).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(asked);
        if stored != asked && matches!(claim.capacity, Capacity::Fixed(_)) {
            return Err(Error::spec_mismatch(Limit::Units(stored), Limit::Units(asked)));
        }
        Ok(as_count(stored.get()))
    }
}
