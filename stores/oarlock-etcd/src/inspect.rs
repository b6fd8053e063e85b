//! Inspection: the state of names, for people and tools.

use std::collections::BTreeMap;
use std::time::Duration;

use oarlock_core::clock::wall_micros;
use oarlock_core::state::{HolderState, Page, Query, ResourceState, Select, WaiterState, Waiters};
use oarlock_core::{Error, ErrorKind, Fence, ResourceName, Result};
use tokio::task::JoinSet;

use crate::Etcd;
use crate::api::{KeyValue, Range};
use crate::config::Layout;
use crate::error::SCHEME;
use crate::queue::Listing;

pub(crate) async fn page(store: &Etcd, query: &Query) -> Result<Page> {
    let listings = match &query.select {
        Select::Name(name) => {
            let (revision, kvs) = snapshot(store, &store.keys(name).watched()).await?;
            vec![(name.clone(), Some(Listing::read(&store.keys(name), revision, kvs)?))]
        }
        Select::Live => all(store).await?,
    };
    let mut resources = Vec::with_capacity(listings.len());
    for (name, listing) in listings {
        let live = listing.as_ref().is_none_or(|listing: &Listing| !listing.claims.is_empty());
        if matches!(query.select, Select::Name(_)) || live {
            resources.push((name, listing));
        }
    }
    // Cut to the page before the leases are read: that is a request for each holder.
    let shown = |(name, listing): &(ResourceName, Option<Listing>)| match listing {
        Some(listing) => state(name, listing),
        None => unreadable(name),
    };
    let states = resources.iter().map(shown).collect();
    let mut page = Page::cut(states, query);
    let mut lives = JoinSet::new();
    for (at, shown) in page.resources.iter().enumerate() {
        let found = resources.iter().find(|(name, _)| *name == shown.name);
        let Some((_, Some(listing))) = found else { continue };
        for holder in &shown.holders {
            let Some(stored) = listing.position(holder.id).map(|at| &listing.claims[at]) else { continue };
            let (connection, id, lease) = (store.connection.clone(), holder.id, stored.lease);
            lives.spawn(async move { connection.left(lease).await.map(|left| (at, id, left)) });
        }
    }
    while let Some(Ok(life)) = lives.join_next().await {
        let (at, id, left) = life?;
        if let Some(holder) = page.resources[at].holders.iter_mut().find(|holder| holder.id == id) {
            holder.lease_left = left;
        }
    }
    Ok(page)
}

/// Reads these ranges at one revision, and says at which.
async fn snapshot(store: &Etcd, ranges: &[Range]) -> Result<(i64, Vec<KeyValue>)> {
    let (mut revision, mut all) = (0, Vec::new());
    for range in ranges {
        let (read, kvs) = store.connection.read_at(range, revision).await?;
        revision = read;
        all.extend(kvs);
    }
    Ok((revision, all))
}

/// Every name that has a key, with its listing if it can be read.
async fn all(store: &Etcd) -> Result<Vec<(ResourceName, Option<Listing>)>> {
    let ranges = match store.space.layout {
        Layout::Native => vec![store.space.records()],
        Layout::Go => {
            let message = "layout=go without a prefix cannot list names: set prefix=";
            let unsupported = || Error::new(ErrorKind::Unsupported, message).on(SCHEME);
            vec![store.space.records(), store.space.shared().ok_or_else(unsupported)?]
        }
    };
    let (revision, kvs) = snapshot(store, &ranges).await?;
    let mut names: BTreeMap<ResourceName, Vec<KeyValue>> = BTreeMap::new();
    for kv in kvs {
        if let Some(name) = store.space.name(&kv.key) {
            names.entry(name).or_default().push(kv);
        }
    }
    let read = |(name, kvs)| {
        let listing = match Listing::read(&store.keys(&name), revision, kvs) {
            // One such record must not hide all other names.
            Err(error) if matches!(error.kind(), ErrorKind::Foreign | ErrorKind::NewerFormat) => None,
            listing => Some(listing?),
        };
        Ok((name, listing))
    };
    names.into_iter().map(read).collect()
}

/// A name whose records cannot be read: all that is known is that it exists.
fn unreadable(name: &ResourceName) -> ResourceState {
    let mut state = ResourceState::free(name.clone());
    state.waiters = Waiters::Hidden;
    state
}

fn state(name: &ResourceName, listing: &Listing) -> ResourceState {
    let now = wall_micros();
    let mut state = ResourceState::free(name.clone());
    let mut waiters = Vec::new();
    for stored in &listing.claims {
        let record = &stored.record;
        let so_far = Duration::from_micros(now.saturating_sub(record.since_micros));
        if record.granted {
            let mut holder = HolderState::new(stored.id, record.kind, record.weight);
            holder.fence = stored.fence().map(Fence::new);
            holder.label = record.label.clone();
            holder.held_for = so_far;
            holder.value.clone_from(&record.value);
            holder.ending.clone_from(&record.ending);
            state.holders.push(holder);
        } else {
            let mut waiter = WaiterState::new(stored.id, record.kind, record.weight);
            (waiter.label, waiter.waited, waiter.behind) = (record.label.clone(), so_far, record.behind);
            waiters.push(waiter);
        }
    }
    state.holders.sort_by_key(|holder| holder.fence);
    state.capacity = listing.stated(listing.claims.len());
    state.waiters = Waiters::Listed(waiters);
    state.memo.clone_from(&listing.memo);
    state
}
