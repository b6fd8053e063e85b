//! What a run does, chosen by its seed: the canonical scenes in their order, then a storm of faults.
//!
//! The seed decides which faults come, when, for how long, and to which slot. It cannot decide how the operating system
//! and the network order what the processes do: the same seed repeats the schedule and not the interleaving.

use std::time::Duration;

use crate::record::FaultKind;

/// One fault of the storm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Strike {
    /// How long after the strike before it.
    pub after: Duration,
    /// What.
    pub kind: FaultKind,
    /// Which worker, by its slot.
    pub slot: u32,
    /// Which server, by its place in the URL; `None` for all.
    pub host: Option<u32>,
    /// How long, in leases.
    pub leases: f64,
}

/// The faults that happen one at a time, in this order, in every run that can have them.
pub const SCENES: [FaultKind; 13] = [
    FaultKind::Pause,
    FaultKind::Kill,
    FaultKind::KillWaiter,
    FaultKind::Cancel,
    FaultKind::Cut,
    FaultKind::CutReplies,
    FaultKind::CutRequests,
    FaultKind::LostReply,
    FaultKind::Delay,
    FaultKind::Refuse,
    FaultKind::Strand,
    FaultKind::Reconnect,
    FaultKind::Command,
];

/// The storm: strikes until `span` is over. Their times depend on the lease.
#[must_use]
pub fn storm(
    seed: u64,
    faults: &[FaultKind],
    workers: u32,
    hosts: u32,
    lease: Duration,
    span: Duration,
) -> Vec<Strike> {
    // What happens in calls goes on all the time, and the user's command not too often.
    let struck = |kind: &FaultKind| !matches!(kind, FaultKind::Repeat | FaultKind::Cancel | FaultKind::Command);
    let mut kinds: Vec<_> = faults.iter().copied().filter(struck).collect();
    let mut random = fastrand::Rng::with_seed(seed);
    // Leaving some kinds out of a run finds more than mixing all of them: each hides others.
    random.shuffle(&mut kinds);
    kinds.truncate((kinds.len() * 2).div_ceil(3));
    if faults.contains(&FaultKind::Command) {
        kinds.push(FaultKind::Command);
    }
    let mut strikes = Vec::new();
    let mut spent = Duration::ZERO;
    if kinds.is_empty() || workers == 0 {
        return strikes;
    }
    loop {
        let after = lease.mul_f64(0.1 + random.f64() * 0.5).max(Duration::from_millis(20));
        spent += after;
        if spent >= span {
            return strikes;
        }
        let kind = kinds[random.usize(0..kinds.len())];
        let one_host = hosts > 1 && random.bool();
        strikes.push(Strike {
            after,
            kind,
            slot: random.u32(0..workers),
            host: one_host.then(|| random.u32(0..hosts)),
            leases: 0.1 + random.f64() * 1.9,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(1);

    fn of(seed: u64) -> Vec<Strike> {
        let faults = [&FaultKind::OF_PROCESSES[..], &FaultKind::OF_NETWORKS[..]].concat();
        storm(seed, &faults, 4, 3, LEASE, LEASE * 60)
    }

    #[test]
    fn a_seed_repeats_its_storm_and_another_has_its_own() {
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
        assert!(of(7).len() > 60, "{}", of(7).len());
        assert!(of(7).iter().any(|strike| strike.host.is_some()) && of(7).iter().any(|strike| strike.host.is_none()));
        assert!(of(7).iter().all(|strike| strike.slot < 4 && strike.leases < 2.1));
    }

    #[test]
    fn a_storm_without_faults_or_time_is_empty() {
        assert!(storm(1, &[FaultKind::Cancel], 4, 1, LEASE, LEASE * 9).is_empty());
        assert!(storm(1, &[FaultKind::Kill], 4, 1, LEASE, Duration::ZERO).is_empty());
        assert!(storm(1, &[FaultKind::Kill], 0, 1, LEASE, LEASE * 9).is_empty());
    }
}
