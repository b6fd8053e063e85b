//! Lock requests with an `Idempotency-Key`. A repetition, after an answer that was lost or in the next long poll, joins
//! the request that it repeats: it neither takes a second lock nor loses its place in the queue.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::StatusCode;
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::leases::{self, Granted, Leases, Owner};
use crate::problem::Problem;
use crate::request::{self, LockRequest};
use crate::state::State;

/// A client that does not ask again for so long has gone: its claim is withdrawn, or its lock released.
pub(crate) const ABANDONED: Duration = Duration::from_secs(10);

/// How long an answer can be repeated.
const REPEATABLE: Duration = Duration::from_secs(600);

/// How many requests are remembered: of all clients, of a token at all addresses where there are several tokens, and of
/// each client where there are several. Those that have ended make room for new ones.
const MAX_REQUESTS: usize = 10_000;
const MAX_REQUESTS_OF_TOKEN: usize = 5000;
const MAX_REQUESTS_OF_ONE: usize = 2500;

const MAX_KEY_BYTES: usize = 255;

/// No client knows of the grant yet; a client does; it was taken back.
const OPEN: u8 = 0;
const DELIVERED: u8 = 1;
const WITHDRAWN: u8 = 2;

type Outcome = Result<Granted, Problem>;

/// The requests that can be repeated.
#[derive(Debug)]
pub(crate) struct Pending {
    requests: Mutex<Requests>,
    most: usize,
    most_of_token: usize,
    most_of_one: usize,
}

/// Which clients a server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clients {
    /// None can be told from another.
    One,
    /// All have the same token, or none.
    Addresses,
    /// They have several tokens, or certificates.
    Names,
}

/// By the token and the key: a client that repeats its request from another address is still the same.
type Requests = HashMap<(String, String), Arc<Request>>;

impl Default for Pending {
    fn default() -> Self {
        let (most, most_of_token, most_of_one) = (MAX_REQUESTS, MAX_REQUESTS_OF_TOKEN, MAX_REQUESTS_OF_ONE);
        Self { requests: Mutex::default(), most, most_of_token, most_of_one }
    }
}

#[derive(Debug)]
struct Request {
    /// Of what was asked: a key stands for one request.
    digest: [u8; 32],
    /// The client that it counts for: the one that sent it first.
    owner: Owner,
    outcome: watch::Sender<Option<Outcome>>,
    /// Whether the grant is a client's, or was taken back because none asked for it: never both.
    fate: AtomicU8,
    /// Whether a client was told of the grant.
    is_told: AtomicBool,
    /// When the last client that waited for the outcome left.
    left: Mutex<Instant>,
    ended: Mutex<Option<Instant>>,
}

impl Request {
    fn ended(&self) -> Option<Instant> {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It makes room for others from now on.
    fn end(&self) {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(Instant::now);
    }

    fn is_forgotten(&self, now: Instant) -> bool {
        self.ended().is_some_and(|ended| now.saturating_duration_since(ended) > REPEATABLE)
    }

    /// Whether its lock is held.
    fn is_held(&self, leases: &Leases) -> bool {
        matches!(&*self.outcome.borrow(), Some(Ok(granted)) if leases.get(granted.lease.id).is_some())
    }

    /// Decides what becomes of the grant, once; returns what was decided.
    fn decide(&self, fate: u8) -> u8 {
        self.fate
            .compare_exchange(OPEN, fate, Ordering::AcqRel, Ordering::Acquire)
            .map_or_else(|earlier| earlier, |_| fate)
    }

    /// Resolves when no client has waited for the outcome for so long, or one has left with it.
    async fn abandoned(&self, patience: Duration) {
        loop {
            self.outcome.closed().await;
            if self.fate.load(Ordering::Acquire) != OPEN {
                return;
            }
            // Anew for each client that came and left meanwhile.
            let end = *self.left.lock().unwrap_or_else(PoisonError::into_inner) + patience;
            if Instant::now() >= end {
                return;
            }
            tokio::time::sleep_until(end).await;
        }
    }
}

impl Pending {
    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, request: &Arc<Request>) {
        self.requests().retain(|_, known| !Arc::ptr_eq(known, request));
    }

    /// The request of this key, and whether it is new.
    fn join(
        &self,
        leases: &Leases,
        owner: &Owner,
        clients: Clients,
        key: &str,
        digest: [u8; 32],
    ) -> Result<(Arc<Request>, bool), Problem> {
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            return Err(Problem::bad_request(format!("an Idempotency-Key has 1 to {MAX_KEY_BYTES} bytes")));
        }
        let (mut requests, now) = (self.requests(), Instant::now());
        let full_key = (owner.token().to_owned(), key.to_owned());
        if let Some(request) = requests.get(&full_key).filter(|request| !request.is_forgotten(now)) {
            if request.digest != digest {
                let detail = "this Idempotency-Key was used for another request: use a new one for each lock";
                return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "key-reused", detail));
            }
            return Ok((request.clone(), false));
        }
        // First its own: a client that sends many makes no room at the cost of others.
        let count = |of: &dyn Fn(&Owner) -> bool| requests.values().filter(|request| of(&request.owner)).count();
        let (of_one, of_token) = (count(&|of| of == owner), count(&|of| of.token() == owner.token()));
        let has_room = if of_one >= self.most_of_one && clients != Clients::One {
            make_room(&mut requests, leases, |of| of == owner)
        } else if of_token >= self.most_of_token && clients == Clients::Names {
            make_room(&mut requests, leases, |of| of.token() == owner.token())
        } else {
            requests.len() < self.most || make_room(&mut requests, leases, |_| true)
        };
        if !has_room {
            let detail = "too many requests with an Idempotency-Key are remembered: try again later, or without one";
            let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too-many-requests", detail);
            return Err(problem.retry_after(Duration::from_secs(10)));
        }
        let request = Arc::new(Request {
            digest,
            owner: owner.clone(),
            outcome: watch::Sender::new(None),
            fate: AtomicU8::new(OPEN),
            is_told: AtomicBool::new(false),
            left: Mutex::new(now),
            ended: Mutex::default(),
        });
        requests.insert(full_key, request.clone());
        Ok((request, true))
    }
}

/// Forgets a tenth of the requests that have ended: first those whose locks are over, and of these the oldest. Returns
/// whether there was one.
fn make_room(requests: &mut Requests, leases: &Leases, of: impl Fn(&Owner) -> bool) -> bool {
    let ended = requests.iter().filter(|(_, request)| of(&request.owner));
    let ended = ended.filter_map(|(key, request)| Some((request.is_held(leases), request.ended()?, key.clone())));
    let mut ended: Vec<_> = ended.collect();
    ended.sort_unstable();
    let tenth = ended.len().div_ceil(10);
    for (_, _, key) in ended.drain(..tenth) {
        requests.remove(&key);
    }
    tenth > 0
}

/// What a long poll ends with.
#[derive(Debug)]
pub(crate) enum Polled {
    Granted {
        granted: Box<Granted>,
        /// Whether it is told for the first time.
        is_new: bool,
    },
    /// Poll again.
    Waiting,
}

/// Joins or begins the request of this key, and waits for its outcome for as long as the client polls.
pub(crate) async fn poll(
    state: &Arc<State>,
    peer: IpAddr,
    key: &str,
    wanted: LockRequest,
    body: &[u8],
    path: &str,
) -> Result<Polled, Problem> {
    let digest = digest(path, body);
    let clients = match (state.has_names(), state.config.is_shared(peer)) {
        (true, _) => Clients::Names,
        (false, true) => Clients::One,
        (false, false) => Clients::Addresses,
    };
    let (request, is_new) = state.pending.join(&state.leases, &wanted.owner, clients, key, digest)?;
    let (mut outcome, patience) = (request.outcome.subscribe(), wanted.poll);
    // Dropped before `outcome`: when all have left, it is known since when.
    let _leaves = Leaves(&request);
    if is_new {
        let taker = state.clone();
        let taking = async move { request::take(&taker, &wanted).await };
        tokio::spawn(run(state.clone(), request.clone(), taking));
    }
    let Ok(Ok(known)) = tokio::time::timeout(patience, outcome.wait_for(Option::is_some)).await else {
        return Ok(Polled::Waiting);
    };
    match known.clone() {
        Some(Ok(_)) if request.decide(DELIVERED) == WITHDRAWN => Err(gone()),
        Some(Ok(granted)) => {
            let granted = Box::new(current(state, granted)?);
            Ok(Polled::Granted { granted, is_new: !request.is_told.swap(true, Ordering::AcqRel) })
        }
        Some(Err(problem)) => Err(problem),
        None => Ok(Polled::Waiting),
    }
}

/// Of what is asked for. How long it waits is no part of it: a client that repeats its request sends what is left.
fn digest(path: &str, body: &[u8]) -> [u8; 32] {
    let mut body: serde_json::Map<_, _> = serde_json::from_slice(body).unwrap_or_default();
    body.remove("poll_ms");
    body.remove("wait_ms");
    let body = serde_json::Value::Object(body).to_string();
    Sha256::new().chain_update(path).chain_update([0]).chain_update(body).finalize().into()
}

/// Notes when a client leaves.
struct Leaves<'a>(&'a Request);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        *self.0.left.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// A grant that is repeated: it may have been renewed, released, broken or lost meanwhile.
fn current(state: &State, mut granted: Granted) -> Result<Granted, Problem> {
    match state.leases.get(granted.lease.id) {
        Some(known) => {
            (granted.ends_at, granted.ending) = (known.ends_at, known.ending);
            Ok(granted)
        }
        None => Err(Problem::lost("the lock of this Idempotency-Key was released, or not renewed in time")),
    }
}

/// Ends a request whose task ends in another way: by a panic. Those that poll are told, and the next one begins anew.
struct EndOnDrop {
    state: Arc<State>,
    request: Arc<Request>,
}

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        if self.request.ended().is_none() {
            self.state.pending.forget(&self.request);
            let detail = "the request has failed";
            let problem = Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail);
            self.request.outcome.send_replace(Some(Err(problem)));
            self.request.end();
        }
    }
}

/// Acquires the lock, by `taking`, while a client asks for it.
async fn run(state: Arc<State>, request: Arc<Request>, taking: impl Future<Output = Outcome>) {
    let pending = EndOnDrop { state, request };
    let EndOnDrop { state, request } = &pending;
    let outcome = tokio::select! {
        outcome = taking => outcome,
        () = request.abandoned(ABANDONED) => Err(gone()),
        () = state.closing.cancelled() => Err(closing()),
    };
    let lease = outcome.as_ref().ok().map(|granted| granted.lease.clone());
    if matches!(&outcome, Err(problem) if !is_final(problem)) {
        state.pending.forget(request);
    }
    request.outcome.send_replace(Some(outcome));
    if let Some(lease) = lease {
        request.abandoned(ABANDONED).await;
        if request.decide(WITHDRAWN) == WITHDRAWN {
            // If this fails, the lease ends it.
            let _ = leases::release(state, &lease).await;
            request.outcome.send_replace(Some(Err(gone())));
        }
    }
    request.end();
}

/// Whether a repetition has this answer too. Any other failure passes: the same request, sent again, begins anew.
fn is_final(problem: &Problem) -> bool {
    matches!(problem.code, "busy" | "lost")
}

fn gone() -> Problem {
    Problem::lost("the client did not ask again in time: its claim was withdrawn")
}

pub(crate) fn closing() -> Problem {
    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "closing", "this server ends: ask another one");
    problem.retry_after(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that keeps the memory of this process.
    async fn state() -> Arc<State> {
        let locks = oarlock::connect("mem:").await.unwrap();
        Arc::new(State::new(locks, crate::config::Config::default()).unwrap())
    }

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 7));

    fn owner(token: &str) -> Owner {
        owner_at(token, PEER)
    }

    fn owner_at(token: &str, peer: IpAddr) -> Owner {
        let mut client = crate::access::Access::open().client(&http::HeaderMap::new(), None).unwrap();
        token.clone_into(&mut client.name);
        Owner::new(&client, peer)
    }

    fn join(state: &State, token: &str, key: &str, digest: [u8; 32]) -> Result<(Arc<Request>, bool), Problem> {
        state.pending.join(&state.leases, &owner(token), Clients::Names, key, digest)
    }

    fn wanted(name: &str) -> LockRequest {
        let client = crate::access::Access::open().client(&http::HeaderMap::new(), None).unwrap();
        let name = oarlock::state::ResourceName::new(name).unwrap();
        LockRequest::new(name, b"", &client, PEER).unwrap()
    }

    #[tokio::test]
    async fn the_fate_of_a_grant_is_decided_once() {
        let state = state().await;
        let (request, is_new) = join(&state, "c", "late", [0; 32]).unwrap();
        assert!(is_new);
        assert_eq!((request.decide(WITHDRAWN), request.decide(DELIVERED)), (WITHDRAWN, WITHDRAWN));
        let (request, _) = join(&state, "c", "soon", [0; 32]).unwrap();
        assert_eq!((request.decide(DELIVERED), request.decide(WITHDRAWN)), (DELIVERED, DELIVERED));
        assert!(!join(&state, "c", "soon", [0; 32]).unwrap().1, "a repetition");
        assert!(join(&state, "c", "soon", [1; 32]).is_err(), "another request");
        assert!(join(&state, "d", "soon", [1; 32]).unwrap().1, "another client");
    }

    #[tokio::test]
    async fn a_poller_that_comes_too_late_is_told() {
        let state = state().await;
        let (request, _) = join(&state, "anonymous", "late", digest("/x", b"")).unwrap();
        request.outcome.send_replace(Some(request::take(&state, &wanted("late")).await));
        assert_eq!(request.decide(WITHDRAWN), WITHDRAWN);
        let told = poll(&state, PEER, "late", wanted("late"), b"", "/x").await.unwrap_err();
        assert_eq!(told.status, StatusCode::GONE);
    }

    #[tokio::test]
    async fn requests_that_have_ended_make_room_and_one_client_leaves_room_for_others() {
        let (leases, pending) = (Leases::default(), Pending { most: 5, most_of_one: 3, ..Pending::default() });
        let join =
            |client: &str, key: u32| pending.join(&leases, &owner(client), Clients::Names, &key.to_string(), [0; 32]);
        let ended: Vec<_> = (0..3).map(|key| join("c", key).unwrap().0).collect();
        assert_eq!(join("c", 3).unwrap_err().code, "too-many-requests", "none has ended");
        assert!(join("d", 0).unwrap().1, "another client has room");
        // The second ended first.
        for (request, after) in ended.iter().zip([2, 1, 3]) {
            *request.ended.lock().unwrap() = Some(Instant::now() + Duration::from_millis(after));
        }
        assert!(join("c", 3).unwrap().1, "one has made room");
        assert!(!join("c", 0).unwrap().1 && !join("c", 2).unwrap().1, "later ones are remembered");
        assert!(join("c", 1).unwrap().1, "the oldest is not, and the next has made room for it");
        for key in 4..100 {
            let (request, is_new) = join("c", key).unwrap();
            *request.ended.lock().unwrap() = Some(Instant::now());
            assert!(is_new && pending.requests().len() <= 5);
        }
        assert!(!join("d", 0).unwrap().1, "not at the cost of another client");
    }

    #[test]
    fn one_token_has_room_at_each_address_and_a_client_that_is_alone_has_all() {
        let (leases, pending) = (Leases::default(), Pending { most: 5, most_of_one: 2, ..Pending::default() });
        let far = owner_at("c", [10, 0, 0, 8].into());
        let join = |owner: &Owner, clients, key: &str| pending.join(&leases, owner, clients, key, [0; 32]);
        let (one, addresses) = (Clients::One, Clients::Addresses);
        assert!(join(&owner("c"), addresses, "1").is_ok() && join(&owner("c"), addresses, "2").is_ok());
        assert_eq!(join(&owner("c"), addresses, "3").unwrap_err().code, "too-many-requests");
        assert!(!join(&far, addresses, "1").unwrap().1, "a repetition from another address is still one");
        assert!(join(&far, addresses, "3").unwrap().1, "another address has room of its own");
        assert!(join(&owner("c"), one, "4").unwrap().1 && join(&owner("c"), one, "5").unwrap().1, "all of it");
        assert_eq!(join(&owner("c"), one, "6").unwrap_err().code, "too-many-requests");
    }

    #[test]
    fn one_token_at_many_addresses_leaves_room_for_other_tokens() {
        let (leases, pending) =
            (Leases::default(), Pending { most: 6, most_of_token: 3, most_of_one: 2, ..Pending::default() });
        let join = |token: &str, address: u8, key: u32| {
            pending.join(
                &leases,
                &owner_at(token, [10, 0, 0, address].into()),
                Clients::Names,
                &key.to_string(),
                [0; 32],
            )
        };
        let waiting: Vec<_> = (1..=3).map(|number| join("c", number, number.into()).unwrap().0).collect();
        for address in 1..=4 {
            assert_eq!(join("c", address, 9).unwrap_err().code, "too-many-requests", "from address {address}");
        }
        assert!((1..=2).all(|key| join("d", 1, key).unwrap().1), "another token has room");
        *waiting[0].ended.lock().unwrap() = Some(Instant::now());
        assert!(join("c", 4, 4).unwrap().1, "one has made room");
        assert!(!join("d", 1, 1).unwrap().1 && !join("d", 1, 2).unwrap().1, "not at the cost of another token");
        assert!(join("d", 2, 3).unwrap().1);
    }

    /// Ready-made clients send a key with every lock, and take as many as their rate permits.
    #[tokio::test]
    async fn locks_that_are_taken_and_released_one_after_another_leave_room_for_the_next() {
        let state = state().await;
        for number in 0..3000 {
            let key = number.to_string();
            let take = || poll(&state, PEER, &key, wanted("again"), b"", "/x");
            let granted = |polled| match polled {
                Polled::Granted { granted, .. } => granted.lease,
                Polled::Waiting => panic!("lock {number} waits"),
            };
            let lease = granted(take().await.unwrap_or_else(|problem| panic!("lock {number}: {}", problem.detail)));
            if number % 500 == 0 {
                assert_eq!(granted(take().await.unwrap()).id, lease.id, "a repetition has the same answer");
            }
            leases::release(&state, &lease).await.unwrap();
            if number % 500 == 0 {
                assert_eq!(take().await.unwrap_err().code, "lost", "and takes no second lock");
            }
        }
        assert!(state.pending.requests().len() <= MAX_REQUESTS_OF_ONE);
    }

    /// A fault of a driver or of this program.
    #[tokio::test]
    async fn a_request_that_panics_tells_those_who_poll_and_begins_anew() {
        let state = state().await;
        let (request, _) = join(&state, "anonymous", "k", digest("/x", b"")).unwrap();
        let polls = poll(&state, PEER, "k", wanted("panics"), b"", "/x");
        let panics = async {
            tokio::task::yield_now().await;
            panic!("a fault")
        };
        let running = tokio::spawn(run(state.clone(), request.clone(), panics));
        let told = tokio::time::timeout(Duration::from_secs(20), polls).await.expect("it is told").unwrap_err();
        assert_eq!((told.code, told.status.as_u16()), ("internal", 500));
        assert!(running.await.unwrap_err().is_panic() && request.ended().is_some(), "it makes room");
        let again = poll(&state, PEER, "k", wanted("panics"), b"", "/x").await.unwrap();
        assert!(matches!(again, Polled::Granted { is_new: true, .. }), "it begins anew: {again:?}");
    }

    #[tokio::test]
    async fn each_poll_keeps_the_place_for_as_long_again() {
        let (state, patience) = (state().await, Duration::from_secs(4));
        let (request, _) = join(&state, "c", "k", [0; 32]).unwrap();
        let poll = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let (outcome, leaves) = (request.outcome.subscribe(), Leaves(&request));
            let left = Instant::now();
            drop(leaves);
            drop(outcome);
            left
        };
        let abandoned = async {
            request.abandoned(patience).await;
            Instant::now()
        };
        let (abandoned, left) = tokio::join!(abandoned, poll);
        assert!(abandoned >= left + patience, "withdrawn {:?} after a poll", abandoned - left);
    }

    #[tokio::test]
    async fn a_failure_that_passes_is_not_repeated() {
        let state = state().await;
        let taken = request::take(&state, &wanted("busy")).await.unwrap();
        let refused = |code| {
            let (state, wanted) = (state.clone(), wanted("busy"));
            async move {
                assert_eq!(poll(&state, PEER, "k", wanted, b"", "/x").await.unwrap_err().code, code);
            }
        };
        refused("busy").await;
        leases::release(&state, &taken.lease).await.unwrap();
        refused("busy").await;
        // Whatever else it is refused with, the next one begins anew.
        state.locks.shutdown(Duration::ZERO).await.unwrap();
        let failed = poll(&state, PEER, "other", wanted("x"), b"", "/x").await.unwrap_err();
        assert_eq!(failed.code, "unreachable");
        assert!(join(&state, "anonymous", "other", [0; 32]).unwrap().1, "it is new");
    }

    #[test]
    fn a_key_stands_for_what_is_asked_for_and_not_for_how_long_it_waits() {
        let of = |body: &str| digest("/x", body.as_bytes());
        assert_eq!(of(r#"{"wait_ms":5,"poll_ms":1}"#), of(r#"{"poll_ms":2, "wait_ms":4}"#));
        assert_ne!(of(r#"{"ttl_ms":5000}"#), of(r#"{"ttl_ms":6000}"#));
        assert_ne!(of(""), digest("/y", b""));
    }
}
