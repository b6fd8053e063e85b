//! The suite on a PostgreSQL server.

#[path = "postgres/fixture.rs"]
mod fixture;

fn main() -> anyhow::Result<()> {
    let Some(context) = fixture::TestContext::start_or_skip()? else { return Ok(()) };
    let entrance = context.addr();
    oarlock_conformance::run(fixture::Server { name: "postgres", context, entrance, mode: fixture::Mode::Lease })
}
