//! The store, the wait-for graph and the metrics.

use std::sync::Arc;

use http::StatusCode;
use oarlock_core::capabilities::{Consistency, Fencing};
use serde_json::{Map, Value, json};

use crate::access::Right;
use crate::answer::{self, Answer};
use crate::problem::Problem;
use crate::service::Call;
use crate::state::State;

/// The store: what it promises, what was found, and what this client may do.
pub(super) fn store(state: &Arc<State>, call: &Call) -> Result<Answer, Problem> {
    call.only(&[])?;
    let (info, sample) = (state.locks.info(), state.board.last());
    let can = &info.capabilities;
    let words: Map<String, Value> = can.words().iter().map(|(key, word)| ((*key).to_owned(), json!(word))).collect();
    let (badge, safe) = match (can.consistency, can.fencing) {
        (Consistency::BestEffort, _) => ("efficiency only: the store may forget a grant it acknowledged", false),
        (Consistency::Timing, _) => ("safe while clocks and delays stay within bounds; check fences", false),
        (_, Fencing::None) => ("no fences: a paused holder cannot be told from the present one", false),
        (Consistency::Consensus, _) => ("correctness with fencing: a majority agrees before a grant", true),
        _ => ("correctness with fencing, on one server", true),
    };
    let body = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "scheme": info.scheme,
        "address": state.config.store.as_ref().map_or_else(|| info.address.clone(), ToString::to_string),
        "badge": badge,
        "correct": safe,
        "capabilities": words,
        "leases": can.outlives_process,
        "listing": sample.listing.word(),
        "listing_advice": sample.listing.advice(),
        "findings": *state.findings.borrow(),
        "client": call.client.name,
        "rights": {
            "read": call.client.may_somewhere(Right::Read),
            "lock": call.client.may_somewhere(Right::Lock),
            "break": call.client.may_somewhere(Right::Break),
        },
    });
    Ok(answer::json(StatusCode::OK, &body))
}

/// Which process waits for which, from the last sample.
pub(super) async fn graph(state: &Arc<State>, call: &Call) -> Result<Answer, Problem> {
    call.only(&[])?;
    let answer = state.graphs.of(&state.board.last(), &call.client).await?;
    Ok(answer::text(StatusCode::OK, "application/json", answer))
}

/// For Prometheus. Names of locks are labels only where they were asked for, and the client may read them.
pub(super) fn metrics(state: &Arc<State>, call: &Call) -> Result<Answer, Problem> {
    call.only(&[])?;
    let text = state.metrics.text(state, &call.client);
    Ok(answer::text(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text))
}
