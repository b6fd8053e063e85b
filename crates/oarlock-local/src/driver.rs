//! The seven verbs.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use oarlock_core::capabilities::{Capabilities, Consistency, Liveness, Notify};
use oarlock_core::driver::{Attempt, Driver, End, Gone, Info, Interest, Release, Released, Renewal, Renewed, Watch};
use oarlock_core::model::{Calls, Entry, Now, Resource};
use oarlock_core::state::{Page, Query, ResourceState, Select};
use oarlock_core::{Applied, Claim, ClaimId, Error, ErrorKind, ResourceName, Result, Tether};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::blockers::{from_cursor, suspects, to_cursor, watched};
use crate::config::Config;
use crate::error::SCHEME;
use crate::link::{Link, Needs, offload};
use crate::place::Place;
use crate::state::Record;
use crate::turn::Answer;

/// A renewal waits at most this long for a shard that another process does not leave.
const MAX_RENEWAL_WAIT: Duration = Duration::from_secs(1);

/// The embedded store: one directory, no server. See the [crate](crate) for what it promises.
#[derive(Debug)]
pub struct Local {
    pub(crate) link: Arc<Link>,
}

impl Local {
    /// Opens the store, and makes its directory if there is none.
    ///
    /// # Errors
    /// [`ErrorKind::CannotCreate`] if the directory cannot be made, [`ErrorKind::Denied`] if others may write to it,
    /// [`ErrorKind::Config`] if it is on a file system shared with other machines, [`ErrorKind::Os`] for the rest.
    pub async fn open(config: Config) -> Result<Self> {
        let link = Link::open(config).await.map_err(|error| error.during("open"))?;
        Ok(Self { link })
    }
}

impl Driver for Local {
    fn info(&self) -> Info {
        let mut capabilities = Capabilities::of_the_model();
        capabilities.liveness = Liveness::LeaseAndProcess;
        capabilities.notify = Notify::Push;
        capabilities.consistency = Consistency::Single;
        capabilities.tether_lease = true;
        Info::new(SCHEME, self.link.to_string(), capabilities)
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        let placed = |error: Error| error.during("attempt").about(&claim.resource);
        // Said at once, whoever holds the shard; the step itself checks again.
        self.link.session.check().map_err(placed)?;
        if claim.wait
            && let Some(grant) = self.link.hub.handed(claim.id, self.link.now().boot)
        {
            return Ok(Attempt::Granted(grant));
        }
        let is_new = self.link.session.stands(claim).map_err(placed)?;
        // Before the step, so that nothing is missed between its answer and the watch.
        let watched = claim.wait && self.link.hub.expect(claim.id);
        let (link, mut asked) = (self.link.clone(), claim.clone());
        // A claim that would not hear of a grant has to ask for it.
        asked.renews &= watched;
        let run = move |resource: &mut Resource, now: Now, calls: &mut Calls| {
            let attempt = link.attempt(&asked, resource, now, calls);
            (attempt, Answer { at: now.boot, last_fence: resource.last_fence() })
        };
        let step = self.link.clone().step(claim.resource.clone(), Needs::Session, run).await;
        let mut answer = match step {
            Ok((answer, at)) => {
                self.link.hub.answered(claim.id, at);
                answer
            }
            Err(error) => Err(error),
        };
        match &mut answer {
            Ok(Attempt::Pending(pending)) => pending.watched = watched,
            Err(error) if error.applied() == Applied::Unknown => {}
            // What had no effect is not released later.
            Ok(Attempt::Granted(_)) | Err(_) => self.link.hub.unexpect(claim.id),
        }
        let stands = match &answer {
            Ok(Attempt::Granted(_)) => true,
            Ok(Attempt::Pending(_)) => claim.wait,
            Err(error) => error.applied() != Applied::No,
        };
        if is_new && !stands {
            self.link.session.fell(claim.id);
        }
        answer.map_err(|error| placed(error.on(SCHEME)))
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        if let Err(error) = self.link.sessions.check_ours() {
            return vec![Err(error.during("renew")); batch.len()];
        }
        let session_lost = match self.link.session.check() {
            Err(error) if self.link.session.is_closed() => return vec![Err(error.during("renew")); batch.len()],
            // What fails for another reason, as a full disk, is left to the lease.
            session => session.is_err_and(|error| error.kind() == ErrorKind::Closed),
        };
        let longest = batch.iter().map(|renewal| renewal.claim.ttl).max().unwrap_or_default();
        if let Err(error) = self.link.session.covers(longest) {
            return vec![Err(error.during("renew")); batch.len()];
        }
        let mut by_name: HashMap<&ResourceName, Vec<usize>> = HashMap::new();
        for (at, renewal) in batch.iter().enumerate() {
            by_name.entry(&renewal.claim.resource).or_default().push(at);
        }
        let mut answers = vec![None; batch.len()];
        let mut late = JoinSet::new();
        for (name, places) in by_name {
            let renewals: Vec<_> = places.iter().filter_map(|at| batch.get(*at).cloned()).collect();
            let needs = if renewals.iter().any(|it| it.memo.is_some()) { Needs::Disk } else { Needs::Nothing };
            let run = move |resource: &mut Resource, now: Now, calls: &mut Calls| {
                let renewed = renewals.iter().map(|renewal| resource.renew(renewal, now, calls)).collect::<Vec<_>>();
                let untaken = resource.entries().iter().filter(|entry| entry.untaken);
                let asks = |entry: &&Entry| renewals.iter().any(|renewal| renewal.claim.id == entry.id);
                // It holds and does not know: what it was told is lost.
                calls.extend(untaken.filter(asks).map(|entry| (entry.id, entry.session)));
                renewed
            };
            let mut step = Box::pin(self.link.clone().step(name.clone(), needs, run));
            match std::future::poll_fn(|cx| Poll::Ready(step.as_mut().poll(cx))).await {
                Poll::Ready(renewed) => settle(&mut answers, &places, renewed),
                Poll::Pending => {
                    late.spawn(async move { (places, step.await) });
                }
            }
        }
        // One shard that a stopped process does not leave must not hold up the renewals in all the others.
        let shortest = batch.iter().map(|renewal| renewal.claim.ttl).min().unwrap_or_default();
        let until = Instant::now() + MAX_RENEWAL_WAIT.min(shortest / 6);
        while !late.is_empty() {
            match timeout_at(until, late.join_next()).await {
                Ok(Some(Ok((places, renewed)))) => settle(&mut answers, &places, renewed),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        let stuck = || Error::unreachable("another process does not leave the shard of this name").on(SCHEME);
        let answer = |(answer, renewal): (Option<Result<Renewed>>, &Renewal)| {
            if session_lost && renewal.claim.tether == Tether::Process {
                return Ok(Renewed::Gone(Gone::Session));
            }
            answer.unwrap_or_else(|| Err(stuck())).map_err(|error| error.during("renew").about(&renewal.claim.resource))
        };
        let answers: Vec<_> = answers.into_iter().zip(batch).map(answer).collect();
        for (answer, renewal) in answers.iter().zip(batch) {
            if let Ok(Renewed::Gone(_)) = answer {
                self.link.session.fell(renewal.claim.id);
            }
        }
        answers
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        let needs = if matches!(end, End::Done { memo: Some(_) }) { Needs::Disk } else { Needs::Nothing };
        let end = end.clone();
        self.link.hub.unexpect(id);
        let run = move |resource: &mut Resource, now: Now, calls: &mut Calls| resource.release(id, &end, now, calls);
        let answer = self.link.clone().step(resource.clone(), needs, run).await;
        if answer.as_ref().is_ok_and(|release| release.outcome != Released::Asked) {
            self.link.session.fell(id);
        }
        answer.map_err(|error| error.during("release").about(resource))
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        self.link.session.check().map_err(|error| error.during("watch"))?;
        let hub = &self.link.hub;
        match interest {
            Interest::Turn(claim, cursor) => Ok(hub.turn(claim.id, &from_cursor(cursor))),
            Interest::Mailbox => Ok(hub.mailbox()),
            Interest::Resource(name) => {
                let place = Place::of(name);
                let folder = self.link.dir.states(place.shard);
                self.link.dir.access.make(&folder).map_err(|error| error.during("watch").about(name))?;
                Ok(hub.file(&folder, &place.file))
            }
            _ => Err(Error::new(ErrorKind::Unsupported, "nothing to watch").on(SCHEME).during("watch")),
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let page = match &query.select {
            // One small file, read without its lock: a thread would take longer than the look.
            Select::Name(_) => self.link.show(query),
            Select::Live => {
                let (link, asked) = (self.link.clone(), query.clone());
                async { offload(move || link.show(&asked))?.await }.await
            }
        };
        page.map_err(|error| error.during("inspect"))
    }

    async fn close(&self) -> Result<()> {
        self.link.session.end();
        self.link.hub.close();
        Ok(())
    }
}

/// Puts the answers of one resource where the batch has its claims.
fn settle(answers: &mut [Option<Result<Renewed>>], places: &[usize], renewed: Result<Vec<Result<Renewed>>>) {
    let renewed = renewed.unwrap_or_else(|error| vec![Err(error); places.len()]);
    for (at, renewed) in places.iter().zip(renewed) {
        if let Some(answer) = answers.get_mut(*at) {
            *answer = Some(renewed);
        }
    }
}

impl Link {
    /// Attempts, and if something is in the way, looks whether it is still alive.
    fn attempt(&self, claim: &Claim, resource: &mut Resource, now: Now, calls: &mut Calls) -> Result<Attempt> {
        let me = self.session.id;
        let mut alive = Vec::new();
        loop {
            let mut answer = resource.attempt(claim, me, now, calls);
            let entries = resource.entries();
            let at = entries.iter().position(|entry| entry.id == claim.id).unwrap_or(entries.len());
            match &mut answer {
                Ok(Attempt::Granted(_)) => {
                    calls.retain(|(id, _)| *id != claim.id);
                    return answer;
                }
                Ok(Attempt::Pending(pending)) => pending.cursor = to_cursor(&watched(entries, at)),
                Err(error) if matches!(error.kind(), ErrorKind::SpecMismatch | ErrorKind::TooHeavy) => {}
                Err(_) => return answer,
            }
            let suspects = suspects(entries, at, me).into_iter().filter(|session| !alive.contains(session));
            let (dead, living): (Vec<_>, Vec<_>) = suspects.partition(|session| self.sessions.is_dead(*session));
            if dead.is_empty() {
                return answer;
            }
            alive.extend(living);
            resource.end_sessions(now, calls, |session| !dead.contains(&session));
        }
    }

    fn show(&self, query: &Query) -> Result<Page> {
        let mut known = HashMap::new();
        let mut resources = Vec::new();
        match &query.select {
            Select::Name(name) => {
                let state = match self.peek(&Place::of(name))? {
                    Some(record) => self.state(record, &mut known),
                    None => ResourceState::free(name.clone()),
                };
                resources.push(state);
            }
            Select::Live => {
                for shard in 0..=u8::MAX {
                    let Ok(folder) = std::fs::read_dir(self.dir.states(shard)) else { continue };
                    for file in folder.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
                        // A file that cannot be read says so when its name is asked for.
                        let Ok(Some(record)) = self.peek(&Place { shard, file }) else { continue };
                        resources.push(self.state(record, &mut known));
                    }
                }
                resources.retain(|state| !state.is_free());
            }
        }
        Ok(Page::cut(resources, query))
    }

    /// What is shown of a name: without claims that have run out or whose process is gone.
    fn state(&self, record: Record, known: &mut HashMap<u128, bool>) -> ResourceState {
        let now = self.now();
        let name = record.name.clone();
        let mut resource = self.of_this_boot(record, now);
        let is_alive = |session| *known.entry(session).or_insert_with(|| !self.sessions.is_dead(session));
        resource.end_sessions(now, &mut Calls::new(), is_alive);
        resource.state(name, now)
    }
}
