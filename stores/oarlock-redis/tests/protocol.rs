//! What only shows on the network and in the keys of a real server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "shared/patient.rs"]
mod patient;

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{Attempt, Cursor, Driver as _, End, Hint, Interest, Released, Renewal, Renewed};
use oarlock_core::state::{Ending, Query, Waiters};
use oarlock_core::{Applied, Claim, ClaimId, ErrorKind, Label, Locks, ResourceName, Retry, Runtime};
use oarlock_redis::{Address, Config, Redis};
use oarlock_testbed::proxy::{Direction, Held, Proxy, Then};
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, Value};

/// Where the key of `deploy` is: a part of the layout.
const KEY: &str = "oarlock:{b6}:deploy";
const INDEX: &str = "oarlock:{b6}";

/// A server of one's own, and a plain connection to it.
struct TestContext {
    server: oarlock_testbed::Redis,
    raw: MultiplexedConnection,
}

impl TestContext {
    async fn start() -> Option<Self> {
        let server = oarlock_testbed::Redis::start_or_skip().unwrap()?;
        let raw = patient::connect(&server.url()).await;
        let context = Self { server, raw };
        context.load_scripts().await;
        Some(context)
    }

    /// Loads the scripts into the server, so that the next reply on a connection is that of a script.
    async fn load_scripts(&self) {
        let store = self.open().await;
        let claim = Claim::new(ClaimId::from_bits(0), ResourceName::new("loaded").unwrap());
        let renewal = Renewal::of(Arc::new(claim.clone()));
        store.attempt(&claim).await.unwrap();
        assert!(store.renew(&[renewal]).await[0].is_ok());
        store.inspect(&Query::name(claim.resource.clone())).await.unwrap();
        store.release(&claim.resource, claim.id, &DONE).await.unwrap();
    }

    async fn ask<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        redis::cmd(words[0]).arg(&words[1..]).query_async(&mut self.raw).await.unwrap()
    }

    fn config(&self) -> Config {
        let addr = self.server.addr();
        Config::new(Address::Tcp(addr.ip().to_string(), addr.port()))
    }

    async fn open(&self) -> Redis {
        Redis::open(self.config()).await.unwrap()
    }

    /// A store behind a proxy.
    async fn through_proxy(&self, silence: Duration) -> (Redis, Proxy) {
        let proxy = Proxy::start(self.server.addr()).unwrap();
        let mut config = self.config();
        config.address = Address::Tcp(proxy.addr().ip().to_string(), proxy.addr().port());
        config.silence_timeout = silence;
        (Redis::open(config).await.unwrap(), proxy)
    }

    async fn connections(&mut self) -> usize {
        let list: String = self.ask(&["CLIENT", "LIST", "TYPE", "normal"]).await;
        let subscribed: String = self.ask(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
        // Without the one that asks.
        list.lines().count() + subscribed.lines().count() - 1
    }
}

macro_rules! context {
    () => {
        match TestContext::start().await {
            Some(context) => context,
            None => return,
        }
    };
}

fn deploy() -> ResourceName {
    ResourceName::new("deploy").unwrap()
}

fn claim(id: u128) -> Claim {
    Claim::new(ClaimId::from_bits(id), deploy())
}

async fn fence(store: &Redis, claim: &Claim) -> Option<u64> {
    match store.attempt(claim).await.unwrap() {
        Attempt::Granted(grant) => Some(grant.fence.get()),
        Attempt::Pending(_) => None,
    }
}

const DONE: End = End::Done { memo: None };

#[tokio::test]
async fn a_lost_reply_is_unknown_and_the_repeated_attempt_has_the_same_fence() {
    let context = context!();
    let (store, proxy) = context.through_proxy(Duration::from_secs(20)).await;
    let dropped = proxy.drop_next_reply(Then::Close);
    let error = store.attempt(&claim(1)).await.unwrap_err();
    assert!(dropped.wait().await.is_some());
    assert_eq!(
        (error.kind(), error.applied(), error.retry()),
        (ErrorKind::Unreachable, Applied::Unknown, Retry::Later)
    );
    let seen = context.open().await.inspect(&Query::name(deploy())).await.unwrap();
    let granted = seen.resources[0].holders[0].fence.unwrap().get();
    assert_eq!(fence(&store, &claim(1)).await, Some(granted), "a new connection, the same place");
    store.release(&deploy(), claim(1).id, &DONE).await.unwrap();
}

#[tokio::test]
async fn a_lost_reply_of_a_release_or_a_renewal_can_be_repeated() {
    let context = context!();
    let (store, proxy) = context.through_proxy(Duration::from_secs(20)).await;
    let first = fence(&store, &claim(1)).await;
    proxy.drop_next_reply(Then::Close);
    let renewal = Renewal::of(Arc::new(claim(1)));
    assert!(store.renew(std::slice::from_ref(&renewal)).await[0].is_err());
    assert!(store.renew(&[renewal]).await[0].is_ok());
    assert_eq!(fence(&store, &claim(1)).await, first);
    proxy.drop_next_reply(Then::Close);
    assert!(store.release(&deploy(), claim(1).id, &DONE).await.is_err());
    store.release(&deploy(), claim(1).id, &DONE).await.unwrap();
    assert!(fence(&store, &claim(2)).await > first);
}

#[tokio::test]
async fn an_engine_rides_over_lost_replies_and_resets() {
    let context = context!();
    let (store, proxy) = context.through_proxy(Duration::from_secs(20)).await;
    let client = Locks::builder(store).ttl(Duration::from_secs(5)).op_timeout(Duration::from_secs(1)).build().unwrap();
    proxy.drop_next_reply(Then::Close);
    let guard = client.mutex("deploy").lock().await.unwrap();
    proxy.cut();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    proxy.heal(Held::Reset).unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(guard.is_held(), "{:?}", guard.loss());
    guard.release().await.unwrap();
}

/// The connection was lost, and the next request opens another: on the engine's thread, and not on a runtime that is
/// then blocked for three leases.
#[test]
fn a_connection_made_anew_lives_where_the_engine_does() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut context = context!();
        let (runtime, config) = (Runtime::own_thread().unwrap(), context.config());
        let store = runtime.run(Redis::open(config)).await.unwrap().unwrap();
        let ttl = Duration::from_secs(2);
        let client = Locks::builder(store).runtime(runtime).ttl(ttl).build().unwrap();
        let _: Value = context.ask(&["CLIENT", "KILL", "SKIPME", "yes"]).await;
        let guard = client.mutex("deploy").lock().await.unwrap();
        std::thread::sleep(ttl * 3);
        assert!(guard.is_held(), "{:?}", guard.loss());
        guard.release().await.unwrap();
    });
}

#[tokio::test]
async fn a_silent_connection_is_replaced() {
    let context = context!();
    let (store, proxy) = context.through_proxy(Duration::from_secs(2)).await;
    let _watch = store.watch(&Interest::Mailbox).await.unwrap();
    let dropped = proxy.drop_next_reply(Then::Silence);
    let error = store.attempt(&claim(1)).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unreachable, Applied::Unknown));
    assert!(dropped.wait().await.is_some());
    assert!(fence(&store, &claim(1)).await.is_some());
    assert_eq!(proxy.seen().accepted, 2, "the silent one, and one more");
}

#[tokio::test]
async fn a_connection_that_ended_while_idle_costs_no_request() {
    let mut context = context!();
    let store = context.open().await;
    let mut watch = store.watch(&Interest::Mailbox).await.unwrap();
    for _ in 0..2 {
        let _: Value = context.ask(&["CLIENT", "KILL", "SKIPME", "yes"]).await;
        while watch.changed().await.is_some() {}
        assert!(fence(&store, &claim(1)).await.is_some());
        watch = store.watch(&Interest::Mailbox).await.unwrap();
    }
}

#[tokio::test]
async fn watches_end_with_their_connection_and_are_armed_anew() {
    let mut context = context!();
    let store = context.open().await;
    let mut mailbox = store.watch(&Interest::Mailbox).await.unwrap();
    let mut turn = store.watch(&Interest::Turn(Arc::new(claim(1)), Cursor::default())).await.unwrap();
    let _: Value = context.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    assert_eq!((mailbox.changed().await, turn.changed().await), (None, None), "watches end with their connection");
    let mut again = store.watch(&Interest::Mailbox).await.unwrap();
    fence(&store, &claim(1)).await;
    let ending = Ending::new("ops", "stuck");
    let broken = End::Broken { ending, grace: Duration::ZERO };
    store.release(&deploy(), claim(1).id, &broken).await.unwrap();
    let hint = tokio::time::timeout(Duration::from_secs(20), again.changed()).await.expect("a hint");
    assert_eq!(hint, Some(Hint::about(claim(1).id)), "its holder is told");
}

#[tokio::test]
async fn requests_fail_while_the_server_is_away_and_work_when_it_is_back() {
    let context = context!();
    let store = context.open().await;
    let first = fence(&store, &claim(1)).await;
    context.server.kill().unwrap();
    while store.attempt(&claim(1)).await.is_err_and(|error| error.applied() == Applied::Unknown) {}
    let error = store.attempt(&claim(1)).await.unwrap_err();
    assert_eq!((error.kind(), error.applied(), error.retry()), (ErrorKind::Unreachable, Applied::No, Retry::Later));
    context.server.restart().unwrap();
    assert_eq!(fence(&store, &claim(1)).await, first);
}

#[tokio::test]
async fn one_connection_however_many_locks() {
    let mut context = context!();
    let client = Locks::over(context.open().await).unwrap();
    let mut guards = Vec::new();
    for number in 0..50 {
        guards.push(client.mutex(format!("job/{number}")).lock().await.unwrap());
    }
    let _watch = client.watch(&deploy()).await.unwrap();
    assert_eq!(context.connections().await, 1, "for requests and news");
    client.shutdown(Duration::from_secs(1)).await.unwrap();
    drop((guards, client));
    while context.connections().await > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn channels_without_a_watch_are_unsubscribed() {
    let mut context = context!();
    let store = context.open().await;
    drop(store.watch(&Interest::Resource(deploy())).await.unwrap());
    let _mail = store.watch(&Interest::Mailbox).await.unwrap();
    let channels: Vec<String> = context.ask(&["PUBSUB", "CHANNELS"]).await;
    assert!(channels.len() == 1 && channels[0].starts_with("oarlock:mail:"), "{channels:?}");
}

#[tokio::test]
async fn scripts_are_loaded_again_into_a_server_that_forgot_them() {
    let mut context = context!();
    let store = context.open().await;
    let mut batch = Vec::new();
    for number in 0..20 {
        let claim = Claim::new(ClaimId::from_bits(number), ResourceName::new(format!("job/{number}")).unwrap());
        store.attempt(&claim).await.unwrap();
        batch.push(Renewal::of(Arc::new(claim)));
    }
    let _: Value = context.ask(&["SCRIPT", "FLUSH"]).await;
    assert!(store.renew(&batch).await.iter().all(Result::is_ok));
    let _: Value = context.ask(&["SCRIPT", "FLUSH"]).await;
    assert!(fence(&store, &claim(1)).await.is_some());
}

#[tokio::test]
async fn what_belongs_to_others_is_refused_and_left_alone() {
    let mut context = context!();
    let store = context.open().await;
    // As long as a state is, and longer.
    let (torn, long) = ("t".repeat(101), "torn".repeat(40));
    // A state of another version that is as long.
    let (yesterday, tomorrow) = (format!("\u{3}{}", "y".repeat(100)), format!("\u{5}{}", "t".repeat(100)));
    let foreign: [&[&str]; 10] = [
        &["SET", KEY, "theirs"],
        &["HSET", KEY, "owner", "theirs"],
        &["HSET", KEY, "format", "4", "state", "torn"],
        &["HSET", KEY, "format", "4", "state", &torn],
        &["HSET", KEY, "format", "4", "state", &long],
        &["HSET", KEY, "format", "4", "memo", "without a state"],
        &["HSET", KEY, "format", "one", "state", "theirs"],
        &["HSET", KEY, "format", "1", "fence", "1", "state", "of yesterday"],
        &["HSET", KEY, "format", "3", "state", &yesterday],
        &["HSET", KEY, "state", &torn],
    ];
    let newer: [&[&str]; 2] =
        [&["HSET", KEY, "format", "5", "state", "of tomorrow"], &["HSET", KEY, "format", "5", "state", &tomorrow]];
    let cases = foreign.into_iter().map(|words| (words, ErrorKind::Foreign));
    for (words, kind) in cases.chain(newer.into_iter().map(|words| (words, ErrorKind::NewerFormat))) {
        let _: Value = context.ask(&["DEL", KEY]).await;
        let _: Value = context.ask(words).await;
        let before: Vec<u8> = context.ask(&["DUMP", KEY]).await;
        let error = store.attempt(&claim(1)).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.applied(), error.retry()),
            (kind, Applied::No, Retry::Never),
            "{words:?}: {error}"
        );
        let renewal = Renewal::of(Arc::new(claim(1)));
        assert_eq!(store.renew(&[renewal]).await[0].as_ref().unwrap_err().kind(), kind);
        assert_eq!(store.release(&deploy(), claim(1).id, &DONE).await.unwrap_err().kind(), kind);
        assert_eq!(store.inspect(&Query::name(deploy())).await.unwrap_err().kind(), kind);
        assert_eq!(context.ask::<Vec<u8>>(&["DUMP", KEY]).await, before);
    }
}

/// Numbers that no script of ours writes are neither counted to, which would block the server, nor granted.
#[tokio::test]
async fn numbers_of_another_program_are_refused_and_left_alone() {
    let mut context = context!();
    let store = context.open().await;
    assert!(fence(&store, &claim(1)).await.is_some());
    let mut waits = claim(2);
    waits.wait = true;
    assert_eq!(fence(&store, &waits).await, None);
    let key = |field: &'static str| [KEY, field];
    let state: Vec<u8> = context.ask(&[&["HGET"], &key("state")[..]].concat()).await;
    let waiter: Vec<u8> = context.ask(&[&["HGET"], &key("w2")[..]].concat()).await;
    let holder: Vec<u8> = context.ask(&[&["HGET"], &key("w1")[..]].concat()).await;
    let with = |bytes: &[u8], at: usize, number: u64| {
        let mut bytes = bytes.to_vec();
        bytes[at..at + 8].copy_from_slice(&number.to_be_bytes());
        bytes
    };
    // The largest number, one that is negative where numbers have a sign, and those of floating point: none, endless,
    // and 10^300.
    let floats = [f64::NAN, f64::INFINITY, 1e300].map(f64::to_bits);
    let wrong = [u64::MAX, 1 << 63, 1 << 60, (1 << 53) + 2].into_iter().chain(floats);
    let mut cases = Vec::new();
    for number in wrong {
        // The numbers of the name, those of its holder, and those of its waiter: what it sent may be negative.
        cases.extend((0..9).map(|at| ("state", with(&state, 13 + 8 * at, number))));
        let lasting = |at: &usize| *at != 5 || number != u64::MAX;
        for (field, bytes) in [("w1", &holder), ("w2", &waiter)] {
            cases.extend((0..8).filter(lasting).map(|at| (field, with(bytes, 8 * at, number))));
        }
    }
    let (count, head, tail, sole) = (53, 61, 69, 77);
    // A queue that is longer than what is there, by a little and by far; and numbers that are not told apart any more.
    for (waiting, last) in [(2, 3), (1_000_000_000, 2_000_000_000), (1, 1 << 50), (0, 1 << 50), (0, 2)] {
        cases.push(("state", with(&with(&state, count, waiting), tail, last)));
    }
    // A holder that is not there, or not alone; a waiter where the holder should be, and a holder among the waiters.
    cases.extend([
        ("state", with(&state, sole, 2)),
        ("state", with(&state, sole, 3)),
        ("state", with(&state, head, 2)),
    ]);
    let mut holders = state.clone();
    holders[7] = 2;
    cases.push(("state", holders));
    cases.extend([("w1", waiter.clone()), ("w1", Vec::new()), ("w2", holder.clone()), ("w2", b"torn".to_vec())]);
    // A claim with more or fewer bytes than it says.
    cases.extend([("w2", [&waiter[..], b"x"].concat()), ("w2", waiter[..waiter.len() - 1].to_vec())]);
    for (field, bytes) in cases {
        for (field, bytes) in [("state", &state), ("w1", &holder), ("w2", &waiter), (field, &bytes)] {
            let set = redis::cmd("HSET").arg(&key(field)).arg(bytes.as_slice()).exec_async(&mut context.raw).await;
            set.unwrap();
        }
        let before: Vec<u8> = context.ask(&["DUMP", KEY]).await;
        let error = store.attempt(&claim(3)).await.expect_err("no grant, and no place").kind();
        assert_eq!(error, ErrorKind::Foreign, "{field}: {bytes:?}");
        assert_eq!(store.inspect(&Query::name(deploy())).await.unwrap_err().kind(), ErrorKind::Foreign);
        assert_eq!(context.ask::<Vec<u8>>(&["DUMP", KEY]).await, before, "{field}: {bytes:?}");
    }
}

/// A call, then the script and the call again: two round trips.
#[tokio::test]
async fn scripts_are_loaded_in_two_round_trips() {
    let mut context = context!();
    let store = context.open().await;
    let _: Value = context.ask(&["SCRIPT", "FLUSH"]).await;
    let _: Value = context.ask(&["CONFIG", "RESETSTAT"]).await;
    assert!(fence(&store, &claim(1)).await.is_some());
    let told: String = context.ask(&["INFO", "commandstats"]).await;
    let line = told.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap();
    assert!(line.starts_with("cmdstat_evalsha:calls=2,"), "{line}");
}

#[tokio::test]
async fn every_key_ends_by_itself() {
    let mut context = context!();
    let store = context.open().await;
    let mut long = claim(1);
    long.ttl = Duration::from_secs(3600);
    store.attempt(&long).await.unwrap();
    let mut waits = claim(2);
    waits.wait = true;
    assert_eq!(fence(&store, &waits).await, None);
    let (lease, day) = (3_600_000_i64, 86_400_000_i64);
    // An hour more, so that not every step has to tell it.
    let kept = |left: i64| left > lease + day && left <= lease + day + 3_600_001;
    let left: i64 = context.ask(&["PTTL", KEY]).await;
    assert!(kept(left), "{left} ms");
    let left: i64 = context.ask(&["PTTL", INDEX]).await;
    assert!(left > 31 * day, "an index ends, but not before the longest lease: {left} ms");
    for id in [1, 2] {
        store.release(&deploy(), ClaimId::from_bits(id), &DONE).await.unwrap();
    }
    let left: i64 = context.ask(&["PTTL", KEY]).await;
    assert!(left > day && kept(left), "{left} ms");
    let mut fields: Vec<String> = context.ask(&["HKEYS", KEY]).await;
    fields.sort_unstable();
    assert_eq!(fields, ["format", "state"], "claims go with their labels");
    assert_eq!(context.ask::<Vec<String>>(&["KEYS", "*deploy*"]).await, [KEY]);
    assert_eq!(context.ask::<usize>(&["EXISTS", INDEX]).await, 0);
}

/// A name that is taken again and again stays in the index while it is free, and is not listed then; its index entry lasts
/// for longer than any of its claims, and a pause removes it.
#[tokio::test]
async fn a_name_that_is_taken_often_stays_in_the_index_for_longer_than_its_claims() {
    let mut context = context!();
    let store = context.open().await;
    let mut short = claim(1);
    (short.ttl, short.label) = (Duration::from_secs(1), Arc::new(Label::of_this_process().reason("release 2.3")));
    for pair in 0..40 {
        assert!(fence(&store, &short).await.is_some());
        store.release(&deploy(), short.id, &DONE).await.unwrap();
        if pair == 0 {
            assert_eq!(context.ask::<usize>(&["EXISTS", INDEX]).await, 0, "a name that is used once leaves at once");
        }
    }
    assert_eq!(context.ask::<Vec<String>>(&["ZRANGE", INDEX, "0", "-1"]).await, [KEY]);
    assert!(store.inspect(&Query::live()).await.unwrap().resources.is_empty(), "it is free");
    let values: Vec<Vec<u8>> = context.ask(&["HVALS", KEY]).await;
    assert!(!values.iter().any(|value| String::from_utf8_lossy(value).contains("2.3")), "its label is gone");

    let mut long = claim(2);
    long.ttl = Duration::from_secs(3600);
    assert!(fence(&store, &long).await.is_some());
    let ended: u128 = context.ask(&["ZSCORE", INDEX, KEY]).await;
    let seconds: u128 = context.ask::<Vec<u128>>(&["TIME"]).await[0];
    assert!(ended >= (seconds + 3600) * 1000, "the index knows when the last claim ends: {ended}");
    assert_eq!(store.inspect(&Query::live()).await.unwrap().resources.len(), 1);
    store.release(&deploy(), long.id, &DONE).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1010)).await;
    assert!(fence(&store, &claim(3)).await.is_some());
    store.release(&deploy(), claim(3).id, &DONE).await.unwrap();
    assert_eq!(context.ask::<usize>(&["EXISTS", INDEX]).await, 0, "after a pause it leaves at once");
}

/// Scripts publish changes only while a client listens, and that may begin at any time.
#[tokio::test]
async fn an_observer_is_told_also_where_no_client_listened_before() {
    let mut context = context!();
    let (store, other) = (context.open().await, context.open().await);
    for _ in 0..2 {
        fence(&store, &claim(1)).await;
        let mut watch = other.watch(&Interest::Resource(deploy())).await.unwrap();
        for step in ["a release", "a grant", "a release"] {
            if step == "a grant" {
                fence(&store, &claim(1)).await;
            } else {
                store.release(&deploy(), claim(1).id, &DONE).await.unwrap();
            }
            let hint = tokio::time::timeout(Duration::from_secs(20), watch.changed()).await;
            assert_eq!(hint.ok().flatten(), Some(Hint::ANY), "{step}");
        }
        drop(watch);
        // Another watch lets the client notice that the first one is gone.
        let _mailbox = other.watch(&Interest::Mailbox).await.unwrap();
        let publish = async |context: &mut TestContext| {
            fence(&store, &claim(1)).await;
            store.release(&deploy(), claim(1).id, &DONE).await.unwrap();
            context.ask::<String>(&["INFO", "commandstats"]).await
        };
        publish(&mut context).await;
        let _: Value = context.ask(&["CONFIG", "RESETSTAT"]).await;
        assert!(!publish(&mut context).await.contains("cmdstat_publish"), "no client listens");
    }
}

#[tokio::test]
async fn a_waiter_that_is_back_in_the_queue_has_its_label() {
    let context = context!();
    let store = context.open().await;
    store.attempt(&claim(1)).await.unwrap();
    let mut waits = claim(2);
    (waits.wait, waits.ttl) = (true, Duration::from_millis(50));
    waits.label = Arc::new(Label::of_this_process().reason("release 2.3"));
    assert_eq!(fence(&store, &waits).await, None);
    tokio::time::sleep(Duration::from_millis(60)).await;
    waits.ttl = Duration::from_secs(30);
    assert_eq!(fence(&store, &waits).await, None, "its place ran out, and this takes another");
    let seen = store.inspect(&Query::name(deploy())).await.unwrap();
    let Waiters::Listed(waiters) = &seen.resources[0].waiters else { panic!("not listed") };
    assert_eq!(waiters[0].label, waits.label);
}

#[tokio::test]
async fn a_user_that_may_not_load_scripts_is_told_so() {
    let mut context = context!();
    let _: Value =
        context.ask(&["ACL", "SETUSER", "pupil", "on", ">swordfish", "~*", "&*", "+@all", "-script|load"]).await;
    let mut config = context.config();
    (config.user, config.password) = (Some("pupil".into()), Some("swordfish".into()));
    let store = Redis::open(config).await.unwrap();
    assert!(fence(&store, &claim(1)).await.is_some());
    let _: Value = context.ask(&["SCRIPT", "FLUSH"]).await;
    let error = store.attempt(&claim(1)).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.applied(), error.retry()),
        (ErrorKind::Denied, Applied::No, Retry::Never),
        "{error}"
    );
    context.load_scripts().await;
    assert!(fence(&store, &claim(1)).await.is_some());
}

/// Another client loads the script between the first reply and the second call: the reply of the script is returned,
/// though loading failed.
#[tokio::test]
async fn a_failed_script_load_hides_no_reply() {
    let mut context = context!();
    let _: Value =
        context.ask(&["ACL", "SETUSER", "pupil", "on", ">swordfish", "~*", "&*", "+@all", "-script|load"]).await;
    let proxy = Proxy::start(context.server.addr()).unwrap();
    let mut config = context.config();
    config.address = Address::Tcp(proxy.addr().ip().to_string(), proxy.addr().port());
    (config.user, config.password) = (Some("pupil".into()), Some("swordfish".into()));
    let store = Redis::open(config).await.unwrap();
    let _: Value = context.ask(&["SCRIPT", "FLUSH"]).await;
    let _: Value = context.ask(&["CONFIG", "RESETSTAT"]).await;
    let failed = async |context: &mut TestContext| {
        context.ask::<String>(&["INFO", "errorstats"]).await.contains("NOSCRIPT:count=1")
    };
    proxy.delay(Direction::ToClient, Duration::from_secs(1));
    let attempt = tokio::spawn(async move { store.attempt(&claim(1)).await });
    while !failed(&mut context).await {
        tokio::task::yield_now().await;
    }
    context.load_scripts().await;
    assert!(matches!(attempt.await.unwrap(), Ok(Attempt::Granted(_))));
}

#[tokio::test]
async fn names_that_ran_out_leave_the_index_when_it_is_used() {
    let mut context = context!();
    let store = context.open().await;
    let mut short = claim(1);
    short.ttl = Duration::from_millis(50);
    store.attempt(&short).await.unwrap();
    let _: Value = context.ask(&["ZADD", INDEX, "1", "oarlock:{b6}:long ago"]).await;
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert!(store.inspect(&Query::live()).await.unwrap().resources.is_empty(), "not shown");
    store.attempt(&claim(2)).await.unwrap();
    assert!(store.renew(&[Renewal::of(Arc::new(claim(2)))]).await[0].is_ok());
    assert_eq!(context.ask::<Vec<String>>(&["ZRANGE", INDEX, "0", "-1"]).await, [KEY]);
}

/// The suite runs with exactly these. Here one of them is taken away.
#[tokio::test]
async fn a_right_that_is_missing_is_named() {
    let mut context = context!();
    let mut config = context.config();
    (config.user, config.password, config.database) = (Some("app".into()), Some("swordfish".into()), 3);
    let rights = oarlock_redis::rights(&config, "app").unwrap();
    let grant: Vec<_> = rights.split_whitespace().chain([">swordfish"]).collect();
    let _: Value = context.ask(&grant).await;
    let client = Locks::over(Redis::open(config.clone()).await.unwrap()).unwrap();
    client.mutex("deploy").lock().await.unwrap().release().await.unwrap();
    let _watch = client.watch(&deploy()).await.unwrap();
    for right in ["evalsha", "hset", "publish", "zadd"] {
        let _: Value = context.ask(&["ACL", "SETUSER", "app", &format!("-{right}")]).await;
        let error = Redis::open(config.clone()).await.unwrap().attempt(&claim(1)).await.unwrap_err();
        assert_eq!((error.kind(), error.retry()), (ErrorKind::Denied, Retry::Never), "{error}");
        let text = error.to_string();
        // Before version 7.2 a server does not name a command that a script may not call.
        let named =
            text.contains(&format!("'{right}' command")) || text.contains("can't run this command or subcommand");
        assert!(named && text.contains("oarlock init --print"), "{right}: {text}");
        let _: Value = context.ask(&["ACL", "SETUSER", "app", &format!("+{right}")]).await;
    }
}

/// As on managed servers, which may deny it to every user: a waiter that listens is notified all the same.
#[tokio::test]
async fn a_user_does_not_need_pubsub() {
    let mut context = context!();
    let mut config = context.config();
    (config.user, config.password) = (Some("app".into()), Some("swordfish".into()));
    let rights = oarlock_redis::rights(&config, "app").unwrap();
    let grant: Vec<_> = rights.split_whitespace().chain([">swordfish", "-pubsub"]).collect();
    let _: Value = context.ask(&grant).await;
    let open = async || Locks::over(Redis::open(config.clone()).await.unwrap()).unwrap();
    let (one, two) = (open().await, open().await);
    let guard = one.mutex("deploy").lock().await.unwrap();
    let waiting = tokio::spawn(async move { two.mutex("deploy").lock().await.map(|guard| guard.fence()) });
    let waits = |waiters: &Waiters| matches!(waiters, Waiters::Listed(waiters) if !waiters.is_empty());
    while !waits(&one.inspect(&deploy()).await.unwrap().waiters) {
        tokio::task::yield_now().await;
    }
    let fence = guard.fence();
    guard.release().await.unwrap();
    let next = tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("long before its lease");
    assert!(next.unwrap().unwrap() > fence);
}

#[tokio::test]
async fn a_user_that_is_refused_is_told_so() {
    let mut context = context!();
    let mut config = context.config();
    let _: Value = context.ask(&["ACL", "SETUSER", "reader", "on", ">swordfish", "~*", "&*", "+@read", "+hello"]).await;
    config.user = Some("reader".into());
    config.password = Some("sesame".into());
    let error = Redis::open(config.clone()).await.unwrap_err();
    assert_eq!((error.kind(), error.retry()), (ErrorKind::Denied, Retry::Never), "{error}");
    assert!(!format!("{error} {error:?}").contains("sesame"));
    (config.user, config.password, config.database) = (Some("reader".into()), Some("swordfish".into()), 0);
    let error = Redis::open(config).await.unwrap().attempt(&claim(1)).await.unwrap_err();
    assert_eq!((error.kind(), error.retry()), (ErrorKind::Denied, Retry::Never), "{error}");
}

/// As on managed servers. A waiter that listens is notified, also where the server does not say whether it listens.
#[tokio::test]
async fn commands_that_were_disabled_are_missed_by_none_but_scripts() {
    let disabled = |names: &[&str]| {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        names.iter().for_each(|name| writeln!(file, "rename-command {name} \"\"").unwrap());
        let include = file.path().display().to_string();
        oarlock_testbed::Redis::start_with_or_skip(&[("include", &include)]).unwrap()
    };
    let open = async |server: &oarlock_testbed::Redis| {
        let addr = server.addr();
        Redis::open(Config::new(Address::Tcp(addr.ip().to_string(), addr.port()))).await.unwrap()
    };
    let Some(server) = disabled(&["CONFIG", "INFO", "PUBSUB", "CLIENT"]) else { return };
    let store = open(&server).await;
    // Its version is in the greeting.
    assert!(store.server_info().version.is_some() && !store.server_info().replica, "{:?}", store.server_info());
    let (one, two) = (Locks::over(store).unwrap(), Locks::over(open(&server).await).unwrap());
    let guard = one.mutex("deploy").lock().await.unwrap();
    let waiting = tokio::spawn(async move { two.mutex("deploy").lock().await.map(|guard| guard.fence()) });
    let waits = |waiters: &Waiters| matches!(waiters, Waiters::Listed(waiters) if !waiters.is_empty());
    while !waits(&one.inspect(&deploy()).await.unwrap().waiters) {
        tokio::task::yield_now().await;
    }
    let fence = guard.fence();
    guard.release().await.unwrap();
    assert!(waiting.await.unwrap().unwrap() > fence);

    let Some(server) = disabled(&["SCRIPT"]) else { return };
    let error = open(&server).await.attempt(&claim(1)).await.unwrap_err();
    assert_eq!((error.kind(), error.retry()), (ErrorKind::Config, Retry::Never), "{error}");
    assert!(error.to_string().contains("SCRIPT"), "{error}");
}

/// A release needs no memory, whether the name is used rarely or often, alone or by several.
#[tokio::test]
async fn a_full_server_lets_holders_go() {
    let mut context = context!();
    let store = context.open().await;
    let memo = End::Done { memo: Some((*b"up to line 4711").into()) };
    for (pairs, end) in [(0, &DONE), (40, &DONE), (0, &memo), (40, &memo)] {
        for _ in 0..pairs {
            fence(&store, &claim(1)).await;
            store.release(&deploy(), claim(1).id, &DONE).await.unwrap();
        }
        for waiters in [0, 1] {
            fence(&store, &claim(1)).await;
            for id in 2..2 + waiters {
                let mut waits = claim(id);
                waits.wait = true;
                assert_eq!(fence(&store, &waits).await, None);
            }
            let _: Value = context.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;
            for id in 1..2 + waiters {
                let released = store.release(&deploy(), ClaimId::from_bits(id), end).await.unwrap();
                assert_eq!(released.outcome, Released::Released, "{pairs} pairs, {waiters} waiters, {end:?}");
            }
            let _: Value = context.ask(&["CONFIG", "SET", "maxmemory", "0"]).await;
            assert!(store.inspect(&Query::name(deploy())).await.unwrap().resources[0].is_free());
        }
    }
}

#[tokio::test]
async fn a_full_server_refuses_in_words_and_recovers() {
    let mut context = context!();
    let store = context.open().await;
    let _: Value = context.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let error = store.attempt(&claim(1)).await.unwrap_err();
    assert_eq!((error.kind(), error.applied(), error.retry()), (ErrorKind::Unreachable, Applied::No, Retry::Later));
    let _: Value = context.ask(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert!(fence(&store, &claim(1)).await.is_some());
}

/// A weekly slot that was forgotten after a day would run twice.
#[tokio::test]
async fn a_memo_is_remembered_for_as_long_as_its_writer_asked() {
    let mut context = context!();
    let store = context.open().await;
    for id in [1, 2] {
        let claim = Arc::new(claim(id));
        assert!(fence(&store, &claim).await.is_some());
        let mut renewal = Renewal::of(claim.clone());
        renewal.held = true;
        if id == 1 {
            (renewal.memo, renewal.keep) = (Some(b"slot"[..].into()), Duration::from_secs(8 * 86_400));
        }
        assert!(matches!(store.renew(&[renewal]).await.remove(0).unwrap(), Renewed::Alive { .. }));
        store.release(&claim.resource, claim.id, &DONE).await.unwrap();
        // A later use does not shorten it.
        let left: i64 = context.ask(&["PTTL", KEY]).await;
        assert!(left > 8 * 86_400_000 - 60_000 && left <= 8 * 86_400_000 + 3_600_000, "{left} ms after use {id}");
    }
    let Attempt::Granted(grant) = store.attempt(&claim(3)).await.unwrap() else { panic!("it is free") };
    assert_eq!(grant.memo.as_deref(), Some(&b"slot"[..]));
}
