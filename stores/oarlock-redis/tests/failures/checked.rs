//! Values that refuse smaller fences.

use oarlock_core::{ErrorKind, Fence};
use oarlock_redis::{Address, Checked, Config, Written};
use oarlock_testbed::{Redis as Server, RedisCluster};
use redis::Value;

use crate::context::{Raw, config, host, started};

#[tokio::test]
async fn a_smaller_fence_is_refused_and_an_equal_one_is_not() {
    let server = started!(Server::start_or_skip());
    let values = Checked::open(config(server.addr())).await.unwrap();
    let (early, late) = (Fence::new(7), Fence::new((1 << 53) - 1));
    assert_eq!(values.get("balance").await.unwrap(), None);
    assert_eq!(values.set("balance", early, b"1").await.unwrap(), Written::Stored);
    assert_eq!(values.set("balance", late, b"2").await.unwrap(), Written::Stored);
    let smaller = Fence::new(late.get() - 1);
    assert_eq!(values.set("balance", smaller, b"3").await.unwrap(), Written::Refused { stored: late });
    assert_eq!(values.get("balance").await.unwrap(), Some((late, b"2".to_vec())));
    assert_eq!(values.set("balance", late, b"\x00\xff").await.unwrap(), Written::Stored);
    assert_eq!(values.get("balance").await.unwrap(), Some((late, b"\x00\xff".to_vec())));
    let mut raw = Raw::to(server.addr()).await;
    for foreign in [
        &["SET", "theirs", "x"][..],
        &["HSET", "other", "name", "x"],
        &["HSET", "third", "fence", "none"],
        &["HSET", "fourth", "fence", "nan"],
        &["HSET", "fifth", "fence", "-inf"],
    ] {
        let _: Value = raw.ask(foreign).await;
        let before: Vec<u8> = raw.ask(&["DUMP", foreign[1]]).await;
        assert_eq!(values.set(foreign[1], late, b"1").await.unwrap_err().kind(), ErrorKind::Foreign);
        assert_eq!(raw.ask::<Vec<u8>>(&["DUMP", foreign[1]]).await, before);
    }
}

#[tokio::test]
async fn values_are_found_in_a_cluster() {
    let context = started!(RedisCluster::start_or_skip());
    let values = Checked::open(Config::new(Address::Cluster(vec![host(context.masters[0].addr())]))).await.unwrap();
    for number in 0..20 {
        let key = format!("balance/{number}");
        assert_eq!(values.set(&key, Fence::new(2), b"1").await.unwrap(), Written::Stored);
        assert_eq!(values.set(&key, Fence::new(1), b"0").await.unwrap(), Written::Refused { stored: Fence::new(2) });
        assert_eq!(values.get(&key).await.unwrap(), Some((Fence::new(2), b"1".to_vec())));
    }
}
