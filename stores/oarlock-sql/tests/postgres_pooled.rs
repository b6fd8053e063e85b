//! The suite on a PostgreSQL server behind PgBouncer in transaction mode, with fewer connections to the server than
//! clients.

#[path = "postgres/fixture.rs"]
mod fixture;

use oarlock_testbed::PgBouncer;

fn main() -> anyhow::Result<()> {
    let Some(context) = fixture::TestContext::start_or_skip()? else { return Ok(()) };
    // It tries a server again that could not be reached a second ago.
    let few = [("default_pool_size", "6"), ("server_login_retry", "1")];
    let Some(pooler) = PgBouncer::in_front_of_or_skip(context.addr(), &few)? else { return Ok(()) };
    let fixture = fixture::Server {
        name: "postgres behind pgbouncer",
        context,
        entrance: pooler.addr(),
        mode: fixture::Mode::Lease,
        user: "postgres",
    };
    let verdict = oarlock_conformance::run_with(fixture, &oarlock_conformance::args());
    drop(pooler);
    verdict.exit()
}
