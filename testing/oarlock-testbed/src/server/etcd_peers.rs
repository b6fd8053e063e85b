//! The ways between etcd members, so that one of them can be cut off from the others.
//!
//! All members must agree on the address of each, so what goes to a member can pass a proxy of its own, but a member's
//! own calls cannot be distinguished from those of others. Those it makes through a SOCKS proxy, which Go's HTTP client
//! takes from its environment for every address outside loopback: addresses are of a network that exists in no place,
//! and mean the port on loopback.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;

use super::socks::Socks;
use crate::ports::Port;
use crate::proxy::{Held, Proxy};

/// Reserved for documentation: no host has it.
const NOWHERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// The ways of one member.
#[derive(Debug)]
struct Ways {
    /// What others ask of it.
    to: Proxy,
    /// What it asks of others.
    from: Proxy,
}

/// The ways of all members.
#[derive(Debug)]
pub(super) struct Peers {
    ways: Vec<Ways>,
    _socks: Socks,
}

impl Peers {
    /// For members that listen at these ports.
    pub(super) fn of(ports: &[Port]) -> io::Result<Self> {
        let socks = Socks::start(BTreeMap::new())?;
        let ways =
            ports.iter().map(|port| Ok(Ways { to: Proxy::start(port.addr())?, from: Proxy::start(socks.addr())? }));
        Ok(Self { ways: ways.collect::<io::Result<_>>()?, _socks: socks })
    }

    /// Where a member is for the others.
    pub(super) fn url(&self, number: usize) -> String {
        format!("http://{NOWHERE}:{}", self.ways[number].to.addr().port())
    }

    /// Through what it asks them.
    pub(super) fn proxy(&self, number: usize) -> String {
        format!("socks5://{}", self.ways[number].from.addr())
    }

    pub(super) fn cut(&self, number: usize) {
        self.ways[number].to.cut();
        self.ways[number].from.cut();
    }

    pub(super) fn heal(&self, number: usize) -> io::Result<()> {
        self.ways[number].to.heal(Held::Deliver)?;
        self.ways[number].from.heal(Held::Deliver)
    }
}
