//! Hostile bytes for what this crate reads: the records of claims, memos, notices and fences that any client of the
//! cluster may write.

use std::path::Path;

use oarlock_core::{Claim, ClaimId, ResourceName};
use oarlock_fuzz::{Seen, fuzz};

use crate::api::KeyValue;
use crate::config::Config;
use crate::keys::Space;
use crate::queue::{Listing, Notification, read_memo};

fn corpus(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(name)
}

/// A whole queue: one key for each line of the input. No claim may come before one that excludes it.
#[test]
fn fuzz_queue() {
    let words = ["\n", "granted", "capacity", "weight", "units", "fence", "offset", "all", "format", "id", "ending"];
    let name = ResourceName::new("r").unwrap();
    let keys = Space::of(&Config::new(["localhost"])).keys(&name);
    let claim = Claim::new(ClaimId::from_bits(1), name);
    fuzz("queue", &corpus("queue"), &[], &words, |input| {
        let lines = input.split(|byte| *byte == b'\n').zip(1_i64..);
        let kvs = lines.map(|(value, number)| KeyValue {
            key: keys.claim(number).key,
            create_revision: number,
            mod_revision: number + 100,
            value: value.to_vec(),
            lease: number,
        });
        match Listing::read(&keys, 1000, kvs.collect()) {
            Ok(listing) => {
                let bears = listing.bears(&claim);
                assert!(!bears || listing.claims.is_empty(), "an exclusive claim beside {}", listing.claims.len());
                let fences = listing.claims.iter().filter_map(crate::queue::StoredClaim::fence).count();
                Seen::of((listing.claims.len().min(8), fences.min(8), bears, listing.admit(&claim, 0).is_err()))
            }
            Err(error) => Seen::text(&error.to_string()),
        }
    });
}

#[test]
fn fuzz_notice_and_memo() {
    fuzz("notice and memo", &corpus("notice"), &[vec![1, 2, 3]], &["format", "by", "why"], |input| {
        let notice = Notification::read(input).map_err(|error| error.to_string());
        let memo = read_memo(input).map(|memo| memo.len() < input.len()).map_err(|error| error.to_string());
        Seen::text(&format!("{:?} {memo:?}", notice.map(drop)))
    });
}
