//! A process that forks: the child shares every descriptor of its parent, and so its locks.

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;

use fork::{Fork, fork, waitpid};
use oarlock_core::ErrorKind;
use oarlock_core::driver::{Driver as _, End, Renewal};
use oarlock_local::{Config, Local};

use crate::helper::{Helper, say};
use crate::{claim, granted, hint, name, open, pending, temp, turn, waiting};

/// What a helper process does: it holds `x`, waits for `y`, and lets a child drop or use the store.
pub(crate) fn hold_and_fork(dir: &std::path::Path, uses: bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = runtime.block_on(Local::open(Config::new(dir))).unwrap();
    let held = Arc::new(claim("x"));
    runtime.block_on(granted(&store, &held));
    let waits = waiting("y");
    let cursor = runtime.block_on(pending(&store, &waits)).cursor;
    let mut watch = runtime.block_on(turn(&store, &waits, cursor));
    match fork().unwrap() {
        Fork::Child if uses => end(runtime.block_on(refusals(&store, &held))),
        Fork::Child => {
            drop((watch, store, runtime));
            end(0);
        }
        Fork::Parent(child) => {
            let status = waitpid(child).unwrap();
            say(&format!("forked {status}"));
            runtime.block_on(hint(&mut watch));
            say("told");
            let _ = std::io::stdin().read_line(&mut String::new());
        }
    }
}

/// Ends a forked child. Exit handlers would wait for locks that threads of the parent had when it forked.
fn end(code: i32) -> ! {
    let error = Command::new("sh").arg("-c").arg(format!("exit {code}")).exec();
    panic!("a child cannot end: {error}")
}

/// Counts the verbs that the child could use and only its parent may.
async fn refusals(store: &Local, held: &Arc<oarlock_core::Claim>) -> i32 {
    let answers = [
        store.attempt(&claim("z")).await.err(),
        store.release(&name("x"), held.id, &End::Withdrawn).await.err(),
        store.renew(&[Renewal::of(held.clone())]).await.remove(0).err(),
        store.watch(&oarlock_core::driver::Interest::Mailbox).await.err(),
    ];
    let refused = |error: &Option<oarlock_core::Error>| {
        error.as_ref().is_some_and(|e| e.kind() == ErrorKind::Closed && e.to_string().contains("forked child"))
    };
    let _ = store.close().await;
    i32::try_from(answers.iter().filter(|answer| !refused(answer)).count()).unwrap()
}

/// The parent holds `x` and waits for `y`, which this test holds.
async fn check(role: &str) {
    let dir = temp();
    let store = open(dir.path()).await;
    let mut dying = Helper::start("hold y", dir.path());
    assert_eq!(dying.says(), "held");
    let mut parent = Helper::start(role, dir.path());
    assert_eq!(parent.says(), "forked 0");
    pending(&store, &claim("x")).await;
    // The child shared the inotify instance that reports this death to its parent.
    dying.kill();
    assert_eq!(parent.says(), "told");
    pending(&store, &claim("x")).await;
    parent.kill();
    granted(&store, &claim("x")).await;
}

#[tokio::test]
async fn a_child_that_drops_its_copy_frees_nothing_of_its_parent() {
    check("fork-and-drop").await;
}

#[tokio::test]
async fn a_child_that_goes_on_with_the_store_of_its_parent_is_refused() {
    check("fork-and-use").await;
}
