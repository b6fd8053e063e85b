//! Locks: what is stored and published is what programs of Redisson store and publish.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{Attempt, Cursor, Driver as _, End, Fences, Gone, Interest, Released, Renewal, Renewed};
use oarlock_core::state::{Ending, Query};
use oarlock_core::{Applied, ErrorKind, Fence, LossReason};
use oarlock_redis::Redis;
use oarlock_testbed::Redis as Server;
use oarlock_testbed::proxy::{Proxy, Then};
use redis::Value;

use super::listener::{JAVA, Listener, open, owner, redisson};
use crate::context::{DONE, claim, client, fence, name, started};

const BESIDE: &str = "oarlock:beside:{deploy}";
const TOKEN: &str = "redisson_lock_token:{deploy}";

#[tokio::test]
async fn a_lock_looks_like_one_of_theirs() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = open(server.addr()).await;
    let mut listener = Listener::on(server.addr(), "SUBSCRIBE", "redisson_lock__channel:{deploy}").await;
    fence(&store, &claim(0xfeed, "deploy")).await.unwrap();
    let fields: Vec<String> = raw.ask(&["HGETALL", "deploy"]).await;
    assert_eq!(fields, ["00000000-0000-0000-0000-00000000feed:0", "1"]);
    assert_eq!(fields[0], owner(0xfeed));
    let left: i64 = raw.ask(&["PTTL", "deploy"]).await;
    assert!((29_000..=30_000).contains(&left), "{left}");
    assert!(raw.lock("deploy", "8000").await.unwrap() <= 30_000, "theirs is refused");

    store.release(&name("deploy"), claim(0xfeed, "deploy").id, &DONE).await.unwrap();
    listener.told("0").await;
    assert_eq!(raw.ask::<Vec<String>>(&["KEYS", "*"]).await, ["oarlock:beside:{deploy}"]);
    let left: i64 = raw.ask(&["PTTL", "oarlock:beside:{deploy}"]).await;
    assert!(left > 86_000_000 && left <= 86_400_000, "what we keep ends by itself: {left}");
    assert_eq!(raw.lock("deploy", "8000").await, None);
}

#[tokio::test]
async fn a_repeated_attempt_counts_nothing_up() {
    let server = started!(Server::start_or_skip());
    let (teacher, mut raw) = open(server.addr()).await;
    // The server knows the scripts, so that what is dropped is their answer.
    fence(&teacher, &claim(9, "before")).await.unwrap();
    teacher.release(&name("before"), claim(9, "before").id, &DONE).await.unwrap();
    let proxy = Proxy::start(server.addr()).unwrap();
    let store = Redis::open(redisson(proxy.addr())).await.unwrap();
    let dropped = proxy.drop_next_reply(Then::Close);
    store.attempt(&claim(1, "deploy")).await.unwrap_err();
    assert!(dropped.wait().await.is_some());
    let first = fence(&store, &claim(1, "deploy")).await;
    assert_eq!(fence(&store, &claim(1, "deploy")).await, first);
    assert_eq!(raw.ask::<String>(&["HGET", "deploy", &owner(1)]).await, "1");
    let dropped = proxy.drop_next_reply(Then::Close);
    store.release(&name("deploy"), claim(1, "deploy").id, &DONE).await.unwrap_err();
    assert!(dropped.wait().await.is_some());
    assert_eq!(raw.lock("deploy", "8000").await, None, "one release frees it");
    let again = store.release(&name("deploy"), claim(1, "deploy").id, &DONE).await.unwrap();
    assert_eq!(again.outcome, Released::NotHeld);
    assert_eq!(raw.ask::<usize>(&["HEXISTS", "deploy", JAVA]).await, 1, "repeated, it frees no other");
}

#[tokio::test]
async fn their_holder_is_shown_as_what_it_is_and_can_be_broken() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = open(server.addr()).await;
    assert_eq!((raw.lock("deploy", "8000").await, raw.lock("deploy", "8000").await), (None, None));
    let Attempt::Pending(pending) = store.attempt(&claim(1, "deploy")).await.unwrap() else { panic!("it is theirs") };
    assert!(pending.recheck_after.unwrap() <= Duration::from_secs(8), "{pending:?}");
    let seen = store.inspect(&Query::name(name("deploy"))).await.unwrap();
    let holder = &seen.resources[0].holders[0];
    assert_eq!((&*holder.label.tags["redisson"], &*holder.label.tags["holds"]), (JAVA, "2"));
    assert!(holder.fence.is_none() && holder.label.host.is_empty(), "{holder:?}");
    assert_eq!(store.release(&name("deploy"), holder.id, &DONE).await.unwrap().outcome, Released::NotHeld);
    let mut listener = Listener::on(server.addr(), "SUBSCRIBE", "redisson_lock__channel:{deploy}").await;
    let ending = Ending::new("ops", "stuck");
    let end = End::Broken { ending, grace: Duration::ZERO };
    assert_eq!(store.release(&name("deploy"), holder.id, &end).await.unwrap().outcome, Released::Released);
    listener.told("0").await;
    assert!(fence(&store, &claim(1, "deploy")).await.is_some());
}

#[tokio::test]
async fn fences_rise_over_grants_of_theirs_and_over_what_was_forgotten() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = open(server.addr()).await;
    let first = fence(&store, &claim(1, "deploy")).await.unwrap();
    store.release(&name("deploy"), claim(1, "deploy").id, &DONE).await.unwrap();
    assert_eq!(raw.lock("deploy", "8000").await, None);
    assert!(raw.force_unlock("deploy").await);
    let second = fence(&store, &claim(2, "deploy")).await.unwrap();
    assert!(second > first);
    let _: Value = raw.ask(&["FLUSHALL"]).await;
    let third = fence(&store, &claim(3, "deploy")).await.unwrap();
    assert!(third > second, "from the clock");
    // A counter that is ahead of the clock goes on.
    let ahead = third + 3_600_000_000;
    let _: Value = raw.ask(&["HSET", "oarlock:beside:{deploy}", "fence", &ahead.to_string()]).await;
    store.release(&name("deploy"), claim(3, "deploy").id, &DONE).await.unwrap();
    assert_eq!(fence(&store, &claim(4, "deploy")).await, Some(ahead + 1));
    // Proposed, it takes the place of the clock, unless that is a minute away.
    let near = third + 30_000_000;
    for (resource, number, least, most) in
        [("near", near, near, near), ("behind", 7, third - 60_000_000, third), ("ahead", 3 * third, third, 2 * third)]
    {
        let mut proposed = claim(5, resource);
        proposed.least_fence = Some(Fence::new(number));
        let given = fence(&store, &proposed).await.unwrap();
        assert!((least..=most).contains(&given), "{resource}: {given}");
    }
}

#[tokio::test]
async fn tokens_of_theirs_and_fences_of_ours_are_one_sequence() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = open(server.addr()).await;
    fence(&store, &claim(1, "deploy")).await.unwrap();
    assert_eq!(raw.ask::<usize>(&["EXISTS", TOKEN]).await, 0, "no token unless there is one, or it is asked for");
    store.release(&name("deploy"), claim(1, "deploy").id, &DONE).await.unwrap();

    // Theirs may be ahead of every clock of ours.
    let theirs = 4_000_000_000_000_000_u64;
    let _: Value = raw.ask(&["SET", TOKEN, &theirs.to_string()]).await;
    let ours = fence(&store, &claim(2, "deploy")).await.unwrap();
    assert_eq!(ours, theirs + 1);
    let mut reserve = Renewal::of(Arc::new(claim(2, "deploy")));
    reserve.fences = Fences::Reserve(10);
    let renewed = store.renew(&[reserve]).await;
    assert!(matches!(&renewed[..], [Ok(Renewed::Alive { fence: Some(fence), .. })] if fence.get() == ours + 10));
    store.release(&name("deploy"), claim(2, "deploy").id, &DONE).await.unwrap();
    assert_eq!(raw.ask::<u64>(&["INCR", TOKEN]).await, ours + 11, "the next one of theirs");
    assert_eq!(fence(&store, &claim(3, "deploy")).await, Some(ours + 12));

    let mut config = redisson(server.addr());
    config.tokens = true;
    let store = Redis::open(config).await.unwrap();
    let first = fence(&store, &claim(1, "other")).await.unwrap();
    assert_eq!(raw.ask::<u64>(&["INCR", "redisson_lock_token:{other}"]).await, first + 1);
    assert_eq!(raw.ask::<i64>(&["PTTL", "redisson_lock_token:{other}"]).await, -1);
}

#[tokio::test]
async fn a_force_unlock_of_theirs_is_a_loss_with_its_reason() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = open(server.addr()).await;
    let client = client(redisson(server.addr()), Duration::from_secs(4)).await;
    let guard = client.mutex("deploy").lock().await.unwrap();
    assert!(raw.force_unlock("deploy").await);
    assert_eq!(raw.lock("deploy", "8000").await, None);
    let reason = tokio::time::timeout(Duration::from_secs(5), guard.lost()).await.unwrap();
    assert!(matches!(&reason, LossReason::Broken(ending) if ending.by == "another program"), "{reason}");
    assert_eq!(raw.ask::<usize>(&["HEXISTS", "deploy", JAVA]).await, 1, "what is theirs now stays theirs");
    drop(guard);

    // A hold that expired was not broken.
    let mut short = claim(1, "other");
    short.ttl = Duration::from_millis(50);
    fence(&store, &short).await.unwrap();
    tokio::time::sleep(Duration::from_millis(80)).await;
    let renewed = store.renew(&[Renewal::of(Arc::new(short))]).await;
    assert!(matches!(&renewed[..], [Ok(Renewed::Gone(Gone::Unknown))]), "{renewed:?}");
}

#[tokio::test]
async fn each_side_wakes_the_other() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = open(server.addr()).await;
    assert_eq!(raw.lock("deploy", "600000").await, None);
    let Attempt::Pending(_) = store.attempt(&claim(1, "deploy")).await.unwrap() else { panic!("it is theirs") };
    let mut turn = store.watch(&Interest::Turn(Arc::new(claim(1, "deploy")), Cursor::default())).await.unwrap();
    assert!(raw.force_unlock("deploy").await);
    let hint = tokio::time::timeout(Duration::from_secs(30), turn.changed()).await.expect("to be woken");
    assert!(hint.is_some());
    fence(&store, &claim(1, "deploy")).await.unwrap();

    // A waiter in their fair queue listens to a channel of its own. Dead waiters before it do not block it.
    let (queue, waits) = ("redisson_lock_queue:{deploy}", "redisson_lock_timeout:{deploy}");
    let _: Value = raw.ask(&["RPUSH", queue, "waited too long", "without a time", JAVA, "behind"]).await;
    let _: Value = raw.ask(&["ZADD", waits, "1000", "waited too long", "9999999999999", JAVA, "1000", "behind"]).await;
    let mut head = Listener::on(server.addr(), "SUBSCRIBE", &format!("redisson_lock__channel:{{deploy}}:{JAVA}")).await;
    store.release(&name("deploy"), claim(1, "deploy").id, &DONE).await.unwrap();
    head.told("0").await;
    assert_eq!(raw.ask::<Vec<String>>(&["LRANGE", queue, "0", "-1"]).await, [JAVA, "behind"], "the queue is theirs");
    assert_eq!(raw.ask::<Vec<String>>(&["ZRANGE", waits, "0", "-1"]).await, ["behind", JAVA]);
}

#[tokio::test]
async fn whom_their_release_may_not_tell_looks_often() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = open(server.addr()).await;
    assert_eq!(raw.lock("deploy", "600000").await, None);
    let recheck = async |resource: &str| match store.attempt(&claim(2, resource)).await.unwrap() {
        Attempt::Pending(pending) => pending.recheck_after.unwrap(),
        other => panic!("it is held: {other:?}"),
    };
    assert_eq!(recheck("deploy").await, Duration::from_millis(500), "a fair or a spin lock of theirs tells us nothing");
    fence(&store, &claim(1, "ours")).await.unwrap();
    assert!(recheck("ours").await > Duration::from_secs(20), "we notify all waiters");
}

#[tokio::test]
async fn a_holder_of_theirs_cannot_be_asked() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = open(server.addr()).await;
    assert_eq!(raw.lock("deploy", "60000").await, None);
    let holder = store.inspect(&Query::name(name("deploy"))).await.unwrap().resources[0].holders[0].id;
    let ending = Ending::new("ops", "stuck");
    let asked = End::Broken { ending, grace: Duration::from_secs(5) };
    let error = store.release(&name("deploy"), holder, &asked).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unsupported, Applied::No));
    let left: i64 = raw.ask(&["PTTL", "deploy"]).await;
    assert!(left > 50_000, "it is as it was: {left}");
    // One of ours is.
    fence(&store, &claim(1, "ours")).await.unwrap();
    let outcome = store.release(&name("ours"), claim(1, "ours").id, &asked).await.unwrap().outcome;
    assert_eq!(outcome, Released::Asked);
}

#[tokio::test]
async fn other_objects_under_the_name_are_refused_and_left_alone() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = open(server.addr()).await;
    let foreign: [&[&str]; 13] = [
        &["SET", "deploy", "3"],
        &["SET", "deploy", "nan"],
        &["SET", "deploy", "1e300"],
        &["SET", "deploy", "a token of redis-py"],
        &["HSET", "deploy", "mode", "read", JAVA, "1"],
        &["HSET", "deploy", "one", "1", "two", "2"],
        &["HSET", "deploy", "owner", "theirs"],
        &["LPUSH", "deploy", "theirs"],
        // Nothing is done as often as a number of another program says.
        &["HSET", "deploy", "mode", "dark", "seen", "1794746305188"],
        &["HSET", "deploy", "mode", "read", "seen", "1794746305188"],
        &["HSET", "deploy", "mode", "read", "seen", "inf"],
        &["HSET", "deploy", "mode", "read", "seen", "nan"],
        &["HSET", "deploy", "mode", "read", "seen", "0.5"],
    ];
    for words in foreign {
        let _: Value = raw.ask(&["DEL", "deploy"]).await;
        let _: Value = raw.ask(words).await;
        let before: Vec<u8> = raw.ask(&["DUMP", "deploy"]).await;
        assert_eq!(store.attempt(&claim(1, "deploy")).await.unwrap_err().kind(), ErrorKind::Foreign, "{words:?}");
        assert_eq!(raw.ask::<Vec<u8>>(&["DUMP", "deploy"]).await, before);
    }
    let _: Value = raw.ask(&["DEL", "deploy"]).await;
    for token in ["none", "nan", "-inf", "1e300"] {
        let _: Value = raw.ask(&["SET", TOKEN, token]).await;
        assert_eq!(store.attempt(&claim(1, "deploy")).await.unwrap_err().kind(), ErrorKind::Foreign, "{token}");
    }
    let _: Value = raw.ask(&["DEL", TOKEN]).await;
    for (field, number) in [("fence", "nan"), ("fence", "inf"), ("cap", "nan")] {
        let _: Value = raw.ask(&["DEL", BESIDE]).await;
        let _: Value = raw.ask(&["HSET", BESIDE, "format", "1", field, number]).await;
        assert_eq!(
            store.attempt(&claim(1, "deploy")).await.unwrap_err().kind(),
            ErrorKind::Foreign,
            "{field}: {number}"
        );
    }
    let _: Value = raw.ask(&["DEL", BESIDE]).await;
    // The weight of a claim that holds permits, as another program would write it.
    for (fence, weight) in [("7", "1e300"), ("7", "0/0"), ("0/0", "1")] {
        let script = format!(
            "redis.call('HSET', KEYS[1], 'format', '1', 'ours', cmsgpack.pack({{ x = {{ fence = {fence}, till = 1, weight = \
             {weight} }} }}))"
        );
        let _: Value = raw.ask(&["EVAL", &script, "1", BESIDE]).await;
        let _: Value = raw.ask(&["SET", "deploy", "3"]).await;
        let error = store.attempt(&claim(1, "deploy")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Foreign, "{fence}, {weight}");
        assert!(error.to_string().contains("side key"), "{error}");
    }
    let _: Value = raw.ask(&["HSET", "oarlock:beside:{other}", "format", "2"]).await;
    assert_eq!(store.attempt(&claim(1, "other")).await.unwrap_err().kind(), ErrorKind::NewerFormat);
}

/// A weekly slot that was forgotten after a day would run twice.
#[tokio::test]
async fn a_memo_is_remembered_for_as_long_as_its_writer_asked() {
    let server = started!(Server::start_or_skip());
    let (store, mut raw) = open(server.addr()).await;
    for id in [1, 2] {
        let claim = Arc::new(claim(id, "deploy"));
        assert!(fence(&store, &claim).await.is_some());
        let mut renewal = Renewal::of(claim.clone());
        renewal.held = true;
        if id == 1 {
            (renewal.memo, renewal.keep) = (Some(b"slot"[..].into()), Duration::from_secs(8 * 86_400));
        }
        assert!(matches!(store.renew(&[renewal]).await.remove(0).unwrap(), Renewed::Alive { .. }));
        store.release(&claim.resource, claim.id, &DONE).await.unwrap();
        // A later use does not shorten it.
        let left: i64 = raw.ask(&["PTTL", BESIDE]).await;
        assert!(left > 8 * 86_400_000 - 60_000 && left <= 8 * 86_400_000 + 3_600_000, "{left} ms after use {id}");
    }
    let Attempt::Granted(grant) = store.attempt(&claim(3, "deploy")).await.unwrap() else { panic!("it is free") };
    assert_eq!(grant.memo.as_deref(), Some(&b"slot"[..]));
}
