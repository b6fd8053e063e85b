//! The suite on a PostgreSQL server.

#[path = "postgres/fixture.rs"]
mod fixture;

fn main() -> anyhow::Result<()> {
    let Some(bed) = fixture::Bed::start_or_skip()? else { return Ok(()) };
    let entrance = bed.addr();
    oarlock_conformance::run(fixture::Server { name: "postgres", bed, entrance, mode: fixture::Mode::Lease })
}
