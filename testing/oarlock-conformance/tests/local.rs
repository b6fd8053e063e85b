//! The suite on the embedded store. Its sessions end with a close as with the death of a process. Tests with the
//! testbed kill and stop real processes.

use std::sync::Arc;

use oarlock_conformance::DriverFixture;
use oarlock_core::DynDriver;
use oarlock_local::{Config, Local};

fn main() -> std::io::Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().to_owned();
    let local = DriverFixture::new("local", move || {
        let config = Config::new(&path);
        async move { Ok(Arc::new(Local::open(config).await?) as Arc<dyn DynDriver>) }
    });
    let conclusion = oarlock_conformance::run_with(local.close_is_death(), &oarlock_conformance::args());
    // `exit` runs no destructors.
    drop(dir);
    conclusion.exit()
}
