//! The suite on the named locks of a MariaDB server.

#[path = "mysql/fixture.rs"]
mod fixture;

use oarlock_testbed::Flavour;

fn main() -> anyhow::Result<()> {
    fixture::run(Flavour::MariaDb, fixture::Mode::Session)
}
