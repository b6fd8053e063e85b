//! Accepts connections and carries their bytes.

use std::io;
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::task::Poll;
use std::time::Instant;

use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::state::{Armed, ConnectionState, Piece, Shared};
use super::{Direction, Then};

/// So much waits inside in each direction of a connection; then the sender has to wait, as it would on a network.
const HELD_AT_MOST: usize = 1 << 20;

/// Accepts connections for as long as it is polled, and carries them.
pub(super) async fn serve(shared: Arc<Shared>) {
    // Dropped with this future: then every connection is reset.
    let mut connections = JoinSet::new();
    let mut next = 0;
    loop {
        let client = accept(&shared).await;
        while connections.try_join_next().is_some() {}
        next += 1;
        let id = next;
        let mut connection = ConnectionState::default();
        {
            // To refuse connections, the listener is closed first; then the connections in the state are reset.
            let mut state = shared.state();
            connection.is_reset = !shared.is_listening();
            state.connections.insert(id, connection);
        }
        shared.seen.send_modify(|seen| {
            seen.accepted += 1;
            seen.open += 1;
        });
        let open = Open { id, shared: Arc::clone(&shared) };
        connections.spawn(async move { open.carry(client).await });
    }
}

async fn accept(shared: &Shared) -> TcpStream {
    let mut changed = shared.changed.subscribe();
    loop {
        changed.mark_unchanged();
        let accepted =
            std::future::poll_fn(|cx| match &*shared.listener.lock().unwrap_or_else(PoisonError::into_inner) {
                Some(listener) => listener.poll_accept(cx),
                None => Poll::Pending,
            });
        tokio::select! {
            // A connection that was closed before it was accepted needs no answer.
            accepted = accepted => if let Ok((client, _)) = accepted { return client },
            _ = changed.changed() => {}
        }
    }
}

/// A connection that counts as open until dropped.
struct Open {
    id: u64,
    shared: Arc<Shared>,
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.connections.remove(&self.id);
        self.shared.count_held(&mut state);
        self.shared.seen.send_modify(|seen| seen.open -= 1);
    }
}

/// How a direction, or a whole connection, came to its end.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The sender said that it will send no more, and the receiver knows.
    Closed,
    /// Something broke, or was to be broken.
    Reset,
}

impl Open {
    async fn carry(self, client: TcpStream) {
        let client = ResetOnDrop::new(client);
        let mut is_over = false;
        if self.wait_for_the_way(&client.stream, &mut is_over).await == Some(End::Reset) {
            return;
        }
        let target = *self.shared.target();
        let Ok(server) = TcpStream::connect(target).await else {
            return;
        };
        let server = ResetOnDrop::new(server);
        let end = {
            let mut requests = pin!(self.pump(&client.stream, &server.stream, Direction::ToServer, is_over));
            let mut replies = pin!(self.pump(&server.stream, &client.stream, Direction::ToClient, false));
            tokio::select! {
                end = &mut requests => if end == End::Reset { end } else {
                    self.forget_if_silent();
                    replies.await
                },
                end = &mut replies => if end == End::Reset { end } else { requests.await },
            }
        };
        if end == End::Closed {
            client.close();
            server.close();
        }
    }

    /// While the way to the server is cut, it must not even learn of the connection.
    async fn wait_for_the_way(&self, client: &TcpStream, is_over: &mut bool) -> Option<End> {
        let mut changed = self.shared.changed.subscribe();
        loop {
            changed.mark_unchanged();
            let has_room = {
                let mut state = self.shared.state();
                let is_cut = *state.cut.of(Direction::ToServer);
                match state.connections.get_mut(&self.id) {
                    Some(connection) if !connection.is_reset => {
                        if !is_cut {
                            return None;
                        }
                        connection.directions.to_server.bytes < HELD_AT_MOST
                    }
                    _ => return Some(End::Reset),
                }
            };
            tokio::select! {
                _ = changed.changed() => {}
                _ = client.readable(), if has_room && !*is_over => *is_over = self.take(client, Direction::ToServer),
            }
        }
    }

    /// When the client has closed its side, a silent connection has nothing left to do.
    fn forget_if_silent(&self) {
        if let Some(connection) = self.shared.state().connections.get_mut(&self.id) {
            connection.is_reset |= connection.is_silent;
        }
    }

    /// Carries one direction to its end.
    async fn pump(&self, from: &TcpStream, to: &TcpStream, direction: Direction, mut is_over: bool) -> End {
        let mut changed = self.shared.changed.subscribe();
        loop {
            changed.mark_unchanged();
            let (due, has_room) = {
                let mut state = self.shared.state();
                let due = state.due(self.id, direction);
                let Some(connection) = state.connections.get_mut(&self.id) else {
                    return End::Reset;
                };
                if connection.is_reset {
                    return End::Reset;
                }
                (due, connection.directions.of(direction).bytes < HELD_AT_MOST)
            };
            let now = Instant::now();
            tokio::select! {
                _ = changed.changed() => {}
                _ = from.readable(), if has_room && !is_over => is_over = self.take(from, direction),
                _ = to.writable(), if due.is_some_and(|due| due <= now) => match self.give(to, direction) {
                    Ok(None) => {}
                    Ok(Some(end)) => return end,
                    Err(_) => return End::Reset,
                },
                () = until(due), if due.is_some_and(|due| due > now) => {}
            }
        }
    }

    /// Takes in what has come. Says whether that was the last.
    fn take(&self, from: &TcpStream, direction: Direction) -> bool {
        let mut bytes = vec![0; 64 * 1024];
        let piece = match from.try_read(&mut bytes) {
            Ok(0) => Piece::End,
            Ok(count) => {
                bytes.truncate(count);
                Piece::Bytes(bytes, 0)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Err(_) => Piece::Broken,
        };
        let is_last = !matches!(piece, Piece::Bytes(..));
        let mut state = self.shared.state();
        let state = &mut *state;
        let Some(connection) = state.connections.get_mut(&self.id) else {
            return true;
        };
        let count = piece.len();
        if count > 0 && direction == Direction::ToServer && connection.victim.is_none() && !connection.is_silent {
            connection.victim = state.armed.take();
        }
        if count > 0
            && direction == Direction::ToClient
            && let Some(Armed { then, done }) = connection.victim.take()
        {
            match then {
                Then::Close => {
                    connection.is_reset = true;
                    // The other direction has to learn of it as well.
                    self.shared.changed.send_replace(());
                }
                Then::Silence => connection.is_silent = true,
            }
            self.shared.seen.send_modify(|seen| seen.replies_dropped += 1);
            // No task waits for it.
            let _ = done.send(count);
            return false;
        }
        // A connection that has gone silent ends in silence too.
        if connection.is_silent && direction == Direction::ToClient {
            return is_last;
        }
        let buffer = connection.directions.of(direction);
        buffer.queue.push_back((Instant::now(), piece));
        buffer.bytes += count;
        self.shared.count_held(state);
        is_last
    }

    /// Passes the first piece on, or as much of it as fits, if it may still pass.
    fn give(&self, to: &TcpStream, direction: Direction) -> io::Result<Option<End>> {
        let mut state = self.shared.state();
        let state = &mut *state;
        if state.due(self.id, direction).is_none_or(|due| due > Instant::now()) {
            return Ok(None);
        }
        let Some(connection) = state.connections.get_mut(&self.id) else {
            return Ok(Some(End::Reset));
        };
        if connection.is_reset {
            return Ok(Some(End::Reset));
        }
        let buffer = connection.directions.of(direction);
        let Some((_, piece)) = buffer.queue.front_mut() else {
            return Ok(None);
        };
        match piece {
            Piece::End => {
                rustix::net::shutdown(to, rustix::net::Shutdown::Write)?;
                return Ok(Some(End::Closed));
            }
            Piece::Broken => return Ok(Some(End::Reset)),
            Piece::Bytes(bytes, gone) => {
                let count = match to.try_write(&bytes[*gone..]) {
                    Ok(count) => count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                    Err(error) => return Err(error),
                };
                *gone += count;
                let is_whole = *gone == bytes.len();
                buffer.bytes -= count;
                if is_whole {
                    buffer.queue.pop_front();
                }
                self.shared.seen.send_modify(|seen| *seen.passed(direction) += count as u64);
            }
        }
        self.shared.count_held(state);
        Ok(None)
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

/// A connection that is reset when dropped, unless closed before.
struct ResetOnDrop {
    stream: TcpStream,
    is_closed: bool,
}

impl ResetOnDrop {
    fn new(stream: TcpStream) -> Self {
        // A proxy should not add to the delay, and works as well if it does.
        let _ = stream.set_nodelay(true);
        Self { stream, is_closed: false }
    }

    fn close(mut self) {
        self.is_closed = true;
    }
}

impl Drop for ResetOnDrop {
    fn drop(&mut self) {
        if !self.is_closed {
            // The only thing that can fail here is a connection that is already gone.
            let _ = self.stream.set_zero_linger();
        }
    }
}
