//! What is in the keys of a server: what others wrote there, when each key ends, what a full server does.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{Attempt, Driver as _, End, Hint, Interest, Released, Renewal, Renewed};
use oarlock_core::state::{Query, Waiters};
use oarlock_core::{Applied, ClaimId, ErrorKind, Label, Retry};
use redis::Value;

use super::context::{DONE, INDEX, KEY, TestContext, claim, context, deploy, fence};

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
