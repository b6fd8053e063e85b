//! Hostile bytes for what this crate reads: state files, and the datagrams that any process of this user can send.

use std::path::Path;
use std::time::Duration;

use oarlock_core::clock::Moment;
use oarlock_core::model::{Notified, Now, Resource, TURN_TTL};
use oarlock_core::{Claim, ClaimId, ResourceName};
use oarlock_fuzz::{Seen, fuzz};

use crate::{slot, state, turn};

fn corpus(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(name)
}

/// The payload of a record with one holder and one waiter.
fn payload() -> Vec<u8> {
    let now = Now { boot: Moment::ZERO + Duration::from_secs(1), wall_micros: 1_767_225_600_000_000 };
    let mut resource = Resource::default();
    for id in 1..=2 {
        let mut claim = Claim::new(ClaimId::from_bits(id), ResourceName::new("deploy").unwrap());
        claim.wait = true;
        resource.attempt(&claim, 7, now, &mut Notified::new()).unwrap();
    }
    let mut payload = b"\x06\0\0\0deploy\x04\0\0\0boot".to_vec();
    resource.to_bytes(&mut payload);
    payload
}

/// A file whose first slot has this payload and a right checksum.
fn file(payload: &[u8]) -> Vec<u8> {
    let mut record = Vec::new();
    slot::begin(&mut record);
    record.extend_from_slice(payload);
    slot::seal(&mut record, 7).unwrap();
    let size = slot::size_for(record.len());
    record.resize(size * 2, 0);
    record
}

#[test]
fn fuzz_state_file() {
    let whole = file(&payload());
    assert!(matches!(slot::newest(&whole), Ok(Some(_))));
    fuzz("state file", &corpus("file"), &[whole], &["oarlock\u{1}", "oarlock\u{2}", "oarlock\u{3}"], |input| {
        match slot::newest(input) {
            Ok(Some(newest)) => Seen::of((newest.layout, newest.slot, state::parse(&input[newest.payload]).is_some())),
            Ok(None) => Seen::of("empty"),
            Err(trouble) => Seen::of(format!("{trouble:?}")),
        }
    });
}

/// A payload in a slot whose checksum is right: it is found as it was written, and read or refused.
#[test]
fn fuzz_payload() {
    assert!(state::parse(&payload()).is_some());
    fuzz("payload", &corpus("payload"), &[payload()], &["deploy"], |input| {
        let whole = file(input);
        let newest = slot::newest(&whole).unwrap().unwrap();
        assert_eq!(&whole[newest.payload], input);
        let json = state::parse_json(input, Path::new("/state")).map(drop).map_err(|error| error.to_string());
        let binary = state::parse(input).is_some();
        Seen::text(&format!("{binary} {json:?}"))
    });
}

#[test]
fn fuzz_datagram() {
    let mut one = turn::MAGIC.to_vec();
    one.extend_from_slice(&[0; 10]);
    one.extend_from_slice(&[0xff; 32]);
    fuzz("datagram", &corpus("datagram"), &[one], &[], |input| {
        let grants = turn::read(input);
        let count = grants.as_ref().map(Vec::len);
        for (_, grant) in grants.into_iter().flatten() {
            assert!(grant.ttl <= TURN_TTL);
        }
        assert!(count.unwrap_or(0) <= input.len() / 32);
        Seen::of(count.map(|count| count.min(16)))
    });
}
