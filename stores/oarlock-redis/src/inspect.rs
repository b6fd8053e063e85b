//! `inspect`: one script that reads a resource; listings from the index, or from a scan.

use std::num::NonZeroU32;
use std::sync::Arc;

use oarlock_core::state::{HolderState, Page, Query, ResourceState, Select, WaiterState, Waiters};
use oarlock_core::{Error, ErrorKind, Kind, Label, Limit, ResourceName, Result, Weight};
use redis::{Cmd, Value};
use serde::Deserialize as _;
use serde::de::value::{Error as Unknown, StrDeserializer};

use crate::Redis;
use crate::config::{Config, Layout};
use crate::dispatch::ScriptCall;
use crate::error::{SCHEME, unexpected};
use crate::keys;
use crate::scripts::Reply;

/// How many resources, and how many indexes, one pipeline reads at most. A server closes a connection with
/// subscriptions when too many replies are queued for it (`client-output-buffer-limit pubsub`).
const RESOURCES_AT_ONCE: usize = 250;
const INDEXES_AT_ONCE: usize = 16;

impl Redis {
    pub(crate) async fn show(&self, query: &Query) -> Result<Page> {
        match &query.select {
            Select::Name(name) => {
                self.check(name, None)?;
                let shown: Result<_> = self.read_all(std::slice::from_ref(name)).await?.into_iter().collect();
                Ok(Page::cut(shown?, query))
            }
            Select::Live if self.pool.config.layout != Layout::Native && !query.scan => {
                let message = "this layout has no index of its locks: ask for a scan";
                Err(Error::new(ErrorKind::Unsupported, message).on(SCHEME))
            }
            Select::Live => self.live(query).await,
        }
    }

    /// The resources of these names; an error for each that cannot be read.
    async fn read_all(&self, names: &[ResourceName]) -> Result<Vec<Result<ResourceState>>> {
        let calls = names.iter().map(|name| self.inspect_call(name)).collect();
        let replies = self.pool.run(calls).await.into_iter().zip(names);
        let layout = self.pool.config.layout;
        replies.map(|(reply, name)| Ok(read(layout, name.clone(), reply?))).collect()
    }

    fn inspect_call(&self, name: &ResourceName) -> ScriptCall {
        match self.pool.config.layout {
            Layout::Native => self.pool.native_call(&self.scripts.inspect, name).call,
            Layout::Plain | Layout::Redisson => self.pool.call(&self.scripts.inspect, name),
        }
    }

    /// Every name in the indexes, in order.
    async fn names(&self) -> Result<Vec<ResourceName>> {
        let indexes: Vec<_> = (0..=keys::TAGS).map(|tag| keys::index(&self.pool.config.prefix, tag)).collect();
        let (mut listed, mut names) = (Vec::with_capacity(indexes.len()), Vec::new());
        for some in indexes.chunks(INDEXES_AT_ONCE) {
            listed.extend(self.pool.query(some.iter().map(|index| (index.as_str(), members(index))).collect()).await?);
        }
        for (index, keys) in indexes.iter().zip(listed) {
            let keys: Vec<Vec<u8>> = redis::from_redis_value(keys).map_err(|error| unexpected().because(error))?;
            let keys = keys.into_iter().filter_map(|key| String::from_utf8(key).ok());
            names.extend(keys.filter_map(|key| keys::name(index, &key)));
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Every name whose key exists, in order. In the layouts of other programs a key that never expires is not a lock.
    async fn scanned(&self) -> Result<Vec<ResourceName>> {
        let Config { layout, prefix, .. } = &self.pool.config;
        let literal = keys::literal(prefix);
        let mut names: Vec<_> = match layout {
            Layout::Native => {
                let keys = self.pool.scan(&format!("{literal}{{[0-9a-f][0-9a-f]}}:*"), "hash").await?;
                let indexes: Vec<_> = (0..=keys::TAGS).map(|tag| keys::index(prefix, tag)).collect();
                let name = |key: &String| indexes.iter().find_map(|index| keys::name(index, key));
                keys.iter().filter_map(name).collect()
            }
            Layout::Plain | Layout::Redisson => {
                let kind = if *layout == Layout::Plain { "string" } else { "hash" };
                let keys = self.pool.scan(&format!("{literal}*"), kind).await?;
                let ttls = self.pool.query(keys.iter().map(|key| (key.as_str(), pttl(key))).collect()).await?;
                let expires = |ttl: &Value| matches!(ttl, Value::Int(ms) if *ms >= 0);
                let keys = keys.iter().zip(&ttls).filter(|(_, ttl)| expires(ttl));
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
        for names in names[start..].chunks(query.limit.saturating_add(1).clamp(1, RESOURCES_AT_ONCE)) {
            resources.extend(self.read_all(names).await?.into_iter().flatten().filter(|state| !state.is_free()));
            if resources.len() > query.limit {
                break;
            }
        }
        Ok(Page::cut(resources, query))
    }
}

fn pttl(key: &str) -> Cmd {
    let mut command = redis::cmd("PTTL");
    command.arg(key);
    command
}

fn members(index: &str) -> Cmd {
    let mut command = redis::cmd("ZRANGE");
    command.arg(index).arg(0).arg(-1);
    command
}

pub(crate) fn read(layout: Layout, name: ResourceName, reply: Value) -> Result<ResourceState> {
    let (outcome, mut reply) = Reply::of(reply)?;
    if outcome != "shown" {
        return Err(reply.refusal(&outcome));
    }
    let mut state = ResourceState::free(name);
    let capacity = reply.maybe_number()?.map(u32::try_from).transpose().map_err(|error| unexpected().because(error))?;
    state.capacity = capacity.map(|units| NonZeroU32::new(units).map_or(Limit::Unlimited, Limit::Units));
    state.last_fence = reply.fence()?.filter(|fence| fence.get() > 0);
    state.memo = reply.memo()?;
    let mut waiters = Vec::new();
    for entry in reply.rest() {
        match entry_of(layout, Reply::list(entry)?)? {
            Entry::Holder(holder) => state.holders.push(holder),
            Entry::Waiter(waiter) => waiters.push(waiter),
        }
    }
    state.holders.sort_by_key(|holder| std::cmp::Reverse(holder.held_for));
    state.waiters = match layout {
        Layout::Native => Waiters::Listed(waiters),
        Layout::Plain | Layout::Redisson => Waiters::Hidden,
    };
    Ok(state)
}

enum Entry {
    Holder(HolderState),
    Waiter(WaiterState),
}

fn entry_of(layout: Layout, mut reply: Reply) -> Result<Entry> {
    let id = reply.id()?;
    let kind = reply.text()?;
    let kind = Kind::deserialize(StrDeserializer::<Unknown>::new(&kind)).map_err(|e| unexpected().because(e))?;
    let weight = NonZeroU32::new(reply.small()?).map_or(Weight::All, Weight::Units);
    let (fence, age, left, behind) = (reply.fence()?, reply.span()?, reply.span()?, reply.small()?);
    // A label is for people: one that cannot be read must not hide the claim.
    let label: Option<Label> = reply.bytes()?.and_then(|label| serde_json::from_slice(&label).ok());
    let label = Arc::new(label.unwrap_or_default());
    if fence.is_none() && layout == Layout::Native {
        let mut waiter = WaiterState::new(id, kind, weight);
        (waiter.label, waiter.waited, waiter.behind) = (label, age, behind);
        return Ok(Entry::Waiter(waiter));
    }
    let mut holder = HolderState::new(id, kind, weight);
    (holder.fence, holder.label, holder.held_for, holder.lease_left) = (fence, label, age, left);
    holder.value = reply.maybe_text()?.map(Into::into);
    holder.ending = reply.ending()?;
    Ok(Entry::Holder(holder))
}
