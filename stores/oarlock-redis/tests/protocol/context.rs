//! A server that has the scripts, and claims of one name.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{Attempt, Driver as _, End, Renewal};
use oarlock_core::state::Query;
use oarlock_core::{Claim, ClaimId, ResourceName};
use oarlock_redis::{Address, Redis};
use oarlock_testbed::proxy::Proxy;

pub(super) use super::shared::TestContext;

/// Where the key of `deploy` is: a part of the layout.
pub(super) const KEY: &str = "oarlock:{b6}:deploy";
pub(super) const INDEX: &str = "oarlock:{b6}";

impl TestContext {
    pub(super) async fn loaded() -> Option<Self> {
        let context = Self::start().await?;
        context.load_scripts().await;
        Some(context)
    }

    /// Loads the scripts into the server, so that the next reply on a connection is that of a script.
    pub(super) async fn load_scripts(&self) {
        let store = self.open().await;
        let claim = Claim::new(ClaimId::from_bits(0), ResourceName::new("loaded").unwrap());
        let renewal = Renewal::of(Arc::new(claim.clone()));
        store.attempt(&claim).await.unwrap();
        assert!(store.renew(&[renewal]).await[0].is_ok());
        store.inspect(&Query::name(claim.resource.clone())).await.unwrap();
        store.release(&claim.resource, claim.id, &DONE).await.unwrap();
    }

    /// A store behind a proxy.
    pub(super) async fn through_proxy(&self, silence: Duration) -> (Redis, Proxy) {
        let proxy = Proxy::start(self.server.addr()).unwrap();
        let mut config = self.config();
        config.address = Address::Tcp(proxy.addr().ip().to_string(), proxy.addr().port());
        config.silence_timeout = silence;
        (Redis::open(config).await.unwrap(), proxy)
    }

    pub(super) async fn connections(&mut self) -> usize {
        let list: String = self.ask(&["CLIENT", "LIST", "TYPE", "normal"]).await;
        let subscribed: String = self.ask(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
        // Without the one that asks.
        list.lines().count() + subscribed.lines().count() - 1
    }
}

macro_rules! context {
    () => {
        match $crate::context::TestContext::loaded().await {
            Some(context) => context,
            None => return,
        }
    };
}
pub(super) use context;

pub(super) fn deploy() -> ResourceName {
    ResourceName::new("deploy").unwrap()
}

pub(super) fn claim(id: u128) -> Claim {
    Claim::new(ClaimId::from_bits(id), deploy())
}

pub(super) async fn fence(store: &Redis, claim: &Claim) -> Option<u64> {
    match store.attempt(claim).await.unwrap() {
        Attempt::Granted(grant) => Some(grant.fence.get()),
        Attempt::Pending(_) => None,
    }
}

pub(super) const DONE: End = End::Done { memo: None };
