//! The seven verbs.

use std::sync::LazyLock;
use std::time::Duration;

use oarlock_core::capabilities::{Capabilities, Consistency, Fencing, Liveness, Notify};
use oarlock_core::driver::{Attempt, Driver, End, Fences, Info, Interest, Release, Renewal, Renewed, Watch};
use oarlock_core::state::{Page, Query, ResourceState, Select};
use oarlock_core::{Capacity, Claim, ClaimId, Error, ErrorKind, Limit, ResourceName, Result, Weight};
use redis::{Cmd, Script};

use crate::answer;
use crate::config::Config;
use crate::error::{SCHEME, unexpected};
use crate::link::Link;
use crate::place::{self, Place};
use crate::watch::Topic;

macro_rules! script {
    ($file:literal) => {
        LazyLock::new(|| {
            Script::new(concat!(include_str!("scripts/rule.lua"), include_str!(concat!("scripts/", $file, ".lua"))))
        })
    };
}

static ATTEMPT: LazyLock<Script> = script!("attempt");
static RENEW: LazyLock<Script> = script!("renew");
static RELEASE: LazyLock<Script> = script!("release");
static INSPECT: LazyLock<Script> = script!("inspect");

/// A Redis or Valkey server. See the [crate](crate) for what it promises.
#[derive(Debug)]
pub struct Redis {
    link: Link,
}

impl Redis {
    /// Connects.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] if the server does not answer, [`ErrorKind::Denied`] if it refuses the user,
    /// [`ErrorKind::Config`] if it is too old.
    pub async fn open(config: Config) -> Result<Self> {
        let link = Link::open(config).await.map_err(|error| error.during("open"))?;
        Ok(Self { link })
    }

    /// The resources of these names, without those that cannot be read.
    async fn show(&self, names: &[ResourceName]) -> Result<Vec<Result<ResourceState>>> {
        let calls = names.iter().map(|name| self.link.call(&INSPECT, name)).collect();
        let answers = self.link.run(&INSPECT, calls).await.into_iter().zip(names);
        answers.map(|(answer, name)| Ok(answer::shown(name.clone(), answer?))).collect()
    }

    /// Every name in the indexes, in order.
    async fn names(&self) -> Result<Vec<ResourceName>> {
        let indexes: Vec<_> = (0..=place::TAGS).map(|tag| place::index(&self.link.config.prefix, tag)).collect();
        let range = |index: &String| {
            let mut command = redis::cmd("ZRANGE");
            command.arg(index).arg(0).arg(-1);
            command
        };
        let listed = self.link.ask(indexes.iter().map(range).collect()).await?;
        let mut names = Vec::new();
        for (index, keys) in indexes.iter().zip(listed) {
            let keys: Vec<Vec<u8>> = redis::from_redis_value(keys).map_err(|error| unexpected().because(error))?;
            let keys = keys.into_iter().filter_map(|key| String::from_utf8(key).ok());
            names.extend(keys.filter_map(|key| place::name(index, &key)));
        }
        names.sort_unstable();
        Ok(names)
    }

    /// A page of the live resources.
    async fn live(&self, query: &Query) -> Result<Page> {
        let names = self.names().await?;
        let start = query.after.as_ref().map_or(0, |after| names.partition_point(|name| name <= after));
        let mut resources = Vec::new();
        for names in names[start..].chunks(query.limit.saturating_add(1).max(1)) {
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
        capabilities.notify = Notify::Push;
        capabilities.consistency = Consistency::Single;
        Info::new(SCHEME, self.link.config.address.to_string(), capabilities)
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        let (said, limit) = match claim.capacity {
            Capacity::Any => ("any", 1),
            Capacity::Fixed(limit) => ("fixed", units(limit)),
            Capacity::Adopt(limit) => ("adopt", units(limit)),
        };
        let label = serde_json::to_string(&*claim.label).unwrap_or_default();
        let mut call = self.link.call(&ATTEMPT, &claim.resource);
        call.arg(claim.id.to_string()).arg(&self.link.session).arg(claim.kind.as_str()).arg(weight(claim.weight));
        call.arg(u8::from(claim.fair)).arg(u8::from(claim.wait)).arg(claim.behind);
        call.arg(micros(claim.ttl)).arg(micros(claim.place_ttl())).arg(said).arg(limit).arg(label);
        call.arg(optional(claim.value.as_deref().map(str::as_bytes)));
        let answer = self.link.run_one(&ATTEMPT, call).await;
        answer
            .and_then(|answer| answer::attempt(claim, answer))
            .map_err(|error| about("attempt", &claim.resource, error))
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        let calls = batch.iter().map(|renewal| self.renewal(renewal)).collect();
        let answers = self.link.run(&RENEW, calls).await.into_iter().zip(batch);
        let read = |(answer, renewal): (Result<redis::Value>, &Renewal)| {
            answer.and_then(answer::renewed).map_err(|error| about("renew", &renewal.claim.resource, error))
        };
        answers.map(read).collect()
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        let mut call = self.link.call(&RELEASE, resource);
        call.arg(id.to_string());
        match end {
            End::Done { memo } => call.arg("done").arg(optional(memo.as_deref())),
            End::Withdrawn => call.arg("withdrawn"),
            End::Broken { ending, grace } => call.arg("broken").arg(&ending.by).arg(&ending.why).arg(micros(*grace)),
            _ => {
                let error = Error::new(ErrorKind::Unsupported, "this end is not known here").on(SCHEME);
                return Err(about("release", resource, error));
            }
        };
        let answer = self.link.run_one(&RELEASE, call).await;
        answer.and_then(answer::released).map_err(|error| about("release", resource, error))
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        let topic = match interest {
            Interest::Turn(claim, _) => Topic::Turn(claim.id),
            Interest::Mailbox => Topic::Mailbox,
            Interest::Resource(name) => Topic::Channel(Place::of(&self.link.config.prefix, name).key),
            _ => return Err(Error::new(ErrorKind::Unsupported, "nothing to watch").on(SCHEME).during("watch")),
        };
        self.link.listen(topic).await.map_err(|error| error.during("watch"))
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let page = async {
            match &query.select {
                Select::Name(name) => {
                    let shown: Result<_> = self.show(std::slice::from_ref(name)).await?.into_iter().collect();
                    Ok(Page::cut(shown?, query))
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

impl Redis {
    fn renewal(&self, Renewal { claim, fences, memo, .. }: &Renewal) -> Cmd {
        let (how, number) = match fences {
            Fences::Keep => ("keep", 0),
            Fences::AtLeast(fence) => ("least", fence.get()),
            Fences::Reserve(count) => ("reserve", u64::from(*count)),
        };
        let mut call = self.link.call(&RENEW, &claim.resource);
        call.arg(claim.id.to_string()).arg(claim.behind).arg(micros(claim.ttl)).arg(micros(claim.place_ttl()));
        call.arg(how)
            .arg(number)
            .arg(optional(claim.value.as_deref().map(str::as_bytes)))
            .arg(optional(memo.as_deref()));
        call
    }
}

fn about(verb: &'static str, resource: &ResourceName, error: Error) -> Error {
    error.during(verb).about(resource)
}

/// What is there or not, for a script.
fn optional(bytes: Option<&[u8]>) -> Vec<u8> {
    bytes.map_or_else(Vec::new, |bytes| [b"=", bytes].concat())
}

fn micros(span: Duration) -> u64 {
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
