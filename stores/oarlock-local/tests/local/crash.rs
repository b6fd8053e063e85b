//! A process that is killed at any moment leaves a state that other processes go on with.

use std::time::Duration;

use oarlock_core::driver::{Attempt, Driver as _};

use crate::helper::Helper;
use crate::{claim, open, temp};

#[tokio::test]
async fn a_kill_in_the_middle_of_updates_loses_nothing() {
    const KILLS: u64 = 40;
    let dir = temp();
    let store = open(dir.path()).await;
    let mut last = [0; 2];
    for round in 0..KILLS {
        let mut helper = Helper::start("update x grows", dir.path());
        assert_eq!(helper.says(), "updating");
        // Not a wait for an event: each process is killed at another moment.
        std::thread::sleep(Duration::from_micros(200 + 137 * round));
        helper.kill();
        let mut acknowledged = std::fs::read(dir.path().join("acknowledged")).unwrap();
        acknowledged.resize(16, 0);
        for (at, name) in ["x", "grows"].into_iter().enumerate() {
            let acknowledged = u64::from_le_bytes(*acknowledged[8 * at..].first_chunk().unwrap());
            let claim = claim(name);
            let Attempt::Granted(grant) = store.attempt(&claim).await.unwrap() else { panic!("held by the dead") };
            let fence = grant.fence.get();
            assert!(fence > acknowledged && fence > last[at], "{fence} after {acknowledged} and {last:?}");
            last[at] = fence;
            crate::release(&store, &claim).await;
        }
    }
}
