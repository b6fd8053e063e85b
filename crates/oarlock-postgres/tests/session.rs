//! The suite on the advisory locks of a PostgreSQL server.

#[path = "shared/fixture.rs"]
mod fixture;

use std::sync::Arc;

use oarlock_testbed::Postgres;

fn main() -> anyhow::Result<()> {
    let Some(server) = Postgres::start_or_skip()? else { return Ok(()) };
    let (entrance, mode) = (server.addr(), fixture::Mode::Session);
    oarlock_conformance::run(fixture::Server { name: "postgres/session", server: Arc::new(server), entrance, mode })
}
