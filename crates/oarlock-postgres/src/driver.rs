//! The seven verbs.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::capabilities::{Capabilities, Consistency, Fencing, Liveness, Notify};
use oarlock_core::clock::{BootClock, Clock as _};
use oarlock_core::driver::{
    Attempt, Cursor, Driver, End, Fences, Gone, Grant, Info, Interest, Lease, Pending, Release, Released, Renewal,
    Renewed, Watch,
};
use oarlock_core::error::Applied;
use oarlock_core::reconnect::Ends as _;
use oarlock_core::state::{Page, Query, ResourceState, Select};
use oarlock_core::{Capacity, Claim, ClaimId, Error, ErrorKind, Limit, ResourceName, Result, Tether};
use tokio_postgres::types::Type;

use crate::answer::{
    add_claim, bytes, exhausted, first, from_limit, from_weight, get, get_fence, get_span, micros, renewed, span,
    to_fence, to_limit, write,
};
use crate::config::Config;
use crate::error::{SCHEME, strange};
use crate::link::{Link, Session, param};
use crate::turn;
use crate::watch::Hub;

/// Longer leases do not end with their session: the server takes a silent client for dead after two hours, and that
/// must not be before its belief has ended.
const MAX_TETHERED_TTL: Duration = Duration::from_secs(3600);

/// The names of a batch are locked until its answer is on its way: not too many at once.
const RENEWALS: usize = 128;

// The last parameter of each comes back in every row: see [`Link::ask`].
pub(crate) const ATTEMPT: &str = "SELECT *, $16::bigint AS echo
    FROM oarlock.attempt($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)";
const RENEW: &str = "SELECT *, $14::bigint AS echo
    FROM oarlock.renew($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";
pub(crate) const RELEASE: &str = "SELECT *, $6::bigint AS echo FROM oarlock.release($1, $2, $3, $4, $5)";
const OBSERVE: &str = "SELECT oarlock.observe($1, $2), $3::bigint AS echo";
const INSPECT: &str = include_str!("sql/inspect.sql");

/// Locks on a `PostgreSQL` server. See the [crate](crate) for what it promises.
#[derive(Debug)]
pub struct Postgres {
    link: Arc<Link>,
}

impl Drop for Postgres {
    /// Ends the session at once, also while a request is under way.
    fn drop(&mut self) {
        self.link.close();
    }
}

impl Postgres {
    /// Connects, and makes the schema `oarlock` if the database has none.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] if there is no server, [`ErrorKind::Denied`] if it refuses or a right is missing,
    /// [`ErrorKind::NewerFormat`] if a later version made the schema.
    pub async fn connect(config: Config) -> Result<Self> {
        Ok(Self { link: Link::open(config).await.map_err(|error| error.during("connect"))? })
    }
}

impl Driver for Postgres {
    fn info(&self) -> Info {
        let mut capabilities = Capabilities::of_the_model();
        if self.link.is_pooled() {
            (capabilities.liveness, capabilities.notify) = (Liveness::Lease, Notify::Poll);
        } else {
            (capabilities.liveness, capabilities.notify) = (Liveness::LeaseAndProcess, Notify::Push);
        }
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
        let is_over = || session.as_ref().is_none_or(|session| session.is_ended());
        let lost = || Ok(Renewed::Gone(Gone::Session));
        if is_over() && batch.iter().all(|renewal| is_tethered(&renewal.claim)) {
            return batch.iter().map(|_| lost()).collect();
        }
        let number = session.as_ref().map_or(0, |session| session.number);
        let hub = session.as_ref().filter(|session| session.is_lit()).map(|session| &*session.hub);
        let mut answers = Vec::with_capacity(batch.len());
        for part in batch.chunks(RENEWALS) {
            let part_answers = self.keep(number, hub, part).await;
            answers.extend(part_answers.unwrap_or_else(|error| vec![Err(error.during("renew")); part.len()]));
        }
        let is_over = is_over();
        let told = answers.into_iter().zip(batch);
        told.map(|(answer, renewal)| if is_over && is_tethered(&renewal.claim) { lost() } else { answer }).collect()
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        let released = self.end(resource, id, end).await;
        released.map_err(|error| error.during("release").about(resource))
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        let session = match self.link.session().await {
            Ok(session) => session,
            // There is no other, but the last one ended: the client that listened to it looks after what it had.
            Err(_) if matches!(interest, Interest::Mailbox) && !self.link.ended_sessions().is_empty() => {
                return Ok(Watch::ended());
            }
            Err(error) => return Err(error.during("watch")),
        };
        match interest {
            _ if !session.is_lit() => Ok(Watch::never()),
            Interest::Turn(claim, cursor) => {
                let watch = session.hub.turn(claim.id);
                if let Ok(nearest) = cursor.0.as_slice().try_into() {
                    self.link.look_out(i64::from_be_bytes(nearest), claim.id, &session.hub);
                }
                Ok(watch)
            }
            Interest::Mailbox => Ok(session.hub.mailbox()),
            Interest::Resource(name) => {
                let stored = self.link.stored(name.as_str());
                let watch = session.hub.resource(stored.iter().map(|byte| format!("{byte:02x}")).collect());
                let observed =
                    self.link.ask(OBSERVE, vec![param(stored, Type::BYTEA), param(session.number, Type::INT8)]).await;
                observed.map(|_| watch).map_err(|error| error.during("watch").about(name))
            }
            _ => Err(Error::new(ErrorKind::Unsupported, "nothing to watch").on(SCHEME).during("watch")),
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.show(query).await.map_err(|error| error.during("inspect"))
    }

    async fn close(&self) -> Result<()> {
        self.link.close();
        Ok(())
    }
}

impl Postgres {
    async fn place(&self, claim: &Claim) -> Result<Attempt> {
        let session = self.link.session().await?;
        let waits = claim.wait && session.is_lit();
        if waits
            && claim.may_be_handed()
            && let Some(grant) = session.hub.handed(claim.id).and_then(|handed| handed.grant(BootClock.now()))
            && !session.is_ended()
        {
            self.link.forget(claim.id);
            return Ok(Attempt::Granted(grant));
        }
        // Before it is sent, so that nothing is missed between the answer and the watch.
        let expected = waits && session.hub.expect(claim.id);
        let answer = self.ask(&session, claim, if expected { handed_since(claim) } else { None }).await;
        match answer {
            Ok(Attempt::Pending(mut pending)) => {
                pending.watched = expected && session.hub.expects(claim.id);
                Ok(Attempt::Pending(pending))
            }
            Ok(Attempt::Granted(grant)) => {
                session.hub.forget(claim.id);
                self.link.forget(claim.id);
                if session.is_ended() && is_tethered(claim) {
                    // The engine has not seen the grant: the claim must be tied to a session that lives.
                    return Err(Error::unreachable("its session ended meanwhile").on(SCHEME).retry_now());
                }
                Ok(Attempt::Granted(grant))
            }
            Err(error) => {
                // What had no effect is not released later.
                if error.applied() == Applied::No {
                    session.hub.forget(claim.id);
                }
                Err(error)
            }
        }
    }

    /// Asks the server for a place. `sent` says when, for a claim that may be granted before it asks again.
    async fn ask(&self, session: &Session, claim: &Claim, sent: Option<i64>) -> Result<Attempt> {
        let (capacity, adopt) = match claim.capacity {
            Capacity::Any => (None, true),
            Capacity::Fixed(limit) => (Some(limit), false),
            Capacity::Adopt(limit) => (Some(limit), true),
        };
        let label = write(&*claim.label)?;
        let rows = self
            .link
            .ask(
                ATTEMPT,
                vec![
                    param(self.link.stored(claim.resource.as_str()), Type::BYTEA),
                    param(bytes(claim.id).to_vec(), Type::BYTEA),
                    param(session.number, Type::INT8),
                    param(session.is_lit() && is_tethered(claim), Type::BOOL),
                    param(claim.kind.as_str().to_owned(), Type::TEXT),
                    param(capacity.map(from_limit), Type::INT8),
                    param(adopt, Type::BOOL),
                    param(from_weight(claim.weight), Type::INT8),
                    param(claim.wait, Type::BOOL),
                    param(i64::from(claim.behind), Type::INT8),
                    param(micros(claim.ttl), Type::INT8),
                    param(micros(claim.place_ttl()), Type::INT8),
                    param(label, Type::TEXT),
                    param(claim.value.as_deref().map(|value| value.as_bytes().to_vec()), Type::BYTEA),
                    param(sent, Type::INT8),
                ],
            )
            .await?;
        let row = first(&rows)?;
        let stored = || get::<Option<i64>>(row, "stored").map(|stored| to_limit(stored.unwrap_or(1)));
        match get::<&str>(row, "outcome")? {
            "granted" => {
                let mut grant = Grant::new(get_fence(row)?, Lease::of(get_span(row, "lease")?));
                grant.memo = get::<Option<&[u8]>>(row, "memo")?.map(Into::into);
                Ok(Attempt::Granted(grant))
            }
            "pending" => {
                let mut pending = Pending::default();
                pending.ahead = u32::try_from(get::<i64>(row, "ahead")?).ok();
                pending.recheck_after = get::<Option<i64>>(row, "recheck")?.map(span);
                let nearest = get::<Option<i64>>(row, "nearest")?.filter(|nearest| *nearest != session.number);
                pending.cursor = Cursor(nearest.map(|nearest| nearest.to_be_bytes().to_vec()).unwrap_or_default());
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

    async fn keep(&self, session: i64, hub: Option<&Hub>, batch: &[Renewal]) -> Result<Vec<Result<Renewed>>> {
        let mut answers = self.keep_these(session, hub, false, &batch.iter().collect::<Vec<_>>()).await?;
        let busy: Vec<_> = answers.iter_mut().zip(batch).filter(|(answer, _)| answer.is_none()).collect();
        if !busy.is_empty() {
            // Others are in the middle of a step there: what waits for them keeps no other name locked.
            let (late, renewals): (Vec<_>, Vec<_>) = busy.into_iter().unzip();
            let told = self.keep_these(session, hub, true, &renewals).await;
            let told = told.unwrap_or_else(|error| vec![Some(Err(error.during("renew"))); renewals.len()]);
            late.into_iter().zip(told).for_each(|(late, told)| *late = told);
        }
        let unanswered = || Err(strange("a renewal without an answer").during("renew"));
        Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect())
    }

    /// Answers nothing for those whose names are locked by others, unless it is to wait for them.
    async fn keep_these(
        &self,
        session: i64,
        hub: Option<&Hub>,
        wait: bool,
        batch: &[&Renewal],
    ) -> Result<Vec<Option<Result<Renewed>>>> {
        let claims = || batch.iter().map(|renewal| &renewal.claim);
        let names: Vec<_> = claims().map(|claim| self.link.stored(claim.resource.as_str())).collect();
        let ids: Vec<_> = claims().map(|claim| bytes(claim.id).to_vec()).collect();
        let leases: Vec<_> = claims().map(|claim| micros(claim.ttl)).collect();
        let places: Vec<_> = claims().map(|claim| micros(claim.place_ttl())).collect();
        let behind: Vec<_> = claims().map(|claim| i64::from(claim.behind)).collect();
        let values: Vec<_> =
            claims().map(|claim| claim.value.as_deref().map(|value| value.as_bytes().to_vec())).collect();
        let memos: Vec<_> = batch.iter().map(|renewal| renewal.memo.as_deref().map(<[u8]>::to_vec)).collect();
        let held: Vec<_> = batch.iter().map(|renewal| renewal.held).collect();
        let is_expected = |claim: &Claim| hub.is_some_and(|hub| hub.expects(claim.id));
        let sent: Vec<_> = claims().map(|claim| if is_expected(claim) { handed_since(claim) } else { None }).collect();
        let (mut least, mut reserve) = (vec![None; batch.len()], vec![None; batch.len()]);
        for ((least, reserve), renewal) in least.iter_mut().zip(&mut reserve).zip(batch) {
            match renewal.fences {
                Fences::Keep => {}
                Fences::AtLeast(fence) => *least = Some(i64::try_from(fence.get()).unwrap_or(i64::MAX)),
                Fences::Reserve(count) => *reserve = Some(i64::from(count)),
            }
        }
        let rows = self
            .link
            .keep(
                RENEW,
                vec![
                    param(session, Type::INT8),
                    param(wait, Type::BOOL),
                    param(names, Type::BYTEA_ARRAY),
                    param(ids, Type::BYTEA_ARRAY),
                    param(leases, Type::INT8_ARRAY),
                    param(places, Type::INT8_ARRAY),
                    param(behind, Type::INT8_ARRAY),
                    param(values, Type::BYTEA_ARRAY),
                    param(memos, Type::BYTEA_ARRAY),
                    param(least, Type::INT8_ARRAY),
                    param(reserve, Type::INT8_ARRAY),
                    param(held, Type::BOOL_ARRAY),
                    param(sent, Type::INT8_ARRAY),
                ],
            )
            .await?;
        let mut answers = vec![None; batch.len()];
        for row in rows {
            let at = usize::try_from(get::<i64>(&row, "at")?).ok().and_then(|at| at.checked_sub(1));
            if let Some((answer, renewal)) = at.and_then(|at| answers.get_mut(at).zip(batch.get(at))) {
                let about = |error: Error| error.during("renew").about(&renewal.claim.resource);
                *answer = renewed(&row)?.map(|told| told.map_err(about));
            }
        }
        Ok(answers)
    }

    async fn end(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        let (memo, ending, grace) = match end {
            End::Done { memo } => (memo.as_deref().map(<[u8]>::to_vec), None, Duration::ZERO),
            End::Withdrawn => (None, None, Duration::ZERO),
            End::Broken { ending, grace } => (None, Some(write(ending)?), *grace),
            _ => return Err(Error::new(ErrorKind::Unsupported, "an unknown end").on(SCHEME)),
        };
        let rows = self
            .link
            .ask(
                RELEASE,
                vec![
                    param(self.link.stored(resource.as_str()), Type::BYTEA),
                    param(bytes(id).to_vec(), Type::BYTEA),
                    param(memo, Type::BYTEA),
                    param(ending, Type::TEXT),
                    param(micros(grace), Type::INT8),
                ],
            )
            .await?;
        let row = first(&rows)?;
        let outcome = match get::<&str>(row, "outcome")? {
            "released" => Released::Released,
            "asked" => Released::Asked,
            "not_held" => Released::NotHeld,
            other => return Err(strange(format!("a release was answered with {other}"))),
        };
        self.link.forget(id);
        Ok(Release::new(outcome, get(row, "others")?))
    }

    async fn show(&self, query: &Query) -> Result<Page> {
        let name = match &query.select {
            Select::Live => None,
            Select::Name(name) => Some(self.link.stored(name.as_str())),
        };
        let prefix = self.link.config().prefix.as_bytes();
        let after = query.after.as_ref().map(|after| self.link.stored(after.as_str()));
        let limit = i64::try_from(query.limit).unwrap_or(i64::MAX).saturating_add(1);
        let rows = self
            .link
            .ask(
                INSPECT,
                vec![
                    param(prefix.to_vec(), Type::BYTEA),
                    param(name, Type::BYTEA),
                    param(after, Type::BYTEA),
                    param(limit, Type::INT8),
                ],
            )
            .await?;
        let (ended, one) = (self.link.ended_sessions(), matches!(query.select, Select::Name(_)));
        let mut resources: Vec<ResourceState> = Vec::new();
        for row in rows {
            let Some(name) = get::<Option<&[u8]>>(&row, "name")? else { continue };
            let name = name.get(prefix.len()..).unwrap_or_default();
            // What somebody else wrote there must not hide all the rest.
            let Ok(name) = ResourceName::new(String::from_utf8_lossy(name)) else { continue };
            if resources.last().is_none_or(|last| last.name != name) {
                let mut state = ResourceState::free(name);
                state.capacity = get::<Option<i64>>(&row, "capacity")?.map(to_limit);
                state.last_fence = Some(get::<i64>(&row, "last_fence")?).filter(|fence| *fence > 0).and_then(to_fence);
                state.memo = get::<Option<&[u8]>>(&row, "memo")?.map(Into::into);
                resources.push(state);
            }
            // What others may have seen end is not ours any more, though the server still has it.
            let is_lost = one
                && get::<Option<bool>>(&row, "tethered")?.unwrap_or(false)
                && ended.contains(&get::<i64>(&row, "session")?);
            if let (Some(state), false) = (resources.last_mut(), is_lost) {
                add_claim(state, &row).or_else(|error| if one { Err(error) } else { Ok(()) })?;
            }
        }
        if let (Select::Name(name), true) = (&query.select, resources.is_empty()) {
            resources.push(ResourceState::free(name.clone()));
        }
        Ok(Page::cut(resources, query))
    }
}

/// When the request for a claim leaves that may be granted before it asks again; `None` for one that must ask.
fn handed_since(claim: &Claim) -> Option<i64> {
    if claim.may_be_handed() && is_tethered(claim) { turn::sent() } else { None }
}

/// Whether a claim ends with the session of its client.
fn is_tethered(claim: &Claim) -> bool {
    claim.tether == Tether::Process && claim.ttl <= MAX_TETHERED_TTL
}
