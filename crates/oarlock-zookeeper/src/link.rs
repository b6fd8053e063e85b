//! The session with the ensemble, and what this process knows of its own places.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use oarlock_core::clock::{BootClock, Clock, Moment};
use oarlock_core::driver::Lease;
use oarlock_core::{ClaimId, Error, ErrorKind, Fence, ResourceName, Result};
use tokio::runtime::Handle;
use zookeeper_client as zk;

use crate::config::{Config, Layout};
use crate::error::{SCHEME, closed, from_zk};
use crate::foreign::Dialect;
use crate::names::escape;
use crate::queue::Queue;
use crate::record::{FORMAT, RootRecord, read, write};
use crate::strangers::Strangers;

/// Where each client has a node through which others get its attention. No resource has a node with this name.
const CLIENTS: &str = ".clients";

/// One session: claims live and die with it, and it never comes back once it has ended.
pub(crate) struct Session {
    pub(crate) client: zk::Client,
    pub(crate) id: i64,
    root: String,
    layout: Layout,
    acls: zk::Acls<'static>,
    /// Connections so far: on each new one a server might have given us another session without a word.
    connections: Mutex<(zk::StateWatcher, u64)>,
    /// The last of them on which it was found to be ours.
    verified: AtomicU64,
    /// It did: claims end with the session they were made in.
    replaced: AtomicBool,
    /// When the last request was sent, in nanoseconds, that a majority agreed to: the session lived on after that.
    proven: AtomicU64,
    pub(crate) strangers: Strangers,
}

impl Session {
    async fn open(config: &Config) -> Result<Self> {
        let timeout = config.session_timeout;
        let mut connector = zk::Client::connector().with_session_timeout(timeout);
        // A dead server is given up on early enough for another to be found within the lease.
        connector = connector.with_connection_timeout(timeout * 3 / 10);
        let mut acls = zk::Acls::anyone_all();
        if let Some(credentials) = config.credentials() {
            connector = connector.with_auth("digest", credentials.as_bytes());
            acls = zk::Acls::creator_all();
        }
        let client = connector.connect(&config.hosts.join(",")).await.map_err(from_zk)?;
        let (id, mut states) = (client.session_id().0, client.state_watcher());
        states.state();
        let (root, layout) = (config.root.clone(), config.layout);
        let (connections, verified, replaced) = (Mutex::new((states, 0)), AtomicU64::new(0), AtomicBool::new(false));
        let (proven, strangers) = (AtomicU64::new(0), Strangers::default());
        let session = Self { client, id, root, layout, acls, connections, verified, replaced, proven, strangers };
        if session.layout == Layout::Native {
            session.make_root().await?;
        }
        Ok(session)
    }

    pub(crate) async fn make_root(&self) -> Result<()> {
        let persistent = zk::CreateMode::Persistent.with_acls(self.acls);
        let (root, format) = (&self.root, write(&RootRecord { format: FORMAT })?);
        let mut made = self.client.create(root, &format, &persistent).await;
        if made == Err(zk::Error::NoNode) {
            let above = root.rsplit_once('/').map_or("", |(above, _)| above);
            self.client.mkdir(above, &persistent).await.map_err(from_zk)?;
            made = self.client.create(root, &format, &persistent).await;
        }
        match made {
            Ok(_) => {}
            Err(zk::Error::NodeExists) => {
                let (data, _) = self.client.get_data(root).await.map_err(from_zk)?;
                // Whoever made it for us by hand, to give us rights on it, need not know our format.
                if !data.is_empty() {
                    read::<RootRecord>(root, &data)?;
                }
            }
            Err(error) => return Err(from_zk(error)),
        }
        let made = self.client.create(&self.clients(), b"", &persistent).await;
        if let Err(error) = made
            && error != zk::Error::NodeExists
        {
            return Err(from_zk(error));
        }
        Ok(())
    }

    /// What an answered request is worth.
    ///
    /// The leader alone ends sessions, and hears of the requests that other servers answer when it pings them, every
    /// half tick. Until then it counts from the sign of life before, which the client gives after 9/80 of a session without
    /// a request. A quarter covers both in sessions of four ticks and more, which is what the page asks for.
    pub(crate) fn lease(&self, asked: Duration) -> Lease {
        Lease::of((self.client.session_timeout() * 3 / 4).min(asked))
    }

    /// What an answer is worth that a majority was not asked for. A leader that is cut off from the others answers until it
    /// notices, a tick or so after they did; they give every session its whole time anew.
    fn lease_by_look(&self, asked: Duration) -> Lease {
        Lease::of((self.client.session_timeout() / 2).min(asked))
    }

    /// A majority agreed to a request of this session that was sent then.
    pub(crate) fn prove(&self, sent: Moment) {
        self.proven.fetch_max(sent.as_nanos(), Ordering::AcqRel);
    }

    /// When the session of this place was last proven to live, if that is worth more than a look now would be.
    ///
    /// With such a proof any server may be asked for the others, also one that lags behind: whoever was first in line at some
    /// time after its node was made stays it until its node is gone.
    pub(crate) fn proof(&self, known: &Known) -> Option<Moment> {
        let proven = Moment::from_nanos(self.proven.load(Ordering::Acquire));
        let ours = matches!(known, Known::At(place) if place.session == self.id);
        (ours && BootClock.now().since(proven) <= self.client.session_timeout() / 4).then_some(proven)
    }

    /// What a look is worth: by the proof that there was before it, or by itself.
    pub(crate) fn lease_with(&self, proof: Option<Moment>, asked: Duration) -> Lease {
        let Some(proven) = proof else { return self.lease_by_look(asked) };
        let ttl = self.client.session_timeout() * 3 / 4;
        let left = (proven + ttl).since(BootClock.now());
        if left < asked { Lease { from: Some(proven), ttl } } else { Lease::of(asked) }
    }

    /// Where the ensemble is asked about nothing in particular.
    pub(crate) fn root(&self) -> &str {
        if self.root.is_empty() { "/" } else { &self.root }
    }

    /// The node of a resource in the layout of others.
    pub(crate) fn base(&self, dialect: Dialect, resource: &ResourceName) -> Result<String> {
        dialect.path(&self.root, resource)
    }

    /// Whose layout it is, if not our own.
    pub(crate) fn dialect(&self) -> Option<Dialect> {
        self.layout.dialect()
    }

    /// Whether it has ended, or another has been put in its place.
    pub(crate) fn has_ended(&self) -> bool {
        self.replaced.load(Ordering::Acquire) || self.client.state().is_terminated()
    }

    /// A node of ours was made by another session: the server has replaced this one.
    pub(crate) fn give_up(&self) {
        self.replaced.store(true, Ordering::Release);
    }

    /// The number of the present connection.
    fn connection(&self) -> u64 {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if connections.0.changed().now_or_never().is_some() {
            connections.1 += 1;
        }
        connections.1
    }

    /// Whether a node that this session owns is also owned by whatever session answers us now. Only a new connection can
    /// change that, so nothing is asked on one that was found right.
    pub(crate) async fn still_owns(&self, path: &str) -> Result<bool> {
        let connection = self.connection();
        if self.verified.load(Ordering::Acquire) == connection {
            return Ok(true);
        }
        let ours = match self.client.list_ephemerals(path).await {
            Ok(paths) => paths.iter().any(|owned| owned == path),
            // Servers before 3.6 cannot be asked, and do not do this.
            Err(zk::Error::Unimplemented) => true,
            Err(error) => return Err(from_zk(error)),
        };
        if ours {
            self.verified.store(connection, Ordering::Release);
        } else {
            self.give_up();
        }
        Ok(ours)
    }

    pub(crate) fn parent(&self, resource: &ResourceName) -> String {
        format!("{}/{}", self.root, escape(resource.as_str()))
    }

    fn clients(&self) -> String {
        format!("{}/{CLIENTS}", self.root)
    }

    /// The node through which a client gets attention.
    pub(crate) fn mailbox(&self, session: i64) -> String {
        format!("{}/{session:016x}", self.clients())
    }

    pub(crate) fn options(&self, mode: zk::CreateMode) -> zk::CreateOptions<'_> {
        mode.with_acls(self.acls)
    }

    /// The claims below `parent` as the leader has them now, so that nobody is taken for alive who is not.
    pub(crate) async fn look(&self, parent: &str) -> Result<Queue> {
        let (fresh, glance) = (self.client.sync(parent), self.glance(parent));
        fresh.await.map_err(from_zk)?;
        glance.await
    }

    /// The claims below `parent` as the server at hand has them.
    pub(crate) fn glance(&self, parent: &str) -> impl Future<Output = Result<Queue>> + Send + use<> {
        // Sent at once, and not when the answer is waited for.
        let (children, strangers, parent) =
            (self.client.get_children(parent), self.strangers.clone(), parent.to_owned());
        async move {
            let found = if_there(children.await)?;
            Ok(found.map_or_else(Queue::default, |(children, home)| strangers.queue(&parent, children, &home)))
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({:#x})", self.id)
    }
}

/// An answer about a node, or `None` if there is no such node.
pub(crate) fn if_there<T>(answer: Result<T, zk::Error>) -> Result<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(zk::Error::NoNode) => Ok(None),
        Err(error) => Err(from_zk(error)),
    }
}

/// The node of a claim of ours.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) session: i64,
    pub(crate) node: String,
    /// The transaction that made it.
    pub(crate) made: i64,
    /// Of its grant, once it has one.
    pub(crate) fence: Option<Fence>,
    /// There is no other node of its claim, and none can still come.
    pub(crate) sole: bool,
}

impl Place {
    /// Its node in full. In the layouts of others it is known by that already.
    pub(crate) fn path(&self, session: &Session, resource: &ResourceName) -> String {
        if self.node.starts_with('/') {
            self.node.clone()
        } else {
            format!("{}/{}", session.parent(resource), self.node)
        }
    }
}

/// What this process knows of a claim's node.
#[derive(Clone, Debug)]
pub(crate) enum Known {
    /// It never asked for one.
    Nothing,
    /// It asked, and did not hear.
    Doubt,
    /// It has one.
    At(Place),
}

/// The way to the ensemble: one session at a time, opened when it is needed.
#[derive(Debug)]
pub(crate) struct Link {
    config: Config,
    /// Sessions live on the runtime that the driver was opened on, whoever asks for one.
    home: Handle,
    opening: tokio::sync::Mutex<()>,
    session: Mutex<Slot>,
    places: Mutex<HashMap<ClaimId, Known>>,
}

#[derive(Debug)]
enum Slot {
    Open(Arc<Session>),
    Closed,
}

impl Link {
    pub(crate) async fn open(config: Config) -> Result<Self> {
        let whole_tree = config.root.is_empty() && config.layout != Layout::Native;
        if !whole_tree && (!config.root.starts_with('/') || config.root.ends_with('/')) {
            let message = "the root is an absolute path without a slash at its end";
            return Err(Error::new(ErrorKind::Config, message).on(SCHEME));
        }
        let home = Handle::try_current()
            .map_err(|error| Error::new(ErrorKind::Config, "a tokio runtime is needed").because(error))?;
        let session = Arc::new(Session::open(&config).await?);
        let (opening, session) = (tokio::sync::Mutex::default(), Mutex::new(Slot::Open(session)));
        Ok(Self { config, home, opening, session, places: Mutex::default() })
    }

    pub(crate) fn address(&self) -> String {
        let address = format!("{}{}", self.config.hosts.join(","), self.config.root);
        match self.dialect() {
            None => address,
            // What is laid out otherwise is another store.
            Some(dialect) => format!("{address}?layout={}", dialect.name()),
        }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn dialect(&self) -> Option<Dialect> {
        self.config.layout.dialect()
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session, if it has not ended.
    pub(crate) fn current(&self) -> Result<Option<Arc<Session>>> {
        match &*self.slot() {
            Slot::Closed => Err(closed()),
            Slot::Open(session) if session.has_ended() => Ok(None),
            Slot::Open(session) => Ok(Some(session.clone())),
        }
    }

    /// The session, or a new one if it has ended.
    pub(crate) async fn session(&self) -> Result<Arc<Session>> {
        if let Some(session) = self.current()? {
            return Ok(session);
        }
        let _alone = self.opening.lock().await;
        if let Some(session) = self.current()? {
            return Ok(session);
        }
        let config = self.config.clone();
        let opened = self.home.spawn(async move { Session::open(&config).await }).await;
        let session = Arc::new(opened.map_err(|error| closed().because(error))??);
        let mut slot = self.slot();
        if matches!(*slot, Slot::Closed) {
            return Err(closed());
        }
        *slot = Slot::Open(session.clone());
        Ok(session)
    }

    /// Ends the session, and waits until the server has heard of it or nobody keeps it alive any more.
    pub(crate) async fn close(&self) {
        let Slot::Open(session) = std::mem::replace(&mut *self.slot(), Slot::Closed) else { return };
        let mut states = session.client.state_watcher();
        // The client closes its session when the last handle to it is gone.
        drop(session);
        let mut state = states.peek_state();
        while !state.is_terminated() {
            state = states.changed().await;
        }
    }

    fn places(&self) -> MutexGuard<'_, HashMap<ClaimId, Known>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn known(&self, id: ClaimId) -> Known {
        self.places().get(&id).cloned().unwrap_or(Known::Nothing)
    }

    pub(crate) fn note(&self, id: ClaimId, known: Known) {
        self.places().insert(id, known);
    }

    pub(crate) fn forget(&self, id: ClaimId) {
        self.places().remove(&id);
    }

    /// Forgets this place of a claim, which may have got another since.
    pub(crate) fn forget_place(&self, id: ClaimId, gone: &Place) {
        let mut places = self.places();
        if matches!(places.get(&id), Some(Known::At(place)) if place.node == gone.node && place.session == gone.session)
        {
            places.remove(&id);
        }
    }
}
