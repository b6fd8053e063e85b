//! Which faults are tried on a topology, and what must come of each.

use oarlock_torture::record::FaultKind;

use crate::deployments::{ServerFault, Topology};

/// Faults of clients and of their connections: the names that `oarlock torture --faults` takes.
const OF_PROCESSES: [&str; 4] = ["pause", "kill", "kill-waiter", "cancel"];
const OF_CONNECTIONS: [&str; 8] =
    ["cut", "cut-requests", "cut-replies", "lost-reply", "delay", "refuse", "strand", "reconnect"];

/// The row with every fault of clients and connections, by the seed.
const MIXED: &str = "mixed";

/// The row with two builds.
const TWO_BUILDS: &str = "two-builds";

/// One fault on one topology.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) topology: &'static Topology,
    pub(crate) fault: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// One kind of `oarlock torture`.
    Client(&'static str),
    /// All that it has.
    Mixed,
    /// The servers are broken.
    Server(ServerFault),
    /// Every second worker is another build of `oarlock`, and holders are stopped and killed.
    TwoBuilds,
}

/// What must come of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// No violation, and no risk either.
    Holds,
    /// No violation. Two holders at once may be seen, which the store does not promise to prevent here.
    MayOverlap,
    /// Two holders at once, which the store does not promise to prevent: a run that does not see them has tried nothing.
    Found,
    /// Whatever another library does: it promises what its own page says.
    Shown,
}

impl Case {
    /// Every case of a topology.
    pub(crate) fn of(topology: &'static Topology) -> impl Iterator<Item = Self> {
        let clients = OF_PROCESSES.iter().chain(OF_CONNECTIONS.iter().filter(|_| topology.connected));
        let clients = clients.map(|name| Fault::Client(name)).chain([Fault::Mixed, Fault::TwoBuilds]);
        let servers = topology.faults.iter().map(|fault| Fault::Server(*fault));
        let clients = clients.filter(|_| !topology.servers_only);
        // One row for each: all faults by the seed.
        let clients = clients.filter(|fault| !topology.library || *fault == Fault::Mixed);
        clients.chain(servers).map(move |fault| Self { topology, fault })
    }

    /// Its name in the table.
    pub(crate) fn name(&self) -> &'static str {
        match self.fault {
            Fault::Client(name) => name,
            Fault::Mixed => MIXED,
            Fault::TwoBuilds => TWO_BUILDS,
            Fault::Server(fault) => fault.name(),
        }
    }

    /// What `--faults` gets; nothing for all.
    pub(crate) fn kinds(&self) -> Option<&'static str> {
        match self.fault {
            Fault::Client(name) => Some(name),
            Fault::Mixed => None,
            Fault::Server(_) => Some("command"),
            Fault::TwoBuilds => Some("pause,kill"),
        }
    }

    /// Whether its servers cannot be used again, or must be new.
    pub(crate) fn is_fresh(&self) -> bool {
        matches!(self.fault, Fault::Server(ServerFault::Failover | ServerFault::LostFailover))
    }

    pub(crate) fn expected(&self) -> Expected {
        match self.fault {
            _ if self.topology.library => Expected::Shown,
            Fault::Server(fault) if self.topology.loses_grants(fault) => Expected::Found,
            Fault::Server(ServerFault::Forget | ServerFault::LyingDisk) => Expected::Found,
            // What is said of it on the page of its store: a session ends with the server, a replica or a clock is wrong.
            Fault::Server(_) if self.topology.may_overlap => Expected::MayOverlap,
            // A database takes the end of all connections of a process for its death.
            Fault::Client(name) if self.topology.ends_with_connections && resets(name) => Expected::MayOverlap,
            Fault::Mixed if self.topology.ends_with_connections => Expected::MayOverlap,
            _ => Expected::Holds,
        }
    }

    /// Whether only the first fault of a run is the one that the case names: the servers are not as before then.
    pub(crate) fn is_once(&self) -> bool {
        match self.fault {
            Fault::Server(ServerFault::Failover) => self.topology.name.starts_with("primary"),
            Fault::Server(fault) => fault == ServerFault::Upgrade || self.topology.loses_grants(fault),
            _ => false,
        }
    }

    /// The case with this name.
    pub(crate) fn named(store: &str, topology: &str, fault: &str) -> Option<Self> {
        let topology = crate::deployments::ALL.iter().find(|found| found.store == store && found.name == topology)?;
        Self::of(topology).find(|case| case.name() == fault)
    }
}

/// Whether this fault may reset connections.
fn resets(name: &str) -> bool {
    FaultKind::ALL.into_iter().any(|kind| kind.name() == name && kind.resets())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_fault_that_resets_connections_may_cost_a_lock_of_a_database() {
        let expected = |fault| Case::named("postgres", "one server", fault).expect("a case").expected();
        for fault in ["lost-reply", "refuse", "reconnect", "cut"] {
            assert_eq!(expected(fault), Expected::MayOverlap, "{fault}");
        }
        for fault in ["delay", "strand", "pause", "kill"] {
            assert_eq!(expected(fault), Expected::Holds, "{fault}");
        }
        let redis = Case::named("redis", "one server", "reconnect").expect("a case");
        assert_eq!(redis.expected(), Expected::Holds);
    }

    #[test]
    fn a_master_that_is_cut_off_may_grant_only_without_min_replicas() {
        let expected = |topology| Case::named("redis", topology, "leader-cut").expect("a case").expected();
        assert_eq!(expected("sentinel"), Expected::Found);
        assert_eq!(expected("sentinel, min_replicas=2"), Expected::Holds);
        assert_eq!(Case::named("etcd", "three members", "leader-cut").expect("a case").expected(), Expected::Holds);
    }

    #[test]
    fn every_case_has_a_name_of_its_own() {
        let mut names = std::collections::BTreeSet::new();
        for topology in crate::deployments::ALL {
            for case in Case::of(topology) {
                assert!(names.insert((topology.store, topology.name, case.name())), "{case:?} twice");
                assert!(Case::named(topology.store, topology.name, case.name()).is_some());
            }
        }
        assert!(names.contains(&("local", "", "kill")) || names.iter().any(|(store, ..)| *store == "local"));
        assert!(!names.iter().any(|(store, _, fault)| *store == "local" && *fault == "cut"), "it has no connections");
    }
}
