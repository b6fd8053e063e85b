//! The suite on the advisory locks of a PostgreSQL server.

#[path = "postgres/fixture.rs"]
mod fixture;

fn main() -> anyhow::Result<()> {
    let Some(context) = fixture::TestContext::start_or_skip()? else { return Ok(()) };
    let (entrance, mode) = (context.addr(), fixture::Mode::Session);
    oarlock_conformance::run(fixture::Server { name: "postgres/session", context, entrance, mode })
}
