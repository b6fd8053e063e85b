//! The suite on a PostgreSQL server, as a role with no more rights than locks need.

#[path = "postgres/fixture.rs"]
mod fixture;

fn main() -> anyhow::Result<()> {
    let Some(context) = fixture::TestContext::start_or_skip()? else { return Ok(()) };
    let user = context.with_role(true)?;
    let entrance = context.addr();
    oarlock_conformance::run(fixture::Server { name: "postgres", context, entrance, mode: fixture::Mode::Lease, user })
}
