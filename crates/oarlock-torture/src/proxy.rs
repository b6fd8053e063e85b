//! A TCP proxy that misbehaves on request.
//!
//! It runs on a thread of its own, in real time, so that neither a test that blocks nor one with a paused clock
//! changes what it does. It knows bytes and directions, not messages: a *reply* is whatever the server sends after a
//! request.

mod connection;
mod state;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;

use self::connection::serve;
use self::state::{Armed, Shared};
use crate::ports::Port;

pub use self::state::Seen;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client: requests.
    ToServer,
    /// From the server: replies.
    ToClient,
}

/// What becomes of the connection whose reply was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// Both ends see it reset.
    Close,
    /// It stays open and requests still pass, but no answer of the server ever arrives on it.
    Silence,
}

/// What becomes of the connections that a cut has held up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// What was held is delivered now, late and complete.
    Deliver,
    /// What was held is lost, and the connections go on. To a protocol of whole messages these were never sent.
    Drop,
    /// What was held is lost, and every connection is reset.
    Reset,
}

/// A proxy in front of one server. Dropped, it resets its connections.
///
/// A control counts from the moment its call returns, for existing connections too: from then on, not a byte passes
/// against it. Controls add up until [`Proxy::heal`] ends them all.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    port: Port,
    quit: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy for the server at `target`, which need not be there yet.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn start(target: SocketAddr) -> io::Result<Self> {
        let port = Port::reserve()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let shared = Arc::new(Shared::new(runtime.handle().clone(), target));
        if let Err(error) = shared.listen(port.addr()) {
            // A caller may be asynchronous, and must not wait for the end of a runtime.
            runtime.shutdown_background();
            return Err(error);
        }
        let (quit, quitting) = oneshot::channel();
        let served = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("proxy".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serve(served) => {}
                    _ = quitting => {}
                }
            });
        })?;
        Ok(Self { shared, port, quit: Some(quit), thread: Some(thread) })
    }

    /// The address to connect to instead of the server's.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// The same address in place of the server's in one of its URLs.
    ///
    /// `server` is the address that the URL names.
    #[must_use]
    pub fn url(&self, url: &str, server: SocketAddr) -> String {
        url.replace(&server.to_string(), &self.addr().to_string())
    }

    /// Lets new connections lead to another server, as an address does that moved with a failover. Those that are open
    /// stay where they are.
    pub fn aim(&self, target: SocketAddr) {
        *self.shared.target() = target;
    }

    /// Lets everything in this direction arrive this much later, what is under way included.
    pub fn delay(&self, direction: Direction, by: Duration) {
        self.shared.change(|state| *state.delay.of(direction) = by);
    }

    /// A black hole: connections are accepted and stay open, and nothing passes either way, not even their end.
    pub fn cut(&self) {
        self.shared.change(|state| {
            state.cut.to_server = true;
            state.cut.to_client = true;
        });
    }

    /// A black hole for this direction alone. The other one stays as it is.
    pub fn cut_one_way(&self, direction: Direction) {
        self.shared.change(|state| *state.cut.of(direction) = true);
    }

    /// A black hole for the connections that are open now, as of a firewall that has forgotten them. New ones pass.
    pub fn strand(&self) {
        self.shared.change(state::State::strand_all);
    }

    /// Resets the connections that were stranded, and no others.
    pub fn reset_stranded(&self) {
        self.shared.change(state::State::reset_stranded);
    }

    /// Loses the reply to the next request, on whichever connection that comes. The request passes.
    ///
    /// What is lost begins with the first bytes from the server after the request. A protocol that mixes other
    /// messages with its replies is safe with [`Then::Silence`] alone: with [`Then::Close`] the connection may end
    /// before the server has done what it was asked.
    pub fn drop_next_reply(&self, then: Then) -> Dropped {
        let (done, dropped) = oneshot::channel();
        self.shared.change(|state| state.armed = Some(Armed { then, done }));
        Dropped(dropped)
    }

    /// Resets every connection, and refuses new ones.
    pub fn refuse(&self) {
        drop(self.shared.listener.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.shared.change(state::State::reset_all);
    }

    /// Ends every fault: no delay, no cut, no reply to drop, nothing refused.
    ///
    /// A connection that has lost a reply in silence stays silent.
    ///
    /// # Errors
    /// When it refused connections and cannot listen again.
    pub fn heal(&self, held: Held) -> io::Result<()> {
        self.shared.change(|state| state.heal(held));
        self.shared.listen(self.addr())
    }

    /// What it has seen so far.
    #[must_use]
    pub fn seen(&self) -> Seen {
        *self.shared.seen.borrow()
    }

    /// Waits until it has seen what `enough` asks for, and says what that was.
    ///
    /// # Cancel safety
    /// Nothing is lost when this is cancelled.
    pub async fn until(&self, mut enough: impl FnMut(&Seen) -> bool) -> Seen {
        let mut seen = self.shared.seen.subscribe();
        loop {
            let now = *seen.borrow_and_update();
            // The sender lives as long as we do.
            if enough(&now) || seen.changed().await.is_err() {
                return now;
            }
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.quit.take());
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed where it happened.
            let _ = thread.join();
        }
    }
}

/// A reply that is to be lost.
#[derive(Debug)]
pub struct Dropped(oneshot::Receiver<usize>);

impl Dropped {
    /// Waits until it has been lost, and says how long its first piece was: nothing when the fault ended before.
    pub async fn wait(self) -> Option<usize> {
        self.0.await.ok()
    }
}
