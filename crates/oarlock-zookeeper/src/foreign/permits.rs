//! Semaphores: those who want a permit stand before a gate, a mutex of its own, and whoever is first there takes a permit as
//! soon as there is one. So permits go in order of arrival, and each of them is later than all before it.
//!
//! Curator takes the permit first and waits until there are not too many; kazoo waits first. The number of permits
//! is what each client says; kazoo also writes it into the node.

use oarlock_core::driver::{Attempt, Grant};
use oarlock_core::{Capacity, Claim, Error, ErrorKind, Limit, Result};
use zookeeper_client as zk;

use super::line::Line;
use super::names::{Dialect, Tag, unsupported};
use super::{changed_meanwhile, from_zk, if_there, intruder, node_of, pending};
use crate::attempt::{fence_of, placed};
use crate::driver::ZooKeeper;
use crate::link::{Known, Place, Session};

/// Where the parts of a semaphore are.
struct Folders {
    gate: String,
    leases: String,
}

impl ZooKeeper {
    pub(super) async fn permit(&self, dialect: Dialect, claim: &Claim) -> Result<Attempt> {
        let session = self.link.session().await?;
        let base = session.base(dialect, &claim.resource)?;
        let most = session.permits_of(dialect, &base, claim).await?;
        let folders = Folders { gate: dialect.gate(&base), leases: dialect.leases(&base) };
        let answer = self.pass(&session, dialect, &folders, claim, most).await;
        answer.map_err(|error| match error.kind() {
            ErrorKind::Foreign => error,
            _ if matches!(self.link.known(claim.id), Known::Nothing) => error,
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
        let known = self.link.known(claim.id);
        let (mut at_gate, mut lease, mut before) = (None, None, None);
        if !matches!(known, Known::Nothing) {
            let taken = session.line(dialect, leases).await?;
            lease = session.own(&taken, leases, claim.id, &known).await?;
            before = lease.as_ref().and_then(|lease| taken.position(node_of(&lease.node)));
            let line = session.line(dialect, gate).await?;
            at_gate = session.own(&line, gate, claim.id, &known).await?.map(|place| (place, line));
        }
        if let Some(own) = lease.clone().filter(|_| at_gate.is_none()) {
            // With Curator the node is made before there is a permit. Everybody counts all of them, so those who came earlier
            // are the only ones who can hold without having counted this one.
            let counted =
                dialect == Dialect::Kazoo || own.fence.is_some() || before.is_some_and(|before| before < most);
            if counted {
                let mut found = self.permitted(session, claim, own);
                if let Ok(Attempt::Granted(grant)) = &mut found {
                    grant.lease = session.lease_since_proof(claim.ttl)?;
                }
                return found;
            }
            // Somebody took away its place at the gate: it comes anew.
            if_there(session.client.delete(&own.node, None).await)?;
            lease = None;
        }
        let (place, line) = match at_gate {
            Some(found) => found,
            None => self.join(session, dialect, gate, Tag::Lock, claim, false).await?,
        };
        let at = line.position(node_of(&place.node)).ok_or_else(changed_meanwhile)?;
        if let Some(stranger) = line.stranger(dialect, Tag::Lock) {
            self.leave_abroad(dialect, &claim.resource, claim.id).await?;
            return Err(intruder(gate, stranger));
        }
        if let Some(obstacle) = line.obstacle(at) {
            return self.wait_for(dialect, claim, pending(at, format!("={gate}/{}", obstacle.node))).await;
        }
        let (lease, taken) = match (lease, dialect) {
            (Some(lease), _) => (Some(lease), session.line(dialect, leases).await?),
            (None, Dialect::Curator) => {
                let (lease, taken) = self.take(session, dialect, leases, claim).await?;
                (Some(lease), taken)
            }
            (None, Dialect::Kazoo) => (None, session.line(dialect, leases).await?),
        };
        if let Some(stranger) = taken.stranger(dialect, Tag::Lease) {
            self.leave_abroad(dialect, &claim.resource, claim.id).await?;
            return Err(intruder(leases, stranger));
        }
        let others = taken.entries.iter().filter(|entry| entry.id != claim.id).count();
        if others >= most {
            return self.wait_for(dialect, claim, pending(others, format!("*{leases}"))).await;
        }
        let lease = match lease {
            Some(lease) => lease,
            None => self.take(session, dialect, leases, claim).await?.0,
        };
        // The next may come in. Should this fail, the next attempt finds both nodes, and judges anew.
        if_there(session.client.delete(&place.node, None).await)?;
        self.permitted(session, claim, lease)
    }

    fn permitted(&self, session: &Session, claim: &Claim, mut lease: Place) -> Result<Attempt> {
        let fence = fence_of(lease.made)?;
        lease.fence = Some(fence);
        self.link.note(claim.id, Known::At(lease));
        Ok(Attempt::Granted(Grant::new(fence, session.lease(claim.ttl)?)))
    }

    async fn wait_for(&self, dialect: Dialect, claim: &Claim, answer: Attempt) -> Result<Attempt> {
        if !claim.wait {
            self.leave_abroad(dialect, &claim.resource, claim.id).await?;
        }
        Ok(answer)
    }

    /// Makes the node of a permit, and lists it with all others in the same breath.
    async fn take(&self, session: &Session, dialect: Dialect, leases: &str, claim: &Claim) -> Result<(Place, Line)> {
        if dialect == Dialect::Curator {
            return self.join(session, dialect, leases, Tag::Lease, claim, false).await;
        }
        let path = format!("{leases}/{}", dialect.prefix(claim.id, Tag::Lease));
        let ephemeral = session.options(zk::CreateMode::Ephemeral);
        let data = session.data_of(dialect, claim)?;
        let (made, listed) = (session.client.create(&path, &data, &ephemeral), session.client.list_children(leases));
        let (stat, _) = made.await.map_err(from_zk)?;
        let place = placed(session, path, &stat).map_err(Error::applied_unknown)?;
        Ok((place, Line::read(dialect, &listed.await.map_err(from_zk)?)))
    }
}

impl Session {
    /// How many permits there are. kazoo's clients agree on what the node says, and the first of them writes it.
    async fn permits_of(&self, dialect: Dialect, base: &str, claim: &Claim) -> Result<usize> {
        let (Capacity::Fixed(Limit::Units(asked)) | Capacity::Adopt(Limit::Units(asked))) = claim.capacity else {
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
        // Whatever is no number says nothing, as with kazoo.
        let stored = std::str::from_utf8(&said).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(asked);
        if stored != asked && matches!(claim.capacity, Capacity::Fixed(_)) {
            return Err(Error::spec_mismatch(Limit::Units(stored), Limit::Units(asked)));
        }
        Ok(as_count(stored.get()))
    }
}
