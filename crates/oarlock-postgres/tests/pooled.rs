//! The suite on a PostgreSQL server behind PgBouncer in transaction mode, with fewer connections to the server than clients.

#[path = "shared/fixture.rs"]
mod fixture;

use std::sync::Arc;

use oarlock_testbed::{PgBouncer, Postgres};

fn main() -> anyhow::Result<()> {
    let Some(server) = Postgres::start_or_skip()? else { return Ok(()) };
    let few = [("default_pool_size", "6")];
    let Some(pooler) = PgBouncer::in_front_of_or_skip(server.addr(), &few)? else { return Ok(()) };
    let fixture = fixture::Server {
        name: "postgres behind pgbouncer",
        server: Arc::new(server),
        entrance: pooler.addr(),
        mode: fixture::Mode::Lease,
    };
    let verdict = oarlock_conformance::run_with(fixture, &oarlock_conformance::args());
    drop(pooler);
    verdict.exit()
}
