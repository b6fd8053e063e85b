//! The suite on the named locks of a MySQL server.

#[path = "mysql/fixture.rs"]
mod fixture;

use oarlock_testbed::Flavour;

fn main() -> anyhow::Result<()> {
    fixture::run(Flavour::MySql, fixture::Mode::Session)
}
