//! The protocols that carry safety, as small worlds in which everything that can happen is tried. Each has wrong
//! variants that must be found: a search that finds nothing there would prove nothing.
//!
//! The bounds: two clients, a clock of a few ticks, and one request of a kind and client on its way at a time. A request
//! that was given up and arrives after its repetition is left to the simulation.

#[path = "worlds/cohort.rs"]
mod cohort;
#[path = "worlds/etcd.rs"]
mod etcd;
#[path = "worlds/slots.rs"]
mod slots;
#[path = "worlds/sql.rs"]
mod sql;
#[path = "worlds/turn.rs"]
mod turn;
#[path = "worlds/zookeeper.rs"]
mod zookeeper;

use oarlock_conformance::explore::{World, search};

/// How long the clock of a world runs: longer in the long tier (`OARLOCK_LONG=1`).
fn ticks(short: u8, long: u8) -> u8 {
    if std::env::var_os("OARLOCK_LONG").is_some() { long } else { short }
}

/// The rule holds in every world, and the goal is reached in some.
fn holds(name: &str, start: impl World) {
    let explored = search(start);
    assert!(explored.is_ok(), "{name}: {explored:?}");
    let explored = explored.unwrap_or_default();
    println!("{name}: {} worlds, {} of them with the goal", explored.worlds, explored.goals);
    assert!(explored.goals > 0, "{name}: the goal is never reached, so this proves nothing");
}

/// A wrong variant is found.
fn is_found(name: &str, start: impl World) {
    let found = search(start);
    println!("{name}: {found:?}");
    assert!(found.is_err(), "{name}: a wrong variant was not found");
}
