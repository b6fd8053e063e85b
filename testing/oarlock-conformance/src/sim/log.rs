//! What is written down while the tasks of a world run, and the judgement over it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oarlock_core::clock::{Clock, Moment, TokioClock};
use oarlock_core::{ClaimId, Fence, LockEvent, LossReason, Step};

use super::connection::lock;
use super::coverage::{ENGINE, Faults};
use super::plan::{Plan, Style};
use super::stops::Believed;
use crate::history::{History, Hold, Rules, Verdict, Violation};

#[derive(Default)]
pub(super) struct Log {
    pub(super) history: History,
    pub(super) complaints: Vec<String>,
    pub(super) trace: String,
    /// The claims of the trace, in the order in which they came.
    claims: HashMap<ClaimId, usize>,
    /// Claims that were held before: a cohort hands them on.
    pub(super) held: HashSet<ClaimId>,
    /// Holds that end by themselves: explicit leases.
    pub(super) ends_by_itself: HashSet<ClaimId>,
    /// Holds that went on in another form, with the same fence.
    pub(super) continued: HashSet<(String, Fence)>,
    /// The claim of each hold.
    pub(super) claim_of: HashMap<(String, Fence), ClaimId>,
    /// How often each slot of each name was run.
    pub(super) ran: BTreeMap<(String, u64), u32>,
    /// When the store lost what it had promised.
    pub(super) upsets: Vec<Upset>,
    /// When all clients were suspended: from then to then.
    pub(super) suspends: Vec<(Moment, Moment)>,
    /// Locks that were lost, though nothing was to end them.
    pub(super) losses: u64,
    pub(super) suspects: u64,
}

/// Something after which the store does not know all of its holders any more.
#[derive(Clone, Debug)]
pub(super) struct Upset {
    /// The name and the claim that it concerns; `None`: all.
    pub(super) claim: Option<(String, ClaimId)>,
    /// Only holds that were granted after this.
    pub(super) granted_after: Moment,
    pub(super) from: Moment,
    pub(super) until: Moment,
    /// It forgets fences and memos as well.
    pub(super) forgets: bool,
    /// The holds of the state that the store fell back to: what ended them since then is undone.
    pub(super) restored: HashSet<(String, Fence)>,
}

impl Upset {
    /// Concerns all holds.
    pub(super) fn of_all(from: Moment, until: Moment) -> Self {
        let (claim, granted_after, restored) = (None, Moment::ZERO, HashSet::new());
        Self { claim, granted_after, from, until, forgets: false, restored }
    }
}

impl Log {
    pub(super) fn observe(&mut self, process: u64, now: Moment, event: &LockEvent, faults: &Faults) {
        let LockEvent { resource, claim, step, .. } = event;
        let millis = now.as_nanos() / 1_000_000;
        // A number of its own: ids are never the same twice, also of one seed.
        let numbered = self.claims.len();
        let number = *self.claims.entry(*claim).or_insert(numbered);
        // Writing to a string does not fail.
        let _ = writeln!(self.trace, "{millis} ms, process {process}: {resource} claim {number} {step:?}");
        let path = match step {
            Step::Lost { reason, .. } => {
                let expected = *reason == LossReason::MaxHold || self.ends_by_itself.contains(claim);
                self.losses += u64::from(!expected);
                match reason {
                    LossReason::Expired => "expired",
                    LossReason::Gone => "gone",
                    LossReason::Broken(_) => "broken",
                    LossReason::Session => "session",
                    LossReason::MaxHold => "max hold",
                    _ => "lost in another way",
                }
            }
            Step::Suspect { .. } => {
                self.suspects += 1;
                "suspect"
            }
            Step::Recovered => "recovered",
            Step::Requeued => "requeued",
            Step::Retrying { .. } => "retrying",
            Step::Ending { .. } => "ending",
            _ => return,
        };
        faults.note(ENGINE, path);
    }

    /// What the checker says of the beliefs, without what the upsets of this world excuse.
    pub(super) fn verdict(&self, plan: &Plan) -> Verdict {
        let mut verdict = self.history.check(&Rules::default());
        verdict.violations.retain(|violation| !self.continues(violation));
        if self.upsets.is_empty() {
            return verdict;
        }
        // Fences must rise all the same; only an answer that the upset overtook may come after its successor's.
        let forced = self.history.check(&Rules::default().forced());
        let overlaps =
            |violation: &Violation| matches!(violation, Violation::Overlap { .. } | Violation::CapacityExceeded { .. });
        verdict.violations.retain(|violation| overlaps(violation) && !self.is_excused(violation, plan));
        let is_wrong = |found: &Violation| !self.continues(found) && !self.is_handed_on_late(found, plan);
        verdict.violations.extend(forced.violations.into_iter().filter(is_wrong));
        verdict
    }

    /// A hold that was downgraded or handed over keeps its fence.
    fn continues(&self, violation: &Violation) -> bool {
        let Violation::FenceRepeated { first, second } = violation else { return false };
        first.owner == second.owner && self.continued.contains(&(first.resource.clone(), first.fence))
    }

    /// Whether a cohort handed on a claim which the store may have forgotten before the other grant, and whose belief ended
    /// in time. Its fences come from a block that the store reserved for the claim while it knew it, so they may be smaller
    /// than that of the other grant, and the protected side refuses them. When the block was reserved is not looked at.
    fn is_handed_on_late(&self, violation: &Violation, plan: &Plan) -> bool {
        let Violation::FenceOrder { earlier, later } = violation else { return false };
        let claim = |hold: &Hold| self.claim_of.get(&(hold.resource.clone(), hold.fence));
        let is_same = |hold: &&Hold| hold.resource == later.resource && claim(hold) == claim(later);
        let first = self.history.holds().filter(is_same).min_by_key(|hold| hold.fence);
        first.filter(|first| claim(later).is_some() && first.fence < later.fence).is_some_and(|first| {
            let handed_on = Hold { asked: first.asked, granted: first.granted, ..later.clone() };
            first.asked <= earlier.granted && self.is_forgotten(&handed_on, earlier.granted, plan)
        })
    }

    /// For how long all clients were suspended between two moments.
    pub(super) fn suspended(&self, from: Moment, to: Moment) -> Duration {
        self.suspends.iter().map(|(begun, ended)| (*ended).min(to).since((*begun).max(from))).sum()
    }

    /// Whether holds that the store may have forgotten explain all that is wrong: without them the others may hold
    /// together. Or the answer of the second was overtaken by an upset.
    fn is_excused(&self, violation: &Violation, plan: &Plan) -> bool {
        let (Violation::Overlap { second, .. } | Violation::CapacityExceeded { second, .. }) = violation else {
            return false;
        };
        if self.is_forgotten(second, second.granted, plan) {
            return true;
        }
        let at = second.granted;
        let there = |hold: &&Hold| hold.resource == second.resource && hold.granted <= at && hold.ended > at;
        let is_known = |hold: &&Hold| !self.is_forgotten(hold, at, plan) && !self.is_restored(hold, second, plan);
        let others = self.history.holds().filter(there).filter(is_known);
        let mut remembered = History::new();
        for hold in others {
            remembered.hold(Hold { granted: at, ended: at + Duration::from_nanos(1), ..hold.clone() });
        }
        remembered.check(&Rules::default().unfenced()).is_ok()
    }

    /// Whether the store may have forgotten this hold by `at`, and its belief ended in time after that.
    fn is_forgotten(&self, hold: &Hold, at: Moment, plan: &Plan) -> bool {
        self.upsets.iter().any(|upset| {
            // A claim that was asked for afterwards may live by a session from before.
            let from_before = hold.asked <= upset.until || plan.style == Style::Session;
            let concerns = self.concerns(upset, hold) && from_before;
            concerns && upset.from <= at && self.is_in_time(hold.ended, upset, plan)
        })
    }

    fn concerns(&self, upset: &Upset, hold: &Hold) -> bool {
        let claim = self.claim_of.get(&(hold.resource.clone(), hold.fence));
        let concerns = upset.claim.as_ref().is_none_or(|(name, ended)| *name == hold.resource && Some(ended) == claim);
        concerns && hold.granted >= upset.granted_after
    }

    /// Whether a belief that ended then ended in time after an upset.
    fn is_in_time(&self, ended: Moment, upset: &Upset, plan: &Plan) -> bool {
        // A late answer counts from its request; a client's clock may be slow by the drift.
        let slack = plan.ttl.mul_f64(1.0 + 2.0 * plan.chances.drift) + Duration::from_millis(1);
        ended <= upset.until + slack + self.suspended(upset.from, ended)
    }

    /// Whether a break ended this hold, the next was granted, and then the store fell back to a state in which the first
    /// holds, before its belief had to end. From then on it is the next one that the store does not know.
    fn is_restored(&self, hold: &Hold, next: &Hold, plan: &Plan) -> bool {
        let key = (hold.resource.clone(), hold.fence);
        let breaks = |upset: &&Upset| upset.claim.is_some() && self.concerns(upset, hold) && upset.from <= next.granted;
        self.upsets.iter().filter(breaks).any(|broken| {
            self.upsets.iter().any(|fall_back| {
                fall_back.restored.contains(&key)
                    && next.granted <= fall_back.from
                    && self.is_in_time(fall_back.from, broken, plan)
                    && self.is_in_time(next.ended, fall_back, plan)
            })
        })
    }

    /// A slot runs at most once, unless the store forgets.
    pub(super) fn check_slots(&mut self) {
        if self.upsets.iter().any(|upset| upset.forgets) {
            return;
        }
        let again: Vec<_> = self.ran.iter().filter(|(_, times)| **times > 1).collect();
        for ((name, slot), times) in again {
            self.complaints.push(format!("slot {slot} of {name} ran {times} times"));
        }
    }
}

/// A hold that is written down when this is dropped: belief ends then.
pub(super) struct Recorded {
    pub(super) log: Arc<Mutex<Log>>,
    pub(super) clock: TokioClock,
    pub(super) hold: Hold,
    /// What its process believes of it.
    pub(super) belief: Believed,
}

impl Recorded {
    /// A hold that goes on after `hold` in another form, with the same fence.
    pub(super) fn continues(log: &Arc<Mutex<Log>>, clock: TokioClock, hold: Hold, belief: Believed) -> Self {
        lock(log).continued.insert((hold.resource.clone(), hold.fence));
        Self { log: log.clone(), clock, hold: Hold { granted: clock.now(), queued: None, ..hold }, belief }
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        self.hold.ended = self.belief.ended().unwrap_or_else(|| self.clock.now()).max(self.hold.granted);
        lock(&self.log).history.hold(self.hold.clone());
    }
}

#[cfg(test)]
mod tests {
    use oarlock_core::Weight;

    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::ZERO + Duration::from_millis(millis)
    }

    fn hold(fence: u64, granted: u64, ended: u64) -> Hold {
        let (resource, weight, capacity, fence) = ("r0".to_owned(), Weight::All, None, Fence::new(fence));
        let (owner, asked, queued) = (fence.get(), at(granted), None);
        Hold { resource, owner, weight, capacity, fence, asked, granted: at(granted), ended: at(ended), queued }
    }

    /// Two holds, of which the second was granted after the store had fallen back at 1000 ms.
    fn fell_back(first: Hold, second: Hold, of: Option<(&str, u64)>, suspends: &[(u64, u64)]) -> bool {
        let mut log = Log::default();
        for hold in [first, second] {
            log.claim_of.insert((hold.resource.clone(), hold.fence), claim(hold.fence.get()));
            log.history.hold(hold);
        }
        let claim = of.map(|(name, number)| (name.to_owned(), claim(number)));
        log.upsets.push(Upset { claim, forgets: true, ..Upset::of_all(at(1000), at(1100)) });
        log.suspends = suspends.iter().map(|(from, to)| (at(*from), at(*to))).collect();
        log.verdict(&plan(Style::Rows)).is_ok()
    }

    fn claim(number: u64) -> ClaimId {
        ClaimId::from_bits(number.into())
    }

    fn plan(style: Style) -> Plan {
        Plan { style, ttl: Duration::from_millis(400), ..Plan::draw(1).calmed() }
    }

    fn is_ok(first_ends: u64, of: Option<(&str, u64)>) -> bool {
        fell_back(hold(1, 500, first_ends), hold(2, 1200, 9000), of, &[])
    }

    #[test]
    fn a_fall_back_excuses_a_belief_that_ends_in_time() {
        assert!(is_ok(1400, None) && is_ok(1400, Some(("r0", 1))));
        assert!(!is_ok(1600, None), "longer than a lease after it");
        assert!(!is_ok(8000, None), "it never ends");
        assert!(!is_ok(1400, Some(("r1", 1))), "another name");
        assert!(!is_ok(1400, Some(("r0", 7))), "another claim");
    }

    #[test]
    fn a_session_from_before_excuses_claims_that_were_asked_for_afterwards() {
        let overlap = |style, ends| {
            let mut log = Log::default();
            log.history.hold(hold(1, 1110, ends));
            log.history.hold(hold(2, 1200, 9000));
            log.upsets.push(Upset::of_all(at(1000), at(1100)));
            log.verdict(&plan(style)).is_ok()
        };
        assert!(overlap(Style::Session, 1400));
        assert!(!overlap(Style::Session, 1600), "longer than a lease after it");
        assert!(!overlap(Style::Queue, 1400), "its lease began afterwards");
    }

    #[test]
    fn a_suspension_gives_no_time_that_was_over_before() {
        let ends_late = |suspends: &[(u64, u64)]| fell_back(hold(1, 500, 1700), hold(2, 1200, 9000), None, suspends);
        assert!(ends_late(&[(1250, 1500)]), "it did not run");
        assert!(!ends_late(&[(100, 900)]), "that was before");
        assert!(!ends_late(&[(950, 1050)]), "only half of it was after the fall back, and that is not enough");
        assert!(!ends_late(&[(1700, 2700)]), "that was after");
    }

    /// A third one that the store has forgotten explains nothing about two that it knows.
    #[test]
    fn a_forgotten_hold_excuses_no_others() {
        let overlap = |third: bool| {
            let mut log = Log::default();
            if third {
                log.history.hold(hold(1, 500, 1300));
            }
            log.history.hold(hold(2, 1200, 9000));
            log.history.hold(hold(3, 1250, 8000));
            log.upsets.push(Upset { forgets: true, ..Upset::of_all(at(1000), at(1100)) });
            log.verdict(&plan(Style::Rows)).is_ok()
        };
        assert!(!overlap(false) && !overlap(true));
    }

    /// A cohort that the store forgot at 1000 ms hands its claim on at 1250 ms, after the next grant at 1200 ms.
    fn handed_on(ends: u64, claims: [u64; 3], upset: Option<Upset>) -> bool {
        let mut log = Log::default();
        let holds = [hold(1, 500, 1250), hold(2, 1250, ends), hold(9, 1200, 1240)];
        for (hold, number) in holds.into_iter().zip(claims) {
            log.claim_of.insert((hold.resource.clone(), hold.fence), claim(number));
            log.history.hold(hold);
        }
        log.upsets.extend(upset);
        log.verdict(&plan(Style::Rows)).is_ok()
    }

    #[test]
    fn a_cohort_that_the_store_forgot_hands_its_own_fences_on() {
        let upset = |from, until| Some(Upset::of_all(at(from), at(until)));
        assert!(handed_on(1400, [1, 1, 9], upset(1000, 1100)));
        assert!(!handed_on(1600, [1, 1, 9], upset(1000, 1100)), "longer than a lease after the upset");
        assert!(!handed_on(1400, [1, 2, 9], upset(1000, 1100)), "a grant of its own needs a larger fence");
        assert!(!handed_on(1400, [1, 1, 9], None), "the store forgot nothing");
        assert!(!handed_on(1400, [1, 1, 9], upset(1245, 1250)), "the store forgot it after the other grant");
        let of_later = upset(1000, 1100).map(|upset| Upset { granted_after: at(1000), ..upset });
        assert!(!handed_on(1400, [1, 1, 9], of_later), "only claims that were granted later");
    }

    /// The first hold is broken at 1000 ms, the next is granted at 1050 ms, and then the store falls back.
    fn undone(first_ends: u64, next_ends: u64, fall_back: (u64, u64), restored: u64, broken: u64) -> bool {
        let mut log = Log::default();
        for hold in [hold(1, 500, first_ends), hold(2, 1050, next_ends)] {
            log.claim_of.insert((hold.resource.clone(), hold.fence), claim(hold.fence.get()));
            log.history.hold(hold);
        }
        let broken = Some(("r0".to_owned(), claim(broken)));
        log.upsets.push(Upset { claim: broken, ..Upset::of_all(at(1000), at(1010)) });
        let restored = HashSet::from([("r0".to_owned(), Fence::new(restored))]);
        let (from, until) = (at(fall_back.0), at(fall_back.1));
        log.upsets.push(Upset { forgets: true, restored, ..Upset::of_all(from, until) });
        log.verdict(&plan(Style::Rows)).is_ok()
    }

    #[test]
    fn a_fall_back_that_undoes_a_break_leaves_the_first_holder_and_ends_the_next() {
        assert!(undone(9000, 1600, (1200, 1250), 1, 1));
        assert!(
            !undone(9000, 1700, (1200, 1250), 1, 1),
            "the next believes for longer than a lease after the fall-back"
        );
        assert!(!undone(9000, 1600, (1200, 1250), 7, 1), "another hold was restored");
        assert!(!undone(9000, 1600, (1200, 1250), 1, 7), "another hold was broken");
        assert!(!undone(9000, 1600, (1450, 1460), 1, 1), "it believed for longer than a lease after the break");
        assert!(!undone(9000, 1400, (1020, 1040), 1, 1), "the next was granted after the fall-back");
    }
}
