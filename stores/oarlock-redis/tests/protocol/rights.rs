//! Rights and commands that a user or a server lacks.

use std::io::Write as _;
use std::time::Duration;

use oarlock_core::driver::Driver as _;
use oarlock_core::state::Waiters;
use oarlock_core::{Applied, ErrorKind, Locks, Retry};
use oarlock_redis::{Address, Config, Redis};
use redis::Value;

use super::context::{claim, context, deploy, fence};

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
