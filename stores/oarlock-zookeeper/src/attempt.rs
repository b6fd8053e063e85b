//! Attempts: creates the node of a claim, lists all nodes of the name, and gives the claim its fence.
//!
//! A fence is the number of the transaction that granted the claim. Most claims need no write for that beyond their
//! node: see [`Queue::grants`]. Every other claim writes into its node that it holds, and that write is its fence.

use oarlock_core::clock::{BootClock, Clock};
use oarlock_core::driver::{Attempt, Cursor, Grant, Lease, Pending};
use oarlock_core::queue::{Obstacle, UNSTATED, check_held, check_weight, is_lighter};
use oarlock_core::state::Memo;
use oarlock_core::{Applied, Capacity, Claim, ClaimId, Error, ErrorKind, Fence, Limit, Result, Weight};
use zookeeper_client as zk;

use crate::ZooKeeper;
use crate::error::{SCHEME, changed_meanwhile, from_zk, numbers_used_up};
use crate::queue::{self, Entry, MEMO, Queue};
use crate::record::{ClaimRecord, ResourceRecord, read, write};
use crate::route::{ClaimNode, Known};
use crate::session::{Session, if_there};
use crate::unknown_nodes::lasts;

/// A claim with its node, in its queue.
struct PendingClaim {
    parent: String,
    node: ClaimNode,
    queue: Queue,
    /// This very attempt made its node.
    new: bool,
    /// How long the answers that this was read from may be believed.
    lease: Lease,
}

impl ZooKeeper {
    /// Creates the node of a claim, or finds it, and applies the rule to the queue.
    pub(crate) async fn attempt_claim(&self, claim: &Claim) -> Result<Attempt> {
        if let Some(dialect) = self.route.dialect() {
            return self.attempt_compat(dialect, claim).await;
        }
        let session = self.route.session().await?;
        let parent = session.parent(&claim.resource);
        let known = self.route.known(claim.id);
        let (sole, proven) = (matches!(known, Known::Nothing), session.is_proven(&known));
        let found = match (known, proven) {
            (Known::Nothing, _) => None,
            (known, true) => self.find(&session, &parent, claim.id, known, session.peek(&parent).await?).await?,
            (known, false) => self.find(&session, &parent, claim.id, known, session.poll(&parent).await?).await?,
        };
        let new = found.is_none();
        let (node, queue) = match found {
            Some(found) => found,
            None => self.enter(&session, &parent, claim, sole).await?,
        };
        let lease = if new { session.lease(claim.ttl) } else { session.lease_since_proof(claim.ttl) };
        let lease = lease.map_err(Error::applied_unknown)?;
        let pending_claim = PendingClaim { parent, node, queue, new, lease };
        self.judge(&session, claim, pending_claim).await.map_err(|error| match error.kind() {
            // Its hold is as it was.
            ErrorKind::Upgrade => error,
            // It has a node, and may hold by it.
            _ => error.applied_unknown(),
        })
    }

    async fn judge(&self, session: &Session, claim: &Claim, mut pending_claim: PendingClaim) -> Result<Attempt> {
        let (at, holds) = loop {
            let PendingClaim { parent, node, queue, new, .. } = &pending_claim;
            let at = queue.position(&node.name).ok_or_else(changed_meanwhile)?;
            // A granted claim holds, whatever was put before it since.
            let holds = at < queue.held || node.fence.is_some();
            let unknown = session.unknown_in_the_way(parent, queue, at, holds, claim.wait && *new).await?;
            if unknown.is_empty() {
                break (at, holds);
            }
            let rest = queue.without(&unknown);
            pending_claim.queue = if holds { rest } else { session.without_unknown(parent, rest).await? };
        };
        let queue = &pending_claim.queue;
        if holds {
            self.grant(session, claim, pending_claim, at).await.map(Attempt::Granted)
        } else if claim.wait {
            let obstacle = queue.obstacle(at);
            let mut pending = pending(at, queue::cursor(obstacle));
            // A watch on one node reads that node, and so reports changes that came before it.
            pending.watched = obstacle != Obstacle::Any;
            Ok(Attempt::Pending(pending))
        } else {
            self.remove_claim(&claim.resource, claim.id).await?;
            Ok(Attempt::Pending(pending(at, String::new())))
        }
    }

    /// The node of a claim that attempted before. The node may exist although its answer was lost. A node of an
    /// earlier session will vanish soon, and does not count.
    pub(crate) async fn find(
        &self,
        session: &Session,
        parent: &str,
        id: ClaimId,
        known: Known,
        queue: Queue,
    ) -> Result<Option<(ClaimNode, Queue)>> {
        if let Known::At(node) = known
            && node.session == session.id
        {
            if queue.position(&node.name).is_none() {
                return Ok(None);
            }
            return Ok(Some((node, queue)));
        }
        for entry in queue.entries.iter().filter(|entry| entry.id == id) {
            let path = format!("{parent}/{}", entry.node);
            let Some(stat) = session.client.check_stat(&path).await.map_err(from_zk)? else { continue };
            if stat.ephemeral_owner == session.id {
                let node = claim_node(session, entry.node.clone(), &stat)?;
                return Ok(Some((node, queue)));
            }
            if !lasts(&stat) {
                if_there(session.client.delete(&path, None).await)?;
            }
        }
        Ok(None)
    }

    /// Creates a node for a new claim, if its capacity agrees with the one that earlier claims state.
    async fn enter(&self, session: &Session, parent: &str, claim: &Claim, sole: bool) -> Result<(ClaimNode, Queue)> {
        let capacity = capacity(session, parent, claim).await?;
        check_weight(claim.weight, capacity.unwrap_or(Limit::Unlimited))?;
        self.route.note(claim.id, Known::Doubt);
        let made = self.make(session, parent, claim, capacity, sole).await;
        let (node, mut queue) = made.inspect_err(|error| {
            if error.applied() == Applied::No {
                self.route.forget(claim.id);
            }
        })?;
        loop {
            let at = queue.position(&node.name).ok_or_else(|| changed_meanwhile().applied_unknown())?;
            let Some((by, stored)) = queue.stated_before(at) else { break };
            let Some(asked) = capacity.filter(|asked| queue.disputes(at, *asked)) else { break };
            let unknown = session.find_unknown(parent, &[by]).await.map_err(Error::applied_unknown)?;
            if !unknown.is_empty() {
                queue = session.without_unknown(parent, queue).await.map_err(Error::applied_unknown)?;
                continue;
            }
            // The first claim decides; others that say something else are about to leave.
            if stored == asked {
                break;
            }
            self.remove_claim(&claim.resource, claim.id).await.map_err(Error::applied_unknown)?;
            let fixed = matches!(claim.capacity, Capacity::Fixed(_));
            return Err(if fixed { Error::spec_mismatch(stored, asked) } else { changed_meanwhile() });
        }
        Ok((node, queue))
    }

    /// Creates a node, and lists all nodes in the next request on the same connection.
    async fn make(
        &self,
        session: &Session,
        parent: &str,
        claim: &Claim,
        capacity: Option<Limit>,
        sole: bool,
    ) -> Result<(ClaimNode, Queue)> {
        let record = write(&session.record_of(claim))?;
        let path = format!("{parent}/{}", Entry::prefix(claim.id, claim.weight, capacity));
        let ephemeral = session.options(zk::CreateMode::EphemeralSequential);
        let create = || (session.client.create(&path, &record, &ephemeral), session.client.get_children(parent));
        let sent = BootClock.now();
        let (made, listed) = create();
        let (mut made, mut listed) = (made.await, listed.await);
        // The server removes an empty parent. Checking for it first would cost every attempt a request. The node was
        // certainly not created, so this is the second step of creating it and not a retry. If the parent vanishes
        // again in between, the caller has to retry.
        if made == Err(zk::Error::NoNode) {
            let container = session.options(zk::CreateMode::Container);
            let above = write(&ResourceRecord::of(&claim.resource))?;
            let mut created = session.client.create(parent, &above, &container).await;
            if created == Err(zk::Error::NoNode) {
                // The root was removed, with everything below it.
                session.make_root().await?;
                created = session.client.create(parent, &above, &container).await;
            }
            match created {
                Ok(_) | Err(zk::Error::NodeExists) => {}
                Err(error) => return Err(from_zk(error)),
            }
            let second = create();
            (made, listed) = (second.0.await, second.1.await);
        }
        let (stat, sequence) = made.map_err(from_zk)?;
        let name = format!("{}{sequence}", &path[parent.len() + 1..]);
        let node = ClaimNode { sole, ..claim_node(session, name, &stat).map_err(Error::applied_unknown)? };
        session.prove(sent);
        self.route.note(claim.id, Known::At(node.clone()));
        if Entry::is_last(&node.name) {
            self.remove_claim(&claim.resource, claim.id).await.map_err(Error::applied_unknown)?;
            return Err(numbers_used_up(parent));
        }
        let (children, above) = listed.map_err(|error| from_zk(error).applied_unknown())?;
        Ok((node, session.unknown.queue(parent, children, &above)))
    }

    /// The claim holds: gives it its fence, makes it lighter if requested, and notifies its watchers.
    async fn grant(&self, session: &Session, claim: &Claim, pending_claim: PendingClaim, at: usize) -> Result<Grant> {
        let PendingClaim { parent, mut node, queue, new, lease } = pending_claim;
        let held = queue.entries.get(at).map_or(claim.weight, |entry| entry.weight);
        check_held(held, claim.weight)?;
        let path = format!("{parent}/{}", node.name);
        let (fence, lease) = match node.fence {
            Some(fence) => (fence, lease),
            // A shared claim that waited, or seems to wait because of unknown nodes: later waiters watch its node for
            // its grant.
            None if queue.grants(at, node.made, new) && (new && !queue.thinned || held == Weight::All) => {
                (fence_of(node.made)?, lease)
            }
            None => {
                let (fence, written) = mark(session, &parent, &path, claim, queue.untouched, new).await?;
                (fence, if written { session.lease(claim.ttl)? } else { lease })
            }
        };
        let lighter = is_lighter(claim.weight, held);
        (node.fence, node.sole) = (Some(fence), node.sole && !lighter);
        let name = node.name.clone();
        self.route.note(claim.id, Known::At(node));
        if lighter {
            let (mut record, stat) = session.record(&path, claim).await?;
            (record.kind, record.granted, record.fence) = (claim.kind, true, Some(fence));
            record.lighter = Some(claim.weight);
            let mut lighter = session.client.new_multi_writer();
            let mark = format!("{parent}/{}", queue::mark(&name, claim.weight, BootClock.now().as_nanos()));
            lighter.add_create(&mark, b"", &session.options(zk::CreateMode::Ephemeral)).map_err(from_zk)?;
            // Waiters behind this one watch its data.
            lighter.add_set_data(&path, &write(&record)?, Some(stat.version)).map_err(from_zk)?;
            lighter.commit().await.map_err(|error| from_zk(error.into()))?;
        }
        let mut grant = session.grant(fence, lease);
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
            // It was marked before, and the answer was lost.
            return Ok((fence, false));
        }
        (record, stat.version)
    };
    if untouched {
        // Before the first mark of all, so that every waiter knows that there are marks: see `Queue::grants`.
        let above = write(&ResourceRecord::of(&claim.resource))?;
        match session.client.set_data(parent, &above, Some(0)).await {
            Ok(_) | Err(zk::Error::BadVersion) => {}
            Err(error) => return Err(from_zk(error)),
        }
    }
    record.granted = true;
    let marked = session.client.set_data(path, &write(&record)?, Some(version)).await.map_err(from_zk)?;
    Ok((fence_of(marked.mzxid)?, true))
}

/// The capacity that a claim states in its name. A claim that uses the stored capacity has to read it first.
async fn capacity(session: &Session, parent: &str, claim: &Claim) -> Result<Option<Limit>> {
    let otherwise = match (claim.capacity, claim.weight) {
        (Capacity::Fixed(limit), _) => return Ok(Some(limit)),
        (Capacity::Any, Weight::All) => return Ok(None),
        (Capacity::Any, Weight::Units(_)) => UNSTATED,
        (Capacity::Stored(limit), _) => limit,
    };
    let mut queue = session.poll(parent).await?;
    loop {
        let Some((by, stated)) = queue.stated_before(queue.entries.len()) else { return Ok(Some(otherwise)) };
        if session.find_unknown(parent, &[by]).await?.is_empty() {
            return Ok(Some(stated));
        }
        queue = session.without_unknown(parent, queue).await?;
    }
}

impl Session {
    fn record_of(&self, claim: &Claim) -> ClaimRecord {
        ClaimRecord::of(claim, self.lease_ttl(claim.ttl))
    }

    /// The record in a claim's own node. If another program has written into it, the lock is not lost.
    async fn record(&self, path: &str, claim: &Claim) -> Result<(ClaimRecord, zk::Stat)> {
        let (data, stat) = self.client.get_data(path).await.map_err(from_zk)?;
        match read::<ClaimRecord>(path, &data) {
            Err(error) if error.kind() == ErrorKind::Foreign => Ok((self.record_of(claim), stat)),
            record => Ok((record?, stat)),
        }
    }
}

/// The claim node for a node that was just created or found.
pub(crate) fn claim_node(session: &Session, name: String, stat: &zk::Stat) -> Result<ClaimNode> {
    if stat.ephemeral_owner != session.id {
        // Some servers replace a client's session silently. The next attempt opens a session that is known.
        session.give_up();
        return Err(from_zk(zk::Error::SessionExpired));
    }
    Ok(ClaimNode { session: session.id, name, made: stat.czxid, fence: None, sole: false })
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
