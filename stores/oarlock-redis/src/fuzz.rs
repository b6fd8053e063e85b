//! Hostile bytes for what this crate reads: every reply of a script, in the protocol of the server, and notifications,
//! which every client of the server can publish.

use std::path::Path;
use std::time::Duration;

use oarlock_core::clock::Moment;
use oarlock_core::driver::Attempt;
use oarlock_core::model::TURN_TTL;
use oarlock_core::{Claim, ClaimId, ResourceName};
use oarlock_fuzz::{Seen, fuzz};
use redis::Value;

use crate::config::Layout;
use crate::notifications::Notification;
use crate::{attempt, inspect, release, renew};

fn corpus(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(name)
}

/// A script answers with a number or a word first; anything else must be an error, and a grant needs a fence.
#[test]
fn fuzz_reply() {
    let words = ["granted", "pending", "mismatch", "alive", "gone", "released", "absent", "shown", "*3\r\n", "$5\r\n"];
    let words = [&words[..], &[":1\r\n", "$-1\r\n", "+OK\r\n", "-ERR x\r\n", "mutex", "broken"]].concat();
    let name = || ResourceName::new("r").unwrap();
    let claim = Claim::new(ClaimId::from_bits(1), name());
    fuzz("reply", &corpus("reply"), &[], &words, |input| {
        let Ok(value) = redis::parse_redis_value(input) else { return Seen::of("no value") };
        let mut outcome = String::new();
        for layout in [Layout::Native, Layout::Plain, Layout::Redisson] {
            let attempt = attempt::read(layout, &claim, value.clone());
            if let Ok(Attempt::Granted(_)) = &attempt {
                assert!(matches!(value, Value::Int(0..)) || input.windows(7).any(|word| word == b"granted"));
            }
            outcome +=
                &format!("{} ", attempt.map(|it| matches!(it, Attempt::Granted(_))).map_err(|e| e.kind()).is_ok());
            outcome += &format!("{} ", inspect::read(layout, name(), value.clone()).is_ok());
        }
        let (renewed, released) = (renew::read(value.clone()), release::read(value));
        let errors = [renewed.err().map(|e| e.to_string()), released.err().map(|e| e.to_string())];
        Seen::text(&format!("{outcome}{errors:?}"))
    });
}

#[test]
fn fuzz_notification() {
    let now = Moment::ZERO + Duration::from_secs(1000);
    fuzz("notification", &corpus("notification"), &[vec![0; 16], vec![0; 40]], &["=memo", "free"], |input| {
        let Notification { claim, handed } = Notification::read(input);
        let grant = handed.clone().and_then(|handed| handed.grant(now));
        if let Some(grant) = &grant {
            assert!(grant.lease.ttl <= TURN_TTL && grant.lease.from.is_some_and(|from| from <= now));
        }
        Seen::of((claim.is_some(), handed.is_some(), grant.is_some(), input.len().min(64)))
    });
}
