//! The suite on the advisory locks of a PostgreSQL server.

#[path = "postgres/fixture.rs"]
mod fixture;

fn main() -> anyhow::Result<()> {
    let Some(bed) = fixture::Bed::start_or_skip()? else { return Ok(()) };
    let (entrance, mode) = (bed.addr(), fixture::Mode::Session);
    oarlock_conformance::run(fixture::Server { name: "postgres/session", bed, entrance, mode })
}
