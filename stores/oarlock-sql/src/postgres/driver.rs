//! The seven verbs.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::clock::{BootClock, Clock as _};
use oarlock_core::driver::{
    Attempt, Cursor, Driver, End, Fences, Grant, Info, Interest, Release, Released, Renewal, Renewed, Watch,
};
use oarlock_core::error::Applied;
use oarlock_core::reconnect::Ends;
use oarlock_core::state::{Page, Query, Select};
use oarlock_core::{Claim, ClaimId, Error, Lifetime, ResourceName, Result};
use tokio_postgres::types::Type;

use crate::postgres::config::Config;
use crate::postgres::connection::{Pool, Session, param};
use crate::postgres::error::{SCHEME, STORE};
use crate::postgres::guarantees;
use crate::postgres::watch::Hub;
use crate::renew::{Answers, BATCH, beyond_a_day, renew, renewed};
use crate::row::{Row as _, first, from_weight, id_bytes, integer, micros, read, text, to_fence, write};
use crate::{attempt, inspect, release};

/// Longer leases do not end with their session: the server takes a silent client for dead after two hours, and that
/// must not be before its belief has ended.
const MAX_LIVENESS_TTL: Duration = Duration::from_secs(3600);

// The last parameter of each comes back in every row: see [`Pool::query`].
pub(crate) const ATTEMPT: &str = "SELECT *, $17::bigint AS echo
    FROM oarlock.attempt($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)";
const RENEW: &str = "SELECT *, $15::bigint AS echo
    FROM oarlock.renew($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)";
pub(crate) const RELEASE: &str = "SELECT *, $6::bigint AS echo FROM oarlock.release($1, $2, $3, $4, $5)";
const OBSERVE: &str = "SELECT oarlock.observe($1, $2), $3::bigint AS echo";
pub(crate) const INSPECT: &str = include_str!("sql/inspect.sql");

/// Locks on a `PostgreSQL` server. See the [module](crate::postgres) for what it promises.
#[derive(Debug)]
pub struct Postgres {
    pool: Arc<Pool>,
}

impl Drop for Postgres {
    /// Ends the session at once, also while a request is under way.
    fn drop(&mut self) {
        self.pool.close();
    }
}

impl Postgres {
    /// Connects, and makes the schema `oarlock` if the database has none.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`](oarlock_core::ErrorKind::Unreachable) if there is no server,
    /// [`ErrorKind::Denied`](oarlock_core::ErrorKind::Denied) if it refuses or a right is missing,
    /// [`ErrorKind::NewerFormat`](oarlock_core::ErrorKind::NewerFormat) if a later version made the schema.
    pub async fn connect(config: Config) -> Result<Self> {
        Ok(Self { pool: Pool::open(config).await.map_err(|error| error.during("connect"))? })
    }
}

impl Driver for Postgres {
    fn info(&self) -> Info {
        let capabilities = guarantees::capabilities(self.pool.is_pooled());
        let mut info = Info::new(SCHEME, self.pool.config().to_string(), capabilities);
        info.batch = BATCH;
        info
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        let attempt = self.attempt_claim(claim).await;
        attempt.map_err(|error| error.during("attempt").about(&claim.resource))
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        let session = self.pool.living_session();
        let is_over = || session.as_deref().is_none_or(Ends::is_ended);
        let number = session.as_ref().map_or(0, |session| session.number);
        let hub = session.as_ref().filter(|session| session.has_liveness_lock()).map(|session| &*session.hub);
        let ask = |wait, part| self.keep(number, hub, wait, part);
        let answers = renew::<tokio_postgres::Row, _>(self.pool.check(), batch, is_over, ends_with_session, ask).await;
        if let Some(session) = session.as_ref().filter(|session| session.has_liveness_lock()) {
            let mut is_heard = true;
            for (answer, Renewal { claim, .. }) in answers.iter().zip(batch) {
                match answer {
                    Ok(Renewed::Gone(_)) => session.listening.forget(claim.id),
                    Ok(_) => is_heard &= session.listening.expect(claim.id, claim.ttl.max(claim.waiter_ttl())),
                    Err(_) => {}
                }
            }
            if !is_heard {
                self.pool.listen_in_background(session);
            }
        }
        answers
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        let released = self.end(resource, id, end).await;
        released.map_err(|error| error.during("release").about(resource))
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        let session = self.pool.session().await.map_err(|error| error.during("watch"))?;
        match interest {
            _ if !session.has_liveness_lock() => Ok(Watch::never()),
            Interest::Turn(claim, cursor) => {
                let watch = session.hub.turn(claim.id);
                if let Ok(nearest) = cursor.0.as_slice().try_into() {
                    self.pool.watch_holder(i64::from_be_bytes(nearest), claim.id, &session.hub);
                }
                Ok(watch)
            }
            Interest::Mailbox => Ok(session.hub.mailbox()),
            Interest::Resource(name) => {
                if !session.listening.watch() {
                    self.pool.start_listening(&session).await.map_err(|error| error.during("watch").about(name))?;
                }
                let stored = self.pool.stored(name.as_str());
                let watch = session.hub.resource(&stored.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
                let observed = self
                    .pool
                    .step(stored.clone(), OBSERVE, vec![param(stored, Type::BYTEA), param(session.number, Type::INT8)])
                    .await;
                observed.map(|_| watch).map_err(|error| error.during("watch").about(name))
            }
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.show(query).await.map_err(|error| error.during("inspect"))
    }

    async fn close(&self) -> Result<()> {
        self.pool.close();
        Ok(())
    }
}

impl Postgres {
    async fn attempt_claim(&self, claim: &Claim) -> Result<Attempt> {
        let session = self.pool.session().await?;
        let waits = claim.wait && session.has_liveness_lock();
        if waits
            && claim.may_be_handed()
            && let Some(grant) = session
                .hub
                .kept(claim.id, |kept| kept.handed.take())
                .flatten()
                .and_then(|handed| handed.grant(BootClock.now()))
            && !session.is_ended()
        {
            self.pool.forget(claim.id);
            return Ok(Attempt::Granted(tied(grant, &session, claim)));
        }
        // Before it is sent, so that nothing is missed between the answer and the watch.
        let span = claim.ttl.max(claim.waiter_ttl());
        let was_sent = session.listening.knows(claim.id);
        if session.has_liveness_lock() && !session.listening.expect(claim.id, span) {
            self.pool.start_listening(&session).await?;
        }
        let expected = waits && session.hub.expect(claim.id, |_| ());
        let answer = self.query(&session, claim, ticket(&session.hub, claim)).await;
        if matches!(&answer, Ok(Attempt::Pending(_)) if !claim.wait) {
            session.listening.forget(claim.id);
        }
        match answer {
            Ok(Attempt::Pending(mut pending)) => {
                pending.watched = expected && session.hub.expects(claim.id);
                Ok(Attempt::Pending(pending))
            }
            Ok(Attempt::Granted(grant)) => {
                session.hub.forget(claim.id);
                self.pool.forget(claim.id);
                if session.is_ended() && ends_with_session(claim) {
                    // The engine has not seen the grant: the claim must be tied to a session that lives.
                    return Err(Error::unreachable("the session of this claim ended during the request")
                        .on(SCHEME)
                        .retry_now());
                }
                Ok(Attempt::Granted(tied(grant, &session, claim)))
            }
            Err(error) => {
                // What had no effect is not released later. An earlier request may have put it into the queue.
                if error.applied() == Applied::No && !was_sent {
                    session.hub.forget(claim.id);
                    session.listening.forget(claim.id);
                }
                Err(error)
            }
        }
    }

    /// Asks the server for a place. A claim with a `ticket` may be granted before it asks again.
    async fn query(&self, session: &Session, claim: &Claim, ticket: Option<i64>) -> Result<Attempt> {
        let (capacity, adopt) = attempt::capacity(claim);
        let label = write(STORE, &*claim.label)?;
        let name = self.pool.stored(claim.resource.as_str());
        let rows = self
            .pool
            .attempt(
                name.clone(),
                ATTEMPT,
                vec![
                    param(name, Type::BYTEA),
                    param(id_bytes(claim.id).to_vec(), Type::BYTEA),
                    param(session.number, Type::INT8),
                    param(session.has_liveness_lock() && ends_with_session(claim), Type::BOOL),
                    param(claim.kind.as_str().to_owned(), Type::TEXT),
                    param(capacity, Type::INT8),
                    param(adopt, Type::BOOL),
                    param(from_weight(claim.weight), Type::INT8),
                    param(claim.wait, Type::BOOL),
                    param(i64::from(claim.behind), Type::INT8),
                    param(micros(claim.ttl), Type::INT8),
                    param(micros(claim.waiter_ttl()), Type::INT8),
                    param(label, Type::TEXT),
                    param(claim.value.as_deref().map(|value| value.as_bytes().to_vec()), Type::BYTEA),
                    param(ticket, Type::INT8),
                ],
            )
            .await?;
        let row = first(&rows)?;
        match text(row, "outcome")?.as_str() {
            "granted" => Ok(Attempt::Granted(attempt::granted(row)?)),
            "pending" => {
                let mut pending = attempt::pending(row)?;
                let nearest = row.integer("nearest")?.filter(|nearest| *nearest != session.number);
                pending.cursor = Cursor(nearest.map(|nearest| nearest.to_be_bytes().to_vec()).unwrap_or_default());
                Ok(Attempt::Pending(pending))
            }
            other => Err(attempt::refused(row, other, claim)),
        }
    }

    /// Renews some claims. `None` for those whose names other transactions have locked, unless it is to wait for them.
    async fn keep(&self, session: i64, hub: Option<&Hub>, wait: bool, batch: Vec<&Renewal>) -> Result<Answers> {
        let claims = || batch.iter().map(|renewal| &renewal.claim);
        let names: Vec<_> = claims().map(|claim| self.pool.stored(claim.resource.as_str())).collect();
        let ids: Vec<_> = claims().map(|claim| id_bytes(claim.id).to_vec()).collect();
        let leases: Vec<_> = claims().map(|claim| micros(claim.ttl)).collect();
        let places: Vec<_> = claims().map(|claim| micros(claim.waiter_ttl())).collect();
        let behind: Vec<_> = claims().map(|claim| i64::from(claim.behind)).collect();
        let values: Vec<_> =
            claims().map(|claim| claim.value.as_deref().map(|value| value.as_bytes().to_vec())).collect();
        let memos: Vec<_> = batch.iter().map(|renewal| renewal.memo.as_deref().map(<[u8]>::to_vec)).collect();
        let keeps: Vec<_> = batch.iter().map(|renewal| micros(beyond_a_day(renewal))).collect();
        let held: Vec<_> = batch.iter().map(|renewal| renewal.held).collect();
        let tickets: Vec<_> = claims().map(|claim| hub.and_then(|hub| ticket(hub, claim))).collect();
        let (mut least, mut reserve) = (vec![None; batch.len()], vec![None; batch.len()]);
        for ((least, reserve), renewal) in least.iter_mut().zip(&mut reserve).zip(&batch) {
            match renewal.fences {
                Fences::Keep => {}
                Fences::AtLeast(fence) => *least = Some(i64::try_from(fence.get()).unwrap_or(i64::MAX)),
                Fences::Reserve(count) => *reserve = Some(i64::from(count)),
            }
        }
        let rows = self
            .pool
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
                    param(keeps, Type::INT8_ARRAY),
                    param(least, Type::INT8_ARRAY),
                    param(reserve, Type::INT8_ARRAY),
                    param(held, Type::BOOL_ARRAY),
                    param(tickets, Type::INT8_ARRAY),
                ],
            )
            .await?;
        let mut answers = vec![None; batch.len()];
        for row in rows {
            let at = usize::try_from(integer(&row, "at")?).ok().and_then(|at| at.checked_sub(1));
            if let Some((answer, renewal)) = at.and_then(|at| answers.get_mut(at).zip(batch.get(at))) {
                let about = |error: Error| error.during("renew").about(&renewal.claim.resource);
                let ending = || row.text("ending")?.map(|ending| read(STORE, &ending)).transpose();
                let alive = || Ok((integer(&row, "lease")?, row.integer("fence")?.and_then(to_fence)));
                let told = renewed::<tokio_postgres::Row>(&text(&row, "outcome")?, alive, ending);
                *answer = told.map(|told| told.map_err(about));
            }
        }
        Ok(answers)
    }

    async fn end(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        let (memo, ending, grace) = release::arguments(STORE, end)?;
        let name = self.pool.stored(resource.as_str());
        let rows = self
            .pool
            .step(
                name.clone(),
                RELEASE,
                vec![
                    param(name, Type::BYTEA),
                    param(id_bytes(id).to_vec(), Type::BYTEA),
                    param(memo, Type::BYTEA),
                    param(ending, Type::TEXT),
                    param(micros(grace), Type::INT8),
                ],
            )
            .await?;
        let row = first(&rows)?;
        let outcome = release::released(row)?;
        self.pool.forget(id);
        if let (Some(session), true) = (self.pool.living_session(), outcome != Released::Asked) {
            session.listening.forget(id);
        }
        Ok(Release::new(outcome, row.boolean("others")?))
    }

    async fn show(&self, query: &Query) -> Result<Page> {
        let name = match &query.select {
            Select::Live => None,
            Select::Name(name) => Some(self.pool.stored(name.as_str())),
        };
        let prefix = self.pool.config().prefix.as_str();
        let after = query.after.as_ref().map(|after| self.pool.stored(after.as_str()));
        let limit = i64::try_from(query.limit).unwrap_or(i64::MAX).saturating_add(1);
        let rows = self
            .pool
            .query(
                INSPECT,
                vec![
                    param(prefix.as_bytes().to_vec(), Type::BYTEA),
                    param(name, Type::BYTEA),
                    param(after, Type::BYTEA),
                    param(limit, Type::INT8),
                ],
            )
            .await?;
        let ended = self.pool.ended_sessions();
        inspect::page(rows, query, prefix, |session| ended.contains(&session))
    }
}

/// A ticket for a request of a waiter that may be granted before it asks again; `None` for one that must ask.
fn ticket(hub: &Hub, claim: &Claim) -> Option<i64> {
    let may_be_handed = claim.may_be_handed() && ends_with_session(claim);
    if may_be_handed { hub.kept(claim.id, |kept| kept.ticket(|| STORE.random_number())).flatten() } else { None }
}

/// The grant of a claim in this session.
fn tied(mut grant: Grant, session: &Session, claim: &Claim) -> Grant {
    grant.ends_with = session.end().filter(|_| ends_with_session(claim));
    grant
}

/// Whether a claim ends with the session of its client.
fn ends_with_session(claim: &Claim) -> bool {
    claim.lifetime == Lifetime::Process && claim.ttl <= MAX_LIVENESS_TTL
}
