//! Ports on the loopback interface that stay ours for as long as we want them.
//!
//! A port that the kernel hands out for port 0 is free only until it is closed, and it lies among those given to
//! outgoing connections. A server that is restarted there may find it taken; worse, a client that keeps trying to
//! connect to it while no server listens may in the end connect to itself. So the ports come from below that range.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::os::unix::net::UnixDatagram;

/// The ports to choose from when outgoing connections use the default range of Linux.
const USUAL: Range<u16> = 12_000..32_000;

/// How many ports are tried before giving up.
const ATTEMPTS: u32 = 1000;

/// A port of 127.0.0.1 that no other [`Port`] on this machine has.
///
/// It may be listened on, closed and listened on again. Programs that do not use this crate may still take it.
#[derive(Debug)]
pub struct Port {
    number: u16,
    // The kernel gives a name to one socket at a time, and frees it whichever way this process ends.
    _claim: Option<UnixDatagram>,
}

#[cfg(target_os = "linux")]
fn claim(number: u16) -> io::Result<Option<UnixDatagram>> {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::SocketAddr;

    let name = SocketAddr::from_abstract_name(format!("oarlock-port-{number}"))?;
    UnixDatagram::bind_addr(&name).map(Some)
}

/// Elsewhere there are no such names: two processes may then choose the same port, and the second fails to listen.
#[cfg(not(target_os = "linux"))]
fn claim(_: u16) -> io::Result<Option<UnixDatagram>> {
    Ok(None)
}

impl Port {
    /// Finds a free port, and keeps it until dropped.
    ///
    /// # Errors
    /// When no port is free.
    pub fn reserve() -> io::Result<Self> {
        let range = range();
        for _ in 0..ATTEMPTS {
            let number = fastrand::u16(range.clone());
            let claim = match claim(number) {
                Ok(claim) => claim,
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => continue,
                Err(error) => return Err(error),
            };
            if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Ok(Self { number, _claim: claim });
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, format!("no free port in {range:?} after {ATTEMPTS} attempts")))
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Its address on the loopback interface.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.number))
    }
}

fn range() -> Range<u16> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let lowest_outgoing = text.split_whitespace().next().and_then(|port| port.parse().ok()).unwrap_or(USUAL.end);
    below(lowest_outgoing)
}

/// The ports to choose from when outgoing connections use those from `lowest_outgoing` on.
fn below(lowest_outgoing: u16) -> Range<u16> {
    let end = USUAL.end.min(lowest_outgoing);
    // Too few would be left: then rather among them than none.
    if end < USUAL.start + 1000 { USUAL } else { USUAL.start..end }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_once() {
        let ports: Vec<_> = (0..200).map(|_| Port::reserve().expect("a port")).collect();
        let mut numbers: Vec<_> = ports.iter().map(Port::number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 200);
    }

    #[test]
    fn a_port_can_be_listened_on_and_stays_ours_when_closed() {
        let port = Port::reserve().expect("a port");
        for _ in 0..2 {
            TcpListener::bind(port.addr()).expect("free");
        }
        let number = port.number();
        assert!(claim(number).is_err());
        drop(port);
        // Not at once: a child that another test starts just now has a copy of everything until it runs its program,
        // and another test may draw the same number.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while claim(number).is_err() {
            assert!(std::time::Instant::now() < end, "still taken");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    #[test]
    fn ports_of_outgoing_connections_are_avoided() {
        assert_eq!(below(32_768), USUAL);
        assert_eq!(below(20_000), 12_000..20_000);
        assert_eq!(below(1024), USUAL);
    }
}
