//! The rules, and how each is broken.

use super::Mutant;

const MODEL: &str = "crates/oarlock-core/src/model.rs";
const QUEUE: &str = "crates/oarlock-core/src/queue.rs";
const ACQUIRE: &str = "crates/oarlock-core/src/engine/acquire.rs";
const BELIEF: &str = "crates/oarlock-core/src/belief.rs";
const GUARD: &str = "crates/oarlock-core/src/guard.rs";
const REAPER: &str = "crates/oarlock-core/src/engine/reaper.rs";
const WATCHDOG: &str = "crates/oarlock-core/src/engine/watchdog.rs";

const SEAT: &str = "crates/oarlock-core/src/owner/seat.rs";
const MULTI: &str = "crates/oarlock-core/src/kinds/multi.rs";
const COHORT: &str = "crates/oarlock-core/src/engine/cohort.rs";
const LEAVING: &str = "crates/oarlock-core/src/engine/leaving.rs";
const REDIS_TURN: &str = "crates/oarlock-redis/src/turn.rs";
const REDIS_RENEW: &str = "crates/oarlock-redis/src/scripts/native/renew.lua";
const REDIS_LOAD: &str = "crates/oarlock-redis/src/scripts/native/load.lua";
const REDIS_PLACE: &str = "crates/oarlock-redis/src/scripts/native/place.lua";
const REDIS_RENEW_SHORT: &str = "crates/oarlock-redis/src/scripts/native/renew.alone.lua";
const REDIS_RULE: &str = "crates/oarlock-redis/src/scripts/native/rule.lua";
const REDIS_ATTEMPT: &str = "crates/oarlock-redis/src/scripts/native/attempt.lua";
const REDIS_WATCH: &str = "crates/oarlock-redis/src/watch.rs";
const REDIS_DRIVER: &str = "crates/oarlock-redis/src/driver.rs";
const REDIS_CLUSTER: &str = "crates/oarlock-redis/src/cluster.rs";
const REDIS_LINK: &str = "crates/oarlock-redis/src/link.rs";
const TICKET: &str = "crates/oarlock-core/src/ticket.rs";
const ENGINE_RS: &str = "crates/oarlock-core/src/engine.rs";
const PROBE: &str = "crates/oarlock-core/src/engine/watchdog/probe.rs";
const MAILBOX: &str = "crates/oarlock-core/src/engine/watchdog/mailbox.rs";
const WATCH: &str = "crates/oarlock-core/src/driver/watch.rs";
const LOOK: &str = "crates/oarlock-core/src/engine/look.rs";
const SHOW: &str = "crates/oarlock-core/src/quorum/show.rs";
const ROUNDS: &str = "crates/oarlock-core/src/quorum/rounds.rs";
const VOTE: &str = "crates/oarlock-core/src/quorum/vote.rs";
const CROWD: &str = "crates/oarlock-core/src/quorum/crowd.rs";
const KEEPING: &str = "crates/oarlock-core/src/quorum/renew.rs";
const MEMO: &str = "crates/oarlock-core/src/quorum/memo.rs";
const ONCE_RS: &str = "crates/oarlock-core/src/kinds/once.rs";

const ETCD_QUEUE: &str = "crates/oarlock-etcd/src/queue.rs";
const ETCD_ATTEMPT: &str = "crates/oarlock-etcd/src/attempt.rs";
const ETCD_DRIVER: &str = "crates/oarlock-etcd/src/driver.rs";
const ETCD_GLANCE: &str = "crates/oarlock-etcd/src/glance.rs";
const ETCD_LINK: &str = "crates/oarlock-etcd/src/link.rs";
const ETCD_LEASE: &str = "crates/oarlock-etcd/src/lease.rs";
const ETCD_RENEW: &str = "crates/oarlock-etcd/src/renew.rs";
const ZK_ATTEMPT: &str = "crates/oarlock-zookeeper/src/attempt.rs";
const ZK_FOREIGN: &str = "crates/oarlock-zookeeper/src/foreign.rs";
const ZK_LINK: &str = "crates/oarlock-zookeeper/src/link.rs";
const ZK_RENEW: &str = "crates/oarlock-zookeeper/src/renew.rs";
const ZK_RESUME: &str = "crates/oarlock-zookeeper/src/resume.rs";
const ZK_CONNECTION: &str = "crates/oarlock-zookeeper/src/connection.rs";
const ZK_STRANGERS_FILE: &str = "crates/oarlock-zookeeper/src/strangers.rs";
const ZK_QUEUE: &str = "crates/oarlock-zookeeper/src/queue.rs";
const ZK_PERMITS: &str = "crates/oarlock-zookeeper/src/foreign/permits.rs";

const HANDED: &str = "crates/oarlock-core/src/driver/handed.rs";
const MODEL_TURN: &str = "crates/oarlock-core/src/model/turn.rs";
const LOCAL_TURN: &str = "crates/oarlock-local/src/turn.rs";
const LOCAL_WATCH: &str = "crates/oarlock-local/src/watch.rs";
const SHARD: &str = "crates/oarlock-local/src/shard.rs";
const SESSION: &str = "crates/oarlock-local/src/session.rs";
const LOCAL_LINK: &str = "crates/oarlock-local/src/link.rs";
const LOCAL_DIRECTORY: &str = "crates/oarlock-local/src/directory.rs";
const SLOT: &str = "crates/oarlock-local/src/slot.rs";

const PLAIN_FREE: &str = "crates/oarlock-redis/src/scripts/plain/attempt.free.lua";
const PLAIN_RENEW: &str = "crates/oarlock-redis/src/scripts/plain/renew.lua";
const PLAIN_RELEASE: &str = "crates/oarlock-redis/src/scripts/plain/release.lua";
const RELEASE: &str = "crates/oarlock-core/src/quorum/release.rs";

const REDISSON_NAMES: &str = "crates/oarlock-redis/src/redisson.rs";
const REDISSON_LOAD: &str = "crates/oarlock-redis/src/scripts/redisson/load.lua";
const REDISSON_CHANGE: &str = "crates/oarlock-redis/src/scripts/redisson/change.lua";
const REDISSON_ATTEMPT: &str = "crates/oarlock-redis/src/scripts/redisson/attempt.lua";
const REDISSON_RELEASE: &str = "crates/oarlock-redis/src/scripts/redisson/release.lua";

const ROWS_WRITE: &str = "crates/oarlock-rows/src/optimistic.rs";
const ROWS_LOCK: &str = "crates/oarlock-rows/src/pessimistic.rs";
const ROWS_MYSQL: &str = "crates/oarlock-rows/src/mysql.rs";
const ROWS_POSTGRES: &str = "crates/oarlock-rows/src/postgres.rs";
const STOCK_STEPS: &str = "crates/oarlock-stock/src/sql/steps.rs";
const STOCK_SQL: &str = "crates/oarlock-stock/src/sql.rs";
const STOCK_TAKE: &str = "crates/oarlock-stock/src/redis/scripts/take.lua";
const STOCK_REDIS: &str = "crates/oarlock-stock/src/redis.rs";
const STOCK_CREDIT: &str = "crates/oarlock-stock/src/redis/scripts/credit.lua";
const STOCK_PROCEDURE: &str = "crates/oarlock-stock/src/sql/take.sql";
const STOCK_SETTLE: &str = "crates/oarlock-stock/src/redis/scripts/settle.lua";
const DEMO_WAY: &str = "crates/oarlock-cli/src/demo/way.rs";
const MYSQL_QUEUE: &str = "crates/oarlock-mysql/src/queue.rs";
const MYSQL_LISTENER: &str = "crates/oarlock-mysql/src/listener.rs";
const MYSQL_BEACON: &str = "crates/oarlock-mysql/src/beacon.rs";
const MYSQL_LINK: &str = "crates/oarlock-mysql/src/link.rs";
const MYSQL_NAMED: &str = "crates/oarlock-mysql/src/session.rs";
const POSTGRES_LINK: &str = "crates/oarlock-postgres/src/link.rs";
const MYSQL_RELEASE: &str = "crates/oarlock-mysql/src/sql/release.sql";
const MYSQL_ATTEMPT: &str = "crates/oarlock-mysql/src/sql/attempt.sql";
const MYSQL_CHECK: &str = "crates/oarlock-mysql/src/sql/check.sql";
const MYSQL_STEP: &str = "crates/oarlock-mysql/src/sql/step.sql";
const MYSQL_SESSION: &str = "crates/oarlock-mysql/src/sql/session.sql";
const POSTGRES_DRIVER: &str = "crates/oarlock-postgres/src/driver.rs";
const POSTGRES_WATCH: &str = "crates/oarlock-postgres/src/watch.rs";
const POSTGRES_ATTEMPT: &str = "crates/oarlock-postgres/src/sql/attempt.sql";
const POSTGRES_CHECK: &str = "crates/oarlock-postgres/src/sql/check.sql";
const POSTGRES_RENEW: &str = "crates/oarlock-postgres/src/sql/renew.sql";
const POSTGRES_STEP: &str = "crates/oarlock-postgres/src/sql/step.sql";
const POSTGRES_SESSION: &str = "crates/oarlock-postgres/src/sql/session.sql";
const SESSION_DESK: &str = "crates/oarlock-session/src/desk.rs";
const SESSION_DRIVER: &str = "crates/oarlock-session/src/driver.rs";

const SIMULATION: &[&str] = &["-p", "oarlock-conformance", "--test", "simulation", "every_seed"];
const RULE: &[&str] = &["-p", "oarlock-core", "--lib", "model::"];
const REENTRANT: &[&str] = &["-p", "oarlock-conformance", "--test", "mem", "reentrant::"];
const MULTI_CASES: &[&str] = &["-p", "oarlock-conformance", "--test", "mem", "multi::"];
const ONCE: &[&str] = &["-p", "oarlock-conformance", "--test", "mem", "once::"];

const COHORT_CASES: &[&str] = &["-p", "oarlock-conformance", "--test", "mem", "cohort::"];
const COHORT_TESTS: &[&str] = &["-p", "oarlock-core", "--test", "cohort"];
const HAND_OVER: &[&str] = &["-p", "oarlock-conformance", "--test", "mem", "hand_over::"];
const PROMISES: &[&str] = &["-p", "oarlock-core", "--test", "promises"];
const QUORUM: &[&str] = &["-p", "oarlock-core", "--lib", "quorum::tests::"];
const ENGINE: &[&str] = &["-p", "oarlock-core", "--test", "engine"];
const PLAIN: &[&str] = &["-p", "oarlock-redis", "--test", "failures", "plain::"];
const REDISSON: &[&str] = &["-p", "oarlock-redis", "--test", "failures", "redisson::"];

const MYSQL_WAKE: &[&str] = &["-p", "oarlock-mysql", "--test", "wake"];
const MYSQL_QUEUES: &[&str] = &["-p", "oarlock-mysql", "--test", "wire", "of_many_in_a_queue"];
const NAMED: &[&str] = &["-p", "oarlock-mysql", "--test", "named", "a_holder_hears_at_once"];
const POSTGRES_SILENT: &[&str] = &["-p", "oarlock-postgres", "--test", "sessions", "a_connection_that_fell_silent"];
const MYSQL_WIRE: &[&str] = &["-p", "oarlock-mysql", "--test", "wire"];
const MYSQL_PROTECTED: &[&str] = &["-p", "oarlock-mysql", "--test", "wire", "fences_of_the_protected_side"];
const MYSQL_FORGETTING: &[&str] = &["-p", "oarlock-mysql", "--test", "wire", "no_older_fence_is_let_in"];
const MYSQL_OPEN: &[&str] = &["-p", "oarlock-mysql", "--test", "wire", "an_open_transaction"];
const MYSQL_CLOCK: &[&str] = &["-p", "oarlock-mysql", "--test", "clock"];
const MYSQL_EXPIRY: &[&str] = &["-p", "oarlock-mysql", "--test", "conformance", "expiry::"];
const MYSQL_BREAKING: &[&str] = &["-p", "oarlock-mysql", "--test", "conformance", "breaking::"];
const POSTGRES_BREAKING: &[&str] = &["-p", "oarlock-postgres", "--test", "conformance", "breaking::"];
const MYSQL_FAILURES: &[&str] = &["-p", "oarlock-mysql", "--test", "failures"];
const MYSQL_FAILOVER: &[&str] = &["-p", "oarlock-mysql", "--test", "failover", "after_a_failover"];
const MYSQL_MOVED: &[&str] = &["-p", "oarlock-mysql", "--test", "failover", "a_session_does_not_go_on"];
const MYSQL_BEGUN: &[&str] = &["-p", "oarlock-mysql", "--test", "failures", "a_session_that_could_not_begin"];
const MYSQL_IDLE: &[&str] = &["-p", "oarlock-mysql", "--test", "failures", "a_connection_that_ended_while_it_was_idle"];
const MYSQL_OLD: &[&str] = &["-p", "oarlock-mysql", "--test", "failures", "old_connections"];
const MYSQL_REPLACED: &[&str] = &["-p", "oarlock-mysql", "--test", "failures", "a_session_whose_listener"];
const MYSQL_UNPOLLED: &[&str] = &["-p", "oarlock-mysql", "--test", "unpolled"];
const MYSQL_LATE: &[&str] = &["-p", "oarlock-mysql", "--test", "failures", "a_session_that_has_only"];
const POSTGRES_PROTECTED: &[&str] = &["-p", "oarlock-postgres", "--test", "wire", "fences_of_the_protected_side"];
const POSTGRES_CLOCK: &[&str] = &["-p", "oarlock-postgres", "--test", "clock"];
const POSTGRES_FULL: &[&str] = &["-p", "oarlock-postgres", "--test", "faults", "a_full_queue"];
const POSTGRES_UNPOLLED: &[&str] = &["-p", "oarlock-postgres", "--test", "unpolled"];
const POSTGRES_CRASH: &[&str] = &["-p", "oarlock-postgres", "--test", "crash"];
const ADVISORY: &[&str] = &["-p", "oarlock-postgres", "--test", "advisory"];

const LOCAL_HAND: &[&str] = &["-p", "oarlock-local", "--test", "local", "hand::"];
const LOCAL_TURNS: &[&str] = &["-p", "oarlock-local", "--lib", "turn::"];
const TURNS: &[&str] = &["-p", "oarlock-core", "--test", "turns"];
const REDIS_ORDER: &[&str] = &["-p", "oarlock-redis", "--test", "conformance", "order::"];
const POSTGRES_ORDER: &[&str] = &["-p", "oarlock-postgres", "--test", "conformance", "order::"];
const MYSQL_ORDER: &[&str] = &["-p", "oarlock-mysql", "--test", "conformance", "order::"];
const ETCD_ORDER: &[&str] = &["-p", "oarlock-etcd", "--test", "conformance", "order::"];
const ZK_ORDER_CASES: &[&str] = &["-p", "oarlock-zookeeper", "--test", "conformance", "order::"];
const ORDER_CASES: &[&str] = &["-p", "oarlock-conformance", "--test", "mem", "order::"];
const OWNER_CASES: &[&str] = &["-p", "oarlock-conformance", "--test", "mem", "owner::"];
const HANDED_GRANTS: &[&str] = &["-p", "oarlock-core", "--lib", "driver::handed::"];
const POSTGRES_TURNS: &[&str] = &["-p", "oarlock-postgres", "--test", "turns"];
const REDIS_TURNS: &[&str] = &["-p", "oarlock-redis", "--test", "turns"];
const REDIS_WIRE: &[&str] = &["-p", "oarlock-redis", "--test", "wire", "a_failed_lesson"];
const REDIS_SLOT: &[&str] = &["-p", "oarlock-redis", "--test", "failures", "waiters_follow_a_slot"];
const REDIS_FORMAT: &[&str] = &["-p", "oarlock-redis", "--test", "wire", "what_belongs_to_others"];
const REDIS_NUMBERS: &[&str] = &["-p", "oarlock-redis", "--test", "wire", "numbers_of_a_stranger"];
const REDIS_COST: &[&str] = &["-p", "oarlock-redis", "--test", "cost"];
const REDIS_ALONE: &[&str] = &["-p", "oarlock-redis", "--test", "failures", "alone::a_holder_whose_grant"];
const REDIS_NODES: &[&str] = &["-p", "oarlock-redis", "--test", "failures", "cluster::a_"];
const REDIS_CONFIRMED: &[&str] = &["-p", "oarlock-redis", "--test", "failures", "confirmed::"];
const REDIS_LIB: &[&str] = &["-p", "oarlock-redis", "--lib", "driver::"];
const REDLOCK_HISTORY: &[&str] = &["-p", "oarlock-redis", "--test", "redlock_failures", "history::"];
const REDIS_CLOCK: &[&str] = &["-p", "oarlock-redis", "--test", "failures", "clock::"];

const ETCD_LEARNER: &[&str] = &["-p", "oarlock-etcd", "--test", "learner"];
const ETCD_SLOW: &[&str] = &["-p", "oarlock-etcd", "--test", "wire", "a_slow_cluster"];
const ETCD_WATCHES: &[&str] = &["-p", "oarlock-etcd", "--lib", "watch::tests::"];
const ETCD_RENEWALS: &[&str] = &["-p", "oarlock-etcd", "--lib", "renew::tests::"];
const ETCD_LEASES: &[&str] = &["-p", "oarlock-etcd", "--lib", "lease::tests::"];
const ETCD_ATTEMPTS: &[&str] = &["-p", "oarlock-etcd", "--lib", "attempt::tests::"];
const ZK_GATE: &[&str] = &["-p", "oarlock-zookeeper", "--test", "layouts", "a_waiter_that_lost"];
const ZK_NODES: &[&str] = &["-p", "oarlock-zookeeper", "--lib", "attempt::tests::"];
const ZK_TURNS: &[&str] = &["-p", "oarlock-zookeeper", "--test", "turns"];
const ZK_LINE: &[&str] = &["-p", "oarlock-zookeeper", "--test", "sessions", "a_broken_line"];
const ZK_REPLACED: &[&str] = &["-p", "oarlock-zookeeper", "--test", "sessions", "a_session_replaced"];
const ZK_SHORTER: &[&str] = &["-p", "oarlock-zookeeper", "--test", "shorter"];
const ZK_LATE: &[&str] = &["-p", "oarlock-zookeeper", "--lib", "resume::tests::"];
const ZK_ORDER: &[&str] = &["-p", "oarlock-zookeeper", "--lib", "queue::tests::"];
const ZK_STRANGERS: &[&str] = &["-p", "oarlock-zookeeper", "--test", "strangers"];
const ZK_WIRE: &[&str] = &["-p", "oarlock-zookeeper", "--test", "wire", "a_lighter_writer"];

const ROWS_VERSION: &[&str] = &["-p", "oarlock-rows", "--test", "rows", "optimistic::sqlite"];
const ROWS_ORDER: &[&str] = &["-p", "oarlock-rows", "--test", "rows", "pessimistic::on_postgres"];
const ROWS_MARIADB: &[&str] = &["-p", "oarlock-rows", "--test", "rows", "pessimistic::on_mariadb"];
const ROWS_WHOLE: &[&str] = &["-p", "oarlock-rows", "--test", "rows", "transactions"];
const STOCK_BESIDE_OTHERS: &[&str] = &["-p", "oarlock-stock", "--test", "sql"];
const STOCK_ON_SQLITE: &[&str] = &["-p", "oarlock-stock", "--test", "stock", "sqlite"];
const STOCK_ON_MARIADB: &[&str] = &["-p", "oarlock-stock", "--test", "stock", "mariadb"];
const STOCK_ON_REDIS: &[&str] = &["-p", "oarlock-stock", "--test", "stock", "redis"];
const STOCK_LEFTOVERS: &[&str] = &["-p", "oarlock-stock", "--test", "redis"];
const DEMO: &[&str] = &["-p", "oarlock-cli", "--test", "cli", "demo::"];

pub(crate) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "no-withdraw-on-drop",
        rule: "a dropped acquisition leaves nothing in the store",
        file: ACQUIRE,
        from: "if matches!(self.standing, Standing::Known | Standing::Queued) {\n            self.abandon();",
        to: "if false {\n            self.abandon();",
        test: SIMULATION,
    },
    Mutant {
        name: "no-release-on-drop",
        rule: "a dropped guard lets go of the lock",
        file: GUARD,
        from: "        if self.done || self.hand_on().is_some() {\n            return;\n        }\n        self.stop_keeping();",
        to: "        self.stop_keeping();\n        if true {\n            return;\n        }",
        test: SIMULATION,
    },
    Mutant {
        name: "late-attempt-after-cancel",
        rule: "a claim is released after the attempt that is still under way, not before",
        file: REAPER,
        from: "let _ = attempt.await;",
        to: "tokio::spawn(async move { drop(attempt.await) });",
        test: SIMULATION,
    },
    Mutant {
        name: "deadline-from-the-reply",
        rule: "belief in a grant counts from before its request was sent",
        file: ACQUIRE,
        from: "grant.lease.from.map_or(place.sent, |from| from.min(now))",
        to: "grant.lease.from.map_or(now, |from| from.min(now))",
        test: SIMULATION,
    },
    Mutant {
        name: "renewal-from-the-reply",
        rule: "belief in a renewal counts from before its request was sent",
        file: WATCHDOG,
        from: "let from = lease.from.map_or(sent, |from| from.min(self.clock.now()));",
        to: "let from = lease.from.map_or(self.clock.now(), |from| from.min(self.clock.now()));",
        test: ENGINE,
    },
    Mutant {
        name: "etcd-believes-deposed-leaders",
        rule: "a lease counts only if nobody was elected since the leader that kept it alive",
        file: ETCD_LEASE,
        from: "self.from <= majority.after && majority.term <= term",
        to: "self.from <= majority.after",
        test: ETCD_RENEWALS,
    },
    Mutant {
        name: "etcd-stays-with-a-learner",
        rule: "a member that only learns is left for another",
        file: ETCD_LINK,
        from: "FailedPrecondition => !is_without_users(status),",
        to: "FailedPrecondition => false,",
        test: ETCD_LEARNER,
    },
    Mutant {
        name: "etcd-learner-knows-no-users",
        rule: "a learner does not say whether the cluster has users",
        file: "crates/oarlock-etcd/src/login.rs",
        from: "status.code() == Code::FailedPrecondition && status.message().contains(\"authentication is not enabled\")",
        to: "status.code() == Code::FailedPrecondition",
        test: ETCD_LEARNER,
    },
    Mutant {
        name: "etcd-slow-is-silent",
        rule: "in a slow cluster a slow member is not left",
        file: "crates/oarlock-etcd/src/members.rs",
        from: "(self.latency * 2).clamp(SILENT_AFTER, SILENT_AT_LAST)",
        to: "SILENT_AFTER.min(SILENT_AT_LAST)",
        test: ETCD_SLOW,
    },
    Mutant {
        name: "etcd-old-peek-counts",
        rule: "what a member has that is behind what was seen says nothing of what came after",
        file: "crates/oarlock-etcd/src/watch.rs",
        from: "is_older || found.kvs.iter().all(has_changed)",
        to: "found.kvs.iter().all(has_changed)",
        test: ETCD_WATCHES,
    },
    Mutant {
        name: "etcd-late-look-counts",
        rule: "a renewal that looked before its claim came anew says nothing about it",
        file: ETCD_RENEW,
        from: "came_anew = now.created != looked_for;",
        to: "came_anew = false;",
        test: ETCD_ATTEMPTS,
    },
    Mutant {
        name: "etcd-everybody-looks-out",
        rule: "of a long line only the next few come back for an open turn",
        file: ETCD_GLANCE,
        from: ".map(|after| look_out(after, waiting))",
        to: "",
        test: ETCD_ATTEMPTS,
    },
    Mutant {
        name: "etcd-newcomers-read-the-line",
        rule: "whoever wants everything and has to wait does not read the whole line",
        file: ETCD_ATTEMPT,
        from: "let unready = unshared && queue",
        to: "let unready = false && unshared && queue",
        test: ETCD_ATTEMPTS,
    },
    Mutant {
        name: "etcd-late-release-frees-the-next",
        rule: "a release that comes late leaves the next claim with the same keys alone",
        file: ETCD_DRIVER,
        from: "let ours = |part: &Range| Compare::created(part, Is::Equal, created);",
        to: "let _ = created;\n        let ours = |part: &Range| Compare::created(part, Is::Greater, 0);",
        test: ETCD_ATTEMPTS,
    },
    Mutant {
        name: "etcd-turn-without-a-seat",
        rule: "a turn is taken only while the claim has the seat it was made with",
        file: ETCD_ATTEMPT,
        from: "keys.seat(entry.seat).map(|seat| Compare::created(&seat, Is::Equal, entry.created))",
        to: "None::<Compare>",
        test: ETCD_ATTEMPTS,
    },
    Mutant {
        name: "etcd-queues-twice",
        rule: "a claim comes last only if neither of its leases has a key of it",
        file: ETCD_ATTEMPT,
        from: "transaction(keys.absent([full.id, lease.id]), sit",
        to: "transaction(keys.absent([lease.id, lease.id]), sit",
        test: ETCD_ATTEMPTS,
    },
    Mutant {
        name: "etcd-forgets-handed-over-never",
        rule: "what is known of a claim that was handed over is forgotten",
        file: ETCD_LEASE,
        from: "        books.sweep();\n",
        to: "",
        test: ETCD_LEASES,
    },
    Mutant {
        name: "zookeeper-permit-uncounted",
        rule: "a node among the leases of a semaphore is a permit only if it was counted",
        file: ZK_PERMITS,
        from: "before.is_some_and(|before| before < most)",
        to: "before.is_some()",
        test: ZK_GATE,
    },
    Mutant {
        name: "zookeeper-adopts-any-node",
        rule: "a node that was found by its id is ours only if our session made it",
        file: ZK_ATTEMPT,
        from: "if stat.ephemeral_owner == session.id {",
        to: "if stat.ephemeral_owner != 0 {",
        test: ZK_NODES,
    },
    Mutant {
        name: "zookeeper-adopts-any-node-abroad",
        rule: "so it is in the layouts of others",
        file: ZK_FOREIGN,
        from: "if stat.ephemeral_owner == self.id {",
        to: "if stat.ephemeral_owner != 0 {",
        test: ZK_NODES,
    },
    Mutant {
        name: "zookeeper-forgets-late-node",
        rule: "what a lost request may still make goes with its claim",
        file: ZK_ATTEMPT,
        from: "(matches!(known, Known::Nothing), session.is_proven(&known))",
        to: "(true, session.is_proven(&known))",
        test: ZK_NODES,
    },
    Mutant {
        name: "zookeeper-forgets-lighter-node",
        rule: "a claim that was made lighter leaves nothing behind",
        file: ZK_ATTEMPT,
        from: "place.sole && !lighter",
        to: "place.sole",
        test: ZK_NODES,
    },
    Mutant {
        name: "zookeeper-lighter-is-new",
        rule: "a writer that goes on as a reader keeps its fence",
        file: ZK_ATTEMPT,
        from: "record.fence) = (claim.kind, true, Some(fence));",
        to: "record.fence) = (claim.kind, true, None);",
        test: ZK_WIRE,
    },
    Mutant {
        name: "zookeeper-line-is-session",
        rule: "a broken line is a suspicion, not a loss",
        file: ZK_LINK,
        from: "        if life.is_over() {\n            return Ok(None);",
        to: "        if !life.is_over() {\n            return Ok(None);",
        test: ZK_LINE,
    },
    Mutant {
        name: "zookeeper-shorter-server-hears-at-once",
        rule: "a session is presented to a server with shorter sessions only when no belief is longer",
        file: ZK_RESUME,
        from: "if !life.fits(timeout) {",
        to: "if false {",
        test: ZK_SHORTER,
    },
    Mutant {
        name: "zookeeper-server-not-asked",
        rule: "a server is asked how long its sessions are before it hears of ours",
        file: ZK_RESUME,
        from: "if !life.fits(Duration::ZERO) {",
        to: "if false {",
        test: ZK_SHORTER,
    },
    Mutant {
        name: "zookeeper-crate-reconnects",
        rule: "the client crate does not present the session to a server by itself",
        file: ZK_CONNECTION,
        from: "states.changed().now_or_never().is_some();",
        to: "states.changed().now_or_never().is_some_and(zk::SessionState::is_terminated);",
        test: ZK_SHORTER,
    },
    Mutant {
        name: "zookeeper-any-session-is-ours",
        rule: "a session that a server put in place of ours is not ours",
        file: ZK_RESUME,
        from: "if connection.client.session_id().0 != life.id {",
        to: "if false {",
        test: ZK_REPLACED,
    },
    Mutant {
        name: "zookeeper-late-answer-counts",
        rule: "an answer that is read after its connection has ended gives no belief",
        file: ZK_LINK,
        from: "promised.map(|()| lease).ok_or_else(|| from_zk(zk::Error::ConnectionLoss))",
        to: "let _ = promised;\n        Ok(lease)",
        test: ZK_LATE,
    },
    Mutant {
        name: "zookeeper-look-is-proof",
        rule: "only what a majority agrees to proves that a session lives",
        file: ZK_LINK,
        from: "(self.agree(parent), self.glance(parent))",
        to: "(self.client.sync(parent), self.glance(parent))",
        test: ZK_TURNS,
    },
    Mutant {
        name: "zookeeper-proof-never-ages",
        rule: "an old proof that the session lives is none",
        file: ZK_LINK,
        from: "ours && BootClock.now().since(proven) <= self.client.session_timeout() / 4",
        to: "{ let _ = proven; ours }",
        test: ZK_TURNS,
    },
    Mutant {
        name: "zookeeper-turn-counts-from-now",
        rule: "belief in a turn counts from when the session was proven to live",
        file: ZK_LINK,
        from: "Lease { from: Some(proven), ttl }",
        to: "Lease::of(ttl)",
        test: ZK_TURNS,
    },
    Mutant {
        name: "zookeeper-watch-misses-lighter",
        rule: "a watch tells of a writer that became a reader before it was armed",
        file: ZK_QUEUE,
        from: "record.lighter.is_some_and(|lighter| lighter != seen)",
        to: "record.lighter.is_some_and(|_| false)",
        test: ZK_TURNS,
    },
    Mutant {
        name: "zookeeper-watch-misses-grant",
        rule: "a watch tells of a waiter that was granted before it was armed",
        file: ZK_QUEUE,
        from: "None => record.granted,",
        to: "None => false,",
        test: ZK_TURNS,
    },
    Mutant {
        name: "zookeeper-numbers-decide",
        rule: "no number that somebody made up changes the order of the claims",
        file: ZK_QUEUE,
        from: "(one.sequence, &one.node).cmp(&(other.sequence, &other.node))",
        to: "one.node.cmp(&other.node)",
        test: ZK_ORDER,
    },
    Mutant {
        name: "zookeeper-lasting-claim",
        rule: "what no session keeps is no claim",
        file: ZK_STRANGERS_FILE,
        from: "stat.ephemeral_owner == 0 || stat.ephemeral_owner == i64::MIN",
        to: "stat.ephemeral_owner == i64::MIN",
        test: ZK_STRANGERS,
    },
    Mutant {
        name: "zookeeper-anybody-makes-lighter",
        rule: "only its own session makes a claim lighter",
        file: ZK_STRANGERS_FILE,
        from: "marked.is_none_or(|marked| marked.ephemeral_owner != made.ephemeral_owner)",
        to: "marked.is_none()",
        test: ZK_STRANGERS,
    },
    Mutant {
        name: "zookeeper-holder-judged-again",
        rule: "whoever was granted it holds, whatever is put before it",
        file: ZK_ATTEMPT,
        from: "at < queue.held || place.fence.is_some()",
        to: "at < queue.held",
        test: ZK_STRANGERS,
    },
    Mutant {
        name: "zookeeper-only-watches-unmask",
        rule: "who waits without a watch passes over strangers, too",
        file: ZK_ATTEMPT,
        from: "claim.wait && *new",
        to: "claim.wait",
        test: ZK_STRANGERS,
    },
    Mutant {
        name: "zookeeper-holder-seems-to-wait",
        rule: "a sharer that passed over strangers tells those who count them that it holds",
        file: ZK_ATTEMPT,
        from: "new && !queue.thinned ||",
        to: "new ||",
        test: ZK_STRANGERS,
    },
    Mutant {
        name: "zookeeper-one-suspect",
        rule: "whoever is kept waiting finds out all strangers among those that seem to hold",
        file: ZK_STRANGERS_FILE,
        from: "first(queue.held + 1)",
        to: "first(1)",
        test: ZK_STRANGERS,
    },
    Mutant {
        name: "zookeeper-mark-outlives-writer",
        rule: "what made a writer lighter is not taken for a stranger's when both go",
        file: ZK_STRANGERS_FILE,
        from: "(marked, made) = (self.stat(parent, mark), self.stat(parent, &entry.node))",
        to: "(made, marked) = (self.stat(parent, &entry.node), self.stat(parent, mark))",
        test: ZK_STRANGERS,
    },
    Mutant {
        name: "zookeeper-first-word-counts",
        rule: "what a stranger says of the capacity lets nobody in who says the same",
        file: ZK_ATTEMPT,
        from: "queue.disputes(at, *asked)",
        to: "*asked != stored",
        test: ZK_STRANGERS,
    },
    Mutant {
        name: "zookeeper-shows-false-marks",
        rule: "nobody is shown as lighter who was not made so by its own session",
        file: "crates/oarlock-zookeeper/src/show.rs",
        from: "queue = queue.without(&strangers);",
        to: "queue = queue.without(&std::collections::HashSet::new());",
        test: ZK_STRANGERS,
    },
    Mutant {
        name: "zookeeper-unreadable-stalls",
        rule: "the end of a node can be watched by those who may not read it",
        file: "crates/oarlock-zookeeper/src/watch.rs",
        from: "Err(zk::Error::NoAuth) => self.watch",
        to: "Err(zk::Error::ClientClosed) => self.watch",
        test: ZK_STRANGERS,
    },
    Mutant {
        name: "zookeeper-any-of-its-id",
        rule: "what only bears the id of a claim is not taken for it",
        file: ZK_STRANGERS_FILE,
        from: "Ok(if strangers.is_empty() { queue } else { queue.without(&strangers) })",
        to: "Ok(if strangers.is_empty() { queue } else { queue.without(&HashSet::new()) })",
        test: ZK_STRANGERS,
    },
    Mutant {
        name: "zookeeper-value-unwritten",
        rule: "a value that could not be published is an error",
        file: ZK_RENEW,
        from: "&write(&record)?, Some(stat.version)).await.map_err(from_zk)?;",
        to: "&write(&record)?, Some(stat.version)).await.ok();",
        test: ZK_NODES,
    },
    Mutant {
        name: "zookeeper-looks-twice",
        rule: "a turn costs five requests",
        file: ZK_ATTEMPT,
        from: "pending.watched = obstacle != queue::Obstacle::Any;",
        to: "pending.watched = false;",
        test: ZK_TURNS,
    },
    Mutant {
        name: "belief-comes-back",
        rule: "what has ended never comes back",
        file: BELIEF,
        from: "self.is_let_go() || self.clock.now() >= self.deadline() {\n            return false;",
        to: "self.is_let_go() {\n            return false;",
        test: &["-p", "oarlock-core", "--lib", "belief::"],
    },
    Mutant {
        name: "no-margin",
        rule: "belief ends before the lease, by a margin for clocks of different rates",
        file: BELIEF,
        from: "(ttl / 50).max(Duration::from_millis(5))",
        to: "Duration::ZERO",
        test: SIMULATION,
    },
    Mutant {
        name: "slow-answers-given-up",
        rule: "a renewal that failed is asked for again by itself",
        file: WATCHDOG,
        from: "partition(|due| due.failed)",
        to: "partition(|due| due.failed && due.news.is_some())",
        test: ENGINE,
    },
    Mutant {
        name: "no-renewal",
        rule: "a held lock is renewed",
        file: WATCHDOG,
        from: "batch.push(charge.to_renew());",
        to: "drop(charge.to_renew());",
        test: SIMULATION,
    },
    Mutant {
        name: "renewal-not-applied",
        rule: "a renewal extends the lease in the store",
        file: MODEL,
        from: "entry.expires = now.boot + renewal.claim.ttl;",
        to: "",
        test: SIMULATION,
    },
    Mutant {
        name: "renewal-revives",
        rule: "an expired claim is never renewed",
        file: MODEL,
        from: "pub fn renew(&mut self, renewal: &Renewal, now: Now, calls: &mut Calls) -> Result<Renewed> {\n        self.expire(now, calls);",
        to: "pub fn renew(&mut self, renewal: &Renewal, now: Now, _calls: &mut Calls) -> Result<Renewed> {",
        test: RULE,
    },
    Mutant {
        name: "weight-ignored",
        rule: "granted weights never exceed the capacity",
        file: QUEUE,
        from: "Weight::Units(units) => self.units += u64::from(units.get()),",
        to: "Weight::Units(_) => self.units += 0,",
        test: SIMULATION,
    },
    Mutant {
        name: "fence-reused",
        rule: "every grant has a larger fence",
        file: MODEL,
        from: "self.last_fence.saturating_add(1).max(least.map_or(clock, |it| it.get().clamp(lowest, highest)))",
        to: "self.last_fence.max(1)",
        test: SIMULATION,
    },
    Mutant {
        name: "fence-from-the-clock-alone",
        rule: "fences rise even when the wall clock falls",
        file: MODEL,
        from: "self.last_fence.saturating_add(1).max(least.map_or(clock, |it| it.get().clamp(lowest, highest)))",
        to: "least.map_or(clock, |it| it.get().clamp(lowest, highest))",
        test: RULE,
    },
    Mutant {
        name: "fence-ahead-forgotten",
        rule: "a fence that is ahead of the clock is not forgotten",
        file: MODEL,
        from: " && behind(self.last_used_micros) && behind(self.last_fence)",
        to: " && behind(self.last_used_micros)",
        test: RULE,
    },
    Mutant {
        name: "redisson-fence-ahead-forgotten",
        rule: "a fence that is ahead of the clock is not forgotten",
        file: REDISSON_CHANGE,
        from: "math.max(last, last_fence) - now",
        to: "last - now",
        test: REDIS_CLOCK,
    },
    Mutant {
        name: "expired-waiter-stays",
        rule: "an expired waiter is evicted",
        file: MODEL,
        from: "self.retain(now, calls, |entry| entry.ends() > now.boot);",
        to: "self.retain(now, calls, |entry| !entry.is_held() || entry.ends() > now.boot);",
        test: SIMULATION,
    },
    Mutant {
        name: "turn-without-end",
        rule: "a turn that is not taken passes on",
        file: MODEL,
        from: "Standing::Waits(Some(turn)) => turn.min(self.expires),",
        to: "Standing::Waits(Some(_)) => self.expires,",
        test: RULE,
    },
    Mutant {
        name: "handed-turn-without-end",
        rule: "a turn that came with its grant passes on if it is not taken, though its place is renewed",
        file: MODEL,
        from: "if self.entries[at].untaken && !turn::takes(renewal) {",
        to: "if false && !turn::takes(renewal) {",
        test: RULE,
    },
    Mutant {
        name: "handed-out-of-turn",
        rule: "only a waiter whose turn has come is granted without asking",
        file: MODEL_TURN,
        from: "let called = matches!(self.standing, Standing::Waits(Some(_))) && self.ends() > now.boot;",
        to: "let called = !self.is_held() && self.since <= now.boot;",
        test: RULE,
    },
    Mutant {
        name: "handed-to-everybody",
        rule: "a hold that is not renewed, or outlives its process, begins with its whole lease",
        file: MODEL_TURN,
        from: "claim.renews && claim.tether == Tether::Process && claim.least_fence.is_none()",
        to: "claim.renews || claim.tether == Tether::Lease || claim.least_fence.is_some() || true",
        test: RULE,
    },
    Mutant {
        name: "overtaking",
        rule: "claims are granted in order of arrival",
        file: MODEL,
        from: "others.filter(move |(position, entry)| entry.is_held() || *position < at)",
        to: "others.filter(move |(_, entry)| entry.is_held())",
        test: RULE,
    },
    Mutant {
        name: "redis-later-claim-first",
        rule: "claims are granted in order of arrival",
        file: REDIS_ATTEMPT,
        from: "if i ~= at and (e.fence or (i < at and not e.deaf)) then add(load, e.weight) end",
        to: "if i ~= at and e.fence then add(load, e.weight) end",
        test: REDIS_ORDER,
    },
    Mutant {
        name: "redis-later-claim-called",
        rule: "a claim that does not fit holds back those behind it",
        file: REDIS_RULE,
        from: "        blocked = true\n",
        to: "",
        test: REDIS_ORDER,
    },
    Mutant {
        name: "postgres-later-claim-first",
        rule: "claims are granted in order of arrival",
        file: POSTGRES_ATTEMPT,
        from: "SELECT *, fence IS NOT NULL OR arrival < place AS blocks FROM",
        to: "SELECT *, fence IS NOT NULL AS blocks FROM",
        test: POSTGRES_ORDER,
    },
    Mutant {
        name: "mysql-later-claim-first",
        rule: "claims are granted in order of arrival",
        file: MYSQL_ATTEMPT,
        from: "WHEN IF(_weight = 0, _ahead = 0,",
        to: "WHEN IF(_weight = 0, _ahead = _waiting,",
        test: MYSQL_ORDER,
    },
    Mutant {
        name: "etcd-later-claim-first",
        rule: "claims are granted in order of arrival",
        file: ETCD_QUEUE,
        from: "        load(&self.places[..at]).bears(self.places[at].record.weight, self.limit())",
        to: "        let held = self.places.iter().filter(|place| place.record.granted).map(|place| place.record.weight);\n        \
             held.collect::<Load>().bears(self.places[at].record.weight, self.limit())",
        test: ETCD_ORDER,
    },
    Mutant {
        name: "zookeeper-later-claim-first",
        rule: "claims are granted in order of arrival",
        file: ZK_QUEUE,
        from: "(one.sequence, &one.node).cmp(&(other.sequence, &other.node))",
        to: "(other.sequence, &one.node).cmp(&(one.sequence, &other.node))",
        test: ZK_ORDER_CASES,
    },
    Mutant {
        name: "adopts-any-later-grant-of-a-cohort",
        rule: "a ticket of a cohort is not taken for a later grant",
        file: TICKET,
        from: "(granted.get()..=last).contains(&fence.get())",
        to: "fence.get() >= granted.get() || fence.get() == last",
        test: &["-p", "oarlock-core", "--lib", "ticket::"],
    },
    Mutant {
        name: "quorum-shows-any-value",
        rule: "a quorum shows the value that most nodes have",
        file: SHOW,
        from: "max_by_key(|shown| (alike(shown.value.clone()), shown.lease_left))",
        to: "max_by_key(|shown| (alike(shown.value.clone()).min(0), shown.lease_left))",
        test: &["-p", "oarlock-core", "--lib", "quorum::show::"],
    },
    Mutant {
        name: "every-task-queues",
        rule: "tasks of one process wait behind its one place in the queue",
        file: ACQUIRE,
        from: "if !self.claim.wait || self.fair || is_shared {",
        to: "if true {",
        test: ORDER_CASES,
    },
    Mutant {
        name: "fair-task-waits-at-the-gate",
        rule: "every task that asks for it has a place of its own in the queue",
        file: ACQUIRE,
        from: "if !self.claim.wait || self.fair || is_shared {",
        to: "if !self.claim.wait || is_shared {",
        test: ORDER_CASES,
    },
    Mutant {
        name: "owner-waits-behind-its-waiter",
        rule: "an owner that holds permits does not wait behind a claim that waits for them",
        file: ACQUIRE,
        from: "if joins && stands_behind(core, &place.claim, end).await.unwrap_or(false) {",
        to: "if false {",
        test: OWNER_CASES,
    },
    Mutant {
        name: "no-shard-lock",
        rule: "two processes never change a name of the embedded store at once",
        file: SHARD,
        from: "if try_lock(&file).map_err(|error| self.failed(error))? {",
        to: "if true {",
        test: &["-p", "oarlock-local", "--test", "local", "stall::"],
    },
    Mutant {
        name: "nobody-is-dead",
        rule: "the embedded store frees what a dead process held, at once",
        file: SESSION,
        from: "Ok(true) => Life::Dead,",
        to: "Ok(true) => Life::Unknown,",
        test: &["-p", "oarlock-local", "--test", "local", "death::"],
    },
    Mutant {
        name: "everybody-is-dead",
        rule: "the embedded store takes nothing from a live process",
        file: SESSION,
        from: "Ok(file) if is_free(&file) => match identity::is_at(&file, &path) {",
        to: "Ok(file) if is_free(&file) || true => match identity::is_at(&file, &path) {",
        test: &["-p", "oarlock-local", "--test", "local", "exclusion::"],
    },
    Mutant {
        name: "missing-is-dead",
        rule: "the embedded store takes nothing from a live process whose session file was removed",
        file: SESSION,
        from: "if error.kind() == io::ErrorKind::NotFound => Life::Unknown,",
        to: "if error.kind() == io::ErrorKind::NotFound => Life::Dead,",
        test: &["-p", "oarlock-local", "--test", "local", "cleaner::"],
    },
    Mutant {
        name: "proof-of-death-swept",
        rule: "the embedded store keeps the proof of a death for as long as claims may need it",
        file: SESSION,
        from: "if path.extension().is_some() || !is_needed(&file, spare) {",
        to: "if true {",
        test: &["-p", "oarlock-local", "--lib", "sweep::"],
    },
    Mutant {
        name: "removed-shard-locked",
        rule: "a step of the embedded store locks the file that others find",
        file: SHARD,
        from: "if stat.nlink() == 0 {",
        to: "if false {",
        test: &["-p", "oarlock-local", "--test", "local", "cleaner::a_step"],
    },
    Mutant {
        name: "moved-shard-locked",
        rule: "a store whose directory was moved goes on in the one that others find",
        file: SHARD,
        from: "if self.found != round {",
        to: "if false {",
        test: &["-p", "oarlock-local", "--lib", "sweep::"],
    },
    Mutant {
        name: "memo-not-synced",
        rule: "a memo in the embedded store is on the disk before it is answered",
        file: LOCAL_LINK,
        from: "Some((_, file)) if needs == Needs::Disk && answer.is_ok() => {",
        to: "Some((_, file)) if false => {",
        test: &["-p", "oarlock-local", "--lib", "link::"],
    },
    Mutant {
        name: "group-keeps-umask",
        rule: "the users of a group can use each other's files, whatever the umask",
        file: LOCAL_DIRECTORY,
        from: "file.set_permissions(Permissions::from_mode(self.file_mode()))?;",
        to: "",
        test: &["-p", "oarlock-local", "--test", "local", "group::"],
    },
    Mutant {
        name: "child-ends-parent",
        rule: "a forked child frees nothing of its parent",
        file: SESSION,
        from: "if !self.sessions.is_ours() {",
        to: "if false {",
        test: &["-p", "oarlock-local", "--test", "local", "forked::"],
    },
    Mutant {
        name: "child-goes-on",
        rule: "a forked child is refused the store of its parent",
        file: SESSION,
        from: "if self.is_ours() {",
        to: "if true {",
        test: &["-p", "oarlock-local", "--test", "local", "forked::"],
    },
    Mutant {
        name: "local-word-is-never-old",
        rule: "a datagram with a grant is believed only if it is newer than what the state file said",
        file: LOCAL_TURN,
        from: "let is_newer = self.at > after.at && Some(self.fence) > after.last_fence;",
        to: "let is_newer = self.at > after.at || Some(self.fence) > after.last_fence || true;",
        test: LOCAL_HAND,
    },
    Mutant {
        name: "local-turn-counts-from-its-arrival",
        rule: "belief in a turn of the embedded store counts from its grant",
        file: LOCAL_TURN,
        from: "Lease { from: Some(self.at), ttl: self.ttl });\n        grant.memo",
        to: "Lease { from: Some(now), ttl: self.ttl });\n        grant.memo",
        test: LOCAL_TURNS,
    },
    Mutant {
        name: "local-hands-to-the-dead",
        rule: "the embedded store hands nothing to a dead process",
        file: LOCAL_LINK,
        from: "session == me || self.post.reaches(session));",
        to: "session == me || self.post.reaches(session) || true);",
        test: LOCAL_HAND,
    },
    Mutant {
        name: "local-turn-before-the-watch-is-lost",
        rule: "a turn that comes before its watch is armed is heard",
        file: LOCAL_WATCH,
        from: "let mut missed = kept == Some(true);",
        to: "let mut missed = false;",
        test: LOCAL_HAND,
    },
    Mutant {
        name: "local-death-before-the-watch-is-lost",
        rule: "a death that comes before the watch for it is armed is heard",
        file: LOCAL_WATCH,
        from: "missed |= kept.is_some() && self.sessions.is_dead(*session);",
        to: "",
        test: LOCAL_HAND,
    },
    Mutant {
        name: "blocked-thread-keeps-the-watchdog",
        rule: "a thread that blocks right after it was handed a lock does not keep it from being renewed",
        file: WATCHDOG,
        from: "        if is_part {\n            // The holder may block",
        to: "        if false {\n            // The holder may block",
        test: LOCAL_HAND,
    },
    Mutant {
        name: "crc-ignored",
        rule: "a torn record is never read as a whole one",
        file: SLOT,
        from: "let whole = checksum(sequence, length, payload) == crc;",
        to: "let whole = true;",
        test: &["-p", "oarlock-local", "slot::"],
    },
    Mutant {
        name: "doubt-forgotten",
        rule: "a claim that may have been granted is released, whatever failed last",
        file: ACQUIRE,
        from: "error.applied() == Applied::No && !self.doubtful && self.standing",
        to: "error.applied() == Applied::No && self.standing",
        test: ENGINE,
    },
    Mutant {
        name: "belief-after-shutdown",
        rule: "a lock granted while its client is shut down is not believed in",
        file: ACQUIRE,
        from: "return core.check_open().map(|()| Some(guard)),",
        to: "return Ok(Some(guard)),",
        test: ENGINE,
    },
    Mutant {
        name: "spin-by-hint",
        rule: "a spinning claim waits by timer alone",
        file: ACQUIRE,
        from: "(self.patience == Patience::Hint).then_some(&*place.bell)",
        to: "Some(&*place.bell)",
        test: &["-p", "oarlock-core", "--test", "kinds"],
    },
    Mutant {
        name: "news-not-carried",
        rule: "a memo goes to the store with the renewal that is to carry it",
        file: WATCHDOG,
        from: "memo: due.memo.clone(), held: due.held,",
        to: "held: due.held,",
        test: ONCE,
    },
    Mutant {
        name: "first-leave-lets-go",
        rule: "a re-entrant lock is let go with its last entry",
        file: SEAT,
        from: "if shares.0 > 0 {",
        to: "if false {",
        test: REENTRANT,
    },
    Mutant {
        name: "reader-writes",
        rule: "whoever holds for reading is not let in to write",
        file: SEAT,
        from: "if !hold.covers(claim.weight) {",
        to: "if false {",
        test: REENTRANT,
    },
    Mutant {
        name: "lost-hold-shared",
        rule: "a lost hold is not entered again",
        file: SEAT,
        from: ".filter(|hold| hold.held.is_held())",
        to: ".filter(|_| true)",
        test: REENTRANT,
    },
    Mutant {
        name: "unsorted",
        rule: "everybody takes several locks in the same order",
        file: MULTI,
        from: "order.sort_by(|&one, &other| addresses[one].cmp(&addresses[other]));",
        to: "",
        test: MULTI_CASES,
    },
    Mutant {
        name: "waits-on-after-a-loss",
        rule: "one that is lost while another is waited for is taken anew",
        file: MULTI,
        from: "_ = taken.lost(), if !taken.parts.is_empty() => break,",
        to: "() = std::future::pending() => break,",
        test: MULTI_CASES,
    },
    Mutant {
        name: "observers-rely-on-hints",
        rule: "an observer looks again without a hint",
        file: LOOK,
        from: "core.entropy.jitter(slow).min(first.unwrap_or(slow))",
        to: "Duration::from_secs(3600)",
        test: &["-p", "oarlock-core", "--test", "kinds"],
    },
    Mutant {
        name: "slot-written-late",
        rule: "at most once: the slot is written down before the work starts",
        file: ONCE_RS,
        from: "if !self.at_least_once {",
        to: "if false {",
        test: ONCE,
    },
    Mutant {
        name: "earlier-slots-are-new",
        rule: "a slot before the last one is done",
        file: ONCE_RS,
        from: "Some(last) if compare(&last, slot) != Ordering::Less => {",
        to: "Some(last) if compare(&last, slot) == Ordering::Equal => {",
        test: ONCE,
    },
    Mutant {
        name: "cohort-fence-reused",
        rule: "a lock that is handed on within a process has a larger fence",
        file: COHORT,
        from: "Some(Self { next: self.next.next()?, ..self })",
        to: "Some(self)",
        test: COHORT_CASES,
    },
    Mutant {
        name: "cohort-without-end",
        rule: "a lock is handed on within a process no further than its fences reach",
        file: COHORT,
        from: "baton.next <= baton.last",
        to: "baton.next > Fence::new(0)",
        test: COHORT_CASES,
    },
    Mutant {
        name: "two-believe-in-a-cohort",
        rule: "whoever handed a lock on does not believe in it",
        file: BELIEF,
        from: "        self.let_go.store(true, Ordering::Release);\n        let successor = Self {",
        to: "        let successor = Self {",
        test: COHORT_CASES,
    },
    Mutant {
        name: "release-keeps-the-token",
        rule: "work under the token of a lock that was released is told",
        file: BELIEF,
        from: "        }\n        drop(bound);\n        self.over.cancel();",
        to: "        }\n        drop(bound);",
        test: &["-p", "oarlock-core", "--test", "ended"],
    },
    Mutant {
        name: "cohort-of-an-old-lease",
        rule: "a lock is handed on within a process only with half of its lease left",
        file: WATCHDOG,
        from: "belief.time_left() < charge.ttl / 2",
        to: "belief.time_left() < charge.ttl / 200",
        test: COHORT_TESTS,
    },
    Mutant {
        name: "session-keeps-what-was-let-go",
        rule: "what lives as long as its session is released, however late that works",
        file: LEAVING,
        from: "(self.outlasts_leases && !self.over.is_cancelled())",
        to: "false",
        test: ENGINE,
    },
    Mutant {
        name: "explicit-lease-extended",
        rule: "an explicit lease is not extended by handing it over",
        file: TICKET,
        from: "if ticket.renewed { renewed(core, &claim).await } else",
        to: "if true { renewed(core, &claim).await } else",
        test: HAND_OVER,
    },
    Mutant {
        name: "giver-still-believes",
        rule: "whoever handed a lock over does not believe in it",
        file: GUARD,
        from: "    pub(crate) fn leave_to_its_lease(mut self) {\n        self.stop_keeping();",
        to: "    pub(crate) fn leave_to_its_lease(mut self) {",
        test: HAND_OVER,
    },
    Mutant {
        name: "redisson-repeat",
        rule: "a repeated attempt keeps its hold and its fence",
        file: REDISSON_ATTEMPT,
        from: "if h and claim then",
        to: "if h and claim and false then",
        test: REDISSON,
    },
    Mutant {
        name: "redisson-fence-of-the-clock",
        rule: "fences rise over what is stored, whatever the clock says",
        file: REDISSON_ATTEMPT,
        from: "math.max(last_fence + 1, (token or 0) + 1, proposed)",
        to: "math.max((token or 0) + 1, now)",
        test: REDISSON,
    },
    Mutant {
        name: "redisson-fence-of-the-counter",
        rule: "fences rise after what is stored was lost",
        file: REDISSON_ATTEMPT,
        from: "math.max(last_fence + 1, (token or 0) + 1, proposed)",
        to: "math.max(last_fence + 1, (token or 0) + 1)",
        test: REDISSON,
    },
    Mutant {
        name: "redisson-fence-without-token",
        rule: "a fence is larger than the tokens that Redisson programs were given",
        file: REDISSON_ATTEMPT,
        from: "math.max(last_fence + 1, (token or 0) + 1, proposed)",
        to: "math.max(last_fence + 1, now)",
        test: REDISSON,
    },
    Mutant {
        name: "redisson-token-left-behind",
        rule: "the next token of a Redisson program is larger than our fence",
        file: REDISSON_LOAD,
        from: "if token or TOKENS then",
        to: "if TOKENS then",
        test: REDISSON,
    },
    Mutant {
        name: "redisson-mixed-kinds",
        rule: "objects of two kinds under one name are refused",
        file: REDISSON_ATTEMPT,
        from: "if form ~= 'none' and form ~= wanted then",
        to: "if false then",
        test: REDISSON,
    },
    Mutant {
        name: "redisson-foreign-hash",
        rule: "a hash of another program is no lock",
        file: REDISSON_LOAD,
        from: "if mode and mode ~= 'read' and mode ~= 'write' or not mode and redis.call('HLEN', key) ~= 1 then",
        to: "if false then",
        test: REDISSON,
    },
    Mutant {
        name: "redisson-stranger-releases",
        rule: "only its own holder releases a hold",
        file: REDISSON_RELEASE,
        from: "(how ~= 'broken' and not is_ours)",
        to: "(how == 'done' and false)",
        test: REDISSON,
    },
    Mutant {
        name: "redisson-silent-release",
        rule: "a release tells the Redisson programs that wait",
        file: REDISSON_CHANGE,
        from: "  tell(LOCK, '0')\n",
        to: "",
        test: REDISSON,
    },
    Mutant {
        name: "redisson-silent-to-the-fair",
        rule: "a release tells the head of Redisson's fair queue",
        file: REDISSON_CHANGE,
        from: "if head then tell",
        to: "if false then tell",
        test: REDISSON,
    },
    Mutant {
        name: "redisson-dead-head",
        rule: "a dead waiter at the head of Redisson's fair queue keeps nobody from being told",
        file: REDISSON_CHANGE,
        from: "if type(till) == 'table' or (till and tonumber(till) > now_ms) then return head end",
        to: "if true then return head end",
        test: REDISSON,
    },
    Mutant {
        name: "redisson-late-look",
        rule: "we look often where a release of Redisson's may tell us nothing",
        file: REDISSON_ATTEMPT,
        from: "look = math.min(look < 0 and LOOK or look, LOOK)",
        to: "look = look",
        test: REDISSON,
    },
    Mutant {
        name: "redisson-unheard-in-a-cluster",
        rule: "we look often where Redisson may publish what we do not listen to",
        file: REDISSON_ATTEMPT,
        from: "form == 'lock' or unheard or",
        to: "form == 'lock' or",
        test: REDISSON,
    },
    Mutant {
        name: "redisson-asked-in-vain",
        rule: "a break with a grace that a Redisson program would not heed is refused",
        file: REDISSON_RELEASE,
        from: "if grace_ms > 0 and not is_ours then",
        to: "if false then",
        test: REDISSON,
    },
    Mutant {
        name: "redisson-half-broken",
        rule: "a break ends all holds of a Redisson thread",
        file: REDISSON_RELEASE,
        from: "  h, at = find(id)\n",
        to: "  h = nil\n",
        test: REDISSON,
    },
    Mutant {
        name: "redisson-old-capacity",
        rule: "a semaphore that Redisson made larger has its new capacity",
        file: REDISSON_ATTEMPT,
        from: "if cap and units + (free or 0) > cap then",
        to: "if false then",
        test: REDISSON,
    },
    Mutant {
        name: "redisson-hidden-readers",
        rule: "a Redisson reader whose end cannot be seen still excludes writers",
        file: REDISSON_CHANGE,
        from: "if other.left < 0 or other.owner ~= owner_of(other.id) then return tell(RW, '0') end",
        to: "",
        test: REDISSON,
    },
    Mutant {
        name: "redisson-dead-readers",
        rule: "a dead reader of ours is in nobody's way",
        file: REDISSON_CHANGE,
        from: "(h.kind == 'read' and h.left < 0 and h.owner == owner_of(h.id))",
        to: "false",
        test: REDISSON,
    },
    Mutant {
        name: "redisson-permits-kept",
        rule: "permits that were returned are returned once",
        file: REDISSON_CHANGE,
        from: "for _, member in ipairs(h.members) do redis.call('ZREM', permits_key, member) end",
        to: "",
        test: REDISSON,
    },
    Mutant {
        name: "redisson-silent-force-unlock",
        rule: "a force-unlock is told with its reason",
        file: REDISSON_CHANGE,
        from: "elseif claim.till - now > 10000 then",
        to: "elseif false then",
        test: REDISSON,
    },
    Mutant {
        name: "redisson-two-slots",
        rule: "names whose keys would be in two slots are refused in a cluster",
        file: REDISSON_NAMES,
        from: "slot(key) == home",
        to: "slot(key) == home || true",
        test: REDISSON,
    },
    Mutant {
        name: "waiter-passes-for-holder",
        rule: "a holder that the store calls a waiter, or grants anew, has lost the lock",
        file: WATCHDOG,
        from: "if self.fence.is_some() && *fence != self.fence)",
        to: "if false && *fence != self.fence)",
        test: PROMISES,
    },
    Mutant {
        name: "any-grant-will-do",
        rule: "a claim that the store granted anew is not the hold that is believed in",
        file: WATCHDOG,
        from: "if self.fence.is_some() && *fence != self.fence)",
        to: "if self.fence.is_some() && fence.is_none())",
        test: PROMISES,
    },
    Mutant {
        name: "adopts-any-grant",
        rule: "a lock that was granted anew is not the one that was handed over",
        file: TICKET,
        from: "fence.is_some_and(|fence| !ticket.is_of(fence))",
        to: "false",
        test: PROMISES,
    },
    Mutant {
        name: "look-renews-explicit-lease",
        rule: "an explicit lease is not extended by looking at it",
        file: WATCHDOG,
        from: "Who::Holder(_)) if !charge.renews => (true, None),",
        to: "Who::Holder(_)) if !charge.renews && charge.again => (true, None),",
        test: PROMISES,
    },
    Mutant {
        name: "shorter-belief-planned-late",
        rule: "the token fires when belief ends, also when the end was brought forward",
        file: PROBE,
        from: "            self.plan_anew(claim.id);\n",
        to: "",
        test: PROMISES,
    },
    Mutant {
        name: "failed-look-forgotten",
        rule: "a look at an explicit lease that failed is repeated",
        file: "crates/oarlock-core/src/engine/watchdog/probe.rs",
        from: "std::mem::take(&mut charge.again) || !is_answered",
        to: "std::mem::take(&mut charge.again) && !is_answered",
        test: &["-p", "oarlock-core", "--test", "promises", "breaks::"],
    },
    Mutant {
        name: "missed-turn-floods",
        rule: "a waiter that is not polled does not flood the store",
        file: WATCHDOG,
        from: "                charge.ttl = claim.place_ttl();\n                self.plan",
        to: "                self.plan",
        test: PROMISES,
    },
    Mutant {
        name: "work-after-the-loss",
        rule: "no step of the caller's work begins after the loss",
        file: GUARD,
        from: "        if let Some(loss) = loss() {\n            return Poll::Ready(Err(loss));\n        }\n",
        to: "",
        test: PROMISES,
    },
    Mutant {
        name: "trusts-a-new-mailbox",
        rule: "what happened before a mailbox was armed is looked for",
        file: MAILBOX,
        from: "if self.watch.is_some() {\n                    // What",
        to: "if false {\n                    // What",
        test: PROMISES,
    },
    Mutant {
        name: "one-mailbox-for-all",
        rule: "clients that share a driver hear each of their own",
        file: WATCH,
        from: "senders.retain(|sender| !sender.is_closed());\n        senders.push(sender);",
        to: "senders.clear();\n        senders.push(sender);",
        test: PROMISES,
    },
    Mutant {
        name: "hints-pile-up",
        rule: "hints that are not read are merged",
        file: WATCH,
        from: "Some(claim) if !self.any && self.claims.len() < MOST_NAMED => {",
        to: "Some(claim) if !self.any => {",
        test: &["-p", "oarlock-core", "--lib", "driver::watch::"],
    },
    Mutant {
        name: "reaper-forgets-the-memo",
        rule: "a memo is left whoever ends the hold",
        file: GUARD,
        from: "            end: self.end.clone(),",
        to: "            end: End::Done { memo: None },",
        test: PROMISES,
    },
    Mutant {
        name: "arming-without-end",
        rule: "a wait ends in time, whatever the store does",
        file: ACQUIRE,
        from: "core.by(give_up, core.driver.clone().watch(interest), \"watch\")",
        to: "core.by(Moment::NEVER, core.driver.clone().watch(interest), \"watch\")",
        test: PROMISES,
    },
    Mutant {
        name: "downgrade-without-end",
        rule: "a downgrade ends in time, whatever the store does",
        file: GUARD,
        from: "tokio::time::timeout(give_up.since(sent), request)",
        to: "tokio::time::timeout(Duration::MAX, request)",
        test: PROMISES,
    },
    Mutant {
        name: "invalid-name-is-sent",
        rule: "a name that cannot be is refused before the store is asked",
        file: ACQUIRE,
        from: "        self.check_valid()?;\n",
        to: "",
        test: &["-p", "oarlock-core", "--test", "checked"],
    },
    Mutant {
        name: "shutdown-without-end",
        rule: "a shutdown ends in time, whatever the store does",
        file: ENGINE_RS,
        from: "let left = end.since(self.clock.now()).max(LAST_CHANCE);",
        to: "let left = Duration::MAX;",
        test: PROMISES,
    },
    Mutant {
        name: "shortest-lease-decides",
        rule: "a short lease makes no long one suspect",
        file: WATCHDOG,
        from: "self.op_timeout.min(due.lease / 3);",
        to: "self.op_timeout.min(due.lease / 3).min(Duration::from_millis(120));",
        test: PROMISES,
    },
    Mutant {
        name: "watchdog-ends-with-its-client",
        rule: "belief ends on time after a shutdown",
        file: WATCHDOG,
        from: "() = shared.stop.cancelled() => break,",
        to: "() = shared.stop.cancelled() => return,",
        test: PROMISES,
    },
    Mutant {
        name: "ids-of-the-seed",
        rule: "two clients of one seed do not share a lock",
        file: "crates/oarlock-core/src/engine/entropy.rs",
        from: "(u128::from(drawn) << 64) | (random >> 64)",
        to: "(u128::from(drawn) << 64) | (random & 0)",
        test: PROMISES,
    },
    Mutant {
        name: "waiters-not-counted",
        rule: "no more than max_waiters stand in the store's queue",
        file: "crates/oarlock-core/src/engine/crowd.rs",
        from: "        *count += 1;\n",
        to: "",
        test: PROMISES,
    },
    Mutant {
        name: "place-extends-grant",
        rule: "an answer about a waiter's place says nothing about its grant",
        file: WATCHDOG,
        from: "if !held && kept.by_id.get(&id)",
        to: "if false && kept.by_id.get(&id)",
        test: TURNS,
    },
    Mutant {
        name: "broken-waiter-gets-a-lease",
        rule: "a waiter that was asked to end gets no more than its grace",
        file: MODEL,
        from: "if entry.ending.is_none() {\n            entry.expires = now.boot + if fence",
        to: "if true {\n            entry.expires = now.boot + if fence",
        test: RULE,
    },
    Mutant {
        name: "redis-turn-counts-from-its-arrival",
        rule: "belief in a turn is counted from the waiter's last request",
        file: HANDED,
        from: "Lease { from: Some(self.from), ttl: self.ttl });\n        grant.memo",
        to: "Lease { from: Some(now), ttl: self.ttl });\n        grant.memo",
        test: REDIS_TURNS,
    },
    Mutant {
        name: "redis-turn-by-another-clock",
        rule: "belief in a turn is counted by the clock of the client",
        file: REDIS_TURN,
        from: "i64::try_from(clock.now()",
        to: "i64::try_from(oarlock_core::clock::BootClock.now()",
        test: REDIS_TURNS,
    },
    Mutant {
        name: "redis-short-lease-for-everybody",
        rule: "a hold that is not renewed begins with its whole lease",
        file: REDIS_TURN,
        from: "if claim.may_be_handed() && !confirms { now } else { -now }",
        to: "if confirms { -now } else { now }",
        test: REDIS_TURNS,
    },
    Mutant {
        name: "redis-turn-kept-untaken",
        rule: "a turn that is not taken passes on, though its place is renewed",
        file: REDIS_RENEW,
        from: "if me.handed and (held or how ~= 'keep' or left ~= '') then take(me) end",
        to: "if me.handed then take(me) end",
        test: REDIS_TURNS,
    },
    Mutant {
        name: "redis-handed-is-passed",
        rule: "nobody passes whoever was handed the lock",
        file: REDIS_ATTEMPT,
        from: "if i ~= at and (e.fence or (i < at and not e.deaf)) then",
        to: "if i ~= at and ((e.fence and not e.handed) or i < at) then",
        test: REDIS_TURNS,
    },
    Mutant {
        name: "redis-waits-for-the-dead",
        rule: "a waiter whose client is gone is passed over",
        file: REDIS_RULE,
        from: "return type(told[2]) ~= 'number' or told[2] > 0",
        to: "return true",
        test: REDIS_TURNS,
    },
    Mutant {
        name: "redis-nobody-looks",
        rule: "the one behind a silent waiter is told to look",
        file: REDIS_RULE,
        from: "if doubtful and e.sent and #entries <= FEW then",
        to: "if false then",
        test: REDIS_TURNS,
    },
    Mutant {
        name: "handed-grant-believed-when-old",
        rule: "a grant that was handed long ago is asked for",
        file: HANDED,
        from: "if self.from > now || now.since(self.from) > self.ttl / 2 {",
        to: "if false {",
        test: HANDED_GRANTS,
    },
    Mutant {
        name: "handed-grant-lasts-longer-than-a-turn",
        rule: "a client believes in a handed grant for a turn at most",
        file: HANDED,
        from: "Duration::from_micros(ttl).min(TURN_TTL)",
        to: "Duration::from_micros(ttl)",
        test: HANDED_GRANTS,
    },
    Mutant {
        name: "postgres-turn-counts-from-its-arrival",
        rule: "belief in a turn is counted from the waiter's last request",
        file: HANDED,
        from: "Lease { from: Some(self.from), ttl: self.ttl });\n        grant.memo",
        to: "Lease { from: Some(now), ttl: self.ttl });\n        grant.memo",
        test: POSTGRES_TURNS,
    },
    Mutant {
        name: "postgres-short-lease-for-everybody",
        rule: "a hold that is not renewed begins with its whole lease",
        file: POSTGRES_DRIVER,
        from: "if claim.may_be_handed() && is_tethered(claim) { turn::sent() } else { None }",
        to: "if claim.wait { turn::sent() } else { None }",
        test: POSTGRES_TURNS,
    },
    Mutant {
        name: "postgres-turn-kept-untaken",
        rule: "a turn that is not taken passes on, though its place is renewed",
        file: POSTGRES_RENEW,
        from: "ELSIF mine.handed AND NOT asked.held AND",
        to: "ELSIF false AND",
        test: POSTGRES_TURNS,
    },
    Mutant {
        name: "postgres-turn-lasts-as-long-as-a-place",
        rule: "a turn that is not taken passes on after two seconds",
        file: POSTGRES_STEP,
        from: "expires = least(expires, _now + interval '2 seconds')",
        to: "expires = expires",
        test: POSTGRES_TURNS,
    },
    Mutant {
        name: "postgres-handed-is-passed",
        rule: "no claim passes one that was handed the lock",
        file: POSTGRES_ATTEMPT,
        from: "SELECT *, fence IS NOT NULL OR arrival < place AS blocks FROM",
        to: "SELECT *, NOT handed AND (fence IS NOT NULL OR arrival < place) AS blocks FROM",
        test: POSTGRES_TURNS,
    },
    Mutant {
        name: "postgres-handed-fence-given-again",
        rule: "the fence of a handed grant is not given again",
        file: POSTGRES_STEP,
        from: "            head.last_fence := next_fence;\n",
        to: "",
        test: POSTGRES_TURNS,
    },
    Mutant {
        name: "postgres-hands-to-the-ending",
        rule: "a waiter that was asked to end is handed nothing",
        file: POSTGRES_STEP,
        from: " AND waiter.ending IS NULL AND",
        to: " AND",
        test: POSTGRES_TURNS,
    },
    Mutant {
        name: "postgres-broken-grant-believed",
        rule: "of several notifications the last one counts",
        file: POSTGRES_WATCH,
        from: "(expected.called, expected.handed) = (true, handed);",
        to: "expected.called = true;\n                expected.handed = handed.or(expected.handed.take());",
        test: POSTGRES_TURNS,
    },
    Mutant {
        name: "postgres-told-twice-is-granted-twice",
        rule: "a grant that is told twice is taken once",
        file: POSTGRES_WATCH,
        from: "        inner.expected.remove(&id);\n",
        to: "",
        test: POSTGRES_TURNS,
    },
    Mutant {
        name: "postgres-turn-before-its-watch-is-missed",
        rule: "a turn that came before its watch is told",
        file: POSTGRES_WATCH,
        from: "is_some_and(|expected| expected.called)",
        to: "is_some_and(|_| false)",
        test: POSTGRES_TURNS,
    },
    Mutant {
        name: "postgres-nobody-looks",
        rule: "the one behind a silent waiter is told to look",
        file: POSTGRES_STEP,
        from: "IF doubtful AND (SELECT",
        to: "IF false AND (SELECT",
        test: POSTGRES_TURNS,
    },
    Mutant {
        name: "postgres-hands-into-a-full-queue",
        rule: "a full queue of notices stops no lock",
        file: POSTGRES_STEP,
        from: " AND pg_notification_queue_usage() < 0.9 THEN",
        to: " THEN",
        test: POSTGRES_FULL,
    },
    Mutant {
        name: "redis-grace-forgotten",
        rule: "a waiter that was asked to end gets no more than its grace",
        file: REDIS_ATTEMPT,
        from: "if not me.by then\n  me.lease = fits",
        to: "if true then\n  me.lease = fits",
        test: REDIS_TURNS,
    },
    Mutant {
        name: "redis-deaf-to-a-slot",
        rule: "waiters hear from the node that a slot has moved to",
        file: REDIS_WATCH,
        from: "PushKind::SUnsubscribe => self.unattended(channel, source),",
        to: "PushKind::SUnsubscribe => {}",
        test: REDIS_SLOT,
    },
    Mutant {
        name: "redis-leaves-a-node-that-is-being-filled",
        rule: "what a node of a cluster was asked is answered, though it serves no slot yet",
        file: REDIS_CLUSTER,
        from: ".filter(|(target, _)| served.contains(target))",
        to: "",
        test: REDIS_NODES,
    },
    Mutant {
        name: "redis-needs-every-master",
        rule: "a dead master keeps no client from the other masters of a cluster",
        file: REDIS_LINK,
        from: "Err(error) if self.is_cluster() && error.kind() == ErrorKind::Unreachable => {",
        to: "Err(error) if false => {",
        test: REDIS_NODES,
    },
    Mutant {
        name: "redis-short-lease-cuts-the-wait",
        rule: "replicas have as long to confirm a grant as its own lease allows",
        file: "crates/oarlock-redis/src/node.rs",
        from: "over || *patience <= least",
        to: "over || *patience >= least",
        test: REDIS_CONFIRMED,
    },
    Mutant {
        name: "redis-keeps-the-refused",
        rule: "nothing is kept of a claim that was refused",
        file: REDIS_DRIVER,
        from: "Err(error) if error.applied() == Applied::No => self.link.hub().forget(claim.id),",
        to: "",
        test: REDIS_LIB,
    },
    Mutant {
        name: "redis-reads-every-format",
        rule: "what another version has stored is refused",
        file: REDIS_LOAD,
        from: "if stored[1] == FORMAT then",
        to: "if stored[1] then",
        test: REDIS_FORMAT,
    },
    Mutant {
        name: "redis-clock-set-back",
        rule: "no lease lasts longer than it was given for, though the server's clock is set back",
        file: REDIS_RULE,
        from: "  if e.till > now + e.lease or (e.turn and e.turn > now + TURN) then",
        to: "  if false then",
        test: REDIS_CLOCK,
    },
    Mutant {
        name: "redis-clock-set-back-in-a-crowd",
        rule: "no lease lasts longer than it was given for, also where steps look at one waiter alone",
        file: REDIS_PLACE,
        from: "return till <= now + lease end",
        to: "return true end",
        test: REDIS_CLOCK,
    },
    Mutant {
        name: "redis-grant-forgotten",
        rule: "a holder whose grant the server has forgotten is told so, though its place is there",
        file: REDIS_RENEW,
        from: "if held and not me.fence then",
        to: "if false then",
        test: REDIS_ALONE,
    },
    Mutant {
        name: "redis-counts-what-a-stranger-wrote",
        rule: "numbers that no script of ours writes are refused",
        file: REDIS_LOAD,
        from: "return number >= least and number <= most and number % 1 == 0 end",
        to: "return true end",
        test: REDIS_NUMBERS,
    },
    Mutant {
        name: "redis-queue-longer-than-it-is",
        rule: "a queue that has not as many waiters as it says is refused",
        file: REDIS_RULE,
        from: "if #entries ~= holders + count then",
        to: "if false then",
        test: REDIS_NUMBERS,
    },
    Mutant {
        name: "redis-counts-all-who-ever-waited",
        rule: "a name does not get slower with waits that ended",
        file: REDIS_RULE,
        from: "if tail - head <= NEAR then",
        to: "if true then",
        test: REDIS_COST,
    },
    Mutant {
        name: "redis-renewal-reads-all-waiters",
        rule: "the renewal of a waiter costs the same however many wait",
        file: REDIS_RENEW_SHORT,
        from: "if not held and how == 'keep' and soon > now then",
        to: "if false then",
        test: REDIS_COST,
    },
    Mutant {
        name: "redis-failed-lesson-hides-answers",
        rule: "what a script did is said, though teaching it failed",
        file: REDIS_LINK,
        from: "(Err(error), Some(cause), _) if is(&error, ServerErrorKind::NoScript) => {",
        to: "(_, Some(cause), _) => {",
        test: REDIS_WIRE,
    },
    Mutant {
        name: "quorum-half-is-enough",
        rule: "more than half of the nodes must agree",
        file: "crates/oarlock-core/src/quorum.rs",
        from: "majority: nodes.len() / 2 + 1,",
        to: "majority: nodes.len().div_ceil(2),",
        test: REDLOCK_HISTORY,
    },
    Mutant {
        name: "quorum-proposes-nothing",
        rule: "nodes of a quorum agree on a fence whatever their clocks say",
        file: ROUNDS,
        from: "claim.least_fence.or_else(|| Some(Fence::new(wall_micros())));",
        to: "claim.least_fence.filter(|_| wall_micros() > 0);",
        test: QUORUM,
    },
    Mutant {
        name: "quorum-grants-unwritten",
        rule: "a majority has the fence of a grant",
        file: VOTE,
        from: "if behind.is_empty() {",
        to: "if behind.len() < usize::MAX {",
        test: QUORUM,
    },
    Mutant {
        name: "quorum-counts-lost-votes",
        rule: "a vote that is gone when the fence is written does not count",
        file: VOTE,
        from: "_ => return None,",
        to: "_ => missing -= 1,",
        test: QUORUM,
    },
    Mutant {
        name: "quorum-counts-waiting-votes",
        rule: "a vote that waits on its node is no vote",
        file: KEEPING,
        from: "Ok(Renewed::Alive { fence: None, .. }) => self.lose(node),",
        to: "Ok(Renewed::Alive { fence: None, lease, .. }) => self.alive.push((node, lease.ttl)),",
        test: QUORUM,
    },
    Mutant {
        name: "quorum-counts-won-back",
        rule: "a node that lost a vote does not count for the fences of its holder any more",
        file: KEEPING,
        from: "        self.hold.lost_on(node);\n        self.missing",
        to: "        self.missing",
        test: QUORUM,
    },
    Mutant {
        name: "quorum-shows-any-memo",
        rule: "a grant of a quorum shows the newest memo",
        file: MEMO,
        from: "max_by_key(|memo| memo.order)",
        to: "min_by_key(|memo| memo.order)",
        test: QUORUM,
    },
    Mutant {
        name: "quorum-keeps-memo-to-itself",
        rule: "a memo that was shown is on a majority",
        file: MEMO,
        from: "grant.memo.as_ref() != newest.map(|newest| &newest.raw)",
        to: "grant.memo.is_none() && newest.is_some_and(|newest| newest.raw.is_empty())",
        test: QUORUM,
    },
    Mutant {
        name: "quorum-adopts-lost-round",
        rule: "a round that gives its votes back is not taken for a hold",
        file: KEEPING,
        from: "claim.tether == Tether::Process || self.registry.is_busy(claim.id)",
        to: "claim.tether == Tether::Process",
        test: QUORUM,
    },
    Mutant {
        name: "quorum-leaves-memo-on-few",
        rule: "a release that leaves a memo needs a majority that has it",
        file: RELEASE,
        from: "if leaves_memo { done }",
        to: "if leaves_memo { done + absent }",
        test: QUORUM,
    },
    Mutant {
        name: "quorum-late-memo-wins",
        rule: "a memo that was held up on its way does not replace a newer one",
        file: MEMO,
        from: "self.order != Order::default() && self.order",
        to: "self.order < Order::default() && self.order",
        test: QUORUM,
    },
    Mutant {
        name: "quorum-won-back-hides-fence",
        rule: "a hold whose votes were won back can be taken over with its own fence",
        file: ROUNDS,
        from: "tag(FENCE, self.fence().to_string())",
        to: "tag(TAG, self.round.outer.to_string())",
        test: QUORUM,
    },
    Mutant {
        name: "quorum-late-voter-lacks-memo",
        rule: "a node that votes late or again is given the memo",
        file: VOTE,
        from: "memo.filter(|_| lacks_memo)",
        to: "memo.filter(|_| false)",
        test: QUORUM,
    },
    Mutant {
        name: "quorum-left-vote-keeps-out",
        rule: "what is left of a lost round on one node keeps nobody out",
        file: CROWD,
        from: "return since.elapsed() < A_ROUND;",
        to: "return since.elapsed() < A_WHILE;",
        test: QUORUM,
    },
    Mutant {
        name: "plain-late-memo-wins",
        rule: "a memo that was held up on its way does not replace a newer one",
        file: PLAIN_RENEW,
        from: "if ARGV[9] ~= '' and not is_late(memo_left) then",
        to: "if ARGV[9] ~= '' then",
        test: PLAIN,
    },
    Mutant {
        name: "plain-wakes-for-lost-rounds",
        rule: "who waits hears nothing of rounds that came to nothing",
        file: PLAIN_RELEASE,
        from: "how == 'withdrawn' and '' or 'free'",
        to: "'free'",
        test: PLAIN,
    },
    Mutant {
        name: "plain-gives-number-twice",
        rule: "a node gives a proposed number once",
        file: PLAIN_FREE,
        from: "if fence <= last then",
        to: "if fence < last then",
        test: PLAIN,
    },
    Mutant {
        name: "plain-trusts-any-clock",
        rule: "a client whose clock is wrong does not decide the fences of all",
        file: PLAIN_FREE,
        from: "math.min(math.max(proposed, now - MINUTE), now + MINUTE)",
        to: "proposed",
        test: PLAIN,
    },
    Mutant {
        name: "rows-write-unseen",
        rule: "a row is changed only if it is the one that was read",
        file: ROWS_WRITE,
        from: "Ok(client.execute(&sql, values).await? > 0)",
        to: "client.execute(&sql, values).await.map(|_| true).map_err(Into::into)",
        test: ROWS_VERSION,
    },
    Mutant {
        name: "rows-lock-nothing",
        rule: "rows are locked inside a transaction only",
        file: ROWS_LOCK,
        from: "if !client.in_transaction() {",
        to: "if false {",
        test: ROWS_ORDER,
    },
    Mutant {
        name: "rows-lock-in-any-order",
        rule: "several rows are locked in the order of their keys",
        file: ROWS_LOCK,
        from: "in ({}) order by {key}{clause}",
        to: "in ({}){clause}",
        test: ROWS_ORDER,
    },
    Mutant {
        name: "rows-keep-half",
        rule: "nothing is kept of a transaction whose wait was over",
        file: ROWS_MYSQL,
        from: "transaction.rollback().await?;",
        to: "transaction.commit().await?;",
        test: ROWS_MARIADB,
    },
    Mutant {
        name: "rows-goes-on-after-a-deadlock",
        rule: "a transaction that the server has undone is rerun from its beginning",
        file: ROWS_WRITE,
        from: "let is_alone = !client.in_transaction();",
        to: "let is_alone = true;",
        test: ROWS_WHOLE,
    },
    Mutant {
        name: "rows-calls-a-rollback-a-success",
        rule: "a transaction that was rolled back is not called a success",
        file: ROWS_POSTGRES,
        from: "Some(Err(error)) => answered = Some(Err(error)),",
        to: "Some(Err(_)) => answered = Some(Ok(())),",
        test: ROWS_WHOLE,
    },
    Mutant {
        name: "stock-leaves-a-commit-open",
        rule: "a commit that SQLite could not make is undone",
        file: STOCK_SQL,
        from: "if ended.is_err() && end == \"commit\" {",
        to: "if false {",
        test: STOCK_BESIDE_OTHERS,
    },
    Mutant {
        name: "stock-believes-one-look",
        rule: "segments that were made while a taker waited are not overlooked",
        file: STOCK_SQL,
        from: "if !matches!(step, Step::Short { .. }) {",
        to: "if true {",
        test: STOCK_BESIDE_OTHERS,
    },
    Mutant {
        name: "stock-takes-what-is-not-there",
        rule: "a segment gives no more than it has",
        file: STOCK_STEPS,
        from: "and segment = ? and available >= ?\"",
        to: "and segment = ? and available + 1 >= ?\"",
        test: STOCK_ON_SQLITE,
    },
    Mutant {
        name: "stock-sold-out-too-early",
        rule: "sold out is said of all segments together",
        file: STOCK_SQL,
        from: "if !moved && left < order.quantity {",
        to: "if !moved {",
        test: STOCK_ON_SQLITE,
    },
    Mutant {
        name: "stock-script-takes-what-is-not-there",
        rule: "a segment on Redis gives no more than it has",
        file: STOCK_TAKE,
        from: "if left < quantity then",
        to: "if left + 1 < quantity then",
        test: STOCK_ON_REDIS,
    },
    Mutant {
        name: "stock-takes-twice-for-one-id",
        rule: "an id takes once",
        file: STOCK_TAKE,
        from: "if known then return {'known', known} end",
        to: "",
        test: STOCK_ON_REDIS,
    },
    Mutant {
        name: "stock-takes-by-an-old-map",
        rule: "an order by a map that no longer holds is not carried out",
        file: STOCK_TAKE,
        from: "if redis.call('HGET', units, 'g') ~= ARGV[1] then return {'moved'} end",
        to: "",
        test: STOCK_LEFTOVERS,
    },
    Mutant {
        name: "stock-credits-twice",
        rule: "units of a transfer come in once",
        file: STOCK_CREDIT,
        from: "if redis.call('ZADD', arrived, 'NX', '+inf', ARGV[1]) == 1 then",
        to: "if redis.call('ZADD', arrived, 'NX', '+inf', ARGV[1]) then",
        test: STOCK_LEFTOVERS,
    },
    Mutant {
        name: "stock-gathers-in-vain",
        rule: "units are brought only for an order that can be served",
        file: STOCK_REDIS,
        from: "if left >= order.quantity {",
        to: "if left > 0 {",
        test: STOCK_LEFTOVERS,
    },
    Mutant {
        name: "stock-overlooks-what-is-on-its-way",
        rule: "units between two segments are not sold out",
        file: STOCK_REDIS,
        from: "place.units + place.under_way",
        to: "place.units",
        test: STOCK_LEFTOVERS,
    },
    Mutant {
        name: "stock-remembers-too-soon",
        rule: "that there is nothing is remembered only if nothing was coming in",
        file: STOCK_REDIS,
        from: "let quiet = before.coming == 0 && before == after;",
        to: "let quiet = before == after;",
        test: STOCK_LEFTOVERS,
    },
    Mutant {
        name: "stock-believes-a-former-life",
        rule: "an item that is made anew has a map of its own",
        file: STOCK_REDIS,
        from: "let generation = self.run(&clock, &[key], &[]).await?;",
        to: "let generation = key.len() as u64;",
        test: STOCK_LEFTOVERS,
    },
    Mutant {
        name: "stock-gives-back-what-was-sold",
        rule: "a hold ends once, one way or the other",
        file: STOCK_SETTLE,
        from: "'^(%d+) h$'",
        to: "'^(%d+) '",
        test: STOCK_ON_REDIS,
    },
    Mutant {
        name: "stock-forgets-ids-at-once",
        rule: "an id that was sold or given back is remembered for its time",
        file: STOCK_SETTLE,
        from: "-(now + tonumber(ARGV[3]))",
        to: "-now",
        test: STOCK_LEFTOVERS,
    },
    Mutant {
        name: "stock-procedure-takes-what-is-not-there",
        rule: "a segment on MySQL gives no more than it has",
        file: STOCK_PROCEDURE,
        from: "where sku = _sku and segment = _segment and available >= _quantity;",
        to: "where sku = _sku and segment = _segment;",
        test: STOCK_ON_MARIADB,
    },
    Mutant {
        name: "stock-procedure-keeps-half",
        rule: "a take on MySQL that found too little leaves no reservation",
        file: STOCK_PROCEDURE,
        from: "rollback;\n            select 'short';",
        to: "commit;\n            select 'short';",
        test: STOCK_ON_MARIADB,
    },
    Mutant {
        name: "stock-procedure-takes-twice",
        rule: "an id takes once on MySQL",
        file: STOCK_PROCEDURE,
        from: "    if row_count() = 1 then\n        update",
        to: "    if row_count() >= 0 then\n        update",
        test: STOCK_ON_MARIADB,
    },
    Mutant {
        name: "demo-overlooks-a-broken-cure",
        rule: "a demo fails when a cure does",
        file: DEMO_WAY,
        from: "if !broken.is_empty() {",
        to: "if false && !broken.is_empty() {",
        test: DEMO,
    },
    Mutant {
        name: "demo-shows-nothing",
        rule: "a demo fails when nothing went wrong without a cure",
        file: DEMO_WAY,
        from: "if !hidden.is_empty() {",
        to: "if false && !hidden.is_empty() {",
        test: DEMO,
    },
    Mutant {
        name: "mysql-fence-stays",
        rule: "every grant has a larger fence",
        file: MYSQL_ATTEMPT,
        from: "SET _fence = GREATEST(_last_fence + 1, _now);",
        to: "SET _fence = GREATEST(_last_fence, 1);",
        test: MYSQL_WIRE,
    },
    Mutant {
        name: "mysql-forgets-its-grant",
        rule: "an attempt that is repeated keeps its fence",
        file: MYSQL_ATTEMPT,
        from: "MAX(IF(id = _id, fence, NULL)),",
        to: "NULL,",
        test: MYSQL_WIRE,
    },
    Mutant {
        name: "mysql-ends-leases-early",
        rule: "a lease ends by the clock of the database, and not before",
        file: MYSQL_ATTEMPT,
        from: "IF _soonest <= _now THEN",
        to: "IF _soonest <= _now + 500000 THEN",
        test: MYSQL_EXPIRY,
    },
    Mutant {
        name: "mysql-one-end-is-death",
        rule: "a process is dead once all its connections are gone",
        file: MYSQL_SESSION,
        from: "WHILE _dark AND _witness < 16 DO",
        to: "WHILE _dark AND _witness < 1 DO",
        test: MYSQL_FAILURES,
    },
    Mutant {
        name: "mysql-killed-is-dead",
        rule: "a client whose connections were killed is not dead",
        file: MYSQL_SESSION,
        from: "SET _over = COALESCE(_kills = _then, FALSE);",
        to: "SET _over = TRUE;",
        test: MYSQL_FAILURES,
    },
    Mutant {
        name: "mysql-counts-no-kills",
        rule: "on MySQL, where no table has it, the client counts who was killed after it has seen that a session is dark",
        file: MYSQL_SESSION,
        from: "SET _kills = IF(FIND_IN_SET(_session, @oarlock_dark), @oarlock_kills, NULL);",
        to: "SET _kills = _then;",
        test: MYSQL_FAILURES,
    },
    Mutant {
        name: "mysql-request-needs-its-caller",
        rule: "a request that its caller stops polling holds up no other",
        file: MYSQL_LINK,
        from: "self.runtime.spawn(work).await.map_err(gone)?",
        to: "self.runtime.spawn(async {}).await.map_err(gone)?;\n        work.await",
        test: MYSQL_UNPOLLED,
    },
    Mutant {
        name: "mysql-fence-ahead-forgotten",
        rule: "a fence that is ahead of the clock is not forgotten",
        file: MYSQL_STEP,
        from: " AND last_fence <= _now - 86400000000 FOR UPDATE",
        to: " FOR UPDATE",
        test: MYSQL_CLOCK,
    },
    Mutant {
        name: "mysql-prolonged-by-its-clock",
        rule: "a clock that is set back prolongs no lease by more than itself",
        file: MYSQL_ATTEMPT,
        from: "IF _too_long THEN",
        to: "IF FALSE THEN",
        test: MYSQL_CLOCK,
    },
    Mutant {
        name: "mysql-lets-an-old-fence-in",
        rule: "a fence that was forgotten lets no older one in",
        file: MYSQL_CHECK,
        from: "IF _fence <= _forgotten THEN",
        to: "IF FALSE THEN",
        test: MYSQL_PROTECTED,
    },
    Mutant {
        name: "mysql-forgets-before-it-notes",
        rule: "no older fence is let in while fences are forgotten",
        file: MYSQL_CHECK,
        from: "            UPDATE oarlock_fence SET fence = GREATEST(fence, _fence) WHERE name = '';\n            DELETE FROM oarlock_fence WHERE name = _name;\n        END LOOP;",
        to: "            DELETE FROM oarlock_fence WHERE name = _name;\n        END LOOP;\n        UPDATE oarlock_fence SET fence = GREATEST(fence, COALESCE(_fence, 0)) WHERE name = '';",
        test: MYSQL_FORGETTING,
    },
    Mutant {
        name: "mysql-forgets-what-was-just-written",
        rule: "a fence that is written while others are forgotten is not",
        file: MYSQL_CHECK,
        from: "        START TRANSACTION;\n",
        to: "",
        test: MYSQL_FORGETTING,
    },
    Mutant {
        name: "mysql-waits-for-the-protected-side",
        rule: "an open transaction of the protected side holds up no new name",
        file: MYSQL_CHECK,
        from: "SELECT COUNT(*) INTO _old FROM (SELECT 1 FROM oarlock_fence WHERE used < _before LIMIT 1) AS one;",
        to: "SET _old = EXISTS (SELECT 1 FROM oarlock_fence WHERE used < _before);",
        test: MYSQL_OPEN,
    },
    Mutant {
        name: "mysql-forgets-the-clock",
        rule: "fences rise across a failover that loses grants",
        file: MYSQL_ATTEMPT,
        from: "SET _fence = GREATEST(_last_fence + 1, _now);",
        to: "SET _fence = _last_fence + 1;",
        test: MYSQL_FAILOVER,
    },
    Mutant {
        name: "mysql-replica-is-its-source",
        rule: "a promoted replica does not take those for dead whom it never saw",
        file: MYSQL_SESSION,
        from: "FROM oarlock_server\n    WHERE name = UNHEX(LEFT(SHA2(CONCAT_WS('|', @@hostname, @@port, @@server_id, @@datadir), 256), 32));",
        to: "FROM oarlock_server LIMIT 1;",
        test: MYSQL_FAILOVER,
    },
    Mutant {
        name: "mysql-session-moves",
        rule: "a session does not go on at another server",
        file: MYSQL_BEACON,
        from: "if before.is_some() && run",
        to: "if false && run",
        test: MYSQL_MOVED,
    },
    Mutant {
        name: "mysql-keeps-up-what-never-began",
        rule: "a session that could not begin is not kept up",
        file: MYSQL_LINK,
        from: ".await.inspect_err(|_| session.end())?;",
        to: ".await?;",
        test: MYSQL_BEGUN,
    },
    Mutant {
        name: "mysql-asks-no-sign-of-life",
        rule: "an idle connection is asked for a sign of life",
        file: MYSQL_LINK,
        from: "(is_fresh || self.is_alive(&mut wire).await)",
        to: "(is_fresh || true)",
        test: MYSQL_IDLE,
    },
    Mutant {
        name: "mysql-old-end-is-the-last",
        rule: "the end of a connection that was replaced long ago shows nothing",
        file: MYSQL_BEACON,
        from: "|span| span > SETTLED",
        to: "|span| span > 1000 * SETTLED",
        test: MYSQL_OLD,
    },
    Mutant {
        name: "mysql-trusts-a-new-listener",
        rule: "a session whose listener was replaced just before its end is over",
        file: MYSQL_BEACON,
        from: "is_some_and(|span| span > SETTLED)",
        to: "is_some()",
        test: MYSQL_REPLACED,
    },
    Mutant {
        name: "mysql-trusts-a-new-witness",
        rule: "a connection that is younger than an end proves nothing about what was before",
        file: MYSQL_LINK,
        from: "if is_settled && self.",
        to: "if self.",
        test: MYSQL_LATE,
    },
    Mutant {
        name: "postgres-fence-ahead-forgotten",
        rule: "a fence that is ahead of the clock is not forgotten",
        file: POSTGRES_STEP,
        from: "AND old.last_fence < oarlock.micros(clock_timestamp() - interval '24 hours' - 'epoch')",
        to: "",
        test: POSTGRES_CLOCK,
    },
    Mutant {
        name: "postgres-prolonged-by-its-clock",
        rule: "a clock that is set back prolongs no lease by more than itself",
        file: POSTGRES_ATTEMPT,
        from: "IF too_long THEN",
        to: "IF false THEN",
        test: POSTGRES_CLOCK,
    },
    Mutant {
        name: "postgres-lets-an-old-fence-in",
        rule: "a fence that was forgotten lets no older one in",
        file: POSTGRES_CHECK,
        from: "AND _fence <= forgotten THEN",
        to: "AND false THEN",
        test: POSTGRES_PROTECTED,
    },
    Mutant {
        name: "postgres-fills-the-queue",
        rule: "a full queue of notices stops no lock",
        file: POSTGRES_STEP,
        from: " AND pg_notification_queue_usage() < 0.9;",
        to: ";",
        test: POSTGRES_FULL,
    },
    Mutant {
        name: "postgres-request-needs-its-caller",
        rule: "a request that its caller stops polling holds up no other",
        file: POSTGRES_LINK,
        from: "self.runtime.spawn(async move { link.ask_now(lane, sql, &params).await });",
        to: "async move { Ok::<_, tokio::task::JoinError>(link.ask_now(lane, sql, &params).await) };",
        test: POSTGRES_UNPOLLED,
    },
    Mutant {
        name: "postgres-waits-in-one-statement",
        rule: "waiting does not hold back vacuum",
        file: POSTGRES_SESSION,
        from: " SET lock_timeout = '5s' AS",
        to: " AS",
        test: POSTGRES_CRASH,
    },
    Mutant {
        name: "session-takes-a-name-twice",
        rule: "a name is never taken twice on one connection",
        file: SESSION_DESK,
        from: "key.is_none_or(|key| !row.keys.contains(key))",
        to: "key.is_none_or(|_| true)",
        test: ADVISORY,
    },
    Mutant {
        name: "session-outlasts-its-connection",
        rule: "no lease is longer than the server keeps a silent connection",
        file: SESSION_DRIVER,
        from: "Lease::of(claim.ttl.min(self.desk.server.session_ttl()))",
        to: "Lease::of(claim.ttl)",
        test: ADVISORY,
    },
    Mutant {
        name: "mysql-wakes-no-other-process",
        rule: "a release wakes the next in line of another process",
        file: MYSQL_RELEASE,
        from: "IF _outcome <> 'asked' AND _id IS NOT NULL THEN",
        to: "IF FALSE THEN",
        test: MYSQL_WAKE,
    },
    Mutant {
        name: "mysql-keeps-what-it-waited-for",
        rule: "all who wait for one claim wake when it leaves",
        file: MYSQL_LISTENER,
        from: "= 1, RELEASE_LOCK(:lock), 0)",
        to: "= 1, 1, 0)",
        test: MYSQL_WAKE,
    },
    Mutant {
        name: "mysql-listener-dies-silently",
        rule: "a waiter whose connection was lost looks by itself",
        file: MYSQL_LISTENER,
        from: "            state.waits.remove(&id);\n        }\n        // Under",
        to: "            return;\n        }\n        // Under",
        test: MYSQL_WAKE,
    },
    Mutant {
        name: "mysql-listens-to-a-lost-lock",
        rule: "a claim without a lock is not waited for by its lock",
        file: MYSQL_LISTENER,
        from: "return (!wait.heard, None);",
        to: "return (true, None);",
        test: MYSQL_WAKE,
    },
    Mutant {
        name: "mysql-listens-without-bound",
        rule: "a client waits on at most four connections",
        file: MYSQL_LISTENER,
        from: "pub(crate) const LISTENERS: usize = 4;",
        to: "pub(crate) const LISTENERS: usize = 400;",
        test: MYSQL_WAKE,
    },
    Mutant {
        name: "mysql-forgets-what-it-owes",
        rule: "a connection that was busy when a claim left releases the lock of that claim afterwards",
        file: MYSQL_LINK,
        from: "        if self.wakes.is_due(number) {\n",
        to: "        if false {\n",
        test: MYSQL_WAKE,
    },
    Mutant {
        name: "mysql-all-ask",
        rule: "of those in one queue of one process, one asks often",
        file: MYSQL_QUEUE,
        from: "let is_told = !now.contains(&claim.id);",
        to: "let is_told = false;",
        test: MYSQL_QUEUES,
    },
    Mutant {
        name: "mysql-session-is-deaf",
        rule: "whoever holds in mode=session hears at once that the server went down",
        file: MYSQL_NAMED,
        from: "        self.ear.listen();\n",
        to: "",
        test: NAMED,
    },
    Mutant {
        name: "session-hides-its-loss",
        rule: "what a connection held is known to be gone, whoever else cannot be asked",
        file: SESSION_DRIVER,
        from: "Err(_) if is_lost => Seen::default(),",
        to: "Err(_) if is_lost && false => Seen::default(),",
        test: NAMED,
    },
    Mutant {
        name: "postgres-keeps-the-dead",
        rule: "a connection that fell silent is not used again",
        file: POSTGRES_LINK,
        from: "            Err(_) => false,",
        to: "            Err(_) => true,",
        test: POSTGRES_SILENT,
    },
    Mutant {
        name: "postgres-prolongs-a-grace",
        rule: "a waiter that was asked to end is given no more than its grace",
        file: POSTGRES_ATTEMPT,
        from: "expires = CASE WHEN ending IS NULL THEN now + attempt.lease * interval '1 microsecond' ELSE expires END",
        to: "expires = now + attempt.lease * interval '1 microsecond'",
        test: POSTGRES_BREAKING,
    },
    Mutant {
        name: "mysql-prolongs-a-grace",
        rule: "a waiter that was asked to end is given no more than its grace",
        file: MYSQL_ATTEMPT,
        from: "behind = _behind, expires = _now + COALESCE(_grace, _place)",
        to: "behind = _behind, expires = _now + _place",
        test: MYSQL_BREAKING,
    },
];
