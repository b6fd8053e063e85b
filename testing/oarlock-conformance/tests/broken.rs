//! Every broken lock is caught, and the healthy one is not.

use std::sync::Arc;
use std::time::Duration;

use oarlock_conformance::broken::{BrokenStore, Flaw, is_right, judged, storm};
use oarlock_conformance::{Ran, run_case};

/// The cases that must fail.
fn cases(flaw: Flaw) -> &'static [&'static str] {
    match flaw {
        Flaw::ReleasesAnyone => &["idempotence::only_the_claim_itself_is_released"],
        Flaw::RenewsAnyone => &["loss::the_holder_learns_of_its_loss", "expiry::an_expired_claim_is_gone"],
        Flaw::RenewsNothing => &["renewal::a_holder_outlives_many_leases"],
        Flaw::IgnoresWeight => &["exclusion::one_at_a_time", "weights::permits_add_up"],
        Flaw::RepeatsFences | Flaw::FencesFall => &["fencing::fences_rise_from_grant_to_grant"],
        Flaw::ExpiresEarly => &["expiry::a_dead_holder_ends_with_its_lease"],
        Flaw::NeverExpires => &["expiry::an_expired_claim_is_gone", "belief::it_ends_before_the_next_grant"],
        Flaw::KeepsDeadWaiters => &["dead_waiters::a_dead_head_is_passed"],
        Flaw::TakesSecondPlaces => &["idempotence::a_repeated_wait_keeps_its_place"],
        Flaw::LosesWakeUps => &["wakeup::a_release_wakes_the_waiter"],
        Flaw::CountsFromTheReply | Flaw::OutlivesItsLease => &["belief::it_ends_before_the_next_grant"],
        _ => &[],
    }
}

#[test]
fn the_judgement_finds_each_flaw_in_a_storm() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let judgements: Vec<_> = runtime.block_on(async {
        let storms = Flaw::ALL.map(|flaw| {
            tokio::spawn(
                async move { storm(Arc::new(BrokenStore::new(flaw)), 5, Duration::from_secs(5)).await.unwrap() },
            )
        });
        let mut judgements = Vec::new();
        for (flaw, storm) in Flaw::ALL.into_iter().zip(storms) {
            judgements.push((flaw, judged(&storm.await.unwrap()).unwrap()));
        }
        judgements
    });
    let wrong = judgements.iter().filter(|(flaw, judgement)| !is_right(*flaw, judgement));
    let wrong: Vec<_> = wrong.map(|(flaw, judgement)| format!("{flaw:?}: {judgement:#?}")).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_cases_find_each_flaw() {
    let threads: Vec<_> = Flaw::ALL
        .into_iter()
        .flat_map(|flaw| cases(flaw).iter().map(move |case| (flaw, *case)))
        .map(|(flaw, case)| {
            std::thread::spawn(move || {
                let outcome =
                    run_case(Arc::new(BrokenStore::new(flaw)), case).unwrap_or_else(|| panic!("no case {case}"));
                let healthy = run_case(Arc::new(BrokenStore::new(Flaw::None)), case).unwrap();
                assert_eq!(healthy.unwrap(), Ran::Passed, "{case} on the healthy one");
                (flaw, case, outcome)
            })
        })
        .collect();
    let mut missed = Vec::new();
    for thread in threads {
        let (flaw, case, outcome) = thread.join().unwrap();
        match outcome {
            Ok(ran) => missed.push(format!("{case} did not catch {flaw:?}: {ran:?}")),
            Err(failure) => println!("{:20} {case}: {failure}", format!("{flaw:?}")),
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
