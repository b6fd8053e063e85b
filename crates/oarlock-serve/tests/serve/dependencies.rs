//! What this server adds to the build of the command line, which is the first command of the README.

use std::collections::BTreeSet;
use std::process::Command;

/// The names of the crates that the command line is built of.
fn crates(features: &[&str]) -> BTreeSet<String> {
    let mut tree = Command::new(env!("CARGO"));
    tree.args(["tree", "--locked", "--offline", "-p", "oarlock-cli", "-e", "normal,build", "--prefix", "none"]);
    let done = tree.args(features).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let lines = String::from_utf8(done.stdout).unwrap();
    lines.lines().filter_map(|line| line.split(' ').next()).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[test]
fn it_adds_one_small_crate_to_the_build_of_the_command_line() {
    let (all, without) = (crates(&[]), crates(&["--no-default-features", "--features", "demo,stores,torture"]));
    assert!(without.len() > 200 && !without.contains("oarlock-serve"), "{without:?}");
    let added: Vec<_> = all.difference(&without).collect();
    assert_eq!(added, ["httpdate", "oarlock-serve"], "a crate more makes the first command of the README slower");
}
