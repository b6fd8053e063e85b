//! Hostile histories: people send them to each other, and `torture check`, `render` and `replay` read them.

use std::path::Path;

use oarlock_fuzz::{Seen, fuzz};

use crate::judge::judge;
use crate::record::Record;
use crate::render::page;

/// Text that must never come to a page as it is.
const MARKUP: &str = "<fuzz>";

/// A history that can be read can also be judged, written again and shown, and shows no markup of its own.
#[test]
fn fuzz_history() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/history");
    let words = [
        MARKUP,
        "\n",
        "{\"at\":5,\"ev\":\"done\"}\n",
        "\"ev\":\"granted\"",
        "\"ev\":\"ended\"",
        "\"ev\":\"died\"",
        "\"ev\":\"fault\"",
        "\"fence\":",
        "\"until\":",
        "\"w\":",
        "\"op\":",
        "\"at\":",
        "\"lock\":\"a\"",
        "18446744073709551615",
        "\"consensus\"",
        "\"best effort\"",
        "\"session\"",
    ];
    fuzz("history", &corpus, &[], &words, |input| match Record::read(input) {
        Ok(record) => {
            let judged = judge(&record);
            let shown = page(&record, &judged);
            assert!(!shown.contains(MARKUP), "markup of a history is shown as it is");
            let mut written = Vec::new();
            record.write(&mut written).expect("written to memory");
            assert!(
                Record::read(&written[..]).is_ok_and(|again| again == record),
                "it is written and read as another one"
            );
            let names: Vec<_> = judged.findings.iter().map(|finding| (finding.ruling, finding.name)).collect();
            Seen::text(&format!("{:?} {names:?}", judged.ruling))
        }
        Err(error) => Seen::text(&error.to_string()),
    });
}
