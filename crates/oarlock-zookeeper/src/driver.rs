//! The seven verbs.

use oarlock_core::capabilities::{Capabilities, Consistency, Fencing, Liveness, Notify, WaiterView};
use oarlock_core::driver::{
    Attempt, Cursor, Driver, End, Fences, Gone, Grant, Info, Interest, Pending, Release, Released, Renewal, Renewed,
    Watch,
};
use oarlock_core::state::{Ending, Memo, Page, Query};
use oarlock_core::{Applied, Capacity, Claim, ClaimId, Error, ErrorKind, Fence, Limit, ResourceName, Result, Weight};
use zookeeper_client as zk;

use crate::config::Config;
use crate::error::{SCHEME, changed_meanwhile, foreign, from_zk};
use crate::link::{Known, Link, Place, Session, if_there};
use crate::queue::{self, Entry, MEMO, Obstacle, Queue, is_lighter};
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
        capabilities.tether_lease = false;
        capabilities.waiters = WaiterView::Listed;
        capabilities.notify = Notify::Push;
        capabilities.consistency = Consistency::Consensus;
        Info::new(SCHEME, self.link.address(), capabilities)
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        self.stand(claim).await.map_err(|error| error.on(SCHEME).during("attempt").about(&claim.resource))
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        let session = match self.link.current() {
            Ok(Some(session)) => session,
            Ok(None) => return vec![Ok(Renewed::Gone(Gone::Session)); batch.len()],
            Err(error) => return vec![Err(error.during("renew")); batch.len()],
        };
        // Only what the leader was asked after this can prove that it still keeps the session.
        let heard = session.client.sync(session.root());
        let looks: Vec<_> = batch
            .iter()
            .map(|renewal| {
                let known = self.link.known(renewal.claim.id);
                let path = match &known {
                    Known::At(place) if place.session == session.id => {
                        Some(format!("{}/{}", session.parent(&renewal.claim.resource), place.node))
                    }
                    _ => None,
                };
                let look = path.map(|path| (session.client.get_data(&path), path));
                (known, look)
            })
            .collect();
        let heard = heard.await;
        let mut answers = Vec::with_capacity(batch.len());
        for (renewal, (known, look)) in batch.iter().zip(looks) {
            let seen = match (look, &known) {
                (Some((look, path)), Known::At(place)) => Ok(Some((place.clone(), path, look.await))),
                _ => self.look_for(&session, &renewal.claim, known.clone()).await,
            };
            let answer = match (seen, heard.clone()) {
                (_, Err(zk::Error::SessionExpired)) => Ok(Renewed::Gone(Gone::Session)),
                (_, Err(error)) => Err(from_zk(error)),
                (Err(error), _) => Err(error),
                (Ok(seen), Ok(())) => self.keep(&session, renewal, &known, seen).await,
            };
            if let (Ok(Renewed::Gone(_)), Known::At(place)) = (&answer, &known) {
                self.link.forget_place(renewal.claim.id, place);
            }
            answers.push(answer.map_err(|error| error.during("renew").about(&renewal.claim.resource)));
        }
        answers
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        let ended = match end {
            End::Done { memo: Some(memo) } => self.leave_with(resource, id, memo).await,
            End::Broken { ending, grace } if !grace.is_zero() => {
                self.ask_to_end(resource, id, (ending.clone(), *grace)).await
            }
            End::Broken { ending, .. } => self.bury(resource, id, ending).await,
            _ => self.leave(resource, id).await,
        };
        ended.map_err(|error| error.during("release").about(resource))
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        let session = self.link.current().and_then(|session| session.ok_or_else(|| from_zk(zk::Error::SessionExpired)));
        let armed = match (session, interest) {
            (Err(error), _) => Err(error),
            (Ok(session), Interest::Turn(claim, Cursor(node))) => {
                session.watch_turn(&claim.resource, &String::from_utf8_lossy(node)).await
            }
            (Ok(session), Interest::Resource(name)) => session.watch_resource(name).await,
            (Ok(session), Interest::Mailbox) => session.watch_mailbox().await,
            (Ok(_), _) => Err(Error::new(ErrorKind::Unsupported, "nothing to watch").on(SCHEME)),
        };
        armed.map_err(|error| error.during("watch"))
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let shown = async { self.link.session().await?.show(query).await };
        shown.await.map_err(|error| error.during("inspect"))
    }

    async fn close(&self) -> Result<()> {
        self.link.close().await;
        Ok(())
    }
}

/// What was seen of a claim's own node: the place, its path, and the answer about it.
type Seen = (Place, String, Result<(Vec<u8>, zk::Stat), zk::Error>);

impl ZooKeeper {
    /// Takes a place, or finds the one it has, and says what it is worth.
    async fn stand(&self, claim: &Claim) -> Result<Attempt> {
        let session = self.link.session().await?;
        let parent = session.parent(&claim.resource);
        let found = match self.link.known(claim.id) {
            Known::Nothing => None,
            known => self.find(&session, &parent, claim.id, known).await?,
        };
        let (mut place, queue) = match found {
            Some(found) => found,
            None => self.enter(&session, &parent, claim).await?,
        };
        let at = queue.position(&place.node).ok_or_else(changed_meanwhile)?;
        if at < queue.held {
            self.grant(&session, &parent, claim, &mut place, &queue, at).await.map(Attempt::Granted)
        } else if claim.wait {
            place.waited = true;
            self.link.note(claim.id, Known::At(place));
            let cursor = match queue.obstacle(at) {
                Obstacle::Node(node) => node.to_owned(),
                Obstacle::Any => String::new(),
            };
            Ok(Attempt::Pending(pending(at, cursor)))
        } else {
            self.leave(&claim.resource, claim.id).await?;
            Ok(Attempt::Pending(pending(at, String::new())))
        }
    }

    /// The place of a claim that asked before. Its node may be there although nobody heard of it; one of an earlier
    /// session is about to vanish, and is worth nothing.
    async fn find(&self, session: &Session, parent: &str, id: ClaimId, known: Known) -> Result<Option<(Place, Queue)>> {
        let queue = Queue::read(&session.list_fresh(parent).await?);
        if let Known::At(place) = known
            && place.session == session.id
        {
            return Ok(queue.position(&place.node).is_some().then_some((place, queue)));
        }
        for entry in queue.entries.iter().filter(|entry| entry.id == id) {
            let path = format!("{parent}/{}", entry.node);
            let Some(stat) = session.client.check_stat(&path).await.map_err(from_zk)? else { continue };
            if stat.ephemeral_owner == session.id {
                let place = placed(session, entry.node.clone(), &stat, true)?;
                return Ok(Some((place, queue)));
            }
            if_there(session.client.delete(&path, None).await)?;
        }
        Ok(None)
    }

    /// Makes a node for a new claim, and lists it with all others in the same breath.
    async fn enter(&self, session: &Session, parent: &str, claim: &Claim) -> Result<(Place, Queue)> {
        let capacity = self.capacity(session, parent, claim).await?;
        if let (Weight::Units(units), Some(Limit::Units(most))) = (claim.weight, capacity)
            && units > most
        {
            return Err(Error::new(ErrorKind::TooHeavy, format!("{units} of {most} can never be had")));
        }
        let record = write(&ClaimRecord::of(claim, session.lease(claim.ttl).ttl))?;
        let path = format!("{parent}/{}", Entry::prefix(claim.id, claim.weight, capacity));
        let ephemeral = session.options(zk::CreateMode::EphemeralSequential);
        self.link.note(claim.id, Known::Doubt);
        let create = || (session.client.create(&path, &record, &ephemeral), session.client.list_children(parent));
        let (made, listed) = create();
        let (mut made, mut listed) = (made.await, listed.await);
        if made == Err(zk::Error::NoNode) {
            let container = session.options(zk::CreateMode::Container);
            let home = write(&ResourceRecord::of(&claim.resource))?;
            match session.client.create(parent, &home, &container).await {
                Ok(_) | Err(zk::Error::NodeExists) => {}
                Err(error) => return Err(from_zk(error)),
            }
            let again = create();
            (made, listed) = (again.0.await, again.1.await);
        }
        let (stat, sequence) = made.map_err(from_zk).inspect_err(|error| {
            if error.applied() == Applied::No {
                self.link.forget(claim.id);
            }
        })?;
        let node = format!("{}{sequence}", &path[parent.len() + 1..]);
        let place = placed(session, node, &stat, false)?;
        self.link.note(claim.id, Known::At(place.clone()));
        let queue = Queue::read(&listed.map_err(from_zk)?);
        let at = queue.position(&place.node).ok_or_else(changed_meanwhile)?;
        if let (Some(stored), Some(asked)) = (queue.capacity_before(at), capacity)
            && stored != asked
        {
            self.leave(&claim.resource, claim.id).await?;
            let fixed = matches!(claim.capacity, Capacity::Fixed(_));
            return Err(if fixed { Error::spec_mismatch(stored, asked) } else { changed_meanwhile() });
        }
        Ok((place, queue))
    }

    /// The capacity a claim states in its name. Who takes what there is has to look first.
    async fn capacity(&self, session: &Session, parent: &str, claim: &Claim) -> Result<Option<Limit>> {
        let otherwise = match (claim.capacity, claim.weight) {
            (Capacity::Fixed(limit), _) => return Ok(Some(limit)),
            (Capacity::Any, Weight::All) => return Ok(None),
            (Capacity::Any, Weight::Units(_)) => Limit::Units(std::num::NonZeroU32::MIN),
            (Capacity::Adopt(limit), _) => limit,
        };
        let queue = Queue::read(&session.list_fresh(parent).await?);
        Ok(Some(queue.capacity_before(queue.entries.len()).unwrap_or(otherwise)))
    }

    /// The claim holds: makes it lighter if that is asked for, and tells whoever watches it.
    async fn grant(
        &self,
        session: &Session,
        parent: &str,
        claim: &Claim,
        place: &mut Place,
        queue: &Queue,
        at: usize,
    ) -> Result<Grant> {
        let held = queue.entries.get(at).map_or(claim.weight, |entry| entry.weight);
        let path = format!("{parent}/{}", place.node);
        let data = || write(&ClaimRecord::of(claim, session.lease(claim.ttl).ttl));
        if is_lighter(held, claim.weight) {
            return Err(Error::new(ErrorKind::Upgrade, "a held claim cannot become heavier"));
        }
        if is_lighter(claim.weight, held) {
            let mut lighter = session.client.new_multi_writer();
            let mark = format!("{parent}/{}", queue::mark(claim.id, claim.weight));
            lighter.add_create(&mark, b"", &session.options(zk::CreateMode::Ephemeral)).map_err(from_zk)?;
            // Those who wait for this one watch its data.
            lighter.add_set_data(&path, &data()?, None).map_err(from_zk)?;
            lighter.commit().await.map_err(|error| from_zk(error.into()))?;
        } else if place.waited && !place.granted && at + 1 < queue.entries.len() && held != Weight::All {
            // The one behind watches this node for the grant that puts it at the head.
            session.client.set_data(&path, &data()?, None).await.map_err(from_zk)?;
        }
        place.granted = true;
        self.link.note(claim.id, Known::At(place.clone()));
        let mut grant = Grant::new(place.fence, session.lease(claim.ttl));
        if queue.has_memo {
            let memo = if_there(session.client.get_data(&format!("{parent}/{MEMO}")).await)?;
            grant.memo = memo.map(|(bytes, _)| Memo::from(bytes));
        }
        Ok(grant)
    }

    /// A claim whose node is not known by name: found by its id, if it is there.
    async fn look_for(&self, session: &Session, claim: &Claim, known: Known) -> Result<Option<Seen>> {
        let parent = session.parent(&claim.resource);
        let Some((place, _)) = self.find(session, &parent, claim.id, known).await? else { return Ok(None) };
        let path = format!("{parent}/{}", place.node);
        let look = session.client.get_data(&path).await;
        Ok(Some((place, path, look)))
    }

    /// What a look at a claim's own node means.
    async fn keep(&self, session: &Session, renewal: &Renewal, known: &Known, seen: Option<Seen>) -> Result<Renewed> {
        let claim = &renewal.claim;
        let other_session = matches!(known, Known::At(place) if place.session != session.id);
        let parent = session.parent(&claim.resource);
        let (place, path, data, stat) = match seen {
            _ if other_session => return Ok(Renewed::Gone(Gone::Session)),
            Some((_, _, Err(zk::Error::SessionExpired))) => return Ok(Renewed::Gone(Gone::Session)),
            None | Some((_, _, Err(zk::Error::NoNode))) => return session.obituary(&parent, claim.id).await,
            Some((_, _, Err(error))) => return Err(from_zk(error)),
            Some((_, _, Ok((_, stat)))) if stat.ephemeral_owner != session.id => {
                return Ok(Renewed::Gone(Gone::Session));
            }
            Some((place, path, Ok((data, stat)))) => (place, path, data, stat),
        };
        if renewal.fences != Fences::Keep {
            return Err(Error::new(ErrorKind::Unsupported, "fences are ZooKeeper's own here").on(SCHEME));
        }
        if let Some(memo) = &renewal.memo {
            session.write_memo(&parent, memo).await?;
        }
        let mut lease = session.lease(claim.ttl);
        let mut ending = None;
        // Scribbles of others on the node cost nobody a lock.
        if let Ok(mut record) = read::<ClaimRecord>(&path, &data) {
            if record.update(claim) {
                // If another wrote at the same time, the next renewal tells more.
                let _ = session.client.set_data(&path, &write(&record)?, Some(stat.version)).await;
            }
            if let Some((asked, grace)) = record.ending {
                (lease.ttl, ending) = (lease.ttl.min(grace), Some(asked));
            }
        }
        Ok(Renewed::Alive { lease, fence: place.granted.then_some(place.fence), ending })
    }

    /// Takes away everything of a claim.
    async fn leave(&self, resource: &ResourceName, id: ClaimId) -> Result<Release> {
        let session = self.link.session().await?;
        let parent = session.parent(resource);
        let known = match self.link.known(id) {
            Known::At(place) if place.session == session.id => place.node,
            _ => {
                let listed = session.list_fresh(&parent).await?;
                return self.finish(&session, &parent, id, Released::NotHeld, listed).await;
            }
        };
        let path = format!("{parent}/{known}");
        let (deleted, listed) = (session.client.delete(&path, None), session.client.list_children(&parent));
        let deleted = if_there(deleted.await)?;
        let mut listed = if_there(listed.await)?.unwrap_or_default();
        let Some(()) = deleted else {
            return self.finish(&session, &parent, id, Released::NotHeld, listed).await;
        };
        // As it was before: those who waited then are to be told, although the rule may let them in now.
        listed.push(known);
        self.finish(&session, &parent, id, Released::Released, listed).await
    }

    /// Takes away what a listing still shows of a claim, and says whether others wait.
    async fn finish(
        &self,
        session: &Session,
        parent: &str,
        id: ClaimId,
        mut outcome: Released,
        listed: Vec<String>,
    ) -> Result<Release> {
        let queue = Queue::read(&listed);
        let gone = matches!(outcome, Released::Released).then(|| listed.last()).flatten();
        for node in queue.nodes_of(id).filter(|node| gone.is_none_or(|gone| gone != node)) {
            if if_there(session.client.delete(&format!("{parent}/{node}"), None).await)?.is_some() {
                outcome = Released::Released;
            }
        }
        self.link.forget(id);
        let waits = queue.entries.iter().skip(queue.held).any(|entry| entry.id != id);
        Ok(Release::new(outcome, Some(waits)))
    }

    /// Leaves a memo, if the claim holds, and goes.
    async fn leave_with(&self, resource: &ResourceName, id: ClaimId, memo: &Memo) -> Result<Release> {
        let session = self.link.session().await?;
        let parent = session.parent(resource);
        let queue = Queue::read(&session.list_fresh(&parent).await?);
        if queue.entries.iter().take(queue.held).any(|entry| entry.id == id) {
            session.write_memo(&parent, memo).await?;
        }
        self.leave(resource, id).await
    }

    /// Ends a claim of another: a note of it stays with the resource, and its client is told to look.
    async fn bury(&self, resource: &ResourceName, id: ClaimId, ending: &Ending) -> Result<Release> {
        let session = self.link.session().await?;
        let parent = session.parent(resource);
        let queue = Queue::read(&session.list_fresh(&parent).await?);
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
        let waits = queue.entries.iter().skip(queue.held).any(|entry| entry.id != id);
        Ok(Release::new(Released::Released, Some(waits)))
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
        let queue = Queue::read(&session.list_fresh(&parent).await?);
        let waiting = Some(queue.held < queue.entries.len());
        let Some(entry) = queue.entries.iter().find(|entry| entry.id == id) else {
            return Ok(Release::new(Released::NotHeld, waiting));
        };
        let path = format!("{parent}/{}", entry.node);
        let (data, stat) = session.client.get_data(&path).await.map_err(from_zk)?;
        let mut record: ClaimRecord = read(&path, &data)?;
        record.ending = Some(ending);
        session.client.set_data(&path, &write(&record)?, Some(stat.version)).await.map_err(from_zk)?;
        session.call(stat.ephemeral_owner).await;
        Ok(Release::new(Released::Asked, waiting))
    }
}

impl Session {
    /// Why a claim is not there.
    async fn obituary(&self, parent: &str, id: ClaimId) -> Result<Renewed> {
        let home = if_there(self.client.get_data(parent).await)?;
        let record = home.and_then(|(data, _)| read::<ResourceRecord>(parent, &data).ok());
        let grave = record.and_then(|record| record.grave(id).cloned());
        Ok(Renewed::Gone(grave.map_or(Gone::Unknown, Gone::Broken)))
    }

    async fn write_memo(&self, parent: &str, memo: &Memo) -> Result<()> {
        let path = format!("{parent}/{MEMO}");
        if if_there(self.client.set_data(&path, memo, None).await)?.is_none() {
            let persistent = self.options(zk::CreateMode::Persistent);
            self.client.create(&path, memo, &persistent).await.map_err(from_zk)?;
        }
        Ok(())
    }

    /// Gets the attention of a client. If that fails, its next renewal tells it.
    async fn call(&self, session: i64) {
        let _ = self.client.set_data(&self.mailbox(session), b"", None).await;
    }
}

fn placed(session: &Session, node: String, stat: &zk::Stat, waited: bool) -> Result<Place> {
    if stat.ephemeral_owner != session.id {
        // Some servers give a client another session without a word.
        return Err(foreign(&node));
    }
    let fence = u64::try_from(stat.czxid).ok().filter(|fence| *fence < Fence::LIMIT);
    let past =
        || Error::new(ErrorKind::FenceExhausted, format!("transaction {:#x} is past 2^53", stat.czxid)).on(SCHEME);
    let fence = Fence::new(fence.ok_or_else(past)?);
    Ok(Place { session: session.id, node, fence, waited, granted: false })
}

fn pending(ahead: usize, cursor: String) -> Pending {
    let mut pending = Pending::default();
    (pending.ahead, pending.cursor) = (u32::try_from(ahead).ok(), Cursor(cursor.into_bytes()));
    pending
}
