//! No finding without a test that provokes it.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::words;

/// The files with such tests. A finding counts as provoked if one of them names it, other than to leave it out of a
/// comparison. That it is found is what the test itself asserts.
const FILES: [&str; 4] = [
    "crates/oarlock-cli/tests/cli/doctor.rs",
    "crates/oarlock-cli/tests/cli/doctor/coordinators.rs",
    "crates/oarlock-cli/tests/cli/doctor/databases.rs",
    "crates/oarlock-cli/tests/cli/doctor/redis.rs",
];

/// Findings that no server can be brought to here: a unit test judges what a server answers.
const RECORDED: [(&str, &str); 3] = [
    // Which version is installed is not for the test to choose.
    ("etcd-version", "stores/oarlock-etcd/src/doctor.rs"),
    // No network file system can be mounted without rights.
    ("local-network", "stores/oarlock-local/src/doctor.rs"),
    // The queue has 8 GiB.
    ("postgres-notify-queue", "stores/oarlock-sql/src/postgres/doctor.rs"),
];

fn read(file: &str) -> String {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../..", file].iter().collect();
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The code of a file without its comments, and without what leaves a finding out.
fn code(text: &str) -> String {
    let counts = |line: &&str| !line.trim_start().starts_with("//") && !line.contains(".remove(");
    text.lines().filter(counts).collect()
}

#[test]
fn every_finding_is_provoked_by_a_test() {
    let files: Vec<_> = FILES.iter().map(|file| code(&read(file))).collect();
    let mut missing = BTreeSet::new();
    for check in oarlock::doctor::checks() {
        let literal = format!("\"{}\"", check.id);
        let recorded = RECORDED.iter().find(|(id, _)| *id == check.id);
        let is_provoked = match recorded {
            Some((_, file)) => read(file).split_once("mod tests {").is_some_and(|(_, tests)| tests.contains(&literal)),
            None => files.iter().any(|file| file.contains(&literal)),
        };
        if !is_provoked {
            missing.insert(check.id.to_owned());
        }
    }
    assert_eq!(missing, words(&[]), "no test provokes these findings");
}
