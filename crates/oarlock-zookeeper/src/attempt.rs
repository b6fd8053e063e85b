//! One attempt: a node of its own, a look at all nodes of the name, and the fence that goes with a turn.
//!
//! A fence is the transaction that granted. Most claims need no write for that beyond their node: see [`Queue::grants`].
//! Every other claim writes into its node that it holds, and that write is its fence.

use oarlock_core::clock::{BootClock, Clock};
use oarlock_core::driver::{Attempt, Cursor, Grant, Lease, Pending};
use oarlock_core::queue::{UNSTATED, check_held, check_weight, is_lighter};
use oarlock_core::state::Memo;
use oarlock_core::{Applied, Capacity, Claim, ClaimId, Error, ErrorKind, Fence, Limit, Result, Weight};
use zookeeper_client as zk;

use crate::driver::ZooKeeper;
use crate::error::{SCHEME, changed_meanwhile, from_zk, numbers_used_up};
use crate::link::{Known, Place, Session, if_there};
use crate::queue::{self, Entry, MEMO, Queue};
use crate::record::{ClaimRecord, ResourceRecord, read, write};
use crate::strangers::lasts;

/// Where a claim stands, and among whom.
struct Standing {
    parent: String,
    place: Place,
    queue: Queue,
    /// This very attempt made its node.
    new: bool,
    /// What the answers are worth that told all this.
    lease: Lease,
}

impl ZooKeeper {
    /// Takes a place, or finds the one it has, and says what it is worth.
    pub(crate) async fn stand(&self, claim: &Claim) -> Result<Attempt> {
        if let Some(dialect) = self.link.dialect() {
            return self.stand_abroad(dialect, claim).await;
        }
        let session = self.link.session().await?;
        let parent = session.parent(&claim.resource);
        let known = self.link.known(claim.id);
        let (sole, proven) = (matches!(known, Known::Nothing), session.is_proven(&known));
        let found = match (known, proven) {
            (Known::Nothing, _) => None,
            (known, true) => self.find(&session, &parent, claim.id, known, session.glance(&parent).await?).await?,
            (known, false) => self.find(&session, &parent, claim.id, known, session.look(&parent).await?).await?,
        };
        let new = found.is_none();
        let (place, queue) = match found {
            Some(found) => found,
            None => self.enter(&session, &parent, claim, sole).await?,
        };
        let lease = if new { session.lease(claim.ttl) } else { session.lease_since_proof(claim.ttl) };
        let lease = lease.map_err(Error::applied_unknown)?;
        let standing = Standing { parent, place, queue, new, lease };
        self.judge(&session, claim, standing).await.map_err(|error| match error.kind() {
            // Its hold is as it was.
            ErrorKind::Upgrade => error,
            // It has a node, and may hold by it.
            _ => error.applied_unknown(),
        })
    }

    async fn judge(&self, session: &Session, claim: &Claim, mut standing: Standing) -> Result<Attempt> {
        let (at, holds) = loop {
            let Standing { parent, place, queue, new, .. } = &standing;
            let at = queue.position(&place.node).ok_or_else(changed_meanwhile)?;
            // Whoever was granted it holds, whatever has been put before it since.
            let holds = at < queue.held || place.fence.is_some();
            let strangers = session.deceivers(parent, queue, at, holds, claim.wait && *new).await?;
            if strangers.is_empty() {
                break (at, holds);
            }
            let rest = queue.without(&strangers);
            standing.queue = if holds { rest } else { session.without_strangers(parent, rest).await? };
        };
        let queue = &standing.queue;
        if holds {
            self.grant(session, claim, standing, at).await.map(Attempt::Granted)
        } else if claim.wait {
            let obstacle = queue.obstacle(at);
            let mut pending = pending(at, obstacle.cursor());
            // Who watches one node reads it, and sees by that what came before the watch.
            pending.watched = obstacle != queue::Obstacle::Any;
            Ok(Attempt::Pending(pending))
        } else {
            self.leave(&claim.resource, claim.id).await?;
            Ok(Attempt::Pending(pending(at, String::new())))
        }
    }

    /// The place of a claim that asked before. Its node may be there although nobody heard of it; one of an earlier
    /// session is about to vanish, and is worth nothing.
    pub(crate) async fn find(
        &self,
        session: &Session,
        parent: &str,
        id: ClaimId,
        known: Known,
        queue: Queue,
    ) -> Result<Option<(Place, Queue)>> {
        if let Known::At(place) = known
            && place.session == session.id
        {
            if queue.position(&place.node).is_none() {
                return Ok(None);
            }
            return Ok(Some((place, queue)));
        }
        for entry in queue.entries.iter().filter(|entry| entry.id == id) {
            let path = format!("{parent}/{}", entry.node);
            let Some(stat) = session.client.check_stat(&path).await.map_err(from_zk)? else { continue };
            if stat.ephemeral_owner == session.id {
                let place = placed(session, entry.node.clone(), &stat)?;
                return Ok(Some((place, queue)));
            }
            if !lasts(&stat) {
                if_there(session.client.delete(&path, None).await)?;
            }
        }
        Ok(None)
    }

    /// A place for a new claim, if what it says of the capacity is what the others say.
    async fn enter(&self, session: &Session, parent: &str, claim: &Claim, sole: bool) -> Result<(Place, Queue)> {
        let capacity = capacity(session, parent, claim).await?;
        check_weight(claim.weight, capacity.unwrap_or(Limit::Unlimited))?;
        self.link.note(claim.id, Known::Doubt);
        let made = self.make(session, parent, claim, capacity, sole).await;
        let (place, mut queue) = made.inspect_err(|error| {
            if error.applied() == Applied::No {
                self.link.forget(claim.id);
            }
        })?;
        loop {
            let at = queue.position(&place.node).ok_or_else(|| changed_meanwhile().applied_unknown())?;
            let Some((by, stored)) = queue.stated_before(at) else { break };
            let Some(asked) = capacity.filter(|asked| queue.disputes(at, *asked)) else { break };
            let strangers = session.unmask(parent, &[by]).await.map_err(Error::applied_unknown)?;
            if !strangers.is_empty() {
                queue = session.without_strangers(parent, queue).await.map_err(Error::applied_unknown)?;
                continue;
            }
            // The first claim decides; others that say something else are about to leave.
            if stored == asked {
                break;
            }
            self.leave(&claim.resource, claim.id).await.map_err(Error::applied_unknown)?;
            let fixed = matches!(claim.capacity, Capacity::Fixed(_));
            return Err(if fixed { Error::spec_mismatch(stored, asked) } else { changed_meanwhile() });
        }
        Ok((place, queue))
    }

    /// Makes a node, and lists it with all others in the same breath.
    async fn make(
        &self,
        session: &Session,
        parent: &str,
        claim: &Claim,
        capacity: Option<Limit>,
        sole: bool,
    ) -> Result<(Place, Queue)> {
        let record = write(&session.record_of(claim))?;
        let path = format!("{parent}/{}", Entry::prefix(claim.id, claim.weight, capacity));
        let ephemeral = session.options(zk::CreateMode::EphemeralSequential);
        let create = || (session.client.create(&path, &record, &ephemeral), session.client.get_children(parent));
        let sent = BootClock.now();
        let (made, listed) = create();
        let (mut made, mut listed) = (made.await, listed.await);
        // The server removes an empty parent. Asking for it first would cost everybody else a request; the node was
        // certainly not made, so this is the second step of making it and not a second try. If the parent goes once
        // more in between, that is for the caller to try.
        if made == Err(zk::Error::NoNode) {
            let container = session.options(zk::CreateMode::Container);
            let home = write(&ResourceRecord::of(&claim.resource))?;
            let mut housed = session.client.create(parent, &home, &container).await;
            if housed == Err(zk::Error::NoNode) {
                // Somebody has removed the root, with all that was below.
                session.make_root().await?;
                housed = session.client.create(parent, &home, &container).await;
            }
            match housed {
                Ok(_) | Err(zk::Error::NodeExists) => {}
                Err(error) => return Err(from_zk(error)),
            }
            let second = create();
            (made, listed) = (second.0.await, second.1.await);
        }
        let (stat, sequence) = made.map_err(from_zk)?;
        let node = format!("{}{sequence}", &path[parent.len() + 1..]);
        let place = Place { sole, ..placed(session, node, &stat).map_err(Error::applied_unknown)? };
        session.prove(sent);
        self.link.note(claim.id, Known::At(place.clone()));
        if Entry::is_last(&place.node) {
            self.leave(&claim.resource, claim.id).await.map_err(Error::applied_unknown)?;
            return Err(numbers_used_up(parent));
        }
        let (children, home) = listed.map_err(|error| from_zk(error).applied_unknown())?;
        Ok((place, session.strangers.queue(parent, children, &home)))
    }

    /// The claim holds: gives it its fence, makes it lighter if that is asked for, and tells whoever watches it.
    async fn grant(&self, session: &Session, claim: &Claim, standing: Standing, at: usize) -> Result<Grant> {
        let Standing { parent, mut place, queue, new, lease } = standing;
        let held = queue.entries.get(at).map_or(claim.weight, |entry| entry.weight);
        check_held(held, claim.weight)?;
        let path = format!("{parent}/{}", place.node);
        let (fence, lease) = match place.fence {
            Some(fence) => (fence, lease),
            // Those behind a sharer that waited, or seems to wait because of strangers, watch its node for the grant that puts them
            // at the head.
            None if queue.grants(at, place.made, new) && (new && !queue.thinned || held == Weight::All) => {
                (fence_of(place.made)?, lease)
            }
            None => {
                let (fence, written) = mark(session, &parent, &path, claim, queue.untouched, new).await?;
                (fence, if written { session.lease(claim.ttl)? } else { lease })
            }
        };
        let lighter = is_lighter(claim.weight, held);
        (place.fence, place.sole) = (Some(fence), place.sole && !lighter);
        let node = place.node.clone();
        self.link.note(claim.id, Known::At(place));
        if lighter {
            let (mut record, stat) = session.record(&path, claim).await?;
            (record.kind, record.granted, record.fence) = (claim.kind, true, Some(fence));
            record.lighter = Some(claim.weight);
            let mut lighter = session.client.new_multi_writer();
            let mark = format!("{parent}/{}", queue::mark(&node, claim.weight, BootClock.now().as_nanos()));
            lighter.add_create(&mark, b"", &session.options(zk::CreateMode::Ephemeral)).map_err(from_zk)?;
            // Those who wait for this one watch its data.
            lighter.add_set_data(&path, &write(&record)?, Some(stat.version)).map_err(from_zk)?;
            lighter.commit().await.map_err(|error| from_zk(error.into()))?;
        }
        let mut grant = Grant::new(fence, lease);
        if queue.has_memo {
            let memo = if_there(session.client.get_data(&format!("{parent}/{MEMO}")).await)?;
            grant.memo = memo.map(|(bytes, _)| Memo::from(bytes));
        }
        Ok(grant)
    }
}

/// Writes into the node that its claim holds, unless it says so already. That transaction is its fence.
async fn mark(
    session: &Session,
    parent: &str,
    path: &str,
    claim: &Claim,
    untouched: bool,
    new: bool,
) -> Result<(Fence, bool)> {
    let (mut record, version) = if new {
        (session.record_of(claim), 0)
    } else {
        let (record, stat) = session.record(path, claim).await?;
        if let Some(fence) = record.mark(&stat) {
            // It was marked before, and nobody heard of it.
            return Ok((fence, false));
        }
        (record, stat.version)
    };
    if untouched {
        // Before the first mark of all, so that whoever waits here knows of marks: see `Queue::grants`.
        let home = write(&ResourceRecord::of(&claim.resource))?;
        match session.client.set_data(parent, &home, Some(0)).await {
            Ok(_) | Err(zk::Error::BadVersion) => {}
            Err(error) => return Err(from_zk(error)),
        }
    }
    record.granted = true;
    let marked = session.client.set_data(path, &write(&record)?, Some(version)).await.map_err(from_zk)?;
    Ok((fence_of(marked.mzxid)?, true))
}

/// The capacity a claim states in its name. Who takes what there is has to look first.
async fn capacity(session: &Session, parent: &str, claim: &Claim) -> Result<Option<Limit>> {
    let otherwise = match (claim.capacity, claim.weight) {
        (Capacity::Fixed(limit), _) => return Ok(Some(limit)),
        (Capacity::Any, Weight::All) => return Ok(None),
        (Capacity::Any, Weight::Units(_)) => UNSTATED,
        (Capacity::Adopt(limit), _) => limit,
    };
    let mut queue = session.look(parent).await?;
    loop {
        let Some((by, stated)) = queue.stated_before(queue.entries.len()) else { return Ok(Some(otherwise)) };
        if session.unmask(parent, &[by]).await?.is_empty() {
            return Ok(Some(stated));
        }
        queue = session.without_strangers(parent, queue).await?;
    }
}

impl Session {
    fn record_of(&self, claim: &Claim) -> ClaimRecord {
        ClaimRecord::of(claim, self.lease_ttl(claim.ttl))
    }

    /// What a claim's own node says. Scribbles of others on it cost nobody a lock.
    async fn record(&self, path: &str, claim: &Claim) -> Result<(ClaimRecord, zk::Stat)> {
        let (data, stat) = self.client.get_data(path).await.map_err(from_zk)?;
        match read::<ClaimRecord>(path, &data) {
            Err(error) if error.kind() == ErrorKind::Foreign => Ok((self.record_of(claim), stat)),
            record => Ok((record?, stat)),
        }
    }
}

/// The place of a node that was just made, or found.
pub(crate) fn placed(session: &Session, node: String, stat: &zk::Stat) -> Result<Place> {
    if stat.ephemeral_owner != session.id {
        // Some servers give a client another session without a word. The next attempt opens one that we know of.
        session.give_up();
        return Err(from_zk(zk::Error::SessionExpired));
    }
    Ok(Place { session: session.id, node, made: stat.czxid, fence: None, sole: false })
}

pub(crate) fn fence_of(transaction: i64) -> Result<Fence> {
    let fence = u64::try_from(transaction).ok().filter(|fence| *fence < Fence::LIMIT);
    let past = || Error::new(ErrorKind::FenceExhausted, format!("transaction {transaction:#x} is past 2^53"));
    fence.map(Fence::new).ok_or_else(|| past().on(SCHEME))
}

fn pending(ahead: usize, cursor: String) -> Pending {
    let mut pending = Pending::default();
    (pending.ahead, pending.cursor) = (u32::try_from(ahead).ok(), Cursor(cursor.into_bytes()));
    pending
}

#[cfg(test)]
mod tests;
