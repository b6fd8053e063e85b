//! The same in a cluster, where keys and news have a slot.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use oarlock_core::driver::{Attempt, Driver as _, End};
use oarlock_core::state::Query;
use oarlock_core::{Applied, Capacity, Claim, ErrorKind, Kind, Limit, Weight};
use oarlock_redis::{Address, Config, Layout, Redis};
use oarlock_testbed::RedisCluster;
use redis::Value;

use super::listener::{JAVA, Listener};
use crate::context::{Raw, claim, fence, host, name, started};

async fn open(context: &RedisCluster) -> Redis {
    let mut config = Config::new(Address::Cluster(vec![host(context.masters[0].addr())]));
    (config.layout, config.prefix) = (Layout::Redisson, String::new());
    Redis::open(config).await.unwrap()
}

/// The node that has the slot of this name.
async fn home(context: &RedisCluster, name: &str) -> SocketAddr {
    let slot: u16 = Raw::to(context.masters[0].addr()).await.ask(&["CLUSTER", "KEYSLOT", name]).await;
    context.masters[usize::from(slot / 5461).min(2)].addr()
}

#[tokio::test]
async fn notifications_reach_the_subscribers_and_names_that_leave_their_slot_are_refused() {
    let context = started!(RedisCluster::start_or_skip());
    let store = open(&context).await;

    for good in ["deploy", "{a}b", "x{y}z"] {
        let home = home(&context, good).await;
        let braced = if good.contains('{') { good.to_owned() } else { format!("{{{good}}}") };
        let channel = format!("redisson_lock__channel:{braced}");
        // From version 3.22 on they listen to the first, before that to the second.
        let mut sharded = Listener::on(home, "SSUBSCRIBE", &channel).await;
        let mut classic = Listener::on(home, "SUBSCRIBE", &channel).await;
        assert!(fence(&store, &claim(1, good)).await.is_some(), "{good}");
        store.release(&name(good), claim(1, good).id, &End::Done { memo: None }).await.unwrap();
        sharded.told("0").await;
        classic.told("0").await;
    }
    for bad in ["a{b", "{}q", "a}b"] {
        let error = store.attempt(&claim(1, bad)).await.unwrap_err();
        assert_eq!((error.kind(), error.applied()), (ErrorKind::InvalidName, Applied::No), "{bad}: {error}");
        assert_eq!(store.inspect(&Query::name(name(bad))).await.unwrap_err().kind(), ErrorKind::InvalidName);
    }
}

/// Versions before 3.22 publish to the whole cluster, which we do not listen to.
#[tokio::test]
async fn who_may_not_hear_of_their_release_looks_often() {
    let context = started!(RedisCluster::start_or_skip());
    let store = open(&context).await;
    let shares = |id, resource: &str, kind, weight, limit| {
        let mut claim = claim(id, resource);
        (claim.kind, claim.weight, claim.capacity) = (kind, weight, Capacity::Fixed(limit));
        claim
    };
    let reader = |id, resource: &str| shares(id, resource, Kind::Read, Weight::ONE, Limit::Unlimited);
    let writer = |id, resource: &str| shares(id, resource, Kind::Write, Weight::All, Limit::Unlimited);
    let recheck = async |claim: &Claim| match store.attempt(claim).await.unwrap() {
        Attempt::Pending(pending) => pending.recheck_after.unwrap(),
        Attempt::Granted(grant) => panic!("{grant:?}"),
    };
    let often = Duration::from_millis(500);

    assert!(fence(&store, &reader(1, "deploy")).await.is_some());
    assert!(recheck(&writer(2, "deploy")).await > Duration::from_secs(5), "we notify all waiters");
    let mut raw = Raw::to(home(&context, "deploy").await).await;
    let _: Value = raw.ask(&["HSET", "deploy", JAVA, "1"]).await;
    assert_eq!(recheck(&writer(2, "deploy")).await, often, "one of the readers is theirs");

    // They have all permits, which have no owner.
    let mut raw = Raw::to(home(&context, "permits").await).await;
    let _: Value = raw.ask(&["SET", "permits", "0"]).await;
    let limit = Limit::Units(NonZeroU32::new(2).unwrap());
    assert_eq!(recheck(&shares(1, "permits", Kind::Semaphore, Weight::ONE, limit)).await, often);
}
