//! The seven verbs.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join;
use futures_util::stream::{select_all, unfold};
use oarlock_core::capabilities::{Capabilities, Fencing, Liveness, Notify, WaiterView};
use oarlock_core::clock::Clock;
use oarlock_core::driver::{Attempt, Driver, End, Fences, Info, Interest, Release, Renewal, Renewed, Watch};
use oarlock_core::state::{Page, Query, ResourceState, Select};
use oarlock_core::{Applied, Capacity, Claim, ClaimId, Error, ErrorKind, Label, Limit, ResourceName, Result, Weight};
use redis::{Cmd, Value};

use crate::answer;
use crate::config::{Config, Layout};
use crate::error::{SCHEME, unexpected};
use crate::facts::Facts;
use crate::link::{Call, Link};
use crate::place;
use crate::plain;
use crate::redisson;
use crate::scripts::Scripts;
use crate::turn;
use crate::watch::Topic;

/// How many resources, and how many indexes, are asked for in one go at most: a server hangs up on a connection that listens
/// for news when too much is on its way to it.
const SHOWN: usize = 250;
const LISTED: usize = 16;

/// A Redis or Valkey server. See the [crate](crate) for what it promises.
#[derive(Debug)]
pub struct Redis {
    pub(crate) link: Arc<Link>,
    pub(crate) scripts: Scripts,
    facts: Facts,
    /// The last label in JSON: most claims of a client have the same.
    written: Mutex<Option<(Arc<Label>, Arc<str>)>>,
}

impl Redis {
    /// Connects.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] if the server does not answer, [`ErrorKind::Denied`] if it refuses the user,
    /// [`ErrorKind::Config`] if it is too old, a replica, or throws keys away when it is full.
    pub async fn open(config: Config) -> Result<Self> {
        let (link, facts) = Link::open(config).await.map_err(|error| error.during("open"))?;
        let scripts = Scripts::of(&link.config, link.is_cluster());
        Ok(Self { link: Arc::new(link), scripts, facts, written: Mutex::default() })
    }

    /// What the servers said about themselves when they were reached: of each thing the least.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The resources of these names, without those that cannot be read.
    async fn show(&self, names: &[ResourceName]) -> Result<Vec<Result<ResourceState>>> {
        let calls = names.iter().map(|name| self.link.call(&self.scripts.inspect, name)).collect();
        let answers = self.link.run(calls).await.into_iter().zip(names);
        let layout = self.link.config.layout;
        answers.map(|(answer, name)| Ok(answer::shown(layout, name.clone(), answer?))).collect()
    }

    /// Every name in the indexes, in order.
    async fn names(&self) -> Result<Vec<ResourceName>> {
        let indexes: Vec<_> = (0..=place::TAGS).map(|tag| place::index(&self.link.config.prefix, tag)).collect();
        let (mut listed, mut names) = (Vec::with_capacity(indexes.len()), Vec::new());
        for some in indexes.chunks(LISTED) {
            listed.extend(self.link.ask(some.iter().map(|index| (index.as_str(), members(index))).collect()).await?);
        }
        for (index, keys) in indexes.iter().zip(listed) {
            let keys: Vec<Vec<u8>> = redis::from_redis_value(keys).map_err(|error| unexpected().because(error))?;
            let keys = keys.into_iter().filter_map(|key| String::from_utf8(key).ok());
            names.extend(keys.filter_map(|key| place::name(index, &key)));
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Every name whose key is there, in order. What does not end by itself is not taken for a lock of another program.
    async fn scanned(&self) -> Result<Vec<ResourceName>> {
        let Config { layout, prefix, .. } = &self.link.config;
        let literal = place::literal(prefix);
        let mut names: Vec<_> = match layout {
            Layout::Native => {
                let keys = self.link.scan(&format!("{literal}{{[0-9a-f][0-9a-f]}}:*"), "hash").await?;
                let indexes: Vec<_> = (0..=place::TAGS).map(|tag| place::index(prefix, tag)).collect();
                let name = |key: &String| indexes.iter().find_map(|index| place::name(index, key));
                keys.iter().filter_map(name).collect()
            }
            Layout::Plain | Layout::Redisson => {
                let kind = if *layout == Layout::Plain { "string" } else { "hash" };
                let keys = self.link.scan(&format!("{literal}*"), kind).await?;
                let left = self.link.ask(keys.iter().map(|key| (key.as_str(), left_of(key))).collect()).await?;
                let ends = |left: &Value| matches!(left, Value::Int(ms) if *ms >= 0);
                let keys = keys.iter().zip(&left).filter(|(_, left)| ends(left));
                keys.filter_map(|(key, _)| ResourceName::new(key.strip_prefix(prefix.as_str())?).ok()).collect()
            }
        };
        names.sort_unstable();
        Ok(names)
    }

    /// A page of the live resources.
    async fn live(&self, query: &Query) -> Result<Page> {
        let names = if query.scan { self.scanned().await? } else { self.names().await? };
        let start = query.after.as_ref().map_or(0, |after| names.partition_point(|name| name <= after));
        let mut resources = Vec::new();
        for names in names[start..].chunks(query.limit.saturating_add(1).clamp(1, SHOWN)) {
            resources.extend(self.show(names).await?.into_iter().flatten().filter(|state| !state.is_free()));
            if resources.len() > query.limit {
                break;
            }
        }
        Ok(Page::cut(resources, query))
    }
}

impl Driver for Redis {
    fn info(&self) -> Info {
        let mut capabilities = Capabilities::of_the_model();
        capabilities.fencing = Fencing::Clocked;
        capabilities.liveness = Liveness::Lease;
        capabilities.consistency = self.link.consistency(&self.facts);
        match self.link.config.layout {
            Layout::Native => capabilities.notify = Notify::Push,
            Layout::Plain => {
                (capabilities.order, capabilities.units, capabilities.listing) = (false, false, false);
                (capabilities.waiters, capabilities.notify) = (WaiterView::Hidden, Notify::Poll);
            }
            Layout::Redisson => {
                (capabilities.order, capabilities.one_rule, capabilities.listing) = (false, false, false);
                (capabilities.waiters, capabilities.notify) = (WaiterView::Hidden, Notify::Push);
            }
        }
        let Config { address, database, prefix, .. } = &self.link.config;
        Info::new(SCHEME, format!("{address}/{database}?prefix={prefix}"), capabilities)
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        self.check(&claim.resource, Some(claim)).map_err(|error| about("attempt", &claim.resource, error))?;
        let waits = claim.wait && self.link.config.layout == Layout::Native;
        if !waits {
            return self.ask(claim, 0).await;
        }
        if let Some(grant) = self.link.hub().handed(claim.id).and_then(|handed| handed.grant(self.clock().now())) {
            self.link.hub().forget(claim.id);
            return Ok(Attempt::Granted(grant));
        }
        // Before it is sent, so that nothing is missed between the answer and the watch.
        let expected = self.link.expect(claim).await;
        let mut answer =
            self.ask(claim, turn::sent(self.clock(), claim, expected.is_some(), self.link.confirms())).await;
        match &mut answer {
            Ok(Attempt::Pending(pending)) => {
                pending.watched = expected.is_some() && self.link.expect(claim).await == expected;
            }
            Ok(Attempt::Granted(_)) => self.link.hub().forget(claim.id),
            // What had no effect is not released later.
            Err(error) if error.applied() == Applied::No => self.link.hub().forget(claim.id),
            Err(_) => {}
        }
        answer
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        let calls = batch.iter().map(|renewal| self.renewal(renewal)).collect();
        let lease = |Renewal { claim, held, .. }: &Renewal| if *held { claim.ttl } else { claim.place_ttl() };
        let (shortest, longest) = (batch.iter().map(lease).min(), batch.iter().map(lease).max());
        let (shortest, longest) = (shortest.unwrap_or_default(), longest.unwrap_or_default());
        // By the longest: a wait ends as soon as enough replicas have all of it, so that only those in vain are longer.
        let patience = self.link.confirms().then(|| patience(longest));
        // What takes longer is asked again by itself, and then waited for.
        let rest = (shortest / 4).min(Duration::from_secs(2));
        let answers = self.link.run_apart(calls, patience, rest).await;
        self.link.attend_all(batch.iter().map(|renewal| &renewal.claim.resource));
        let read = |(answer, renewal): (Result<Value>, &Renewal)| {
            answer.and_then(answer::renewed).map_err(|error| about("renew", &renewal.claim.resource, error))
        };
        answers.into_iter().zip(batch).map(read).collect()
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        self.link.hub().forget(id);
        self.end(resource, id, end).await.map_err(|error| about("release", resource, error))
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        if self.link.config.layout == Layout::Redisson {
            return self.watch_theirs(interest).await.map_err(|error| error.during("watch"));
        }
        let plain = self.link.config.layout == Layout::Plain;
        let (topic, place) = match interest {
            Interest::Turn(claim, _) if plain => {
                let place = self.link.place(&claim.resource);
                (Topic::Freed(place.side.clone()), Some(place))
            }
            Interest::Turn(claim, _) => (Topic::Turn(claim.id), Some(self.link.place(&claim.resource))),
            Interest::Mailbox if plain && self.link.is_cluster() => return Ok(Watch::never()),
            Interest::Mailbox => (Topic::Mailbox, None),
            Interest::Resource(name) => {
                let place = self.link.place(name);
                let channel = if plain { &place.side } else { &place.key };
                (Topic::Channel(channel.clone()), Some(place))
            }
            _ => return Err(Error::new(ErrorKind::Unsupported, "nothing to watch").on(SCHEME).during("watch")),
        };
        self.link.listen(topic, place.as_ref()).await.map_err(|error| error.during("watch"))
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let page = async {
            match &query.select {
                Select::Name(name) => {
                    self.check(name, None)?;
                    let shown: Result<_> = self.show(std::slice::from_ref(name)).await?.into_iter().collect();
                    Ok(Page::cut(shown?, query))
                }
                Select::Live if self.link.config.layout != Layout::Native && !query.scan => {
                    let message = "locks of other programs have no index; a scan finds them";
                    Err(Error::new(ErrorKind::Unsupported, message).on(SCHEME))
                }
                Select::Live => self.live(query).await,
            }
        };
        page.await.map_err(|error: Error| error.during("inspect"))
    }

    async fn close(&self) -> Result<()> {
        self.link.close();
        Ok(())
    }
}

/// How long replicas may take to confirm what keeps a claim of this lease: a part of it, so that there is time to try again.
fn patience(ttl: Duration) -> Duration {
    (ttl / 4).min(Duration::from_secs(1))
}

impl Redis {
    fn clock(&self) -> &dyn Clock {
        &*self.link.config.clock
    }

    /// Refuses what the layout has no place for.
    fn check(&self, name: &ResourceName, claim: Option<&Claim>) -> Result<()> {
        match self.link.config.layout {
            Layout::Native => return Ok(()),
            Layout::Plain => return claim.map_or(Ok(()), plain::check_claim),
            Layout::Redisson => {}
        }
        if self.link.is_cluster() {
            redisson::check_slots(&self.link.place(name))?;
        }
        claim.map_or(Ok(()), redisson::check_claim)
    }

    /// A watch on the channels that programs of Redisson use.
    async fn watch_theirs(&self, interest: &Interest) -> Result<Watch> {
        let (place, channels) = match interest {
            Interest::Turn(claim, _) => {
                let place = self.link.place(&claim.resource);
                let channel = redisson::channel(claim.kind, &place.key);
                (place, vec![channel])
            }
            Interest::Resource(name) => {
                let place = self.link.place(name);
                let channels = redisson::channels(&place);
                (place, channels)
            }
            // Mailboxes are not in the slots of locks: there holders learn from their next renewal what became of them.
            Interest::Mailbox if self.link.is_cluster() => return Ok(Watch::never()),
            Interest::Mailbox => return self.link.listen(Topic::Mailbox, None).await,
            _ => return Err(Error::new(ErrorKind::Unsupported, "nothing to watch").on(SCHEME)),
        };
        let mut watches = Vec::new();
        for channel in channels {
            let watch = self.link.listen(Topic::Channel(channel), Some(&place)).await?;
            watches
                .push(Box::pin(unfold(watch, |mut watch| async { watch.changed().await.map(|hint| (hint, watch)) })));
        }
        Ok(Watch::new(select_all(watches)))
    }

    /// Asks the store for a place. `sent` says when, for a claim whose turn will be heard of.
    async fn ask(&self, claim: &Claim, sent: i64) -> Result<Attempt> {
        let answer = if self.link.confirms() {
            Box::pin(self.attempt_confirmed(claim, sent)).await
        } else if self.link.is_cluster() {
            let attend = Box::pin(self.link.attend(&claim.resource));
            join(self.link.run_one(self.attempt_call(claim, sent)), attend).await.0
        } else {
            self.link.run_one(self.attempt_call(claim, sent)).await
        };
        answer
            .and_then(|answer| answer::attempt(claim, answer))
            .map_err(|error| about("attempt", &claim.resource, error))
    }

    fn attempt_call(&self, claim: &Claim, sent: i64) -> Call {
        if self.link.config.layout == Layout::Plain {
            return self.plain_attempt(claim);
        }
        let (said, limit) = match claim.capacity {
            Capacity::Any => ("any", 1),
            Capacity::Fixed(limit) => ("fixed", units(limit)),
            Capacity::Adopt(limit) => ("adopt", units(limit)),
        };
        let label = self.label(&claim.label);
        let mut call = self.link.call(&self.scripts.attempt, &claim.resource);
        let command = &mut call.command;
        command.arg(claim.id.to_string()).arg(&self.link.session).arg(claim.kind.as_str()).arg(weight(claim.weight));
        command.arg(u8::from(claim.wait)).arg(claim.behind);
        command.arg(micros(claim.ttl)).arg(micros(claim.place_ttl())).arg(said).arg(limit).arg(&*label);
        command.arg(optional(claim.value.as_deref().map(str::as_bytes)));
        match claim.least_fence {
            Some(fence) => command.arg(fence.get()),
            None => command.arg(""),
        };
        command.arg(sent);
        call
    }

    pub(crate) fn label(&self, label: &Arc<Label>) -> Arc<str> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, text)) = written.as_ref().filter(|(known, _)| Arc::ptr_eq(known, label)) {
            return text.clone();
        }
        let text: Arc<str> = serde_json::to_string(&**label).unwrap_or_default().into();
        *written = Some((label.clone(), text.clone()));
        text
    }

    /// An attempt that counts only if replicas have it. What may have been granted without them is not withdrawn here: it
    /// may be a hold that was confirmed long ago and asks for less. The engine asks again, or lets go of it.
    async fn attempt_confirmed(&self, claim: &Claim, sent: i64) -> Result<Value> {
        let answers = self.link.run_confirmed(vec![self.attempt_call(claim, sent)], patience(claim.ttl));
        let (mut answers, ()) = join(answers, self.link.attend(&claim.resource)).await;
        answers.pop().unwrap_or_else(|| Err(unexpected()))
    }

    async fn end(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        self.check(resource, None)?;
        if self.link.config.layout == Layout::Plain {
            return self.link.run_one(self.plain_release(resource, id, end)?).await.and_then(answer::released);
        }
        let mut call = self.link.call(&self.scripts.release, resource);
        let command = call.command.arg(id.to_string());
        match end {
            End::Done { memo } => command.arg("done").arg(optional(memo.as_deref())),
            End::Withdrawn => command.arg("withdrawn"),
            End::Broken { ending, grace } => command.arg("broken").arg(&ending.by).arg(&ending.why).arg(micros(*grace)),
            _ => return Err(Error::new(ErrorKind::Unsupported, "this end is not known here").on(SCHEME)),
        };
        self.link.run_one(call).await.and_then(answer::released)
    }

    fn renewal(&self, Renewal { claim, fences, memo, held, .. }: &Renewal) -> Call {
        let (how, number) = match fences {
            Fences::Keep => ("keep", 0),
            Fences::AtLeast(fence) => ("least", fence.get()),
            Fences::Reserve(count) => ("reserve", u64::from(*count)),
        };
        let mut call = self.link.call(&self.scripts.renew, &claim.resource);
        let command = &mut call.command;
        command.arg(claim.id.to_string()).arg(claim.behind).arg(micros(claim.ttl)).arg(micros(claim.place_ttl()));
        command
            .arg(how)
            .arg(number)
            .arg(optional(claim.value.as_deref().map(str::as_bytes)))
            .arg(optional(memo.as_deref()))
            .arg(u8::from(*held))
            .arg(turn::sent(self.clock(), claim, !held && self.link.hub().expects(claim.id), self.link.confirms()));
        call
    }
}

fn about(verb: &'static str, resource: &ResourceName, error: Error) -> Error {
    error.during(verb).about(resource)
}

fn left_of(key: &str) -> Cmd {
    let mut command = redis::cmd("PTTL");
    command.arg(key);
    command
}

fn members(index: &str) -> Cmd {
    let mut command = redis::cmd("ZRANGE");
    command.arg(index).arg(0).arg(-1);
    command
}

/// What is there or not, for a script.
fn optional(bytes: Option<&[u8]>) -> Vec<u8> {
    bytes.map_or_else(Vec::new, |bytes| [b"=", bytes].concat())
}

pub(crate) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// A weight, for a script: 0 is everything.
fn weight(weight: Weight) -> u32 {
    match weight {
        Weight::All => 0,
        Weight::Units(units) => units.get(),
    }
}

/// A capacity, for a script: 0 is no limit.
fn units(limit: Limit) -> u32 {
    match limit {
        Limit::Unlimited => 0,
        Limit::Units(units) => units.get(),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use oarlock_core::driver::DynDriver as _;

    use super::*;
    use crate::config::Address;

    /// Word is kept for those who wait, and for nobody else.
    #[tokio::test]
    async fn nothing_is_kept_of_claims_that_were_refused_or_granted() {
        let Some(server) = oarlock_testbed::Redis::start_or_skip().unwrap() else { return };
        let addr = server.addr();
        let store = Redis::open(Config::new(Address::Tcp(addr.ip().to_string(), addr.port()))).await.unwrap();
        let _mailbox = Driver::watch(&store, &Interest::Mailbox).await.unwrap();
        let name = ResourceName::new("deploy").unwrap();
        let claim = |id: u128, capacity: u32| {
            let mut claim = Claim::new(ClaimId::from_bits(id), name.clone());
            (claim.wait, claim.weight) = (true, Weight::Units(NonZeroU32::MIN));
            claim.capacity = Capacity::Fixed(Limit::Units(NonZeroU32::new(capacity).unwrap()));
            claim
        };
        let store = Arc::new(store);
        store.clone().attempt(Arc::new(claim(1, 1))).await.unwrap();
        for id in 10..20 {
            store.clone().attempt(Arc::new(claim(id, 2))).await.unwrap_err();
        }
        assert_eq!(store.link.hub().expected(), 0, "the first was granted, the others refused");
        let mut mailbox = Driver::watch(&*store, &Interest::Mailbox).await.unwrap();
        store.clone().attempt(Arc::new(claim(2, 1))).await.unwrap();
        assert_eq!(store.link.hub().expected(), 1, "it waits");
        store.clone().release(name.clone(), ClaimId::from_bits(1), End::Done { memo: None }).await.unwrap();
        mailbox.changed().await.unwrap();
        assert!(matches!(store.clone().attempt(Arc::new(claim(2, 1))).await.unwrap(), Attempt::Granted(_)));
        assert_eq!(store.link.hub().expected(), 0, "it was handed its turn");
    }
}
