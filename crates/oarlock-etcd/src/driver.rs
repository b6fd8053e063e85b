//! The seven verbs.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use oarlock_core::capabilities::{Consistency, Fencing};
use oarlock_core::driver::{Attempt, Driver, End, Info, Interest, Release, Released, Renewal, Renewed, Watch};
use oarlock_core::error::Applied;
use oarlock_core::state::{Ending, Page, Query};
use oarlock_core::{Capabilities, Claim, ClaimId, Error, ErrorKind, ResourceName, Result, Weight};
use tokio::task::JoinSet;

use crate::api::{Compare, DeleteRequest, Is, Op, PutRequest, Range};
use crate::config::{Config, Layout};
use crate::error::{SCHEME, ended, strange};
use crate::keys::{Keys, Space};
use crate::lease::{Kept, Leased, Leases, seconds};
use crate::link::{Link, transaction};
use crate::queue::{Letter, Listing, Place, Record, memo_bytes};
use crate::watch::{self, About, Since};

/// A request to move a claim is not under way for longer, so its last lease lasts by so much longer than what its holder believes.
const MOVE_TAKES: Duration = Duration::from_secs(5);

/// A letter lies in its mailbox for this long after the end it tells of.
const LETTER_TTL: Duration = Duration::from_secs(60);

/// One connection to an etcd cluster.
pub struct Etcd {
    pub(crate) link: Arc<Link>,
    pub(crate) space: Space,
    address: String,
    /// Whose mailbox is whose.
    pub(crate) client: String,
    pub(crate) leases: Leases,
    /// When a turn that nobody took was first seen, by the revision that made its claim.
    pub(crate) turns: Mutex<HashMap<i64, Instant>>,
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Etcd {
    /// Connects to a cluster.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if a member's address makes no sense, [`ErrorKind::Unreachable`] if none answers.
    pub async fn open(config: Config) -> Result<Self> {
        let mut id = [0; 16];
        getrandom::fill(&mut id)
            .map_err(|error| Error::new(ErrorKind::Os, "no random numbers").on(SCHEME).because(error))?;
        Ok(Self {
            link: Arc::new(Link::open(&config).await?),
            address: config.address(),
            space: Space::of(&config),
            client: format!("{:032x}", u128::from_be_bytes(id)),
            leases: Leases::default(),
            turns: Mutex::default(),
        })
    }

    pub(crate) fn keys(&self, name: &ResourceName) -> Keys {
        self.space.keys(name)
    }

    /// Ends leases that a late request could still use. If that fails they run out by themselves.
    pub(crate) async fn end_leases(&self, leases: Vec<i64>) {
        let mut ends = JoinSet::new();
        for id in leases {
            let link = self.link.clone();
            ends.spawn(async move { link.revoke(id).await });
        }
        while ends.join_next().await.is_some() {}
    }

    pub(crate) async fn look(&self, keys: &Keys) -> Result<Listing> {
        read(keys, self.link.txn(Vec::new(), keys.look(), Vec::new()).await?)
    }

    /// Goes on with a lease that another client began; it is never used for another claim.
    pub(crate) async fn adopt(&self, id: ClaimId, lease: i64) -> Result<Option<Leased>> {
        // In this order: the question to the majority is not put before the other.
        let look = self.link.txn(Vec::new(), vec![self.space.door().get()], Vec::new());
        let (kept, seen) = tokio::join!(self.link.keep_alive(vec![lease]), look);
        let (from, lives) = kept?;
        let Some(Kept { ttl, term }) = lives.get(&lease).copied().filter(|kept| !kept.ttl.is_zero()) else {
            return Ok(None);
        };
        let mut adopted = Leased { id: lease, seconds: ttl.as_secs(), ttl, from, term: Some(term) };
        adopted.lease(&seen?.majority)?;
        adopted.term = None;
        let mut spare = None;
        self.leases.edit(id, |entry| {
            spare = entry.full.replace(adopted).filter(|_| !entry.adopted);
            entry.adopted = true;
        });
        // Not to be used again: an attempt that wants to stand on it may be under way.
        self.end_leases(spare.filter(|spare| spare.id != lease).map(|spare| spare.id).into_iter().collect()).await;
        Ok(Some(adopted))
    }

    /// Changes a record where it stands; it keeps its lease.
    pub(crate) async fn rewrite(&self, keys: &Keys, place: &Place, record: Record) -> Result<Place> {
        let found = self.link.txn(keys.unchanged(place), keys.write(place, &record), Vec::new()).await?;
        if !found.succeeded {
            return Err(ended("the claim was changed by somebody else"));
        }
        let published = record.published();
        let place = Place { changed: found.revision, published, record, ..place.clone() };
        self.leases.edit(place.id, |entry| entry.note(Some(&place)));
        Ok(place)
    }

    /// Whether the claim that was made there at this revision holds.
    async fn is_held(&self, own: &Range, created: i64) -> Result<bool> {
        let (_, kvs) = self.link.read(own).await?;
        let place = kvs.into_iter().next().map_or(Ok(None), Place::read)?;
        Ok(place.is_some_and(|place| place.created == created && place.record.granted))
    }

    /// The lease that the keys of a claim are named after, and the revision that made them, if there are any.
    pub(crate) async fn seat_of(&self, keys: &Keys, id: ClaimId) -> Result<Option<(i64, i64)>> {
        if let Some(entry) = self.leases.get(id).filter(|entry| entry.seat != 0 && entry.created != 0) {
            return Ok(Some((entry.seat, entry.created)));
        }
        let listing = self.look(keys).await?;
        let mut places = listing.places.iter().chain(&listing.unseated);
        Ok(places.find(|place| place.id == id).map(|place| (place.seat, place.created)))
    }

    /// Ends another's claim, now or after a grace, and leaves word for it.
    async fn break_claim(&self, keys: &Keys, id: ClaimId, ending: &Ending, grace: Duration) -> Result<Release> {
        let listing = self.look(keys).await?;
        let waiting = Some(listing.others_wait(id));
        let Some(at) = listing.position(id) else { return Ok(Release::new(Released::NotHeld, waiting)) };
        let outcome = self.break_place(keys, &listing.places[at], ending, grace).await?;
        Ok(Release::new(outcome, waiting))
    }

    /// The same for what was found at its place.
    pub(crate) async fn break_place(
        &self,
        keys: &Keys,
        place: &Place,
        ending: &Ending,
        grace: Duration,
    ) -> Result<Released> {
        let mut leases = Vec::new();
        let mut word = None;
        if !place.theirs {
            let letter = self.link.grant(seconds(LETTER_TTL + grace)).await?;
            leases.push(letter.id);
            word = Some(put(&self.space.letter(&place.record.client, place.id), Letter::bytes(ending), letter.id));
        }
        let (mut change, outcome) = if grace.is_zero() {
            (keys.clear(place), Released::Released)
        } else {
            let last = match self.last_lease(place, grace).await {
                Ok(last) => last,
                Err(error) => {
                    self.end_leases(leases).await;
                    return Err(error);
                }
            };
            leases.push(last.id);
            let record = Record { ending: Some(ending.clone()), ..place.edited() };
            (keys.move_to(place, &record, last.id), Released::Asked)
        };
        change.extend(word);
        if !self.link.txn(keys.unchanged(place), change, Vec::new()).await?.succeeded {
            self.end_leases(leases).await;
            return Err(ended("the claim was changed by somebody else"));
        }
        Ok(outcome)
    }

    /// What a claim is moved to that is to end after a grace: a lease that nobody keeps alive, so that it ends by the store's
    /// clock, whatever its holder does.
    async fn last_lease(&self, place: &Place, grace: Duration) -> Result<Leased> {
        let longest = if place.record.ending.is_some() {
            // Asked before: asking again gives it no more time.
            self.link.left(place.lease).await?
        } else {
            // Its own may be kept alive until it is moved, so what it has left now is not what it will have then.
            self.link.whole(place.lease).await? + MOVE_TAKES
        };
        self.link.grant(seconds(grace.min(longest))).await
    }
}

/// The listing that a transaction has read, and nothing else.
pub(crate) fn read(keys: &Keys, found: crate::link::Outcome) -> Result<Listing> {
    if found.reads.is_empty() {
        return Err(strange("a listing"));
    }
    let mut listing =
        Listing::read(keys, found.revision, found.reads.into_iter().flat_map(|range| range.kvs).collect())?;
    listing.majority = found.majority;
    Ok(listing)
}

pub(crate) fn put(at: &Range, value: Vec<u8>, lease: i64) -> Op {
    Op::Put(PutRequest { key: at.key.clone(), value, lease, ignore_lease: false })
}

pub(crate) fn delete(key: &[u8]) -> Op {
    Op::Delete(DeleteRequest { key: key.to_vec() })
}

impl Driver for Etcd {
    fn info(&self) -> Info {
        let mut capabilities = Capabilities::of_the_model();
        (capabilities.fencing, capabilities.consistency) = (Fencing::Strict, Consistency::Consensus);
        if self.space.layout == Layout::Go {
            // Nobody else would honour a share, or a fence that was moved ahead.
            (capabilities.units, capabilities.raises_fences) = (false, false);
            capabilities.listing = self.space.seats().is_some();
        }
        Info::new(SCHEME, self.address.clone(), capabilities)
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        self.link.check_open()?;
        if self.space.layout == Layout::Go && claim.weight != Weight::All {
            let message = "locks shared with Go have one holder at a time";
            return Err(Error::new(ErrorKind::Unsupported, message).on(SCHEME).about(&claim.resource));
        }
        let (visit, entry) = self.leases.visit(claim);
        let answer = self.stand(claim, entry).await.map_err(|error| match error.kind() {
            // Its hold is as it was.
            ErrorKind::Upgrade => error,
            // It has a key, and may hold by it.
            _ if self.leases.get(claim.id).is_some_and(|entry| entry.created > 0) => error.applied_unknown(),
            _ => error,
        });
        match &answer {
            Err(error) if error.applied() == Applied::Unknown => drop(visit),
            _ => visit.answered(),
        }
        self.leases.lay_aside(claim.id);
        answer.map_err(|error| error.on(SCHEME).during("attempt").about(&claim.resource))
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        let entries: Vec<_> = batch.iter().map(|renewal| self.leases.get(renewal.claim.id)).collect();
        let leases = entries.iter().flatten().flat_map(|entry| entry.leases().map(|lease| lease.id)).collect();
        // In this order: what is found vouches for what is kept only if it is not asked for earlier.
        let (kept, found) = tokio::join!(self.link.keep_alive(leases), self.find(batch));
        let mut answers = Vec::with_capacity(batch.len());
        for ((renewal, entry), found) in batch.iter().zip(entries).zip(found) {
            let answer = match (&kept, found) {
                (Ok((from, lives)), Ok(found)) => {
                    self.leases.edit(renewal.claim.id, |entry| entry.extend(*from, lives));
                    let mut kept = entry.clone();
                    if let Some(kept) = &mut kept {
                        kept.extend(*from, lives);
                    }
                    // Its lease was kept alive, whatever else went wrong.
                    self.renew_one(renewal, entry, kept, found).await.map_err(Error::applied_unknown)
                }
                (Err(error), _) => Err(error.clone()),
                (_, Err(error)) => Err(error),
            };
            answers.push(answer.map_err(|error| error.during("renew").about(&renewal.claim.resource)));
        }
        answers
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        let keys = self.keys(resource);
        let about = |error: Error| error.during("release").about(resource);
        let memo = match end {
            End::Broken { ending, grace } => {
                return self.break_claim(&keys, id, ending, *grace).await.map_err(about);
            }
            End::Done { memo } => memo.as_ref(),
            _ => None,
        };
        let Some((named, created)) = self.seat_of(&keys, id).await.map_err(about)? else {
            self.end_leases(self.leases.forget(id, false)).await;
            return Ok(Release::new(Released::NotHeld, None));
        };
        let (own, seat) = (keys.claim(named), keys.seat(named));
        let parts: Vec<_> = std::iter::once(&own).chain(&seat).collect();
        // The next claim on the same lease has the same keys: a release that comes late must not take it for this one.
        let ours = |part: &Range| Compare::created(part, Is::Equal, created);
        let mut then = keys.look_at_some();
        then.extend(parts.iter().map(|part| delete(&part.key)));
        if let Some(memo) = memo
            && self.is_held(&own, created).await.map_err(about)?
        {
            then.push(put(&keys.memo(), memo_bytes(memo), 0));
        }
        let when = parts.iter().map(|part| ours(part)).collect();
        let mut otherwise = keys.look_at_some();
        // One part alone is no claim, and is not left behind.
        let rest = |part: &&Range| Op::Txn(transaction(vec![ours(part)], vec![delete(&part.key)], Vec::new()));
        otherwise.extend(seat.iter().flat_map(|_| &parts).map(rest));
        let found = self.link.txn(when, then, otherwise).await.map_err(about)?;
        let succeeded = found.succeeded;
        self.end_leases(self.leases.forget(id, succeeded)).await;
        // It is gone, whatever the others have written.
        let more = found.reads.iter().any(|range| range.more);
        let waiting = read(&keys, found).ok().map(|listing| listing.others_wait(id)).filter(|waits| *waits || !more);
        Ok(Release::new(if succeeded { Released::Released } else { Released::NotHeld }, waiting))
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        self.link.check_open()?;
        let (ranges, about, since) = match interest {
            Interest::Turn(claim, cursor) => {
                let range = watch::read_cursor(cursor).unwrap_or_else(|| self.keys(&claim.resource).line());
                let entry = self.leases.get(claim.id).unwrap_or_default();
                let (own, seen) = (entry.seat, entry.waits_for);
                let seen = seen.filter(|(what, _)| *what == range);
                let since = seen.map_or(Since::Unknown, |(_, revision)| Since::Revision(revision));
                // Whoever wants everything waits for an end; that the one before it has its turn is no news.
                let ends = claim.weight == Weight::All && range.end.is_empty();
                (vec![range], if ends { About::Ends } else { About::Others(own) }, since)
            }
            Interest::Resource(name) => (self.keys(name).watched(), About::All, Since::Now),
            Interest::Mailbox => (vec![self.space.mailbox(&self.client)], About::Letters, Since::Now),
            _ => return Ok(Watch::never()),
        };
        watch::arm(&self.link, ranges, about, since).await.map_err(|error| error.during("watch"))
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        crate::show::page(self, query).await.map_err(|error| error.during("inspect"))
    }

    async fn close(&self) -> Result<()> {
        if self.link.close() {
            self.end_leases(self.leases.drain()).await;
        }
        Ok(())
    }
}
