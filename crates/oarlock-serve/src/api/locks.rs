//! Locks for operators: list, show, break, history.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use oarlock::driver::MAX_TTL;
use oarlock::state::{Ending, HolderState, ResourceName};
use oarlock::{ErrorKind, Fence, Released};
use oarlock_core::{pattern, text};
use serde_json::{Value, json};

use super::to_its_end;
use crate::access::Right;
use crate::answer::{self, Answer};
use crate::board::Listing;
use crate::problem::Problem;
use crate::request::HTTP_CLIENT;
use crate::service::Call;
use crate::state::{State, millis, wall_millis};
use crate::view::Lock;

/// The most locks of one answer.
const MAX_PAGE: u64 = 10_000;

/// The longest grace of a break.
const MAX_GRACE: Duration = Duration::from_secs(3600);

/// The longest reason of a break, in bytes.
const MAX_REASON_BYTES: usize = 1024;

/// The locks in use, in order of names.
pub(super) async fn list(state: &Arc<State>, call: &Call) -> Result<Answer, Problem> {
    call.only(&["pattern", "after", "limit"])?;
    let limit = call.number("limit")?.unwrap_or(1000);
    if !(1..=MAX_PAGE).contains(&limit) {
        return Err(Problem::bad_request(format!("limit is between 1 and {MAX_PAGE}")));
    }
    let (wanted, after) = (call.parameter("pattern").unwrap_or("*"), call.parameter("after"));
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let is_shown = |name: &str| {
        after.is_none_or(|after| name > after) && pattern::matches(wanted, name) && call.client.may(Right::Read, name)
    };
    let sample = state.board.last();
    let (at_ms, locks, more) = match state.locks.list().await {
        // To read every key for each request would be too much: the last sample has them.
        Err(error) if error.kind() == ErrorKind::Unsupported && sample.listing == Listing::Scan => {
            let mut shown = sample.rows.values().map(|row| &row.lock).filter(|lock| is_shown(&lock.name));
            let locks: Vec<Value> = shown.by_ref().take(limit).map(Lock::json).collect();
            (sample.at_ms, locks, shown.next().is_some())
        }
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            let advice = Listing::Unsupported.advice().unwrap_or_default();
            return Err(Problem::new(StatusCode::NOT_IMPLEMENTED, "unsupported", advice));
        }
        listed => {
            let states = listed?;
            let mut shown = states.iter().filter(|state| is_shown(state.name.as_str()));
            let locks: Vec<Value> = shown.by_ref().take(limit).map(|state| Lock::from(state).json()).collect();
            (wall_millis(), locks, shown.next().is_some())
        }
    };
    Ok(answer::json(StatusCode::OK, &json!({ "at_ms": at_ms, "locks": locks, "more": more })))
}

/// Everything about one lock.
pub(super) async fn show(state: &Arc<State>, name: &ResourceName, call: &Call) -> Result<Answer, Problem> {
    call.only(&[])?;
    let mut body = Lock::from(&state.locks.inspect(name).await?).json();
    body["at_ms"] = json!(wall_millis());
    Ok(answer::json(StatusCode::OK, &body))
}

/// The last holders, and how long they held and waited.
pub(super) async fn history(state: &Arc<State>, name: &ResourceName, call: &Call) -> Result<Answer, Problem> {
    call.only(&[])?;
    let body = state.history.of(name.as_str()).await?;
    Ok(answer::json(StatusCode::OK, &body))
}

/// Ends the hold with this fence. A later hold has another one, so that a repetition does no harm.
pub(super) async fn break_hold(state: &Arc<State>, name: &ResourceName, call: &Call) -> Result<Answer, Problem> {
    call.only(&["fence", "grace_ms", "reason"])?;
    let missing = || Problem::bad_request("the parameter fence says which hold to end: see GET of the same lock");
    let fence: Fence = call.parameter("fence").ok_or_else(missing)?.parse()?;
    let grace = Duration::from_millis(call.number("grace_ms")?.unwrap_or(5000));
    let reason = call.parameter("reason").unwrap_or_default();
    if grace > MAX_GRACE || reason.len() > MAX_REASON_BYTES {
        return Err(Problem::bad_request("grace_ms is at most an hour, and the reason has at most 1024 bytes"));
    }
    let before = state.locks.inspect(name).await?;
    let Some(holder) = before.holders.iter().find(|holder| holder.fence == Some(fence)) else {
        return Err(not_broken(name, fence, &Lock::from(&before)));
    };
    let facts = json!({ "name": name, "fence": fence, "reason": reason, "holder": text::holder(&holder.label) });
    // First, so that no hold is ended without an entry.
    if !state.audit.write_first("break", &call.client, call.peer, &facts).await {
        let detail = "not broken: the audit log could not be written";
        return Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "no-audit", detail));
    }
    let by = format!("{} from {} by oarlock serve", call.client.name, call.peer);
    let over_http = holder.label.tags.contains_key(HTTP_CLIENT);
    // An HTTP client hears of it with its next renewal at the latest, and believes until then. So its hold keeps the
    // lease that it has, and loses only the next one: belief ends first.
    let grace = if over_http { grace.max(MAX_TTL) } else { grace };
    // To its end, so that its outcome is written down whether the client waits for it or not.
    let (held, of, id, ending) = (state.clone(), name.clone(), holder.id, Ending::new(by, reason));
    let (client, peer) = (call.client.clone(), call.peer);
    let outcome = to_its_end(async move {
        let outcome = held.locks.break_claim(&of, id, ending.clone(), grace).await;
        let word = outcome.as_ref().map_or("failed", |outcome| word(*outcome));
        let why = outcome.as_ref().err().map(ToString::to_string);
        let facts = json!({ "name": of, "fence": fence, "outcome": word, "why": why });
        held.audit.write("break-outcome", Some(&client), peer, &facts);
        if let Ok(Released::Asked | Released::Released) = outcome {
            held.history.broken(of.as_str(), id, fence, &ending, word);
            held.leases.note_ending(id, &ending);
        }
        Ok(outcome?)
    });
    let outcome = outcome.await?;
    let left = match outcome {
        Released::Asked if over_http => ends_in(state, name, holder).await,
        _ => grace,
    };
    let (quoted, held_by) = (text::quoted(name.as_str()), text::holder(&holder.label));
    let detail = match outcome {
        Released::Asked => format!("asked {held_by} to release {quoted} within {}", text::span(left)),
        Released::Released => format!("took {quoted} from {held_by}, fence {fence}"),
        _ => format!("{held_by} released {quoted} before it was asked"),
    };
    let mut body = json!({ "name": name, "fence": fence, "outcome": word(outcome), "detail": detail });
    if outcome == Released::Asked {
        body["ends_in_ms"] = json!(millis(left));
    }
    Ok(answer::json(StatusCode::OK, &body))
}

fn word(outcome: Released) -> &'static str {
    match outcome {
        Released::Asked => "asked",
        Released::Released => "released",
        _ => "not-held",
    }
}

/// When a hold that is to end is over at the latest; as it was seen before, if the store does not answer.
async fn ends_in(state: &State, name: &ResourceName, seen: &HolderState) -> Duration {
    match state.locks.inspect(name).await {
        Ok(now) => now.holders.iter().find(|holder| holder.id == seen.id).map_or(Duration::ZERO, |now| now.lease_left),
        Err(_) => seen.lease_left,
    }
}

fn not_broken(name: &ResourceName, fence: Fence, now: &Lock) -> Problem {
    let fences: Vec<_> = now.holders.iter().filter_map(|holder| holder.fence.clone()).collect();
    let held = match (now.holders.len(), fences.join(", ")) {
        (0, _) => "it is free now".to_owned(),
        (_, fences) if fences.is_empty() => "its holder has no fence: use \"oarlock break --id\"".to_owned(),
        (_, fences) => format!("it is held with fence {fences} now"),
    };
    let detail = format!("not broken: no hold of {} has fence {fence}; {held}.", text::quoted(name.as_str()));
    Problem::new(StatusCode::CONFLICT, "not-broken", detail).with("fences", fences)
}
