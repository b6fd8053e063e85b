//! A lock request: the body of a lock request, checked, and the acquisition.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use oarlock::driver::{MAX_TTL, MIN_TTL};
use oarlock::state::{Kind, ResourceName};
use oarlock::{Error, ErrorKind, Guard, Label, Lifetime};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::access::Client;
use crate::leases::{self, Granted, Owner};
use crate::problem::Problem;
use crate::state::State;

/// The longest answer to one request: proxies cut longer ones.
pub(crate) const MAX_POLL: Duration = Duration::from_secs(60);

/// The longest wait over several requests.
const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);

/// The tag of holders that took their lock over HTTP. Only this program writes it for them.
pub(crate) const HTTP_CLIENT: &str = "http-client";

/// The body of a lock request; every part may be left out.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Body {
    kind: Option<String>,
    permits: Option<u32>,
    take: Option<u32>,
    ttl_ms: Option<u64>,
    wait_ms: Option<u64>,
    poll_ms: Option<u64>,
    label: LabelBody,
}

/// Identifies the client's process to others.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LabelBody {
    host: Option<String>,
    pid: Option<u32>,
    user: Option<String>,
    reason: Option<String>,
    tags: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Mutex,
    Read,
    Write,
    Permits { of: u32, take: u32 },
}

/// A checked request.
#[derive(Clone, Debug)]
pub(crate) struct LockRequest {
    name: ResourceName,
    mode: Mode,
    ttl: Option<Duration>,
    pub(crate) wait: Duration,
    pub(crate) poll: Duration,
    label: Label,
    pub(crate) owner: Owner,
}

impl LockRequest {
    /// Checks a body. An empty one asks for a mutex, without waiting.
    pub(crate) fn new(name: ResourceName, body: &[u8], client: &Client, peer: IpAddr) -> Result<Self, Problem> {
        let body: Body = if body.is_empty() {
            Body::default()
        } else {
            object(body).map_err(|error| Problem::bad_request(format!("the body: {error}")))?
        };
        let mode = match (body.kind.as_deref().unwrap_or("mutex"), body.permits) {
            ("mutex", None) => Mode::Mutex,
            ("read", None) => Mode::Read,
            ("write", None) => Mode::Write,
            ("semaphore", Some(of)) if of > 0 => Mode::Permits { of, take: body.take.unwrap_or(1) },
            ("semaphore", _) => return Err(Problem::bad_request("a semaphore needs \"permits\", at least 1")),
            ("mutex" | "read" | "write", Some(_)) => {
                return Err(Problem::bad_request("\"permits\" goes with the kind \"semaphore\""));
            }
            (other, _) => {
                let other = oarlock_core::text::quoted(other);
                return Err(Problem::bad_request(format!("{other} is no kind: use mutex, read, write or semaphore")));
            }
        };
        match (mode, body.take) {
            (Mode::Permits { of, take }, _) if take == 0 || take > of => {
                return Err(Problem::bad_request(format!("\"take\" is between 1 and the {of} of \"permits\"")));
            }
            (Mode::Mutex | Mode::Read | Mode::Write, Some(_)) => {
                return Err(Problem::bad_request("\"take\" goes with \"permits\""));
            }
            _ => {}
        }
        let wait = Duration::from_millis(body.wait_ms.unwrap_or(0));
        let poll = body.poll_ms.map_or(MAX_POLL / 2, Duration::from_millis);
        if wait > MAX_WAIT || poll > MAX_POLL {
            return Err(Problem::bad_request("\"wait_ms\" is at most a day, and \"poll_ms\" at most 60000"));
        }
        let ttl = body.ttl_ms.map(Duration::from_millis);
        if ttl.is_some_and(|ttl| !(MIN_TTL..=MAX_TTL).contains(&ttl)) {
            let (least, most) = (oarlock_core::text::span(MIN_TTL), oarlock_core::text::span(MAX_TTL));
            return Err(Problem::bad_request(format!("\"ttl_ms\": a lease is between {least} and {most} long")));
        }
        let label = label(body.label, client, peer);
        label.check()?;
        Ok(Self { name, mode, ttl, wait, poll, label, owner: Owner::new(client, peer) })
    }
}

/// Reads an object; serde would take a list for one as well.
pub(crate) fn object<T: DeserializeOwned>(body: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_value(Value::Object(serde_json::from_slice(body)?))
}

/// What others see of the client. It says itself who it is; who sent the request is added, and cannot be forged.
fn label(body: LabelBody, client: &Client, peer: IpAddr) -> Label {
    let mut label = Label::default();
    label.host = body.host.unwrap_or_else(|| peer.to_string());
    label.pid = body.pid.unwrap_or_default();
    label.user = body.user.unwrap_or_else(|| client.name.clone());
    label.reason = body.reason;
    label.tags = body.tags;
    label.tag(HTTP_CLIENT, format!("{}@{peer}", client.name))
}

/// The choices that every kind of lock has. Each client has a place of its own in the queue, where there is one.
macro_rules! tuned {
    ($lock:expr, $state:expr, $wanted:expr) => {{
        let mut lock = $lock.lifetime(Lifetime::Lease).label($wanted.label.clone()).whole_lease().wait($wanted.wait);
        if let Some(ttl) = $wanted.ttl {
            lock = lock.ttl(ttl);
        }
        if $state.locks.info().capabilities.order { lock.fair() } else { lock }
    }};
}

/// Acquires the lock and leaves it to its client.
///
/// # Cancel safety
/// If the future is dropped the claim is withdrawn, and a grant is released.
pub(crate) async fn take(state: &State, wanted: &LockRequest) -> Result<Granted, Problem> {
    let counted = state.lease_quota.take(&wanted.owner)?;
    let waiting = state.metrics.waiting(match wanted.mode {
        Mode::Mutex => Kind::Mutex,
        Mode::Read => Kind::Read,
        Mode::Write => Kind::Write,
        Mode::Permits { .. } => Kind::Semaphore,
    });
    let guard = acquire(state, wanted).await;
    waiting.end(match &guard {
        Ok(_) => "acquired",
        Err(error) if error.kind() == ErrorKind::Busy && wanted.wait.is_zero() => "busy",
        Err(error) if error.kind() == ErrorKind::Busy => "timeout",
        Err(_) => "error",
    });
    leases::hand_out(state, guard?, counted)
}

async fn acquire(state: &State, wanted: &LockRequest) -> Result<Guard, Error> {
    let (locks, name) = (&state.locks, wanted.name.as_str());
    match wanted.mode {
        Mode::Mutex => tuned!(locks.mutex(name), state, wanted).lock().await,
        Mode::Read => tuned!(locks.rwlock(name), state, wanted).read().await,
        Mode::Write => Ok(tuned!(locks.rwlock(name), state, wanted).write().await?.into_guard()),
        Mode::Permits { of, take } => tuned!(locks.semaphore(name, of), state, wanted).acquire(take).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(body: &str) -> Result<LockRequest, String> {
        let client = crate::access::Access::open().client(&http::HeaderMap::new(), None).unwrap();
        let name = ResourceName::new("x").unwrap();
        LockRequest::new(name, body.as_bytes(), &client, [10, 0, 0, 7].into()).map_err(|problem| problem.detail)
    }

    fn client(name: &str) -> Client {
        let mut client = crate::access::Access::open().client(&http::HeaderMap::new(), None).unwrap();
        name.clone_into(&mut client.name);
        client
    }

    fn owner() -> Owner {
        Owner::new(&client("ops"), [10, 0, 0, 7].into())
    }

    fn of(name: &str, peer: [u8; 4]) -> LockRequest {
        LockRequest::new(ResourceName::new(name).unwrap(), b"", &client("ops"), peer.into()).unwrap()
    }

    fn state(store: &oarlock_core::Memory, most_of_client: usize, most_of_token: usize) -> State {
        let locks = oarlock_core::Locks::over(store.connect()).unwrap();
        let mut state = State::new(locks, crate::config::Config::default()).unwrap();
        state.lease_quota = leases::LeaseQuota::new(most_of_client, most_of_token);
        state
    }

    #[test]
    fn a_body_is_checked_and_its_label_says_who_sent_it() {
        let empty = wanted("").unwrap();
        assert_eq!((empty.mode, empty.wait), (Mode::Mutex, Duration::ZERO));
        assert_eq!((empty.label.host.as_str(), empty.label.user.as_str()), ("10.0.0.7", "anonymous"));
        let forged = r#"{"label":{"user":"root","tags":{"http-client":"root@1.2.3.4","job":"7"}}}"#;
        let label = wanted(forged).unwrap().label;
        assert_eq!((label.user.as_str(), label.tags["job"].as_str()), ("root", "7"));
        assert_eq!(label.tags["http-client"], "anonymous@10.0.0.7");
        assert_eq!(wanted(r#"{"kind":"semaphore","permits":3}"#).unwrap().mode, Mode::Permits { of: 3, take: 1 });
    }

    #[tokio::test]
    async fn one_client_has_its_share_of_locks_and_no_more() {
        let state = state(&oarlock_core::Memory::new(), 2, 4);
        let one = take(&state, &of("a", [10, 0, 0, 7])).await.unwrap();
        take(&state, &of("b", [10, 0, 0, 7])).await.unwrap();
        let refused = take(&state, &of("c", [10, 0, 0, 7])).await.unwrap_err();
        assert_eq!((refused.code, refused.status.as_u16()), ("too-many-leases", 429));
        take(&state, &of("c", [10, 0, 0, 8])).await.expect("another client");
        leases::renew(&state, &one.lease, &owner()).await.expect("what it has is renewed");
        leases::release(&state, &one.lease).await.unwrap();
        take(&state, &of("d", [10, 0, 0, 7])).await.expect("it has given one back");
        take(&state, &of("d", [10, 0, 0, 8])).await.expect_err("held, and does not count");
        take(&state, &of("e", [10, 0, 0, 8])).await.unwrap();
    }

    #[tokio::test]
    async fn a_token_at_many_addresses_has_its_share_of_locks_and_no_more() {
        let state = state(&oarlock_core::Memory::new(), 2, 3);
        for host in 0..3 {
            take(&state, &of(&host.to_string(), [10, 0, 0, host])).await.unwrap();
        }
        let refused = take(&state, &of("x", [10, 0, 0, 9])).await.unwrap_err();
        assert!(refused.code == "too-many-leases" && refused.detail.contains("token"), "{}", refused.detail);
        let mut other = of("x", [10, 0, 0, 9]);
        other.owner = Owner::new(&client("other"), [10, 0, 0, 9].into());
        take(&state, &other).await.expect("another token");
    }

    /// A client could else renew what does not count any more, and take as much again.
    #[tokio::test]
    async fn a_lease_counts_for_its_client_until_it_has_ended_in_the_store() {
        let state = state(&oarlock_core::Memory::new(), 1, 9);
        let one = take(&state, &of("a", [10, 0, 0, 7])).await.unwrap();
        assert_eq!(state.leases.take_ended(one.ends_at).len(), 1, "its client must have stopped");
        assert!(state.leases.get(one.lease.id).is_none() && state.leases.kinds().is_empty());
        assert!(state.leases.take_ended(one.ends_at).is_empty(), "it is counted as lost once");
        take(&state, &of("b", [10, 0, 0, 7])).await.expect_err("the store has not ended it");
        let again = leases::renew(&state, &one.lease, &owner()).await.expect("and renews it");
        assert!(state.leases.get(one.lease.id).is_some());
        take(&state, &of("b", [10, 0, 0, 7])).await.expect_err("it is held again, and counts");
        assert_eq!(state.leases.take_ended(again.ends_at).len(), 1);
        let ttl = oarlock_core::engine::DEFAULT_TTL;
        let passed = ttl + ttl / 10 + std::time::Duration::from_secs(1);
        assert!(state.leases.take_ended(crate::state::now() + passed).is_empty());
        take(&state, &of("b", [10, 0, 0, 7])).await.expect("more than a lease has passed");
    }

    #[tokio::test]
    async fn a_lease_of_another_server_counts_where_it_is_renewed() {
        let store = oarlock_core::Memory::new();
        let (before, after) = (state(&store, 9, 9), state(&store, 1, 9));
        for name in ["a", "b"] {
            let granted = take(&before, &of(name, [10, 0, 0, 7])).await.unwrap();
            leases::renew(&after, &granted.lease, &owner()).await.expect("more than its share is renewed, too");
        }
        take(&after, &of("c", [10, 0, 0, 7])).await.expect_err("it has its share");
        take(&after, &of("c", [10, 0, 0, 8])).await.expect("another client");
    }

    #[test]
    fn bad_bodies_are_refused() {
        let long = format!(r#"{{"label":{{"reason":"{}"}}}}"#, "a".repeat(2000));
        let bad = [
            "{",
            "[]",
            "null",
            r#"{"ttl":5}"#,
            r#"{"kind":"lease"}"#,
            r#"{"kind":"semaphore"}"#,
            r#"{"permits":3}"#,
            r#"{"kind":"semaphore","permits":2,"take":3}"#,
            r#"{"kind":"semaphore","permits":0}"#,
            r#"{"take":1}"#,
            r#"{"wait_ms":-1}"#,
            r#"{"wait_ms":1e99}"#,
            r#"{"poll_ms":61000}"#,
            r#"{"wait_ms":86400001}"#,
            &long,
        ];
        for body in bad {
            assert!(wanted(body).is_err(), "{body:.60}");
        }
    }
}
