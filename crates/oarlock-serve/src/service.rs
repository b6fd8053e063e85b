//! A request on its way in: origin, route, client, rights, rate, body; then its endpoint.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use oarlock::state::{Moment, ResourceName};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::access::{Access, Client, Right};
use crate::answer::{self, Answer};
use crate::api::{self, watch};
use crate::connection::Peer;
use crate::leases::Lease;
use crate::problem::Problem;
use crate::quota;
use crate::route::{self, Endpoint, Routed};
use crate::span::RequestSpan;
use crate::state::{State, now};

/// The longest body.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// A request that was let in.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) client: Client,
    pub(crate) peer: IpAddr,
    /// When it arrived; its client sent it earlier.
    pub(crate) arrived: Moment,
    pub(crate) headers: HeaderMap,
    /// Cancelled when its client may have lost its rights.
    pub(crate) revoked: CancellationToken,
    pub(crate) path: String,
    pub(crate) query: Vec<(String, String)>,
    pub(crate) body: Bytes,
}

impl Call {
    /// A parameter of the query.
    pub(crate) fn parameter(&self, key: &str) -> Option<&str> {
        self.query.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// A number of the query.
    pub(crate) fn number(&self, key: &str) -> Result<Option<u64>, Problem> {
        let bad = |_| Problem::bad_request(format!("the parameter {key} is a whole number"));
        self.parameter(key).map(|value| value.parse().map_err(bad)).transpose()
    }

    /// Refuses parameters that mean nothing here: a misspelt one would go unnoticed.
    pub(crate) fn only(&self, known: &[&str]) -> Result<(), Problem> {
        match self.query.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some((name, _)) => {
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                let name = oarlock_core::text::quoted(name);
                Err(Problem::bad_request(format!("{name} is no parameter here; there are: {known}")))
            }
        }
    }
}

/// Answers a request. It never fails: what goes wrong is an answer too.
pub(crate) async fn handle(state: &Arc<State>, peer: &Peer, request: Request<Incoming>) -> Answer {
    let arrived = now();
    let (mut template, method) = ("unknown", request.method().clone());
    let is_chunked = request.headers().contains_key(header::TRANSFER_ENCODING);
    let span = RequestSpan::new(&method);
    let answer = span.around(answered(state, peer, request, arrived, &mut template, &span)).await;
    let mut answer = answer.unwrap_or_else(|problem| problem.answer());
    span.answered(answer.status());
    state.metrics.answered(template, method.as_str(), answer.status().as_u16());
    answer::harden(&mut answer);
    if is_chunked {
        // hyper hides a Content-Length beside it. A proxy that goes by that would see the next request elsewhere.
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

async fn answered(
    state: &Arc<State>,
    peer: &Peer,
    request: Request<Incoming>,
    arrived: Moment,
    template: &mut &'static str,
    span: &RequestSpan,
) -> Result<Answer, Problem> {
    let (head, body) = request.into_parts();
    let routed = route::find(&head.method, head.uri.path());
    let is_page = routed.as_ref().is_ok_and(|routed| routed.endpoint.is_page());
    let let_in = state.hosts.check(is_page, head.uri.host(), &head.headers).and(routed);
    let Routed { endpoint, template: of, name } = match let_in {
        Ok(routed) => routed,
        Err(problem) => return count_stranger(state, peer.address).and(Err(problem)),
    };
    *template = of;
    if endpoint == Endpoint::Health {
        // Never refused: a probe would take this server for dead.
        return Ok(api::public(endpoint));
    }
    if endpoint.is_public() {
        return count_stranger(state, peer.address).map(|()| api::public(endpoint));
    }
    let admission = state.present.admission();
    let client = identify(state, &admission.access, peer, &head.headers)?;
    let peer = peer.address;
    // Those of a lease are counted when it has been read.
    if !matches!(endpoint, Endpoint::Renew | Endpoint::Release) {
        count(state, &client, peer)?;
    }
    // A client watches its lease with the right that it was granted with.
    let of_lease = endpoint == Endpoint::WatchOne && head.headers.contains_key(watch::LEASE);
    let right = if of_lease { Right::Lock } else { right_of(endpoint) };
    authorize(state, &admission.access, &client, peer, right, name.as_ref())?;
    span.asks_for(template, name.as_ref());
    let body = tokio::time::timeout(state.config.patience, Limited::new(body, MAX_BODY_BYTES).collect());
    let body = body.await.map_err(|_| {
        Problem::new(StatusCode::REQUEST_TIMEOUT, "too-slow", "the body of this request did not arrive in time")
    })?;
    let body = body.map_err(|error| {
        if error.is::<http_body_util::LengthLimitError>() {
            let detail = format!("a body has at most {MAX_BODY_BYTES} bytes");
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail)
        } else {
            Problem::bad_request("the body of this request could not be read")
        }
    })?;
    let query = form_urlencoded::parse(head.uri.query().unwrap_or_default().as_bytes());
    let call = Call {
        client,
        peer,
        arrived,
        path: head.uri.path().to_owned(),
        query: query.into_owned().collect(),
        headers: head.headers,
        revoked: admission.revoked.clone(),
        body: body.to_bytes(),
    };
    api::answer(state, endpoint, name, call).await
}

/// Counts a request of this client.
pub(crate) fn count(state: &State, client: &Client, peer: IpAddr) -> Result<(), Problem> {
    let (key, now) = (format!("{} {}", client.name, quota::network(peer)), Instant::now());
    state.limiter.take(&key, now).and_then(|()| state.of_tokens.take(&client.name, now)).map_err(too_fast)
}

/// Counts a request that says not who sent it, or is not let in: for its address. It costs other clients of the address
/// nothing that they send with a token.
fn count_stranger(state: &State, peer: IpAddr) -> Result<(), Problem> {
    let of = &state.strangers[usize::from(state.config.is_shared(peer))];
    of.take(&quota::network(peer).to_string(), Instant::now()).map_err(too_fast)
}

/// Counts a request for this lease. One that this server does not know may be forged: it counts for its client.
pub(crate) fn count_for(state: &State, lease: &Lease, call: &Call) -> Result<(), Problem> {
    if state.leases.get(lease.id).is_none() {
        return count(state, &call.client, call.peer);
    }
    state.renewals.take(&lease.id.to_string(), Instant::now()).map_err(too_fast)
}

fn identify(state: &State, access: &Access, peer: &Peer, headers: &HeaderMap) -> Result<Client, Problem> {
    if let Some(client) = access.client(headers, peer.certificate.as_deref()) {
        return Ok(client);
    }
    if headers.contains_key(http::header::AUTHORIZATION) {
        // A right token from the same address, which many may share, is still let in.
        state.wrong_tokens.take(&quota::network(peer.address).to_string(), Instant::now()).map_err(too_fast)?;
        state.audit.write("refused", None, peer.address, &json!({ "why": "wrong token" }));
    } else {
        count_stranger(state, peer.address)?;
    }
    let detail = "this needs a token of this server: send it as \"Authorization: Bearer TOKEN\"";
    Err(Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail))
}

fn right_of(endpoint: Endpoint) -> Right {
    match endpoint {
        Endpoint::Lock | Endpoint::Renew | Endpoint::Release => Right::Lock,
        Endpoint::Break => Right::Break,
        _ => Right::Read,
    }
}

/// Whether a client has the right for this lock, or for any name where an endpoint shows several.
fn authorize(
    state: &State,
    access: &Access,
    client: &Client,
    peer: IpAddr,
    right: Right,
    name: Option<&ResourceName>,
) -> Result<(), Problem> {
    let may = name.map_or_else(|| client.may_somewhere(right), |name| client.may(right, name.as_str()));
    if may {
        return Ok(());
    }
    let on = name.map(|name| format!(" {}", oarlock_core::text::quoted(name.as_str()))).unwrap_or_default();
    if right != Right::Read {
        state.audit.write(
            "refused",
            Some(client),
            peer,
            &json!({ "why": "no right", "right": right.word(), "name": name }),
        );
    }
    let hint = match right {
        Right::Break if !access.breaks() => "; this server was started without --allow-break",
        _ => "",
    };
    let word = right.word();
    Err(Problem::forbidden(format!("{} has no right to {word}{on}{hint}", oarlock_core::text::quoted(&client.name))))
}

fn too_fast(pause: Duration) -> Problem {
    let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-fast", "too many requests: send fewer a second");
    problem.retry_after(pause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn strangers_are_counted_for_their_address() {
        let config = crate::config::Config { rate: 2, ..Default::default() };
        let state = State::new(oarlock::connect("mem:").await.unwrap(), config).unwrap();
        let send = |address: [u8; 4]| (0..1000).filter(|_| count_stranger(&state, address.into()).is_ok()).count();
        assert!((4..50).contains(&send([10, 0, 0, 7])), "one machine");
        assert!(send([10, 0, 0, 8]) >= 4, "another one has its own");
        assert!((200..900).contains(&send([127, 0, 0, 1])), "an address that many clients share");
        let client = crate::access::Access::open().client(&HeaderMap::new(), None).unwrap();
        assert!(count(&state, &client, [10, 0, 0, 7].into()).is_ok(), "they cost a client nothing");
    }

    #[tokio::test]
    async fn a_token_at_many_addresses_cannot_send_without_bound() {
        let config = crate::config::Config { rate: 1, ..Default::default() };
        let state = State::new(oarlock::connect("mem:").await.unwrap(), config).unwrap();
        let mut client = crate::access::Access::open().client(&HeaderMap::new(), None).unwrap();
        let send = |client: &Client| {
            let hosts = (0..=255).map(|host| count(&state, client, [10, 0, 0, host].into()));
            hosts.filter(Result::is_ok).count()
        };
        let sent = send(&client);
        assert!((50..200).contains(&sent), "{sent}");
        "other".clone_into(&mut client.name);
        assert!(send(&client) >= 50, "another token");
        // Nor has each address of one machine a quota of its own.
        let hosts = (1..=100u16).map(|host| count(&state, &client, [0x2001, 0xdb8, 0, 1, 0, 0, 0, host].into()));
        assert!(hosts.filter(Result::is_ok).count() < 10);
    }
}
