//! Makes the state of resources of the rows that a server shows.

use std::cmp::Reverse;
use std::sync::Arc;

use oarlock_core::state::{HolderState, Page, Query, ResourceState, Select, WaiterState, Waiters};
use oarlock_core::{Kind, Label, ResourceName, Result};
use serde::Deserialize as _;
use serde::de::IntoDeserializer as _;
use serde::de::value::{Error as Unread, StrDeserializer};

use crate::row::{Row, integer, read, span, text, to_fence, to_id, to_limit, to_weight};

/// A page of resources. `rows` has one row per claim, or one without a claim, ordered by name; `prefix` stands before
/// each name, and `is_ended` says whether a session of this client has ended.
pub(crate) fn page<R: Row>(
    rows: impl IntoIterator<Item = R>,
    query: &Query,
    prefix: &str,
    is_ended: impl Fn(i64) -> bool,
) -> Result<Page> {
    let one = matches!(query.select, Select::Name(_));
    let mut resources: Vec<ResourceState> = Vec::new();
    for row in rows {
        let Some(name) = row.bytes("name")? else { continue };
        let name = name.get(prefix.len()..).unwrap_or_default();
        // A row that another program wrote must not hide the rest.
        let Ok(name) = ResourceName::new(String::from_utf8_lossy(name)) else { continue };
        if resources.last().is_none_or(|last| last.name != name) {
            let mut state = ResourceState::free(name);
            state.capacity = row.integer("capacity")?.map(to_limit);
            state.last_fence = Some(integer(&row, "last_fence")?).filter(|fence| *fence > 0).and_then(to_fence);
            state.memo = row.bytes("memo")?.map(Into::into);
            resources.push(state);
        }
        // Other clients may have seen the end of that session: its claims are lost, though their rows are still there.
        let is_lost = one && row.boolean("tethered")?.unwrap_or(false) && is_ended(integer(&row, "session")?);
        if let (Some(state), false) = (resources.last_mut(), is_lost) {
            add_claim(state, &row).or_else(|error| if one { Err(error) } else { Ok(()) })?;
        }
    }
    if let (Select::Name(name), true) = (&query.select, resources.is_empty()) {
        resources.push(ResourceState::free(name.clone()));
    }
    Ok(Page::cut(resources, query))
}

/// Adds the claim of a row to its resource, if there is one.
fn add_claim<R: Row>(state: &mut ResourceState, row: &R) -> Result<()> {
    let Some(id) = row.bytes("id")? else { return Ok(()) };
    let id = to_id(id).ok_or_else(|| R::STORE.unexpected("a claim id is not 16 bytes long"))?;
    let kind = text(row, "kind")?;
    let kind: StrDeserializer<'_, Unread> = kind.as_str().into_deserializer();
    let kind =
        Kind::deserialize(kind).map_err(|error| R::STORE.unexpected("an unknown kind of lock").because(error))?;
    let weight = to_weight(integer(row, "weight")?);
    let label: Arc<Label> = Arc::new(read(R::STORE, &text(row, "label")?)?);
    if let Some(fence) = row.integer("fence")? {
        let mut holder = HolderState::new(id, kind, weight);
        holder.fence = to_fence(fence);
        holder.label = label;
        holder.held_for = span(row, "age")?;
        holder.lease_left = span(row, "left_over")?;
        holder.value = row.bytes("value")?.map(|value| String::from_utf8_lossy(&value).into());
        holder.ending = row.text("ending")?.map(|ending| read(R::STORE, &ending)).transpose()?;
        state.holders.push(holder);
        state.holders.sort_by_key(|holder| Reverse(holder.held_for));
    } else if let Waiters::Listed(waiters) = &mut state.waiters {
        let mut waiter = WaiterState::new(id, kind, weight);
        waiter.label = label;
        waiter.waited = span(row, "age")?;
        waiter.behind = u32::try_from(integer(row, "behind")?).unwrap_or(u32::MAX);
        waiters.push(waiter);
    }
    Ok(())
}
