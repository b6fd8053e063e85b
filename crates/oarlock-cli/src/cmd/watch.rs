//! `oarlock watch`: what happens to the locks of a store, one event a line.

use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash as _, Hasher as _};
use std::time::{Duration, Instant};

use oarlock::error::Retry;
use oarlock::state::{ClaimId, ResourceName, ResourceState, Waiters};
use oarlock::{Error, ErrorKind, Locks};
use oarlock_core::{pattern, text};
use serde_json::{Map, Value, json};

use crate::args::{StoreArgs, span};
use crate::cmd::Examples;
use crate::cmd::ls::{EVERY_KEY, in_use, without_index};
use crate::exit::{Exit, Failure};
use crate::output::{self, Format, millis};
use crate::pace::next_poll;
use crate::signals::{FORWARDED, Signals};
use crate::store::{Store, block_on};

/// The shortest and the longest time between two polls of the store.
const INTERVALS: std::ops::RangeInclusive<Duration> = Duration::from_millis(50)..=Duration::from_secs(3600);

/// Print what happens to locks as events, one JSON object a line
#[derive(Debug, clap::Args)]
#[command(after_help = "Events: present (held or waiting at the start, or after a gap), granted, released, waiting, \
left, ending, gap, resumed. The store is polled every --interval, and for a single name also when it says that \
something changed, but for at most a quarter of the time: what begins and ends between two polls is not seen. A gap says from when to when nothing was seen.")]
pub(crate) struct WatchArgs {
    /// Only names that match, with * and ?; a name without them is followed also where the store lists no names
    pub(crate) pattern: Option<String>,
    /// How often to poll the store
    #[arg(short, long, value_name = "DUR", default_value = "1s", value_parser = span)]
    pub(crate) interval: Duration,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

pub(crate) const EXAMPLES: Examples = &[("oarlock watch 'deploy/*'", "Print what happens, an object a line.")];

pub(crate) fn main(args: &WatchArgs) -> Result<Exit, Failure> {
    if !INTERVALS.contains(&args.interval) {
        return Err(Failure::usage("--interval is between 50 ms and 1 h"));
    }
    let store = Store::new(&args.store)?;
    let one = args.pattern.as_deref().filter(|pattern| !pattern.contains(['*', '?']));
    let one = one.map(ResourceName::new).transpose()?;
    block_on(async {
        let mut signals = Signals::new(FORWARDED.iter().copied())?;
        let locks = tokio::select! {
            biased;
            signal = signals.stop() => return Ok(Exit::signal(signal.as_raw())),
            locks = store.connect() => locks?,
        };
        let mut follower = Follower { store: &store, locks: &locks, args, one: one.as_ref(), seen: Seen::default() };
        tokio::select! {
            biased;
            signal = signals.stop() => Ok(Exit::signal(signal.as_raw())),
            ended = follower.follow() => ended.map(|never| match never {}),
        }
    })
}

struct Follower<'a> {
    store: &'a Store,
    locks: &'a Locks,
    args: &'a WatchArgs,
    /// The only name, if the pattern is one.
    one: Option<&'a ResourceName>,
    seen: Seen,
}

impl Follower<'_> {
    /// Prints events until printing fails, or the store refuses for good.
    async fn follow(&mut self) -> Result<std::convert::Infallible, Failure> {
        let (mut last_poll, mut gap) = (now(), None::<String>);
        let (mut change, mut has_polled) = (None, false);
        loop {
            // Armed before polling, so that no change slips through between the two. Where the store sends no
            // notifications, the interval has to do.
            if let (Some(name), None) = (self.one, &change) {
                change = self.locks.watch(name).await.ok();
            }
            let begun = Instant::now();
            let polled = self.poll().await;
            // A store that did not answer in time was not at work for so long.
            let ended = if polled.is_ok() { Instant::now() } else { begun };
            match polled {
                Ok(states) => {
                    let is_first = !std::mem::replace(&mut has_polled, true);
                    if is_first && self.one.is_none() && !self.locks.info().capabilities.listing {
                        self.store.messages.note(EVERY_KEY);
                    }
                    let at = now();
                    if let Some(since) = gap.take() {
                        self.print(&at, None, "resumed", &json!({ "since": since }))?;
                    }
                    for event in self.seen.changes(&states) {
                        self.print(&at, Some(&event.name), event.what, &event.more)?;
                    }
                    last_poll = at;
                }
                // A store that could list and is slow for once leaves a gap.
                Err(error)
                    if error.retry() == Retry::Never && !(has_polled && error.kind() == ErrorKind::Unsupported) =>
                {
                    return Err(without_index(error, "watch"));
                }
                Err(error) => {
                    if gap.is_none() {
                        let more = json!({ "since": last_poll, "error": error.to_string() });
                        self.print(&now(), None, "gap", &more)?;
                        gap = Some(last_poll.clone());
                        // What is there afterwards is told anew: what happened in between is unknown.
                        self.seen = Seen::default();
                    }
                    change = None;
                }
            }
            let hint = async {
                match &mut change {
                    Some(watch) => watch.changed().await.is_some(),
                    None => std::future::pending().await,
                }
            };
            let next = next_poll(begun, ended, self.args.interval);
            if let Ok(false) = tokio::time::timeout_at(next.into(), hint).await {
                change = None;
                tokio::time::sleep(*INTERVALS.start()).await;
            }
            // A lock that changes all the time is not polled all the time.
            tokio::time::sleep_until(next_poll(begun, ended, Duration::ZERO).into()).await;
        }
    }

    async fn poll(&self) -> Result<Vec<ResourceState>, Error> {
        if let Some(name) = self.one {
            return Ok(vec![self.locks.inspect(name).await?]);
        }
        let mut states = in_use(self.locks).await?;
        if let Some(pattern) = &self.args.pattern {
            states.retain(|state| pattern::matches(pattern, state.name.as_str()));
        }
        Ok(states)
    }

    fn print(&self, at: &str, name: Option<&ResourceName>, what: &str, more: &Value) -> Result<(), Failure> {
        match self.store.messages.format {
            Format::Name => output::print_line(&name.map(|name| text::plain(name.as_str())).unwrap_or_default()),
            // The form of a line is promised to programs, whatever the format.
            Format::Table | Format::Json | Format::Jsonl => {
                let mut line = Map::from_iter([("at".to_owned(), json!(at)), ("event".to_owned(), json!(what))]);
                if let Some(name) = name {
                    line.insert("name".to_owned(), json!(name));
                }
                line.extend(more.as_object().cloned().unwrap_or_default());
                output::print_line(&Value::Object(line).to_string())
            }
        }
    }
}

fn now() -> String {
    format!("{:.3}", jiff::Timestamp::now())
}

/// The state at the last poll.
#[derive(Default)]
struct Seen {
    begun: bool,
    claims: BTreeMap<ResourceName, HashMap<ClaimId, Claim>>,
}

/// A claim at the last poll.
struct Claim {
    holds: bool,
    ending: bool,
    shown: Value,
}

struct Event {
    name: ResourceName,
    what: &'static str,
    more: Value,
}

impl Seen {
    /// What changed since the last poll, in an order that makes sense: ends before grants.
    fn changes(&mut self, states: &[ResourceState]) -> Vec<Event> {
        let first = !std::mem::replace(&mut self.begun, true);
        let now: BTreeMap<_, _> = states.iter().map(|state| (state.name.clone(), claims(state))).collect();
        let mut events = Vec::new();
        for (name, before) in &self.claims {
            for (id, claim) in before {
                if now.get(name).is_none_or(|claims| !claims.contains_key(id)) {
                    let what = if claim.holds { "released" } else { "left" };
                    events.push(Event { name: name.clone(), what, more: claim.shown.clone() });
                }
            }
        }
        for (name, claims) in &now {
            let before = self.claims.get(name);
            for (id, claim) in claims {
                let earlier = before.and_then(|claims| claims.get(id));
                let what = match (earlier, claim.holds) {
                    (None, _) if first => Some("present"),
                    (None, true) => Some("granted"),
                    (None, false) => Some("waiting"),
                    (Some(earlier), true) if !earlier.holds || earlier.shown["fence"] != claim.shown["fence"] => {
                        Some("granted")
                    }
                    _ => None,
                };
                let asked = claim.ending && earlier.is_none_or(|earlier| !earlier.ending);
                for what in what.into_iter().chain(asked.then_some("ending")) {
                    events.push(Event { name: name.clone(), what, more: claim.shown.clone() });
                }
            }
        }
        self.claims = now;
        self.claims.retain(|_, claims| !claims.is_empty());
        events
    }
}

/// The same for every event of one claim. Not its id: events are made to be logged, and a ticket has the id in it.
fn mark(id: ClaimId) -> String {
    let mut hasher = std::hash::DefaultHasher::new();
    id.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

fn claims(state: &ResourceState) -> HashMap<ClaimId, Claim> {
    let waiting = state.waiters.count();
    let holders = state.holders.iter().map(|holder| {
        let shown = json!({
            "role": "holder",
            "claim": mark(holder.id),
            "kind": holder.kind,
            "fence": holder.fence,
            "label": *holder.label,
            "held_ms": millis(holder.held_for),
            "value": holder.value.as_deref(),
            "ending": holder.ending,
            "waiting": waiting,
        });
        (holder.id, Claim { holds: true, ending: holder.ending.is_some(), shown })
    });
    let listed = if let Waiters::Listed(waiters) = &state.waiters { &waiters[..] } else { &[] };
    let waiters = listed.iter().map(|waiter| {
        let shown = json!({
            "role": "waiter",
            "claim": mark(waiter.id),
            "kind": waiter.kind,
            "label": *waiter.label,
            "waited_ms": millis(waiter.waited),
            "waiting": waiting,
        });
        (waiter.id, Claim { holds: false, ending: false, shown })
    });
    holders.chain(waiters).collect()
}
