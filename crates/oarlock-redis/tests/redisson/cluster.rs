//! The same in a cluster, where keys and news have a slot.

use oarlock_core::driver::{Driver as _, End};
use oarlock_core::state::Query;
use oarlock_core::{Applied, ErrorKind};
use oarlock_redis::{Address, Config, Layout, Redis};
use oarlock_testbed::RedisCluster;

use super::ear::Ear;
use crate::bed::{Raw, claim, fence, host, name, started};

#[tokio::test]
async fn news_go_to_those_who_listen_and_names_that_leave_their_slot_are_refused() {
    let bed = started!(RedisCluster::start_or_skip());
    let mut config = Config::new(Address::Cluster(vec![host(bed.masters[0].addr())]));
    (config.layout, config.prefix) = (Layout::Redisson, String::new());
    let store = Redis::open(config).await.unwrap();

    for good in ["deploy", "{a}b", "x{y}z"] {
        let slot: u16 = Raw::to(bed.masters[0].addr()).await.ask(&["CLUSTER", "KEYSLOT", good]).await;
        let home = bed.masters[usize::from(slot / 5461).min(2)].addr();
        let braced = if good.contains('{') { good.to_owned() } else { format!("{{{good}}}") };
        let channel = format!("redisson_lock__channel:{braced}");
        // From version 3.22 on they listen to the first, before that to the second.
        let mut sharded = Ear::on(home, "SSUBSCRIBE", &channel).await;
        let mut classic = Ear::on(home, "SUBSCRIBE", &channel).await;
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
