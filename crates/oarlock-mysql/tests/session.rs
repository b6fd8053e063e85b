//! The suite on the named locks of a MariaDB server.

#[path = "shared/fixture.rs"]
mod fixture;

use std::sync::Arc;

use oarlock_testbed::MariaDb;

fn main() -> anyhow::Result<()> {
    let Some(server) = MariaDb::start_or_skip()? else { return Ok(()) };
    oarlock_conformance::run(fixture::Server(Arc::new(server), fixture::Mode::Session))
}
