//! What the controls and the connections share. A task holds the lock while it passes a byte on.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use super::{Direction, Held, Then};

/// How long the copy of a closed listener in a process that is being started is waited for.
const COPIES_END_WITHIN: Duration = Duration::from_secs(2);

/// Something for each direction.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Both<T> {
    pub(super) to_server: T,
    pub(super) to_client: T,
}

impl<T> Both<T> {
    pub(super) fn of(&mut self, direction: Direction) -> &mut T {
        match direction {
            Direction::ToServer => &mut self.to_server,
            Direction::ToClient => &mut self.to_client,
        }
    }
}

/// What a proxy has seen since it was started.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Seen {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections that are open.
    pub open: u64,
    /// Bytes passed on to the server.
    pub to_server: u64,
    /// Bytes passed on to the client.
    pub to_client: u64,
    /// Bytes for the server that wait inside.
    pub held_to_server: u64,
    /// Bytes for the client that wait inside.
    pub held_to_client: u64,
    /// Replies lost on request.
    pub replies_dropped: u64,
}

impl Seen {
    pub(super) fn held(&mut self, direction: Direction) -> &mut u64 {
        match direction {
            Direction::ToServer => &mut self.held_to_server,
            Direction::ToClient => &mut self.held_to_client,
        }
    }

    pub(super) fn passed(&mut self, direction: Direction) -> &mut u64 {
        match direction {
            Direction::ToServer => &mut self.to_server,
            Direction::ToClient => &mut self.to_client,
        }
    }
}

/// Something on its way through.
#[derive(Debug)]
pub(super) enum Piece {
    /// Bytes, of which this many have gone already.
    Bytes(Vec<u8>, usize),
    /// The sender will send no more.
    End,
    /// The sender's side of the connection broke.
    Broken,
}

/// What waits to go one way on one connection.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    pub(super) queue: VecDeque<(Instant, Piece)>,
    pub(super) bytes: usize,
}

/// One connection.
#[derive(Debug, Default)]
pub(super) struct ConnectionState {
    pub(super) directions: Both<Buffer>,
    /// Both ends are to see a reset.
    pub(super) is_reset: bool,
    /// The next bytes from the server are a reply to be lost.
    pub(super) victim: Option<Armed>,
    /// Nothing passes from the server any more.
    pub(super) is_silent: bool,
    /// Nothing passes either way, not even its end.
    pub(super) is_stranded: bool,
}

/// A reply that is to be lost.
#[derive(Debug)]
pub(super) struct Armed {
    pub(super) then: Then,
    pub(super) done: oneshot::Sender<usize>,
}

/// The faults, and the connections they apply to.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) cut: Both<bool>,
    pub(super) delay: Both<Duration>,
    pub(super) armed: Option<Armed>,
    pub(super) connections: BTreeMap<u64, ConnectionState>,
}

impl State {
    pub(super) fn reset_all(&mut self) {
        for connection in self.connections.values_mut() {
            connection.is_reset = true;
        }
    }

    pub(super) fn strand_all(&mut self) {
        for connection in self.connections.values_mut() {
            connection.is_stranded = true;
        }
    }

    pub(super) fn reset_stranded(&mut self) {
        for connection in self.connections.values_mut() {
            connection.is_reset |= connection.is_stranded;
        }
    }

    pub(super) fn heal(&mut self, held: Held) {
        self.cut = Both::default();
        self.delay = Both::default();
        self.armed = None;
        for connection in self.connections.values_mut() {
            connection.victim = None;
            connection.is_stranded = false;
            match held {
                Held::Deliver => {}
                Held::Drop => {
                    for buffer in [&mut connection.directions.to_server, &mut connection.directions.to_client] {
                        // What has begun to pass must pass whole, and the end of a connection is not its content.
                        buffer.queue.retain(|(_, piece)| !matches!(piece, Piece::Bytes(_, 0)));
                        buffer.bytes = buffer.queue.iter().map(|(_, piece)| piece.len()).sum();
                    }
                }
                Held::Reset => connection.is_reset = true,
            }
        }
    }

    /// When the first piece of a buffer may pass: never while the way is cut.
    pub(super) fn due(&mut self, connection: u64, direction: Direction) -> Option<Instant> {
        let delay = *self.delay.of(direction);
        if *self.cut.of(direction) {
            return None;
        }
        let connection = self.connections.get_mut(&connection).filter(|connection| !connection.is_stranded)?;
        let (arrived, _) = connection.directions.of(direction).queue.front()?;
        arrived.checked_add(delay)
    }

    fn held(&mut self, direction: Direction) -> u64 {
        self.connections.values_mut().map(|connection| connection.directions.of(direction).bytes as u64).sum()
    }
}

impl Piece {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes, gone) => bytes.len() - gone,
            Self::End | Self::Broken => 0,
        }
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    /// Where new connections lead.
    target: Mutex<SocketAddr>,
    state: Mutex<State>,
    /// Wakes the connections when a control has changed.
    pub(super) changed: watch::Sender<()>,
    pub(super) seen: watch::Sender<Seen>,
    /// None while connections are refused.
    pub(super) listener: Mutex<Option<TcpListener>>,
    runtime: Handle,
}

impl Shared {
    pub(super) fn new(runtime: Handle, target: SocketAddr) -> Self {
        Self {
            target: Mutex::new(target),
            state: Mutex::default(),
            changed: watch::Sender::default(),
            seen: watch::Sender::default(),
            listener: Mutex::default(),
            runtime,
        }
    }

    pub(super) fn target(&self) -> MutexGuard<'_, SocketAddr> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies a control.
    pub(super) fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        self.count_held(&mut state);
        drop(state);
        self.changed.send_replace(());
    }

    pub(super) fn is_listening(&self) -> bool {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Listens, unless it does already.
    pub(super) fn listen(&self, addr: SocketAddr) -> io::Result<()> {
        let mut listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner);
        if listener.is_none() {
            *listener = Some(self.bind(addr)?);
        }
        drop(listener);
        self.changed.send_replace(());
        Ok(())
    }

    /// A process that is started just now has a copy of every socket until it runs its program, a listener that was
    /// closed since included. So an address may be in use for a moment longer.
    fn bind(&self, addr: SocketAddr) -> io::Result<TcpListener> {
        let _runtime = self.runtime.enter();
        let end = Instant::now() + COPIES_END_WITHIN;
        loop {
            let socket = TcpSocket::new_v4()?;
            socket.set_reuseaddr(true)?;
            match socket.bind(addr).and_then(|()| socket.listen(1024)) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                other => return other,
            }
        }
    }

    /// Publishes what waits inside.
    pub(super) fn count_held(&self, state: &mut State) {
        let (to_server, to_client) = (state.held(Direction::ToServer), state.held(Direction::ToClient));
        self.seen.send_if_modified(|seen| {
            let before = *seen;
            *seen.held(Direction::ToServer) = to_server;
            *seen.held(Direction::ToClient) = to_client;
            *seen != before
        });
    }
}
