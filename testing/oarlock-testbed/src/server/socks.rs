//! A SOCKS proxy to ports on loopback, whichever address it is asked for.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::ports::Port;

/// It serves until it is dropped.
#[derive(Debug)]
pub(super) struct Socks {
    port: Port,
    quit: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Socks {
    /// What is asked for a port of `others` goes to the port beside it.
    pub(super) fn start(others: BTreeMap<u16, u16>) -> io::Result<Self> {
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
                    () = serve(listener, Arc::new(others)) => {}
                    _ = quitting => {}
                }
            });
        })?;
        Ok(Self { port, quit: Some(quit), thread: Some(thread) })
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.port.addr()
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

async fn serve(listener: TcpListener, others: Arc<BTreeMap<u16, u16>>) {
    let mut connections = JoinSet::new();
    loop {
        // The two ends handle a connection that fails.
        if let Ok((client, _)) = listener.accept().await {
            connections.spawn(carry(client, others.clone()));
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Version 5 (RFC 1928), without a password, and for IPv4 alone.
async fn carry(mut client: TcpStream, others: Arc<BTreeMap<u16, u16>>) -> io::Result<()> {
    let [_version, methods] = read(&mut client).await?;
    client.read_exact(&mut vec![0; usize::from(methods)]).await?;
    client.write_all(&[5, 0]).await?;
    let [5, 1, _, 1] = read(&mut client).await? else { return Err(io::ErrorKind::Unsupported.into()) };
    let [_, _, _, _, high, low] = read(&mut client).await?;
    let asked = u16::from_be_bytes([high, low]);
    let target = SocketAddr::from((Ipv4Addr::LOCALHOST, others.get(&asked).copied().unwrap_or(asked)));
    let mut server = TcpStream::connect(target).await?;
    client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}

async fn read<const LENGTH: usize>(from: &mut TcpStream) -> io::Result<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    from.read_exact(&mut bytes).await?;
    Ok(bytes)
}
