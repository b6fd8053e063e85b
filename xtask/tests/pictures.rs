//! A picture on a page is what its source draws.

#![allow(clippy::panic, clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::process::Command;

#[test]
fn every_drawn_picture_is_what_its_source_draws() {
    for name in ["claim", "lease", "turns"] {
        is_what_its_source_draws(name);
    }
}

fn is_what_its_source_draws(name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs/img");
    let drawn = match Command::new("python3").arg(folder.join(format!("{name}.py"))).arg("--print").output() {
        Ok(drawn) => drawn,
        Err(error) if std::env::var_os("CI").is_none() => return println!("skipped: no python3: {error}"),
        Err(error) => panic!("python3 draws the picture, and cannot be started: {error}"),
    };
    assert!(drawn.status.success(), "{}", String::from_utf8_lossy(&drawn.stderr));
    let picture = std::fs::read(folder.join(format!("{name}.svg"))).unwrap();
    assert!(drawn.stdout == picture, "run `python3 docs/img/{name}.py` and commit what it writes");
}
