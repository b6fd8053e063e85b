//! The suite on a MariaDB server.

#[path = "mysql/fixture.rs"]
mod fixture;

use oarlock_testbed::Flavour;

fn main() -> anyhow::Result<()> {
    fixture::run(Flavour::MariaDb, fixture::Mode::Lease)
}
