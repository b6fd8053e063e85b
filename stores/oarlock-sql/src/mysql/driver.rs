//! The seven verbs.

use std::sync::Arc;
use std::time::Duration;

use mysql_async::params;
use oarlock_core::driver::{
    Attempt, Driver, End, Fences, Grant, Info, Interest, Lease, Release, Released, Renewal, Renewed, Watch,
};
use oarlock_core::error::Applied;
use oarlock_core::state::{Ending, Page, Query, Select};
use oarlock_core::{Claim, ClaimId, Error, Fence, Lifetime, ResourceName, Result, Weight};
use serde::Deserialize;
use serde_json::json;

use crate::mysql::config::Config;
use crate::mysql::connection::Pool;
use crate::mysql::error::{SCHEME, STORE};
use crate::mysql::guarantees;
use crate::mysql::listener::listen;
use crate::mysql::liveness::Session;
use crate::mysql::queue::Queues;
use crate::mysql::request_pool::Answer;
use crate::mysql::short::Take;
use crate::mysql::watch::tell;
use crate::renew::{Answers, BATCH, beyond_a_day, renew, renewed};
use crate::row::{Row as _, first, from_weight, id_bytes, micros, read, text, to_id, to_span, write};
use crate::{attempt, inspect, release};

/// Longer leases do not end with their session: a server gives up a client that does not acknowledge what it sent after
/// about a quarter of an hour, and that must not be before its belief has ended.
const MAX_LIVENESS_TTL: Duration = Duration::from_secs(300);

pub(crate) const ATTEMPT: &str =
    "CALL oarlock_attempt(:name, :id, :session, :tethered, :kind, :capacity, :adopt, :weight, :wait,
    :behind, :lease, :place, :label, :value, :wake)";
pub(crate) const RENEW: &str = "CALL oarlock_renew(?, ?, ?, ?)";
pub(crate) const RELEASE: &str = "CALL oarlock_release(?, ?, ?, ?, ?)";
pub(crate) const INSPECT: &str = "CALL oarlock_inspect(?, ?, ?, ?)";

/// Locks on a `MySQL` or `MariaDB` server. See the [module](crate::mysql) for what it promises.
#[derive(Debug)]
pub struct MySql {
    pool: Arc<Pool>,
    queues: Queues,
}

impl Drop for MySql {
    fn drop(&mut self) {
        self.pool.abandon();
    }
}

impl MySql {
    /// Connects, and creates the tables and procedures if the database has none.
    ///
    /// # Errors
    /// [`Unreachable`](oarlock_core::ErrorKind::Unreachable) if there is no server,
    /// [`Denied`](oarlock_core::ErrorKind::Denied) if it refuses or a right is missing,
    /// [`NewerFormat`](oarlock_core::ErrorKind::NewerFormat) if a later version created the tables,
    /// [`Foreign`](oarlock_core::ErrorKind::Foreign) if an older version did,
    /// [`Config`](oarlock_core::ErrorKind::Config) if no database is named.
    pub async fn connect(config: Config) -> Result<Self> {
        let pool = Pool::open(config).await.map_err(|error| error.during("connect"))?;
        Ok(Self { pool, queues: Queues::default() })
    }
}

impl Driver for MySql {
    fn info(&self) -> Info {
        let capabilities = guarantees::capabilities(self.pool.has_liveness_lock());
        let mut info = Info::new(SCHEME, self.pool.config().to_string(), capabilities);
        info.batch = BATCH;
        info
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        // Before it is sent, so that no turn is missed between the answer and the watch.
        if claim.wait {
            self.pool.hub.expect(claim.id, |()| ());
        }
        let attempt = self.attempt_claim(claim).await;
        if attempt.as_ref().is_err_and(|error| error.applied() == Applied::No) {
            self.pool.hub.unexpect(claim.id);
        }
        attempt.map_err(|error| error.during("attempt").about(&claim.resource))
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        let session = self.pool.living_session();
        let is_over = || session.as_ref().is_none_or(|session| session.has_ended());
        let number = session.as_ref().map_or(0, |session| session.number);
        let ask = |wait, part| self.keep(number, wait, part);
        renew::<mysql_async::Row, _>(self.pool.check(), batch, is_over, |claim| self.ends_with_session(claim), ask)
            .await
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        self.left(resource, id);
        let released = self.end(resource, id, end).await;
        released.map_err(|error| error.during("release").about(resource))
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        self.pool.check().map_err(|error| error.during("watch"))?;
        match interest {
            Interest::Turn(claim, _) => Ok(self.pool.hub.turn(claim.id)),
            Interest::Mailbox => {
                self.pool.session().await.map_err(|error| error.during("watch"))?;
                Ok(self.pool.hub.mailbox())
            }
            _ => Ok(Watch::never()),
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.show(query).await.map_err(|error| error.during("inspect"))
    }

    async fn close(&self) -> Result<()> {
        self.pool.close().await;
        Ok(())
    }
}

impl MySql {
    async fn attempt_claim(&self, claim: &Claim) -> Result<Attempt> {
        let session = self.pool.session().await?;
        let (capacity, adopt) = attempt::capacity(claim);
        let name = self.pool.stored(claim.resource.as_str());
        let tethered = session.has_liveness_lock() && ends_with_session(claim);
        let label = write(STORE, &*claim.label)?;
        let value = claim.value.as_deref().map(str::as_bytes);
        let lives = claim.ttl.max(claim.waiter_ttl());
        let short = self.pool.takes_the_short_way(claim).then(|| Take {
            name: name.clone(),
            capacity,
            session: session.number,
            tethered,
            kind: claim.kind.as_str(),
            behind: claim.behind,
            label: label.clone(),
            value: value.map(<[u8]>::to_vec),
            lease: micros(claim.ttl),
        });
        let asked = params! {
            "name" => name,
            "id" => id_bytes(claim.id).as_slice(),
            "session" => session.number,
            "tethered" => tethered,
            "kind" => claim.kind.as_str(),
            "capacity" => capacity,
            "adopt" => adopt,
            "weight" => from_weight(claim.weight),
            "wait" => claim.wait,
            "behind" => claim.behind,
            "lease" => micros(claim.ttl),
            "place" => micros(claim.waiter_ttl()),
            "label" => label,
            "value" => value,
        };
        let is_short = short.is_some();
        let rows = match self.pool.attempt(claim, lives, short, asked).await? {
            Answer::Short(fence, _) => {
                let grant = Grant::new(Fence::new(fence), Lease::of(to_span(micros(claim.ttl))));
                return self.granted(claim, (&session, tethered), lives, grant);
            }
            Answer::Rows(rows) => rows,
        };
        if is_short {
            self.pool.short.left(claim.id);
            self.pool.short.note(&claim.resource, false);
        }
        let row = first(&rows)?;
        self.tell(row)?;
        match text(row, "outcome")?.as_str() {
            "granted" => self.granted(claim, (&session, tethered), lives, attempt::granted(row)?),
            "pending" => {
                let mut pending = attempt::pending(row)?;
                match row.integer("arrival")?.filter(|_| claim.wait) {
                    Some(arrival) => {
                        let (is_told, askers) = self.queues.stands(claim, arrival);
                        pending.watched = is_told || self.listens(claim, row.bytes("before")?);
                        self.wake(askers);
                    }
                    None => self.left(&claim.resource, claim.id),
                }
                self.pool.short.note(&claim.resource, false);
                Ok(Attempt::Pending(pending))
            }
            other => Err(attempt::refused(row, other, claim)),
        }
    }

    /// The claim has what it asked for. `tethered`: whether it was sent as one that ends with this session.
    fn granted(
        &self,
        claim: &Claim,
        (session, tethered): (&Session, bool),
        lives: Duration,
        mut grant: Grant,
    ) -> Result<Attempt> {
        self.left(&claim.resource, claim.id);
        self.pool.hub.forget(claim.id);
        self.pool.keep_wake(claim.id, lives);
        if claim.weight != Weight::All && self.pool.was_whole(claim.id) {
            // Those who can share with it now were told to wait for its end.
            self.pool.wake(claim.id, true);
        }
        if session.has_ended() && ends_with_session(claim) {
            // The engine has not seen the grant: the claim must be tied to a session that lives.
            return Err(Error::unreachable("the session of this claim ended during the request")
                .on(SCHEME)
                .retry_now());
        }
        grant.ends_with = tethered.then(|| session.over());
        Ok(Attempt::Granted(grant))
    }

    /// Renews some claims. `None` for those whose names other transactions have locked, unless it is to wait for them.
    async fn keep(&self, session: i64, wait: bool, batch: Vec<&Renewal>) -> Result<Answers> {
        let mut asked: Vec<(Vec<u8>, serde_json::Value)> = Vec::with_capacity(batch.len());
        for (at, renewal) in batch.iter().enumerate() {
            let claim = &renewal.claim;
            let (least, reserve) = match renewal.fences {
                Fences::Keep => (None, None),
                Fences::AtLeast(fence) => (Some(fence.get()), None),
                Fences::Reserve(count) => (None, Some(count)),
            };
            let name = self.pool.stored(claim.resource.as_str());
            let one = json!({
                "at": at,
                "name": hex(&name),
                "id": claim.id.to_string(),
                "lease": micros(claim.ttl),
                "place": micros(claim.waiter_ttl()),
                "behind": claim.behind,
                "value": claim.value.as_deref().map(|value| hex(value.as_bytes())),
                "memo": renewal.memo.as_deref().map(hex),
                "keep": micros(beyond_a_day(renewal)),
                "least": least,
                "reserve": reserve,
            });
            asked.push((name, one));
        }
        asked.sort_by(|(one, _), (other, _)| one.cmp(other));
        let asked = serde_json::Value::from_iter(asked.into_iter().map(|(_, one)| one)).to_string();
        let rows = self.pool.keep(session, wait, asked).await?;
        let row = first(&rows)?;
        self.tell(row)?;
        let mut answers = vec![None; batch.len()];
        for told in read::<Vec<Told>>(STORE, &text(row, "answers")?)? {
            if let Some((answer, renewal)) = answers.get_mut(told.at).zip(batch.get(told.at)) {
                let about = |error: Error| error.during("renew").about(&renewal.claim.resource);
                let (fence, ending) = (told.fence.map(Fence::new), told.ending);
                let alive = || Ok((told.lease, fence));
                let told = renewed::<mysql_async::Row>(&told.outcome, alive, || Ok(ending));
                *answer = told.map(|told| told.map_err(about));
                let claim = &renewal.claim;
                if answer.is_some() {
                    self.pool.short.left(claim.id);
                }
                match answer {
                    Some(Ok(Renewed::Gone(_))) => {
                        self.left(&claim.resource, claim.id);
                        self.pool.wake(claim.id, true);
                    }
                    Some(Ok(_)) => self.pool.keep_wake(claim.id, claim.ttl.max(claim.waiter_ttl())),
                    Some(Err(_)) | None => {}
                }
            }
        }
        Ok(answers)
    }

    async fn end(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        if !matches!(end, End::Broken { .. }) {
            self.pool.hub.forget(id);
        }
        let (memo, ending, grace) = release::arguments(STORE, end)?;
        let name = self.pool.stored(resource.as_str());
        let is_plain = memo.is_none() && ending.is_none();
        let short = (is_plain && self.pool.short.has(id)).then(|| name.clone());
        let asked = (name, id_bytes(id), memo, ending, micros(grace));
        let rows = match self.pool.release(id, short, asked).await? {
            Answer::Short(..) => {
                self.pool.short.left(id);
                self.pool.wake(id, false);
                return Ok(Release::new(Released::Released, Some(false)));
            }
            Answer::Rows(rows) => rows,
        };
        self.pool.short.left(id);
        let row = first(&rows)?;
        let outcome = release::released(row)?;
        self.tell(row)?;
        let told = |column: &str| {
            let null = || STORE.unexpected(format!("column {column} of a reply is NULL"));
            row.boolean(column)?.ok_or_else(null)
        };
        let others = told("others")?;
        self.pool.short.note(resource, outcome == Released::Released && !others && !told("memo")?);
        if outcome != Released::Asked {
            self.pool.wake(id, others);
        }
        Ok(Release::new(outcome, Some(others)))
    }

    async fn show(&self, query: &Query) -> Result<Page> {
        let name = match &query.select {
            Select::Live => None,
            Select::Name(name) => Some(self.pool.stored(name.as_str())),
        };
        let prefix = self.pool.config().prefix.as_str();
        let after = query.after.as_ref().map(|after| self.pool.stored(after.as_str()));
        let most = i64::try_from(query.limit).unwrap_or(i64::MAX).saturating_add(1);
        let mut found = Vec::new();
        for row in self.pool.query(INSPECT, (prefix.as_bytes(), name, after, most)).await? {
            found.push((row.bytes("name")?, row.integer("arrival")?, row));
        }
        found.sort_by(|(name, arrival, _), (other, later, _)| (name, arrival).cmp(&(other, later)));
        let rows = found.into_iter().map(|(_, _, row)| row);
        inspect::page(rows, query, prefix, |session| self.pool.is_ended(session))
    }

    /// A claim does not wait any more: the next of ours asks for itself.
    fn left(&self, resource: &ResourceName, id: ClaimId) {
        self.pool.listener.left(id);
        self.wake(self.queues.left(resource, id));
    }

    /// Whether a waiter will have a hint when `before` leaves, the claim that must do so before it is granted.
    fn listens(&self, claim: &Claim, before: Option<Vec<u8>>) -> bool {
        let before = before.and_then(to_id);
        before.is_some_and(|before| self.pool.has_liveness_lock() && listen(&self.pool, claim.id, before))
    }

    fn wake(&self, ids: Vec<ClaimId>) {
        ids.into_iter().for_each(|id| _ = self.pool.hub.notify(id, |()| ()));
    }

    fn ends_with_session(&self, claim: &Claim) -> bool {
        self.pool.has_liveness_lock() && ends_with_session(claim)
    }

    /// Wakes those of this process whose turn has come.
    fn tell(&self, row: &mysql_async::Row) -> Result<()> {
        let called = text(row, "called")?;
        if let (false, Some(session)) = (called.is_empty(), self.pool.living_session()) {
            tell(&self.pool.hub, &called, session.number);
        }
        Ok(())
    }
}

/// Whether a claim ends with the session of its client.
fn ends_with_session(claim: &Claim) -> bool {
    claim.lifetime == Lifetime::Process && claim.ttl <= MAX_LIVENESS_TTL
}

/// The answer to one renewal of a batch.
#[derive(Debug, Deserialize)]
struct Told {
    at: usize,
    outcome: String,
    lease: i64,
    fence: Option<u64>,
    ending: Option<Ending>,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
