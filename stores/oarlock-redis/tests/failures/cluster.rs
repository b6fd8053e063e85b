//! A cluster whose nodes forget scripts, move slots, and die.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{Driver as _, End, Interest, Renewal, Renewed};
use oarlock_core::state::Ending;
use oarlock_core::{Applied, Locks};
use oarlock_redis::{Address, Config, Redis};
use oarlock_testbed::RedisCluster;
use oarlock_testbed::proxy::{Held, Proxy};
use redis::Value;

use crate::context::{DONE, Raw, claim, client, fence, host, name, started, until};

fn config(context: &RedisCluster) -> Config {
    Config::new(Address::Cluster(vec![host(context.masters[0].addr())]))
}

/// Which of the masters serves this key.
async fn serves(context: &RedisCluster, key: &str) -> (usize, String) {
    let slot: u16 = Raw::to(context.masters[0].addr()).await.ask(&["CLUSTER", "KEYSLOT", key]).await;
    (usize::from(slot / 5461).min(2), slot.to_string())
}

async fn id(addr: SocketAddr) -> String {
    Raw::to(addr).await.ask(&["CLUSTER", "MYID"]).await
}

#[tokio::test]
async fn a_node_that_cannot_load_scripts_spoils_no_reply_of_the_others() {
    let context = started!(RedisCluster::start_or_skip());
    for node in &context.masters {
        let mut raw = Raw::to(node.addr()).await;
        let _: Value = raw.ask(&["ACL", "SETUSER", "pupil", "on", ">swordfish", "~*", "&*", "+@all"]).await;
    }
    let mut config = config(&context);
    (config.user, config.password) = (Some("pupil".into()), Some("swordfish".into()));
    let store = Redis::open(config).await.unwrap();
    let mut batch = Vec::new();
    for number in 0..30 {
        let claim = claim(number, &format!("job/{number}"));
        assert!(fence(&store, &claim).await.is_some());
        batch.push(Renewal::of(Arc::new(claim)));
    }
    assert!(store.renew(&batch).await.iter().all(Result::is_ok));
    let mut raw = Raw::to(context.masters[1].addr()).await;
    let _: Value = raw.ask(&["ACL", "SETUSER", "pupil", "-script|load"]).await;
    let _: Value = raw.ask(&["SCRIPT", "FLUSH"]).await;
    let renewed = store.renew(&batch).await;
    let alive = renewed.iter().filter(|answer| matches!(answer, Ok(Renewed::Alive { .. }))).count();
    let untaught = renewed.iter().filter(|answer| answer.as_ref().is_err_and(|e| e.applied() == Applied::No)).count();
    assert!(alive > 0 && untaught > 0 && alive + untaught == 30, "{renewed:?}");
    let _: Value = raw.ask(&["ACL", "SETUSER", "pupil", "+script|load"]).await;
    assert!(store.renew(&batch).await.iter().all(Result::is_ok), "and the scripts are loaded when that is allowed");
}

#[tokio::test]
async fn a_lock_stays_while_its_slot_moves() {
    let context = started!(RedisCluster::start_or_skip());
    let (key, index) = ("oarlock:{b6}:deploy", "oarlock:{b6}");
    let (from, slot) = serves(&context, key).await;
    let to = (from + 1) % 3;
    let (source, target) = (context.masters[from].addr(), context.masters[to].addr());
    let ours = client(config(&context), Duration::from_secs(2)).await;
    let store = Redis::open(config(&context)).await.unwrap();
    let guard = ours.mutex("deploy").lock().await.unwrap();
    let (mut old, mut new) = (Raw::to(source).await, Raw::to(target).await);
    let _: Value = new.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(source).await]).await;
    let _: Value = old.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(target).await]).await;

    assert_eq!(fence(&store, &claim(1, "deploy")).await, None, "still where it was");
    // Half of its keys are there: neither node can serve it now.
    let port = target.port().to_string();
    let _: Value = old.ask(&["MIGRATE", "127.0.0.1", &port, index, "0", "5000"]).await;
    let error = store.attempt(&claim(1, "deploy")).await.unwrap_err();
    assert_eq!(error.applied(), Applied::No, "{error}");
    let _: Value = old.ask(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]).await;
    assert_eq!(fence(&store, &claim(1, "deploy")).await, None, "the old node names the new one");
    for node in &context.masters {
        let new_id = id(target).await;
        let _: Value = Raw::to(node.addr()).await.ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &new_id]).await;
    }
    assert_eq!(fence(&store, &claim(1, "deploy")).await, None, "the old node says who serves it now");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(guard.is_held(), "{:?}", guard.loss());
    let lock = ours.mutex("deploy");
    let first = guard.fence();
    let waiter = tokio::spawn(async move { lock.lock().await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    guard.release().await.unwrap();
    let next = tokio::time::timeout(Duration::from_secs(1), waiter).await.expect("woken where the slot is now");
    assert!(next.unwrap().unwrap().fence() > first);
}

/// Gives the slot of the lock to another node, with both of its keys.
async fn move_slot(context: &RedisCluster, key: &str, index: &str) {
    let (from, slot) = serves(context, key).await;
    let (source, target) = (context.masters[from].addr(), context.masters[(from + 1) % 3].addr());
    let (mut old, mut new) = (Raw::to(source).await, Raw::to(target).await);
    let _: Value = new.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(source).await]).await;
    let _: Value = old.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(target).await]).await;
    let port = target.port().to_string();
    let _: Value = old.ask(&["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS", key, index]).await;
    let owner = id(target).await;
    // The new node first, as it is done, so that there is always one who serves it.
    for node in [target, source, context.masters[(from + 2) % 3].addr()] {
        let _: Value = Raw::to(node).await.ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &owner]).await;
    }
}

/// A node that is asked once (`ASK`), and does not know the script, gets the script and the call again in the same way.
#[tokio::test]
async fn a_slot_on_its_way_to_a_node_without_scripts_is_found_there() {
    let context = started!(RedisCluster::start_or_skip());
    let (key, index) = ("oarlock:{b6}:deploy", "oarlock:{b6}");
    let (from, slot) = serves(&context, key).await;
    let (source, target) = (context.masters[from].addr(), context.masters[(from + 1) % 3].addr());
    let store = Redis::open(config(&context)).await.unwrap();
    assert!(fence(&store, &claim(1, "deploy")).await.is_some());
    let (mut old, mut new) = (Raw::to(source).await, Raw::to(target).await);
    let _: Value = new.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(source).await]).await;
    let _: Value = old.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(target).await]).await;
    let port = target.port().to_string();
    let _: Value = old.ask(&["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS", key, index]).await;
    let _: Value = new.ask(&["SCRIPT", "FLUSH"]).await;
    let _: Value = new.ask(&["CONFIG", "RESETSTAT"]).await;
    assert_eq!(fence(&store, &claim(2, "deploy")).await, None);
    let errors: String = new.ask(&["INFO", "errorstats"]).await;
    assert!(errors.contains("NOSCRIPT") && !errors.contains("MOVED"), "{errors}");
}

/// Others may come to a cluster one of whose masters is dead, until another takes its slots.
#[tokio::test]
async fn a_dead_master_blocks_no_request_to_the_others() {
    let context = started!(RedisCluster::start_or_skip());
    for node in context.masters.iter().chain(&context.replicas) {
        let mut raw = Raw::to(node.addr()).await;
        let _: Value = raw.ask(&["CONFIG", "SET", "cluster-node-timeout", "60000"]).await;
        let _: Value = raw.ask(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).await;
    }
    let (dead, _) = serves(&context, "oarlock:{b6}:deploy").await;
    context.masters[dead].kill().unwrap();
    let mut config = config(&context);
    config.address = Address::Cluster(context.masters.iter().map(|node| host(node.addr())).collect());
    let store = Redis::open(config).await.unwrap();
    let mut granted = 0;
    for number in 0..20 {
        granted += usize::from(store.attempt(&claim(number, &format!("job/{number}"))).await.is_ok());
    }
    assert!((1..20).contains(&granted), "{granted} of 20");
    assert!(store.attempt(&claim(99, "deploy")).await.is_err(), "no node serves its slot");
}

/// A node that serves nothing yet, and to which a slot is on its way, is asked for that slot. What it was asked is
/// answered, though who serves what is learnt anew meanwhile.
#[tokio::test]
async fn a_node_that_is_being_filled_is_not_left() {
    let context = started!(RedisCluster::start_or_skip());
    let empty = oarlock_testbed::Redis::start_with(&[("cluster-enabled", "yes"), ("appendonly", "no")]).unwrap();
    let (key, index) = ("oarlock:{b6}:deploy", "oarlock:{b6}");
    let (from, slot) = serves(&context, key).await;
    let (source, target, other) = (context.masters[from].addr(), empty.addr(), context.masters[(from + 1) % 3].addr());
    let (mut old, mut new) = (Raw::to(source).await, Raw::to(target).await);
    let port = target.port().to_string();
    let _: Value = old.ask(&["CLUSTER", "MEET", "127.0.0.1", &port]).await;
    let new_id = id(target).await;
    until("the nodes to meet", async || {
        let (seen, back): (String, String) =
            (old.ask(&["CLUSTER", "NODES"]).await, new.ask(&["CLUSTER", "NODES"]).await);
        let known = seen.lines().any(|line| line.starts_with(&new_id) && !line.contains("handshake"));
        let whole = new.ask::<String>(&["CLUSTER", "INFO"]).await.contains("cluster_state:ok");
        known
            && whole
            && back.lines().filter(|line| line.contains("connected") && !line.contains("handshake")).count() >= 7
    })
    .await;
    let (proxy, way) = (Proxy::start(target).unwrap(), Proxy::start(other).unwrap());
    let mut config = config(&context);
    config.detours = [(host(target), host(proxy.addr())), (host(other), host(way.addr()))].into();
    let store = Arc::new(Redis::open(config).await.unwrap());
    assert!(fence(&store, &claim(1, "deploy")).await.is_some());
    let _: Value = new.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(source).await]).await;
    let _: Value = old.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &new_id]).await;
    let _: Value = old.ask(&["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS", key, index]).await;
    assert_eq!(fence(&store, &claim(2, "deploy")).await, None, "asked of the new one");

    // Its answer is late, and meanwhile another node fails, so that the map is in doubt and read again.
    proxy.cut();
    let late = tokio::spawn({
        let store = store.clone();
        async move { fence(&store, &claim(3, "deploy")).await }
    });

    until("the late one to be asked", async || proxy.seen().held_to_server > 0).await;
    let elsewhere: Vec<_> = (0..60).map(|number| claim(100 + number, &format!("job/{number}"))).collect();
    for _ in 0..2 {
        let reads: String = old.ask(&["INFO", "commandstats"]).await;
        way.refuse();
        let slots = |told: &str| told.lines().find(|line| line.contains("cmdstat_cluster|slots")).map(str::to_owned);
        until("the map to be read again", async || {
            for claim in &elsewhere {
                let _ = store.attempt(claim).await;
            }
            slots(&old.ask::<String>(&["INFO", "commandstats"]).await) != slots(&reads)
        })
        .await;
        way.heal(Held::Reset).unwrap();
    }
    proxy.heal(Held::Deliver).unwrap();
    assert_eq!(late.await.expect("answered"), None);
}

/// The node that a slot leaves ends the subscriptions to it. Those who wait must hear from the next one: otherwise the
/// lock is handed to a claim that is not notified, and that loses its place.
#[tokio::test]
async fn waiters_follow_a_slot_that_moves_and_keep_their_order() {
    let context = started!(RedisCluster::start_or_skip());
    let (key, index) = ("oarlock:{b6}:deploy", "oarlock:{b6}");
    let holder = Locks::over(Redis::open(config(&context)).await.unwrap()).unwrap();
    let guard = holder.mutex("deploy").lock().await.unwrap();
    let (granted, mut order) = tokio::sync::mpsc::unbounded_channel();
    for number in 1..=3 {
        let waiter = Locks::over(Redis::open(config(&context)).await.unwrap()).unwrap();
        let granted = granted.clone();
        tokio::spawn(async move {
            let guard = waiter.mutex("deploy").wait_forever().lock().await.unwrap();
            granted.send((number, guard.fence())).unwrap();
            guard.release().await.unwrap();
        });
        until("its place", async || holder.inspect(&name("deploy")).await.unwrap().waiters.count() == Some(number))
            .await;
    }
    move_slot(&context, key, index).await;
    let (from, _) = serves(&context, key).await;
    let mut raw = Raw::to(context.masters[(from + 1) % 3].addr()).await;
    until("those who wait, to listen where the slot is now", async || {
        let heard: Vec<String> = raw.ask(&["PUBSUB", "SHARDCHANNELS", "oarlock:mail:*"]).await;
        heard.len() >= 3
    })
    .await;
    let mut last = guard.fence();
    let released = std::time::Instant::now();
    guard.release().await.unwrap();
    for wanted in 1..=3 {
        let next = tokio::time::timeout(Duration::from_secs(30), order.recv()).await.expect("granted").unwrap();
        assert_eq!(next.0, wanted, "in order of arrival");
        assert!(next.1 > last);
        last = next.1;
        println!("{wanted} was granted it after {:?}", released.elapsed());
    }
}

/// A holder hears that it was broken, at the latest with the renewal after that.
#[tokio::test]
async fn a_mailbox_follows_a_slot_that_moves() {
    let context = started!(RedisCluster::start_or_skip());
    let (key, index) = ("oarlock:{b6}:deploy", "oarlock:{b6}");
    let store = Redis::open(config(&context)).await.unwrap();
    let mut mailbox = store.watch(&Interest::Mailbox).await.unwrap();
    let held = claim(1, "deploy");
    assert!(fence(&store, &held).await.is_some());
    let renewal = Renewal::of(Arc::new(held.clone()));
    assert!(store.renew(std::slice::from_ref(&renewal)).await[0].is_ok());
    move_slot(&context, key, index).await;
    // The first finds the slot, and the mailbox with it, unless the old node has not said yet that it is gone.
    let other = Redis::open(config(&context)).await.unwrap();
    let ending = Ending::new("ops", "");
    until("word of the break", async || {
        assert!(store.renew(std::slice::from_ref(&renewal)).await[0].is_ok());
        let asked = End::Broken { ending: ending.clone(), grace: Duration::from_secs(30) };
        other.release(&name("deploy"), held.id, &asked).await.unwrap();
        let told = tokio::time::timeout(Duration::from_millis(200), mailbox.changed()).await;
        told.is_ok_and(|hint| hint.is_some_and(|hint| hint.claim == Some(held.id)))
    })
    .await;
}

#[tokio::test]
async fn a_dead_node_is_replaced_and_the_others_do_not_notice() {
    let context = started!(RedisCluster::start_or_skip());
    // Longer than two elections: the first may fail.
    let ttl = Duration::from_secs(12);
    let ours = client(config(&context), ttl).await;
    let (dead, _) = serves(&context, "oarlock:{b6}:deploy").await;
    let deploy = ours.mutex("deploy").lock().await.unwrap();
    let mut others = Vec::new();
    for number in 0..20 {
        others.push(ours.mutex(format!("job/{number}")).lock().await.unwrap());
    }
    // Until the replica has them: what it has not is what a failover forgets.
    until("the replica", async || {
        let keys: usize = Raw::to(context.replicas[dead].addr()).await.ask(&["DBSIZE"]).await;
        let there: usize = Raw::to(context.masters[dead].addr()).await.ask(&["DBSIZE"]).await;
        keys == there
    })
    .await;
    context.masters[dead].kill().unwrap();
    tokio::time::sleep(ttl + Duration::from_millis(500)).await;
    assert!(deploy.is_held(), "the replica had it: {:?}", deploy.loss());
    assert!(others.iter().all(|guard| guard.is_held()));
    assert!(ours.mutex("deploy").try_lock().await.unwrap().is_none());
    let first = deploy.fence();
    deploy.release().await.unwrap();
    assert!(ours.mutex("deploy").lock().await.unwrap().fence() > first);
}

#[tokio::test]
async fn two_connections_to_each_node_however_many_locks() {
    let context = started!(RedisCluster::start_or_skip());
    let client = Locks::over(Redis::open(config(&context)).await.unwrap()).unwrap();
    let mut guards = Vec::new();
    for number in 0..300 {
        guards.push(client.mutex(format!("job/{number}")).lock().await.unwrap());
    }
    for node in &context.masters {
        let list: String = Raw::to(node.addr()).await.ask(&["CLIENT", "LIST"]).await;
        let ours = list
            .lines()
            .filter(|line| line.contains("lib-name=oarlock") || line.contains("cmd=evalsha") || line.contains("ssub="))
            .count();
        let ours =
            ours.min(list.lines().filter(|line| !line.contains("cmd=client") && !line.contains("flags=S")).count());
        assert!(ours <= 2, "{list}");
    }
    assert_eq!(client.list().await.unwrap().len(), 300);
}

#[tokio::test]
async fn plain_locks_of_any_name_work_in_a_cluster() {
    let context = started!(RedisCluster::start_or_skip());
    let mut config = config(&context);
    (config.layout, config.prefix) = (oarlock_redis::Layout::Plain, String::new());
    let store = Redis::open(config).await.unwrap();
    for (number, text) in
        ["deploy", "{a}b", "a}b", "a{b", "{}", "{}{x}", "}{", "a{b}c{d}", "\u{1f512}"].into_iter().enumerate()
    {
        let claim = claim(number as u128, text);
        let first = fence(&store, &claim).await.unwrap();
        assert_eq!(fence(&store, &claim).await, Some(first), "{text}");
        store.release(&name(text), claim.id, &DONE).await.unwrap();
    }
}
