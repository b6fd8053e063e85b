//! The ways between the members of an ensemble, so that one of them can be cut off from the others.
//!
//! A member tells the others where it listens for elections, and they connect to that address and not to the one of their
//! configuration. So a proxy in the configuration is gone past. What each member opens goes through a SOCKS proxy, which
//! Java takes from its properties, and from there to the proxies of the member that is meant.

use std::collections::BTreeMap;
use std::io;

use super::socks::Socks;
use crate::ports::Port;
use crate::proxy::{Held, Proxy};

/// The ways of one member.
#[derive(Debug)]
struct Ways {
    /// To its two ports: for its followers, and for elections.
    to: [Proxy; 2],
    /// What it opens to others.
    from: Proxy,
}

/// The ways of all members.
#[derive(Debug)]
pub(super) struct Peers {
    ways: Vec<Ways>,
    _socks: Socks,
}

impl Peers {
    /// For members that listen at these ports, two each.
    pub(super) fn of(ports: &[Port]) -> io::Result<Self> {
        let to = ports.iter().map(|port| Proxy::start(port.addr())).collect::<io::Result<Vec<_>>>()?;
        let others = ports.iter().zip(&to).map(|(port, proxy)| (port.number(), proxy.addr().port()));
        let socks = Socks::start(others.collect::<BTreeMap<_, _>>())?;
        let mut to = to.into_iter();
        let mut ways = Vec::new();
        while let (Some(followers), Some(elections)) = (to.next(), to.next()) {
            ways.push(Ways { to: [followers, elections], from: Proxy::start(socks.addr())? });
        }
        Ok(Self { ways, _socks: socks })
    }

    /// The port through which a member reaches the others.
    pub(super) fn proxy(&self, number: usize) -> u16 {
        self.ways[number].from.addr().port()
    }

    pub(super) fn cut(&self, number: usize) {
        let Ways { to, from } = &self.ways[number];
        to.iter().chain([from]).for_each(Proxy::cut);
    }

    pub(super) fn heal(&self, number: usize) -> io::Result<()> {
        let Ways { to, from } = &self.ways[number];
        to.iter().chain([from]).try_for_each(|proxy| proxy.heal(Held::Deliver))
    }
}
