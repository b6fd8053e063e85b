//! Examines the servers of a Redlock: are they independent, and can a majority fail?

use std::collections::HashMap;
use std::time::Duration;

use oarlock_core::doctor::{Check, Doctor, Report, Severity, examined, patience};
use oarlock_core::guarantees::Promise;
use oarlock_core::text;
use oarlock_redis::Config;
use oarlock_redis::doctor::{Seen, member};

use crate::config::configs;

pub(crate) const DOCTOR: Doctor = Doctor {
    checks: &[&EVEN, &SAME_SERVER, &SHARED_DATA, &NO_MAJORITY, &CLOCKS],
    examine: |url| {
        Box::pin(examined(url, async |url, report| {
            examine(&configs(url)?, patience(url), report).await;
            Ok(())
        }))
    },
};

static EVEN: Check = Check {
    id: "redlock-even",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "use an odd number of servers",
};
static SAME_SERVER: Check = Check {
    id: "redlock-same-server",
    severity: Severity::Void,
    promise: Promise::BeliefEndsFirst,
    fix: "name each server once, and run each on a machine of its own",
};
static SHARED_DATA: Check = Check {
    id: "redlock-replicas",
    severity: Severity::Void,
    promise: Promise::BeliefEndsFirst,
    fix: "REPLICAOF NO ONE on the replicas, or replace them with independent servers",
};
static NO_MAJORITY: Check = Check {
    id: "redlock-no-majority",
    severity: Severity::Void,
    promise: Promise::BoundedWait,
    fix: "start the servers that do not answer",
};
static CLOCKS: Check = Check {
    id: "redlock-clocks",
    severity: Severity::Void,
    promise: Promise::LargerFence,
    fix: "run NTP on the servers and the clients: fences need clocks within a minute of each other",
};

/// How far the clocks of clients and servers may differ.
const MAX_OFFSET_MICROS: u64 = 60_000_000;

async fn examine(members: &[Config], limit: Duration, report: &mut Report) {
    let mut seen = Vec::new();
    for config in members {
        if let Some(server) = member(config, limit, report).await {
            seen.push((config.address.to_string(), server));
        }
    }
    count(members.len(), seen.len(), report);
    for (_, servers) in groups(&seen, |server| &server.run_id) {
        let reason = format!("{} are one server: it votes more than once", servers.join(" and "));
        report.find(&SAME_SERVER, reason);
    }
    for (_, servers) in groups(&seen, |server| &server.replication_id) {
        // The same server has the same data.
        let different = seen.iter().filter(|(name, _)| servers.contains(&name.as_str()));
        if groups(&different.cloned().collect::<Vec<_>>(), |server| &server.run_id).is_empty() {
            let reason =
                format!("{} replicate each other: the vote of one is the vote of the other", servers.join(" and "));
            report.find(&SHARED_DATA, reason);
        }
    }
    for (name, server) in &seen {
        let offset = server.clock_ahead.unsigned_abs();
        if offset > MAX_OFFSET_MICROS {
            let offset = text::span(Duration::from_micros(offset));
            report
                .on(name)
                .find(&CLOCKS, format!("its clock differs from this machine's by {offset}: fences can repeat"));
        }
    }
}

fn count(members: usize, answered: usize, report: &mut Report) {
    if members.is_multiple_of(2) {
        let reason = format!("{members} servers tolerate no more failures than {}", members - 1);
        report.find(&EVEN, reason);
    }
    if answered <= members / 2 {
        report.find(&NO_MAJORITY, format!("{answered} of {members} servers answer: no lock can be granted"));
    }
}

/// Servers that share what `key` names, where more than one does.
fn groups(seen: &[(String, Seen)], key: fn(&Seen) -> &String) -> Vec<(&String, Vec<&str>)> {
    let mut groups: HashMap<&String, Vec<&str>> = HashMap::new();
    for (name, server) in seen.iter().filter(|(_, server)| !key(server).is_empty()) {
        groups.entry(key(server)).or_default().push(name);
    }
    groups.into_iter().filter(|(_, names)| names.len() > 1).collect()
}
