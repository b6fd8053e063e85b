//! Hostile bytes for what this crate reads: state of a resource, tickets, labels, memos, durations, grants that come with
//! a notification.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use oarlock_fuzz::{Seen, fuzz};

use crate::claim::{Claim, ClaimId, Label, ResourceName};
use crate::clock::Moment;
use crate::driver::{Attempt, End, Handed, Renewal};
use crate::kinds::LastSlot;
use crate::locks::Locks;
use crate::memory::Memory;
use crate::model::{Notified, Now, Resource};
use crate::state::Ending;
use crate::ticket::LockTicket;

fn corpus(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(name)
}

fn claim(id: u128) -> Claim {
    let mut claim = Claim::new(ClaimId::from_bits(id), ResourceName::new("r").unwrap());
    claim.wait = true;
    claim
}

fn now(seconds: u64) -> Now {
    Now { boot: Moment::ZERO + Duration::from_secs(seconds), wall_micros: 1_800_000_000_000_000 + seconds * 1_000_000 }
}

/// Every step on a resource that a hostile program wrote: no panic, no more claims than there were and one, and no grant
/// beside a holder that excludes it.
fn steps(mut resource: Resource) -> Seen {
    let mut notified = Notified::new();
    let before = resource.entries().len();
    let is_mine = |entry: &&crate::model::Entry| entry.id == claim(1).id && entry.is_held();
    let had = resource.entries().iter().any(|entry| is_mine(&entry) && entry.ends() > now(10).boot);
    let attempt = resource.attempt(&claim(1), 0, now(10), &mut notified);
    let granted = matches!(attempt, Ok(Attempt::Granted(_)));
    let known = resource.entries().iter().any(|entry| entry.id == claim(1).id && entry.is_held());
    assert!(!granted || known, "a grant that is not stored");
    let others = resource.entries().iter().filter(|entry| entry.is_held() && entry.id != claim(1).id).count();
    // An exclusive claim is granted alone, unless the hostile state says that it holds already.
    assert!(!granted || had || others == 0, "granted beside {others} holders");
    assert!(resource.entries().len() <= before + 1);
    let renewed = resource.renew(&Renewal::of(Arc::new(claim(1))), now(11), &mut notified);
    let taken = resource.take_turn(ClaimId::from_bits(2), now(11)).is_some();
    let ids: Vec<_> = resource.entries().iter().map(|entry| entry.id).take(4).collect();
    for id in ids {
        let ending = Ending::new("operator", "fuzz");
        resource.release(id, &End::Broken { ending, grace: Duration::from_secs(1) }, now(12), &mut notified);
        resource.release(id, &End::Done { memo: None }, now(12), &mut notified);
    }
    resource.void_deadlines(now(13));
    resource.expire(now(1_000_000), &mut notified);
    let _ = (resource.state(ResourceName::new("r").unwrap(), now(14)), resource.is_forgettable(now(14)));
    Seen::of((before.min(8), granted, attempt.is_err(), renewed.is_err(), taken, notified.len().min(8)))
}

#[test]
fn fuzz_state_in_binary() {
    let mut two = Resource::default();
    for id in 1..=3 {
        two.attempt(&claim(id), 7, now(1), &mut Notified::new()).unwrap();
    }
    let mut bytes = Vec::new();
    two.to_bytes(&mut bytes);
    fuzz("state in binary", &corpus("binary"), &[bytes], &[], |input| match Resource::from_bytes(input) {
        Some(resource) => {
            let mut again = Vec::new();
            resource.to_bytes(&mut again);
            assert_eq!(Resource::from_bytes(&again).as_ref(), Some(&resource));
            steps(resource)
        }
        None => Seen::of(input.len().min(200)),
    });
}

#[test]
fn fuzz_state_in_json() {
    let words = ["entries", "held", "waits", "units", "last_fence", "graves", "memo", "null", "capacity"];
    let mut two = Resource::default();
    for id in 1..=2 {
        two.attempt(&claim(id), 7, now(1), &mut Notified::new()).unwrap();
    }
    let json = serde_json::to_vec(&two).unwrap();
    fuzz("state in JSON", &corpus("json"), &[json], &words, |input| match serde_json::from_slice::<Resource>(input) {
        Ok(resource) => steps(resource),
        Err(error) => Seen::text(&error.to_string()),
    });
}

/// No ticket of a hostile program gives a lock that its store does not know.
#[test]
fn fuzz_ticket() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let locks = runtime.block_on(async { Locks::over(Memory::new()).unwrap() });
    let words = ["format", "scheme", "resource", "fence", "ttl_ms", "renewed", "mem", "redis", "capacity", "units"];
    fuzz("ticket", &corpus("ticket"), &[], &words, |input| match serde_json::from_slice::<LockTicket>(input) {
        Ok(ticket) => {
            let adopted = runtime.block_on(locks.adopt(&ticket));
            Seen::text(&adopted.expect_err("a lock that was never granted").to_string())
        }
        Err(error) => Seen::text(&error.to_string()),
    });
}

#[test]
fn fuzz_label() {
    let words = ["host", "pid", "user", "reason", "tags"];
    fuzz("label", &corpus("label"), &[], &words, |input| match serde_json::from_slice::<Label>(input) {
        Ok(label) => Seen::text(&format!("{:?}", label.check().map_err(|error| error.to_string()))),
        Err(error) => Seen::text(&error.to_string()),
    });
}

#[test]
fn fuzz_memo_of_once() {
    let name = ResourceName::new("r").unwrap();
    fuzz("memo of once", &corpus("once"), &[], &["once/1 ", "once/2 ", "quorum/1 "], |input| {
        let memo = crate::driver::memo::Versioned::read(&input.into()).memo();
        match LastSlot::read(Some(&memo), &name) {
            Ok(last) => Seen::of(last.map(|last| (last.covers("7"), last.record.is_some()))),
            Err(error) => Seen::text(&error.to_string()),
        }
    });
}

#[test]
fn fuzz_numbers_of_a_handed_grant() {
    fuzz("handed grant", &corpus("handed"), &[], &["7 5000000 2000000"], |input| {
        let text = String::from_utf8_lossy(input);
        let grant = Handed::read(text.split(' '), None).map(|handed| handed.grant(now(6).boot));
        if let Some(Some(grant)) = &grant {
            assert!(
                grant.lease.ttl <= crate::model::TURN_TTL && grant.lease.from.is_some_and(|from| from <= now(6).boot)
            );
        }
        Seen::of((grant.is_some(), grant.flatten().is_some()))
    });
}

#[test]
fn fuzz_duration() {
    fuzz("duration", &corpus("duration"), &[], &["ms", "s", "m", "h", "d", "us"], |input| {
        match crate::span::parse(&String::from_utf8_lossy(input)) {
            Ok(span) => Seen::of(span.as_secs().checked_ilog2()),
            Err(error) => Seen::text(&error.to_string()),
        }
    });
}
