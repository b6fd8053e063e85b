//! The stores of this build. A new store is one line here: its feature, its `STORE`, and what its schemes begin with.

#[allow(unused_imports, reason = "a build with every feature misses no store")]
use oarlock_core::url::{Missing, Stores};

use crate::memory;

macro_rules! stores {
    (
        $($feature:literal => $store:path, $schemes:expr;)*
        $(more $more:literal => $variants:expr;)*
    ) => {
        pub(crate) static STORES: Stores = Stores {
            built_in: &[&memory::STORE, $(#[cfg(feature = $feature)] &$store),*],
            // The names of variants begin like those of their stores.
            missing: &[$(#[cfg(not(feature = $more))] Missing { feature: $more, schemes: &$variants },)*
                $(#[cfg(not(feature = $feature))] Missing { feature: $feature, schemes: &$schemes }),*],
        };
    };
}

stores! {
    "local" => oarlock_local::STORE, ["local"];
    "redis" => oarlock_redis::STORE, ["redis", "valkey"];
    "redis" => oarlock_quorum::STORE, ["redlock"];
    "etcd" => oarlock_etcd::STORE, ["etcd"];
    "zookeeper" => oarlock_zookeeper::STORE, ["zk", "zookeeper"];
    "postgres" => oarlock_sql::postgres::STORE, ["postgres", "postgresql"];
    "mysql" => oarlock_sql::mysql::STORE, ["mysql", "mariadb"];
    more "zookeeper-tls" => ["zks"];
}
