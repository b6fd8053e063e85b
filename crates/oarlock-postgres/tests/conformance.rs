//! The suite on a PostgreSQL server.

#[path = "shared/fixture.rs"]
mod fixture;

use std::sync::Arc;

use oarlock_testbed::Postgres;

fn main() -> anyhow::Result<()> {
    let Some(server) = Postgres::start_or_skip()? else { return Ok(()) };
    let entrance = server.addr();
    oarlock_conformance::run(fixture::Server {
        name: "postgres",
        server: Arc::new(server),
        entrance,
        mode: fixture::Mode::Lease,
    })
}
