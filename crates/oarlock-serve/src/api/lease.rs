//! Locks for clients: lock, renew, release.

use std::sync::Arc;

use http::StatusCode;
use oarlock::state::ResourceName;
use serde::Deserialize;
use serde_json::{Value, json};

use super::to_its_end;
use crate::answer::{self, Answer};
use crate::leases::{self, Granted, Lease, Owner};
use crate::pending::{self, Polled};
use crate::problem::Problem;
use crate::request::{self, LockRequest, MAX_POLL};
use crate::service::{self, Call};
use crate::state::{State, millis};

/// Takes the lock, or waits for it.
pub(super) async fn lock(state: &Arc<State>, name: ResourceName, call: &Call) -> Result<Answer, Problem> {
    call.only(&[])?;
    let wanted = LockRequest::new(name.clone(), &call.body, &call.client, call.peer)?;
    let key = call.headers.get("idempotency-key");
    // A repetition is answered again, and is no other lock.
    let (granted, is_new) = match key {
        Some(key) => {
            let key = key.to_str().map_err(|_| Problem::bad_request("an Idempotency-Key is text"))?;
            match pending::poll(state, call.peer, key, wanted, &call.body, &call.path).await? {
                Polled::Granted { granted, is_new } => (*granted, is_new),
                Polled::Waiting => {
                    let detail =
                        "still waiting: send the same request again, within 10 s, to keep the place in the queue";
                    let body = json!({ "name": name, "state": "waiting", "detail": detail });
                    return Ok(answer::json(StatusCode::ACCEPTED, &body));
                }
            }
        }
        None if wanted.wait > MAX_POLL => {
            let detail = "a wait of more than 60 s needs an Idempotency-Key, and is asked for again and again";
            return Err(Problem::bad_request(detail));
        }
        None => tokio::select! {
            granted = request::take(state, &wanted) => (granted?, true),
            () = state.closing.cancelled() => return Err(pending::closing()),
        },
    };
    if is_new {
        let facts = json!({ "name": name, "fence": granted.fence(), "kind": granted.kind });
        state.audit.write("locked", Some(&call.client), call.peer, &facts);
    }
    let mut body = lease_json(&granted, call);
    body["lease"] = json!(granted.lease.text()?);
    body["waited_ms"] = json!(millis(granted.waited));
    Ok(answer::json(StatusCode::CREATED, &body))
}

/// A whole lease more.
pub(super) async fn renew(state: &Arc<State>, name: &ResourceName, call: &Call) -> Result<Answer, Problem> {
    call.only(&[])?;
    let lease = lease_of(state, name, call)?;
    // It goes on if the client goes away meanwhile, so that it is known how long the lease lives.
    let (held, owner) = (state.clone(), Owner::new(&call.client, call.peer));
    let renewed = to_its_end(async move { leases::renew(&held, &lease, &owner).await }).await?;
    Ok(answer::json(StatusCode::OK, &lease_json(&renewed, call)))
}

/// Gives the lock back.
pub(super) async fn release(state: &Arc<State>, name: &ResourceName, call: &Call) -> Result<Answer, Problem> {
    call.only(&[])?;
    let lease = lease_of(state, name, call)?;
    // It goes on if the client goes away meanwhile, so that a repetition has the same answer.
    let (held, ended) = (state.clone(), lease.clone());
    if to_its_end(async move { leases::release(&held, &ended).await }).await? {
        let facts = json!({ "name": name, "fence": lease.ticket.fence() });
        state.audit.write("released", Some(&call.client), call.peer, &facts);
    }
    Ok(answer::json(StatusCode::OK, &json!({ "name": name, "fence": lease.ticket.fence(), "state": "released" })))
}

/// What its client must know of a lease. Belief counts from when the client sent its request.
fn lease_json(granted: &Granted, call: &Call) -> Value {
    let believe = granted.believe(call.arrived);
    let left = granted.ends_at.since(crate::state::now());
    // A renewal of a hold that is to end gains nothing.
    let pause = if granted.ending.is_some() { left } else { left / 3 };
    let mut body = json!({
        "name": granted.lease.ticket.resource(),
        "state": "held",
        "kind": granted.kind,
        "fence": granted.fence(),
        "believe_ms": millis(believe),
        "renew_in_ms": millis(pause),
    });
    if let Some(ending) = &granted.ending {
        body["ending"] = json!({ "by": ending.by, "why": ending.why });
    }
    body
}

/// The lease in the body of a request, which is counted.
fn lease_of(state: &State, name: &ResourceName, call: &Call) -> Result<Lease, Problem> {
    match read(name, call) {
        Ok(lease) => service::count_for(state, &lease, call).map(|()| lease),
        Err(bad) => service::count(state, &call.client, call.peer).and(Err(bad)),
    }
}

fn read(name: &ResourceName, call: &Call) -> Result<Lease, Problem> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Body {
        lease: String,
    }
    // The parser's words could show a part of the lease.
    let body: Body = request::object(&call.body)
        .map_err(|_| Problem::bad_request("the body is {\"lease\": …}, as the answer to the lock had it"))?;
    Lease::read(&body.lease, name)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_renewal_is_noted_although_its_client_went_away() {
        let locks = oarlock_core::Locks::over(oarlock_core::Memory::new()).unwrap();
        let state = Arc::new(State::new(locks, crate::config::Config::default()).unwrap());
        let name = ResourceName::new("x").unwrap();
        let client = crate::access::Access::open().client(&http::HeaderMap::new(), None).unwrap();
        let call = |body: String| Call {
            client: client.clone(),
            peer: [127, 0, 0, 1].into(),
            arrived: crate::state::now(),
            headers: http::HeaderMap::new(),
            revoked: tokio_util::sync::CancellationToken::new(),
            path: String::new(),
            query: Vec::new(),
            body: body.into(),
        };
        let guard = state.locks.mutex("x").lifetime(oarlock::Lifetime::Lease).lock().await.unwrap();
        let counted = state.lease_quota.take(&Owner::new(&client, [127, 0, 0, 1].into())).unwrap();
        let lease = leases::hand_out(&state, guard, counted).unwrap().lease;
        let ends_at = || state.leases.get(lease.id).unwrap().ends_at;
        let before = ends_at();
        tokio::time::sleep(Duration::from_millis(5)).await;
        let asked = call(json!({ "lease": lease.text().unwrap() }).to_string());
        {
            let mut renewal = std::pin::pin!(renew(&state, &name, &asked));
            std::future::poll_fn(|cx| {
                assert!(renewal.as_mut().poll(cx).is_pending(), "it asks the store");
                std::task::Poll::Ready(())
            })
            .await;
        }
        let noted = async {
            while ends_at() <= before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), noted).await.expect("it is renewed, and noted");
    }
}
