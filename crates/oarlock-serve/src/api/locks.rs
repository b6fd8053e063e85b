//! Locks for operators: list, show, break, history.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use oarlock::driver::MAX_TTL;
use oarlock::state::{Ending, HolderState, ResourceName};
use oarlock::{Fence, Released};
use oarlock_core::{pattern, text};
use serde::Serialize;
use serde_json::json;

use super::to_its_end;
use crate::access::{Client, Right};
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
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let wanted = Wanted {
        pattern: call.parameter("pattern").unwrap_or("*").to_owned(),
        after: call.parameter("after").map(str::to_owned),
        limit,
        client: call.client.clone(),
    };
    let (turn, sample) = (state.listings.turn(state).await, state.board.last());
    let made = tokio::task::spawn_blocking(move || match turn.as_ref().map(|listed| (listed.at_ms, &listed.locks)) {
        Some((at_ms, Ok(states))) => {
            let states = states.iter().filter(|state| wanted.has(state.name.as_str()));
            wanted.page(at_ms, states.map(Lock::from))
        }
        // To read every key for each request would be too much: the last sample has them.
        Some((_, Err(problem))) if problem.code == "unsupported" && sample.listing == Listing::Scan => {
            let rows = sample.rows.values().filter(|row| wanted.has(&row.lock.name));
            wanted.page(sample.at_ms, rows.map(|row| row.lock.clone()))
        }
        Some((_, Err(problem))) if problem.code == "unsupported" => {
            let advice = Listing::Unsupported.advice().unwrap_or_default();
            Err(Problem::new(StatusCode::NOT_IMPLEMENTED, "unsupported", advice))
        }
        Some((_, Err(problem))) => Err(problem.clone()),
        None => Err(not_listed(&"the store was not read")),
    });
    let body = made.await.map_err(|error| not_listed(&error))??;
    Ok(answer::text(StatusCode::OK, "application/json", body))
}

fn not_listed(why: &dyn std::fmt::Display) -> Problem {
    let detail = format!("the list could not be made: {why}");
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
}

/// Which locks a client asks for, and may read.
struct Wanted {
    pattern: String,
    after: Option<String>,
    limit: usize,
    client: Client,
}

impl Wanted {
    fn has(&self, name: &str) -> bool {
        self.after.as_deref().is_none_or(|after| name > after)
            && pattern::matches(&self.pattern, name)
            && self.client.may(Right::Read, name)
    }

    /// The answer with the first of these, as JSON.
    fn page(&self, at_ms: i64, mut shown: impl Iterator<Item = Lock>) -> Result<Vec<u8>, Problem> {
        #[derive(Serialize)]
        struct Page {
            at_ms: i64,
            locks: Vec<Lock>,
            more: bool,
        }
        let (locks, more) = (shown.by_ref().take(self.limit).collect(), shown.next().is_some());
        let mut body = serde_json::to_vec(&Page { at_ms, locks, more }).map_err(|error| not_listed(&error))?;
        body.push(b'\n');
        Ok(body)
    }
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
