//! How scripts are loaded.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{Attempt, Driver as _, Renewal};
use oarlock_core::{Claim, ClaimId, ResourceName};
use oarlock_redis::{Address, Redis};
use oarlock_testbed::proxy::{Direction, Proxy};
use redis::Value;

use super::context::{TestContext, claim, context, fence};

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
