//! A picture on a page is what its source draws.

#![allow(clippy::panic, reason = "tests")]

use std::path::Path;
use std::process::Command;

#[test]
fn the_picture_of_a_claim_is_what_its_source_draws() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs/img");
    let drawn = match Command::new("python3").arg(folder.join("claim.py")).arg("--print").output() {
        Ok(drawn) => drawn,
        Err(error) if std::env::var_os("CI").is_none() => return println!("skipped: no python3: {error}"),
        Err(error) => panic!("python3 draws the picture, and cannot be started: {error}"),
    };
    assert!(drawn.status.success(), "{}", String::from_utf8_lossy(&drawn.stderr));
    let picture = std::fs::read(folder.join("claim.svg")).unwrap();
    assert!(drawn.stdout == picture, "run `python3 docs/img/claim.py` and commit what it writes");
}
