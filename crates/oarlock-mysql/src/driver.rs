//! The seven verbs.

use std::sync::Arc;
use std::time::Duration;

use mysql_async::params;
use oarlock_core::capabilities::{Capabilities, Consistency, Fencing, Liveness, Notify};
use oarlock_core::driver::{
    Attempt, Driver, End, Fences, Gone, Grant, Info, Interest, Lease, Pending, Release, Released, Renewal, Renewed,
    Watch,
};
use oarlock_core::state::{Page, Query, ResourceState, Select};
use oarlock_core::{Capacity, Claim, ClaimId, Error, ErrorKind, Limit, ResourceName, Result, Tether, Weight};
use serde_json::json;

use crate::answer::{
    Told, add_claim, bytes, exhausted, first, from_limit, from_weight, get, get_fence, get_span, hex, micros, read,
    renewed, span, to_fence, to_limit, write,
};
use crate::config::Config;
use crate::error::{SCHEME, strange};
use crate::link::Link;
use crate::listener::listen;
use crate::queue::Queues;

/// Longer leases do not end with their session: a server gives up a client that does not acknowledge what it sent after about a
/// quarter of an hour, and that must not be before its belief has ended.
const MAX_TETHERED_TTL: Duration = Duration::from_secs(300);

/// The names of a batch are locked until its answer is on its way: not too many at once.
const RENEWALS: usize = 128;

pub(crate) const ATTEMPT: &str =
    "CALL oarlock_attempt(:name, :id, :session, :tethered, :kind, :capacity, :adopt, :weight, :wait,
    :behind, :lease, :place, :label, :value, :wake)";
pub(crate) const RENEW: &str = "CALL oarlock_renew(?, ?, ?, ?)";
pub(crate) const RELEASE: &str = "CALL oarlock_release(?, ?, ?, ?, ?)";
pub(crate) const INSPECT: &str = "CALL oarlock_inspect(?, ?, ?, ?)";

/// Locks on a `MySQL` or `MariaDB` server. See the [crate](crate) for what it promises.
#[derive(Debug)]
pub struct MySql {
    link: Arc<Link>,
    queues: Queues,
}

impl Drop for MySql {
    fn drop(&mut self) {
        self.link.abandon();
    }
}

impl MySql {
    /// Connects, and makes the tables and procedures if the database has none.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] if there is no server, [`ErrorKind::Denied`] if it refuses or a right is missing,
    /// [`ErrorKind::NewerFormat`] if a later version made the tables, [`ErrorKind::Config`] if no database is named.
    pub async fn connect(config: Config) -> Result<Self> {
        let link = Link::open(config).await.map_err(|error| error.during("connect"))?;
        Ok(Self { link, queues: Queues::default() })
    }
}

impl Driver for MySql {
    fn info(&self) -> Info {
        let mut capabilities = Capabilities::of_the_model();
        capabilities.liveness = if self.link.is_lit() { Liveness::LeaseAndProcess } else { Liveness::Lease };
        capabilities.notify = Notify::Poll;
        capabilities.fencing = Fencing::Clocked;
        capabilities.consistency = Consistency::Single;
        Info::new(SCHEME, self.link.config().to_string(), capabilities)
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        let attempt = self.place(claim).await;
        attempt.map_err(|error| error.during("attempt").about(&claim.resource))
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        if let Err(error) = self.link.check() {
            return vec![Err(error.during("renew")); batch.len()];
        }
        let session = self.link.living_session();
        // The end of a session is the loss of what is tethered to it, whatever the server answered before.
        let is_over = || session.as_ref().is_none_or(|session| session.has_ended());
        let lost = || Ok(Renewed::Gone(Gone::Session));
        if is_over() && batch.iter().all(|renewal| self.ends_with_session(&renewal.claim)) {
            return batch.iter().map(|_| lost()).collect();
        }
        let number = session.as_ref().map_or(0, |session| session.number);
        let mut answers = Vec::with_capacity(batch.len());
        for part in batch.chunks(RENEWALS) {
            let part_answers = self.keep(number, part).await;
            answers.extend(part_answers.unwrap_or_else(|error| vec![Err(error.during("renew")); part.len()]));
        }
        let is_over = is_over();
        let told = answers.into_iter().zip(batch);
        told.map(|(answer, renewal)| if is_over && self.ends_with_session(&renewal.claim) { lost() } else { answer })
            .collect()
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        self.left(resource, id);
        let released = self.end(resource, id, end).await;
        released.map_err(|error| error.during("release").about(resource))
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        self.link.check().map_err(|error| error.during("watch"))?;
        match interest {
            Interest::Turn(claim, _) => Ok(self.link.hub.turn(claim.id)),
            Interest::Mailbox => {
                // A client that listens wants a session whose end is heard of; if there is none, but one ended, it looks after what that had.
                match self.link.session().await {
                    Ok(_) => Ok(self.link.hub.mailbox()),
                    Err(_) if self.link.has_ended_sessions() => Ok(Watch::ended()),
                    Err(error) => Err(error.during("watch")),
                }
            }
            _ => Ok(Watch::never()),
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.show(query).await.map_err(|error| error.during("inspect"))
    }

    async fn close(&self) -> Result<()> {
        self.link.close().await;
        Ok(())
    }
}

impl MySql {
    async fn place(&self, claim: &Claim) -> Result<Attempt> {
        let session = self.link.session().await?;
        let (capacity, adopt) = match claim.capacity {
            Capacity::Any => (None, true),
            Capacity::Fixed(limit) => (Some(limit), false),
            Capacity::Adopt(limit) => (Some(limit), true),
        };
        let asked = params! {
            "name" => self.link.stored(claim.resource.as_str()),
            "id" => bytes(claim.id).as_slice(),
            "session" => session.number,
            "tethered" => session.is_lit() && is_tethered(claim),
            "kind" => claim.kind.as_str(),
            "capacity" => capacity.map(from_limit),
            "adopt" => adopt,
            "weight" => from_weight(claim.weight),
            "wait" => claim.wait,
            "behind" => claim.behind,
            "lease" => micros(claim.ttl),
            "place" => micros(claim.place_ttl()),
            "label" => write(&*claim.label)?,
            "value" => claim.value.as_deref().map(str::as_bytes),
        };
        let lives = claim.ttl.max(claim.place_ttl());
        let rows = self.link.attempt(claim, lives, asked).await?;
        let row = first(&rows)?;
        self.tell(row)?;
        let stored = || get::<Option<i64>>(row, "limits").map(|stored| to_limit(stored.unwrap_or(1)));
        match get::<String>(row, "outcome")?.as_str() {
            "granted" => {
                self.left(&claim.resource, claim.id);
                self.link.hub.forget(claim.id);
                self.link.keep_wake(claim.id, lives);
                if claim.weight != Weight::All && self.link.was_whole(claim.id) {
                    // Those who can share with it now were told to wait for its end.
                    self.link.wake(claim.id, true);
                }
                if session.has_ended() && is_tethered(claim) {
                    // It was told to nobody: the claim must be tied to a session that lives.
                    return Err(Error::unreachable("its session ended meanwhile").on(SCHEME).retry_now());
                }
                let mut grant = Grant::new(get_fence(row)?, Lease::of(get_span(row, "lease")?));
                grant.memo = get::<Option<Vec<u8>>>(row, "memo")?.map(Into::into);
                Ok(Attempt::Granted(grant))
            }
            "pending" => {
                let mut pending = Pending::default();
                pending.ahead = u32::try_from(get::<i64>(row, "ahead")?).ok();
                pending.recheck_after = get::<Option<i64>>(row, "recheck")?.map(span);
                match get::<Option<i64>>(row, "arrival")?.filter(|_| claim.wait) {
                    Some(arrival) => {
                        let (is_told, askers) = self.queues.stands(claim, arrival);
                        pending.watched = is_told || self.listens(claim, get(row, "before")?);
                        self.wake(askers);
                    }
                    None => self.left(&claim.resource, claim.id),
                }
                Ok(Attempt::Pending(pending))
            }
            "spec" => Err(Error::spec_mismatch(stored()?, capacity.unwrap_or(Limit::Unlimited)).on(SCHEME)),
            "heavy" => {
                let message = format!("{} of {} can never be had", from_weight(claim.weight), stored()?);
                Err(Error::new(ErrorKind::TooHeavy, message).on(SCHEME))
            }
            "upgrade" => Err(Error::new(ErrorKind::Upgrade, "a held claim cannot become heavier").on(SCHEME)),
            "exhausted" => Err(exhausted()),
            other => Err(strange(format!("an attempt was answered with {other}"))),
        }
    }

    async fn keep(&self, session: i64, batch: &[Renewal]) -> Result<Vec<Result<Renewed>>> {
        let mut answers = self.keep_these(session, false, &batch.iter().collect::<Vec<_>>()).await?;
        let busy: Vec<_> = answers.iter_mut().zip(batch).filter(|(answer, _)| answer.is_none()).collect();
        if !busy.is_empty() {
            // Others are in the middle of a step there: what waits for them keeps no other name locked.
            let (late, renewals): (Vec<_>, Vec<_>) = busy.into_iter().unzip();
            let told = self.keep_these(session, true, &renewals).await;
            let told = told.unwrap_or_else(|error| vec![Some(Err(error.during("renew"))); renewals.len()]);
            late.into_iter().zip(told).for_each(|(late, told)| *late = told);
        }
        let unanswered = || Err(strange("a renewal without an answer").during("renew"));
        Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect())
    }

    /// Answers nothing for those whose names are locked by others, unless it is to wait for them.
    async fn keep_these(&self, session: i64, wait: bool, batch: &[&Renewal]) -> Result<Vec<Option<Result<Renewed>>>> {
        let mut asked: Vec<(Vec<u8>, serde_json::Value)> = Vec::with_capacity(batch.len());
        for (at, renewal) in batch.iter().enumerate() {
            let claim = &renewal.claim;
            let (least, reserve) = match renewal.fences {
                Fences::Keep => (None, None),
                Fences::AtLeast(fence) => (Some(fence.get()), None),
                Fences::Reserve(count) => (None, Some(count)),
            };
            let name = self.link.stored(claim.resource.as_str());
            let one = json!({
                "at": at,
                "name": hex(&name),
                "id": claim.id.to_string(),
                "lease": micros(claim.ttl),
                "place": micros(claim.place_ttl()),
                "behind": claim.behind,
                "value": claim.value.as_deref().map(|value| hex(value.as_bytes())),
                "memo": renewal.memo.as_deref().map(hex),
                "least": least,
                "reserve": reserve,
            });
            asked.push((name, one));
        }
        asked.sort_by(|(one, _), (other, _)| one.cmp(other));
        let asked = serde_json::Value::from_iter(asked.into_iter().map(|(_, one)| one)).to_string();
        let rows = self.link.keep(session, wait, asked).await?;
        let row = first(&rows)?;
        self.tell(row)?;
        let mut answers = vec![None; batch.len()];
        for told in read::<Vec<Told>>(&get::<String>(row, "answers")?)? {
            if let Some((answer, renewal)) = answers.get_mut(told.at).zip(batch.get(told.at)) {
                let about = |error: Error| error.during("renew").about(&renewal.claim.resource);
                *answer = renewed(told).map(|told| told.map_err(about));
                let claim = &renewal.claim;
                match answer {
                    Some(Ok(Renewed::Gone(_))) => {
                        self.left(&claim.resource, claim.id);
                        self.link.wake(claim.id, true);
                    }
                    Some(Ok(_)) => self.link.keep_wake(claim.id, claim.ttl.max(claim.place_ttl())),
                    Some(Err(_)) | None => {}
                }
            }
        }
        Ok(answers)
    }

    async fn end(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        let (memo, ending, grace) = match end {
            End::Done { memo } => (memo.as_deref(), None, Duration::ZERO),
            End::Withdrawn => (None, None, Duration::ZERO),
            End::Broken { ending, grace } => (None, Some(write(ending)?), *grace),
            _ => return Err(Error::new(ErrorKind::Unsupported, "an unknown end").on(SCHEME)),
        };
        let id_bytes = bytes(id);
        let asked = (self.link.stored(resource.as_str()), id_bytes.as_slice(), memo, ending, micros(grace));
        let rows = self.link.release(id, asked).await?;
        let row = first(&rows)?;
        let outcome = match get::<String>(row, "outcome")?.as_str() {
            "released" => Released::Released,
            "asked" => Released::Asked,
            "not_held" => Released::NotHeld,
            other => return Err(strange(format!("a release was answered with {other}"))),
        };
        self.tell(row)?;
        self.link.hub.forget(id);
        let others = get(row, "others")?;
        if outcome != Released::Asked {
            self.link.wake(id, others);
        }
        Ok(Release::new(outcome, Some(others)))
    }

    async fn show(&self, query: &Query) -> Result<Page> {
        let name = match &query.select {
            Select::Live => None,
            Select::Name(name) => Some(self.link.stored(name.as_str())),
        };
        let prefix = self.link.config().prefix.as_bytes();
        let after = query.after.as_ref().map(|after| self.link.stored(after.as_str()));
        let most = i64::try_from(query.limit).unwrap_or(i64::MAX).saturating_add(1);
        let (mut found, one) = (Vec::new(), name.is_some());
        for row in self.link.ask(INSPECT, (prefix, name, after, most)).await? {
            found.push((get::<Vec<u8>>(&row, "name")?, get::<Option<i64>>(&row, "arrival")?, row));
        }
        found.sort_by(|(name, arrival, _), (other, later, _)| (name, arrival).cmp(&(other, later)));
        let mut resources: Vec<ResourceState> = Vec::new();
        for (name, _, row) in found {
            // What somebody else wrote there must not hide all the rest.
            let Ok(name) = ResourceName::new(String::from_utf8_lossy(name.get(prefix.len()..).unwrap_or_default()))
            else {
                continue;
            };
            if resources.last().is_none_or(|last| last.name != name) {
                let mut state = ResourceState::free(name);
                state.capacity = get::<Option<i64>>(&row, "capacity")?.map(to_limit);
                state.last_fence = Some(get::<i64>(&row, "last_fence")?).filter(|fence| *fence > 0).and_then(to_fence);
                state.memo = get::<Option<Vec<u8>>>(&row, "memo")?.map(Into::into);
                resources.push(state);
            }
            // What others may have seen end is not ours any more, though the server still has it.
            let is_lost = one
                && get::<Option<bool>>(&row, "tethered")?.unwrap_or(false)
                && self.link.is_ended(get(&row, "session")?);
            if let (Some(state), false) = (resources.last_mut(), is_lost) {
                add_claim(state, &row).or_else(|error| if one { Err(error) } else { Ok(()) })?;
            }
        }
        if let (Select::Name(name), true) = (&query.select, resources.is_empty()) {
            resources.push(ResourceState::free(name.clone()));
        }
        Ok(Page::cut(resources, query))
    }

    /// A claim does not wait any more: the next of ours asks for itself.
    fn left(&self, resource: &ResourceName, id: ClaimId) {
        self.link.listener.left(id);
        self.wake(self.queues.left(resource, id));
    }

    /// Whether a waiter will have a hint when `before` leaves, the claim that must do so before it is granted.
    fn listens(&self, claim: &Claim, before: Option<Vec<u8>>) -> bool {
        let before = before.and_then(|before| before.try_into().ok()).map(u128::from_be_bytes);
        before.is_some_and(|before| self.link.is_lit() && listen(&self.link, claim.id, ClaimId::from_bits(before)))
    }

    fn wake(&self, ids: Vec<ClaimId>) {
        ids.into_iter().for_each(|id| self.link.hub.ring(id));
    }

    fn ends_with_session(&self, claim: &Claim) -> bool {
        self.link.is_lit() && is_tethered(claim)
    }

    /// Wakes those of this process whose turn has come.
    fn tell(&self, row: &mysql_async::Row) -> Result<()> {
        let called = get::<String>(row, "called")?;
        if let (false, Some(session)) = (called.is_empty(), self.link.living_session()) {
            self.link.hub.tell(&called, session.number);
        }
        Ok(())
    }
}

/// Whether a claim ends with the session of its client.
fn is_tethered(claim: &Claim) -> bool {
    claim.tether == Tether::Process && claim.ttl <= MAX_TETHERED_TTL
}
