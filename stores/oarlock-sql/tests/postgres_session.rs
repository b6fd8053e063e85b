//! The suite on the advisory locks of a PostgreSQL server, as a role without any rights.

#[path = "postgres/fixture.rs"]
mod fixture;

fn main() -> anyhow::Result<()> {
    let Some(context) = fixture::TestContext::start_or_skip()? else { return Ok(()) };
    let user = context.with_role(false)?;
    let (entrance, mode) = (context.addr(), fixture::Mode::Session);
    oarlock_conformance::run(fixture::Server { name: "postgres/session", context, entrance, mode, user })
}
