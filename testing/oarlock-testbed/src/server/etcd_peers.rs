//! The ways between etcd members, so that one of them can be cut off from the others.
//!
//! All members must agree on the address of each, so what goes to a member can pass a proxy of its own, but a member's
//! own calls cannot be distinguished from those of others. Those it makes through a SOCKS proxy, which Go's HTTP client
//! takes from its environment for every address outside loopback: addresses are of a network that exists in no place,
//! and mean the port on loopback.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread::JoinHandle;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

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
        let socks = Socks::start()?;
        let ways = ports
            .iter()
            .map(|port| Ok(Ways { to: Proxy::start(port.addr())?, from: Proxy::start(socks.port.addr())? }));
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

/// A SOCKS proxy to ports on loopback, whichever address it is asked for.
#[derive(Debug)]
struct Socks {
    port: Port,
    quit: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Socks {
    fn start() -> io::Result<Self> {
        let port = Port::reserve()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = std::net::TcpListener::bind(port.addr())?;
        listener.set_nonblocking(true)?;
        let listener = {
            let _entered = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let (quit, quitting) = oneshot::channel();
        let thread = std::thread::Builder::new().name("socks".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serve(listener) => {}
                    _ = quitting => {}
                }
            });
        })?;
        Ok(Self { port, quit: Some(quit), thread: Some(thread) })
    }
}

impl Drop for Socks {
    fn drop(&mut self) {
        drop(self.quit.take());
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed where it happened.
            let _ = thread.join();
        }
    }
}

async fn serve(listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        // The two ends handle a connection that fails.
        if let Ok((client, _)) = listener.accept().await {
            connections.spawn(carry(client));
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Version 5 (RFC 1928), without a password, and for IPv4 alone.
async fn carry(mut client: TcpStream) -> io::Result<()> {
    let [_version, methods] = read(&mut client).await?;
    client.read_exact(&mut vec![0; usize::from(methods)]).await?;
    client.write_all(&[5, 0]).await?;
    let [5, 1, _, 1] = read(&mut client).await? else { return Err(io::ErrorKind::Unsupported.into()) };
    let [_, _, _, _, high, low] = read(&mut client).await?;
    let target = SocketAddr::from((Ipv4Addr::LOCALHOST, u16::from_be_bytes([high, low])));
    let mut server = TcpStream::connect(target).await?;
    client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}

async fn read<const LENGTH: usize>(from: &mut TcpStream) -> io::Result<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    from.read_exact(&mut bytes).await?;
    Ok(bytes)
}
