//! Redlock with nodes that are down, stopped, restarted without memory, split between rivals, or whose clocks jump.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oarlock_core::driver::{Attempt, Driver as _, End, Released, Renewal, Renewed};
use oarlock_core::state::{Ending, Query};
use oarlock_core::{Applied, Claim, ClaimId, ErrorKind, Locks, ResourceName};
use oarlock_quorum::{Quorum, redlock};
use oarlock_redis::{Address, Config, Layout};
use oarlock_testbed::{Redis as Server, RedisClock};
use redis::FromRedisValue;

const DONE: End = End::Done { memo: None };

/// Evaluates to so many servers that keep nothing on disk, or ends the test if they are not installed.
macro_rules! servers {
    ($count:expr) => {{
        if Server::start_or_skip().unwrap().is_none() {
            return;
        }
        let started = (0..$count).map(|_| Server::start_with(&[("appendonly", "no")]).unwrap());
        let servers: Vec<Server> = started.collect();
        servers
    }};
}

/// Nodes whose clocks can be moved, or the end of the test.
macro_rules! clocks {
    ($count:expr) => {{
        if Server::start_or_skip().unwrap().is_none() {
            return;
        }
        let nodes: Vec<RedisClock> = (0..$count).map(|_| RedisClock::start().unwrap()).collect();
        nodes
    }};
}

/// How long a node may take to answer where it must not be waited for.
const LONG: Duration = Duration::from_secs(15);

#[path = "failures/history.rs"]
mod history;
#[path = "../../oarlock-redis/tests/shared/patient.rs"]
mod patient;

fn config(addr: SocketAddr) -> Config {
    let mut config = Config::new(Address::Tcp(addr.ip().to_string(), addr.port()));
    (config.layout, config.prefix) = (Layout::Plain, String::new());
    config.connect_timeout = Duration::from_secs(1);
    config
}

async fn quorum(servers: &[Server]) -> Quorum {
    over(servers.iter().map(Server::addr)).await
}

/// The same for tests of what does not wait for a node: a busy machine takes less than this to answer.
async fn generous(servers: &[Server]) -> Quorum {
    quorum(servers).await.node_timeout(LONG)
}

async fn over(addrs: impl Iterator<Item = SocketAddr>) -> Quorum {
    redlock(addrs.map(config)).await.unwrap()
}

/// Takes and gives back, so often, with a new claim each time: the fences, and how long half of the pairs took at most.
async fn pairs(quorum: &Quorum, resource: &str, ids: std::ops::Range<u128>) -> (Vec<u64>, Duration) {
    let (mut fences, mut took) = (Vec::new(), Vec::new());
    for id in ids {
        let (mine, began) = (claim(id, resource), Instant::now());
        fences.push(fence(quorum, &mine).await.expect("no other client is there"));
        quorum.release(&mine.resource, mine.id, &DONE).await.unwrap();
        took.push(began.elapsed());
    }
    took.sort_unstable();
    (fences, took[took.len() / 2])
}

fn name(name: &str) -> ResourceName {
    ResourceName::new(name).unwrap()
}

fn claim(id: u128, resource: &str) -> Claim {
    Claim::new(ClaimId::from_bits(id), name(resource))
}

async fn fence(quorum: &Quorum, claim: &Claim) -> Option<u64> {
    match quorum.attempt(claim).await.unwrap() {
        Attempt::Granted(grant) => Some(grant.fence.get()),
        Attempt::Pending(_) => None,
    }
}

async fn ask<T: FromRedisValue>(server: &Server, words: &[&str]) -> T {
    ask_at(server.addr(), words).await
}

async fn ask_at<T: FromRedisValue>(addr: SocketAddr, words: &[&str]) -> T {
    let mut connection = patient::connect(&format!("redis://{addr}")).await;
    redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await.unwrap()
}

/// On how many of these servers the key is this.
async fn votes(servers: &[Server], key: &str, value: &str) -> usize {
    let mut votes = 0;
    for server in servers {
        votes += usize::from(ask::<Option<String>>(server, &["GET", key]).await.as_deref() == Some(value));
    }
    votes
}

/// Waits for `is`, for a minute at most: a vote that could not be given back on a busy machine ends with its lease, after
/// half a minute.
async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(60), async {
        while !is().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    assert!(waited.await.is_ok(), "waited in vain for {what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_node_down_and_one_stopped_of_five_cost_nothing() {
    let servers = servers!(5);
    let (quorum, rival) = (generous(&servers).await, generous(&servers).await);
    let (_, before) = pairs(&quorum, "pairs", 1000..1100).await;
    servers[0].kill().unwrap();
    servers[1].pause().unwrap();
    let (_, after) = pairs(&quorum, "pairs", 2000..2100).await;
    println!("a pair, median of 100: {before:?} with five nodes, {after:?} with one down and one stopped");
    // A client that waited for a node in half of the pairs would take far longer.
    assert!(after < before * 3 + Duration::from_millis(50), "{after:?} instead of {before:?}");
    let mut last = 0;
    for round in 0..20 {
        let (mine, theirs) = (claim(2 * round + 1, "five"), claim(2 * round + 2, "five"));
        let began = Instant::now();
        // A late vote for the rival may stand in the way for a moment: all three nodes that answer are needed.
        let mut now = None;
        until("a majority", async || {
            now = fence(&quorum, &mine).await;
            now.is_some()
        })
        .await;
        let now = now.unwrap();
        assert!(began.elapsed() < LONG, "a stopped node was waited for: {:?}", began.elapsed());
        assert!(now > last, "fence {now} after {last}");
        last = now;
        assert_eq!(fence(&rival, &theirs).await, None);
        let renewed = quorum.renew(&[Renewal::of(Arc::new(mine.clone()))]).await.pop().unwrap().unwrap();
        assert!(matches!(renewed, Renewed::Alive { .. }), "{renewed:?}");
        assert_eq!(quorum.release(&name("five"), mine.id, &DONE).await.unwrap().outcome, Released::Released);
    }
    servers[2].pause().unwrap();
    let error = quorum.attempt(&claim(100, "five")).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unreachable, Applied::Unknown), "{error}");
    servers[1].resume().unwrap();
    servers[2].resume().unwrap();
    // What a stopped node was asked for meanwhile it has done late, and it was undone.
    let (live, key) = (&servers[1..], claim(100, "five").id.to_string());
    until("late votes to be given back", async || votes(live, "five", &key).await == 0).await;
    until("the others", async || fence(&quorum, &claim(101, "five")).await.is_some()).await;
}

/// A Redlock has no order: its nodes do not look for waiters.
#[tokio::test(flavor = "multi_thread")]
async fn a_pair_costs_no_command_of_a_queue() {
    let servers = servers!(3);
    let quorum = quorum(&servers).await;
    pairs(&quorum, "pairs", 1..21).await;
    let mine = claim(30, "pairs");
    fence(&quorum, &mine).await.unwrap();
    assert_eq!(fence(&quorum, &claim(31, "pairs")).await, None);
    quorum.release(&mine.resource, claim(31, "pairs").id, &End::Withdrawn).await.unwrap();
    for server in &servers {
        let stats: String = ask(server, &["INFO", "commandstats"]).await;
        assert!(stats.contains("cmdstat_evalsha"), "{stats}");
        assert!(!stats.contains("cmdstat_z"), "a command of a sorted set: {stats}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_forgot_votes_again_at_the_next_renewal() {
    let servers = servers!(3);
    let (quorum, rival) = (quorum(&servers).await, quorum(&servers).await);
    let mine = claim(1, "forgetful");
    let first = fence(&quorum, &mine).await.unwrap();
    let key = mine.id.to_string();
    until("all votes", async || votes(&servers, "forgetful", &key).await == 3).await;
    let mut leaving = Renewal::of(Arc::new(mine.clone()));
    leaving.memo = Some(b"left by it".as_slice().into());
    quorum.renew(&[leaving]).await.pop().unwrap().unwrap();
    let has_memo = async |server: &Server| {
        let memo: Option<Vec<u8>> = ask(server, &["HGET", "oarlock:beside:{forgetful}", "memo"]).await;
        memo.is_some_and(|memo| memo.ends_with(b"left by it"))
    };
    // One after the other, each of them forgets, and is won back before the next does.
    for server in &servers {
        server.restart().unwrap();
        assert_eq!(ask::<usize>(server, &["DBSIZE"]).await, 0, "it did forget");
        until("its vote to be won back", async || {
            let renewed = quorum.renew(&[Renewal::of(Arc::new(mine.clone()))]).await.pop().unwrap().unwrap();
            assert!(matches!(renewed, Renewed::Alive { .. }), "a minority forgot: {renewed:?}");
            votes(&servers, "forgetful", &key).await == 3
        })
        .await;
        until("the memo to be there again", async || has_memo(server).await).await;
        assert_eq!(fence(&rival, &claim(2, "forgetful")).await, None);
    }
    assert_eq!(fence(&quorum, &mine).await, Some(first), "asked again, the same fence");
    // Two at once are a majority: it is lost, and must be said so, not taken back silently.
    servers[0].restart().unwrap();
    servers[1].restart().unwrap();
    let mut answer = None;
    until("an answer", async || {
        answer = quorum.renew(&[Renewal::of(Arc::new(mine.clone()))]).await.pop().unwrap().ok();
        answer.is_some()
    })
    .await;
    assert!(matches!(answer, Some(Renewed::Gone(_))), "{answer:?}");
    until("the rest of it to go", async || votes(&servers, "forgetful", &key).await == 0).await;
    assert!(fence(&rival, &claim(3, "forgetful")).await.unwrap() > first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_renewal_of_a_minority_changes_nothing() {
    let servers = servers!(3);
    let quorum = quorum(&servers).await;
    let mine = claim(1, "kept");
    let first = fence(&quorum, &mine).await.unwrap();
    let key = mine.id.to_string();
    until("all votes", async || votes(&servers, "kept", &key).await == 3).await;
    servers[0].pause().unwrap();
    servers[1].pause().unwrap();
    let error = quorum.renew(&[Renewal::of(Arc::new(mine.clone()))]).await.pop().unwrap().unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unreachable, Applied::Unknown));
    servers[0].resume().unwrap();
    servers[1].resume().unwrap();
    assert_eq!(votes(&servers, "kept", &key).await, 3, "a failed renewal took votes away");
    assert_eq!(fence(&quorum, &mine).await, Some(first));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_split_vote_of_an_even_number_ends_and_leaves_nothing() {
    let servers = servers!(4);
    let quorum = generous(&servers).await;
    // Another program has half of the nodes, as after a split vote.
    for server in &servers[..2] {
        let _: () = ask(server, &["SET", "split", "theirs", "PX", "30000"]).await;
    }
    let mine = claim(1, "split");
    let began = Instant::now();
    assert_eq!(fence(&quorum, &mine).await, None);
    assert!(began.elapsed() < LONG, "certain, and yet waited for: {:?}", began.elapsed());
    until("the other half to be free", async || ask::<usize>(&servers[2], &["EXISTS", "split"]).await == 0).await;
    until("the other half to be free", async || ask::<usize>(&servers[3], &["EXISTS", "split"]).await == 0).await;
    // Rivals that split the votes again and again all get through.
    for server in &servers[..2] {
        let _: () = ask(server, &["DEL", "split"]).await;
    }
    let mut rivals = Vec::new();
    for _ in 0..4 {
        let client = Locks::builder(self::quorum(&servers).await).build().unwrap();
        rivals.push(tokio::spawn(async move {
            let mut fences = Vec::new();
            for _ in 0..10 {
                let guard = client.mutex("split").lock().await.unwrap();
                fences.push(guard.fence());
                guard.release().await.unwrap();
            }
            fences
        }));
    }
    let mut all = Vec::new();
    for rival in rivals {
        let fences = rival.await.unwrap();
        assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
        all.extend(fences);
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 40, "a fence was given twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn fences_rise_though_all_nodes_forget() {
    let servers = servers!(3);
    let quorum = quorum(&servers).await;
    let mut all = Vec::new();
    for round in 0..4 {
        all.extend(pairs(&quorum, "forgotten", 100 * round..100 * round + 5).await.0);
        // First each one alone, then all of them.
        let forgetting = servers.iter().enumerate().filter(|(at, _)| round == 3 || *at as u128 == round);
        for (_, server) in forgetting {
            server.restart().unwrap();
            assert_eq!(ask::<usize>(server, &["DBSIZE"]).await, 0, "it did forget");
        }
        until("connections", async || {
            let probe = claim(9000, &format!("probe {round}"));
            quorum.attempt(&probe).await.is_ok_and(|answer| matches!(answer, Attempt::Granted(_)))
        })
        .await;
    }
    all.extend(pairs(&quorum, "forgotten", 800..805).await.0);
    assert!(all.is_sorted_by(|a, b| a < b), "{all:?}");
}

/// Longer than the lease, and so little that nodes still give what is proposed.
const A_WHILE: i64 = 45_000_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_jumps_costs_one_vote_and_no_fence() {
    let nodes = clocks!(3);
    let addrs = || nodes.iter().map(RedisClock::addr);
    let (quorum, rival) = (over(addrs()).await, over(addrs()).await);
    let votes = async |claim: &Claim| {
        let mut votes = 0;
        for addr in addrs() {
            let shown: Option<String> = ask_at(addr, &["GET", "jump"]).await;
            votes += usize::from(shown == Some(claim.id.to_string()));
        }
        votes
    };
    let renewed_votes = async |quorum: &Quorum, claim: &Claim| {
        let renewed = quorum.renew(&[Renewal::of(Arc::new(claim.clone()))]).await.pop().unwrap().unwrap();
        assert!(matches!(renewed, Renewed::Alive { .. }), "{renewed:?}");
        votes(claim).await
    };
    // Ahead, behind, and back.
    let mut all = Vec::new();
    for (round, micros) in [A_WHILE, -A_WHILE, 0].into_iter().enumerate() {
        let (mine, theirs) = (claim(10 * round as u128 + 1, "jump"), claim(10 * round as u128 + 2, "jump"));
        all.push(fence(&quorum, &mine).await.unwrap());
        // What a rival gave back may reach a node after our question: that vote comes with a renewal.
        until("all votes", async || renewed_votes(&quorum, &mine).await == 3).await;
        let jumped = async || {
            nodes[0].set_clock(0).unwrap();
            let all = renewed_votes(&quorum, &mine).await == 3;
            nodes[0].set_clock(micros).unwrap();
            // A renewal of which two others have told already may reach this node only now, and counts from its new
            // time.
            all && (micros <= 0 || votes(&mine).await == 2)
        };
        until("a vote to end early", jumped).await;
        assert_eq!(fence(&rival, &theirs).await, None, "two of three votes are still there");
        until("the vote to be won back", async || renewed_votes(&quorum, &mine).await == 3).await;
        assert_eq!(quorum.release(&name("jump"), mine.id, &DONE).await.unwrap().outcome, Released::Released);
        all.extend(pairs(&rival, "jump", 1000 * round as u128 + 100..1000 * round as u128 + 105).await.0);
    }
    assert!(all.is_sorted_by(|a, b| a < b), "{all:?}");
    // The nodes have given what they were asked for.
    let (ours, others) = (quorum.rounds(), rival.rounds());
    println!("clocks {A_WHILE} µs off: fence written back in {} of {} rounds", others.written_back, others.won);
    assert_eq!((ours.written_back, others.written_back), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_jumps_may_let_two_hold_it_and_the_later_has_the_larger_fence() {
    let nodes = clocks!(3);
    let addrs = || nodes.iter().map(RedisClock::addr);
    let (quorum, rival) = (over(addrs()).await, over(addrs()).await);
    let _: () = ask_at(nodes[2].addr(), &["SET", "jump", "another", "PX", "60000"]).await;
    let (mine, theirs) = (claim(1, "jump"), claim(2, "jump"));
    let first = fence(&quorum, &mine).await.unwrap();
    nodes[0].set_clock(A_WHILE).unwrap();
    let mut second = None;
    until("the promise that Redlock cannot keep", async || {
        // Our question may reach this node only now, as two votes were enough.
        let _: () = ask_at(nodes[2].addr(), &["DEL", "jump"]).await;
        second = fence(&rival, &theirs).await;
        second.is_some()
    })
    .await;
    let second = second.unwrap();
    assert!(second > first, "fence {second} after {first}");
    let renewed = quorum.renew(&[Renewal::of(Arc::new(mine))]).await.pop().unwrap().unwrap();
    assert!(matches!(renewed, Renewed::Gone(_)), "the first must learn of it: {renewed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_down_at_first_is_a_member_all_the_same() {
    let servers = servers!(3);
    servers[2].kill().unwrap();
    let quorum = quorum(&servers).await;
    let mine = claim(1, "late");
    assert!(fence(&quorum, &mine).await.is_some());
    servers[2].restart().unwrap();
    let key = mine.id.to_string();
    until("its vote", async || {
        let renewed = quorum.renew(&[Renewal::of(Arc::new(mine.clone()))]).await.pop().unwrap();
        assert!(matches!(renewed, Ok(Renewed::Alive { .. })), "{renewed:?}");
        votes(&servers, "late", &key).await == 3
    })
    .await;
    servers[0].kill().unwrap();
    servers[1].kill().unwrap();
    let error = quorum.attempt(&claim(2, "free")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "one of three is no majority: {error}");
    let alone = redlock(servers.iter().map(|server| config(server.addr()))).await.unwrap_err();
    assert_eq!(alone.kind(), ErrorKind::Unreachable);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_vote_of_a_lost_round_does_not_outlive_it() {
    let servers = servers!(3);
    let quorum = quorum(&servers).await;
    // One node is taken, one is stopped: the round is lost when the stopped one takes too long.
    let _: () = ask(&servers[0], &["SET", "late", "theirs", "PX", "30000"]).await;
    servers[1].pause().unwrap();
    let mine = claim(1, "late");
    assert_eq!(fence(&quorum, &mine).await, None);
    let _: () = ask(&servers[0], &["DEL", "late"]).await;
    // The next round of the same claim has an id of its own, because the stopped node still owes an answer to the
    // first. It is won once the third node has given back what it granted to the lost one.
    until("a round to be won", async || fence(&quorum, &mine).await.is_some()).await;
    let second: String = ask(&servers[0], &["GET", "late"]).await;
    assert_ne!(second, mine.id.to_string());
    servers[1].resume().unwrap();
    // Whatever the stopped node does now, the vote that counts is not touched.
    until("the first round to be given back", async || {
        ask::<Option<String>>(&servers[1], &["GET", "late"]).await != Some(mine.id.to_string())
    })
    .await;
    let renewed = quorum.renew(&[Renewal::of(Arc::new(mine.clone()))]).await.pop().unwrap().unwrap();
    assert!(matches!(renewed, Renewed::Alive { .. }), "{renewed:?}");
    assert!(votes(&servers, "late", &second).await >= 2);
    assert_eq!(quorum.release(&name("late"), mine.id, &DONE).await.unwrap().outcome, Released::Released);
    until("nothing to be left", async || votes(&servers, "late", &second).await == 0).await;
}

#[tokio::test]
async fn parts_of_a_resource_are_refused() {
    let servers = servers!(3);
    let client = Locks::builder(quorum(&servers).await).build().unwrap();
    let refused = client.semaphore("parts", 3).acquire(1).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.to_string().contains("votes for parts of one do not add up"), "{refused}");
    let refused = client.rwlock("parts").read().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.to_string().contains("votes for parts of one do not add up"), "{refused}");
    let writer = client.rwlock("parts").write().await.unwrap();
    assert!(writer.fence().get() > 0);
    writer.release().await.unwrap();
}

/// The holder is another program, which none of the servers can ask.
#[tokio::test]
async fn another_program_is_not_asked_to_let_go() {
    let servers = servers!(3);
    let quorum = quorum(&servers).await;
    for server in &servers {
        let _: () = ask(server, &["SET", "theirs", "a token of another program", "PX", "60000"]).await;
    }
    let seen = quorum.inspect(&Query::name(name("theirs"))).await.unwrap();
    let end = End::Broken { ending: Ending::new("ops", "stuck"), grace: Duration::from_secs(1) };
    let error = quorum.release(&name("theirs"), seen.resources[0].holders[0].id, &end).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unsupported, Applied::No), "{error}");
    assert!(error.to_string().contains("without a grace"), "{error}");
}
