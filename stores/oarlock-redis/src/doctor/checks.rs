//! What can make Redis unsafe for locks.

use oarlock_core::doctor::{Check, Severity};
use oarlock_core::guarantees::Promise;

pub(crate) const ALL: &[&Check] = &[
    &EVICTION,
    &NO_PERSISTENCE,
    &POWER_LOSS,
    &DISK,
    &MEMORY,
    &REPLICA,
    &FAILOVER,
    &LAG,
    &TOO_FEW_REPLICAS,
    &LOADING,
    &KEEPALIVE,
    &SENTINEL_QUORUM,
    &SENTINEL_COUNT,
    &SENTINEL_UNABLE,
    &SENTINEL_DISAGREE,
    &CLUSTER_DOWN,
    &CLUSTER_MASTERS,
    &CLUSTER_NO_REPLICA,
];

pub(super) static EVICTION: Check = Check {
    id: "redis-eviction",
    severity: Severity::Void,
    promise: Promise::BeliefEndsFirst,
    fix: "CONFIG SET maxmemory-policy noeviction, or a server for locks alone",
};
pub(super) static NO_PERSISTENCE: Check = Check {
    id: "redis-no-persistence",
    severity: Severity::Void,
    promise: Promise::BeliefEndsFirst,
    fix: "CONFIG SET appendonly yes and CONFIG SET appendfsync always; then CONFIG REWRITE",
};
pub(super) static POWER_LOSS: Check = Check {
    id: "redis-power-loss",
    severity: Severity::Warning,
    promise: Promise::BeliefEndsFirst,
    fix: "CONFIG SET appendfsync always if a power cut must not forget a grant",
};
pub(super) static DISK: Check = Check {
    id: "redis-disk",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "look at the server's log and at the space and the rights of its dir; the server refuses writes meanwhile",
};
pub(super) static MEMORY: Check = Check {
    id: "redis-memory",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "raise maxmemory, or move other data away",
};
pub(super) static KEEPALIVE: Check = Check {
    id: "redis-keepalive",
    severity: Severity::Warning,
    promise: Promise::LossReported,
    fix: "CONFIG SET tcp-keepalive 300, then CONFIG REWRITE",
};
pub(super) static REPLICA: Check = Check {
    id: "redis-replica",
    severity: Severity::Void,
    promise: Promise::BeliefEndsFirst,
    fix: "name the master, or use redis+sentinel://, which finds it",
};
pub(super) static FAILOVER: Check = Check {
    id: "redis-failover",
    severity: Severity::Void,
    promise: Promise::BeliefEndsFirst,
    fix: "set min_replicas in the URL to the number of replicas; and CONFIG SET min-replicas-to-write 1",
};
pub(super) static LAG: Check = Check {
    id: "redis-replica-lag",
    severity: Severity::Warning,
    promise: Promise::BeliefEndsFirst,
    fix: "set min_replicas in the URL to the number of replicas, so that a grant counts only when all have it",
};
pub(super) static TOO_FEW_REPLICAS: Check = Check {
    id: "redis-too-few-replicas",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "start the missing replicas, or lower min_replicas in the URL of every client",
};
pub(super) static LOADING: Check = Check {
    id: "redis-loading",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "wait until the server has read its data",
};
pub(super) static SENTINEL_QUORUM: Check = Check {
    id: "sentinel-quorum",
    severity: Severity::Warning,
    promise: Promise::BeliefEndsFirst,
    fix: "SENTINEL SET the quorum to a majority of the Sentinels, on each of them",
};
pub(super) static SENTINEL_COUNT: Check = Check {
    id: "sentinel-count",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "run three or five Sentinels on machines of their own",
};
pub(super) static SENTINEL_UNABLE: Check = Check {
    id: "sentinel-unable",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "start the missing Sentinels and replicas; SENTINEL RESET forgets those that are gone for good",
};
pub(super) static SENTINEL_DISAGREE: Check = Check {
    id: "sentinel-disagree",
    severity: Severity::Void,
    promise: Promise::BeliefEndsFirst,
    fix: "find the Sentinels that are cut off or configured for another master, and correct them",
};
pub(super) static CLUSTER_DOWN: Check = Check {
    id: "cluster-down",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "redis-cli --cluster check; assign the slots that no node serves, and start the nodes that fail",
};
pub(super) static CLUSTER_MASTERS: Check = Check {
    id: "cluster-masters",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "run three or more masters, an odd number: a majority of them elects the successor of one that failed",
};
pub(super) static CLUSTER_NO_REPLICA: Check = Check {
    id: "cluster-no-replica",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "give each master a replica: redis-cli --cluster add-node --cluster-slave",
};
