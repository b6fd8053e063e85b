//! The session with the ensemble, and what this process knows of its own places.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oarlock_core::clock::{BootClock, Clock, Moment};
use oarlock_core::driver::Lease;
use oarlock_core::reconnect::{Ends, Reopened};
use oarlock_core::{ClaimId, Error, ErrorKind, Fence, ResourceName, Result};
use tokio::runtime::Handle;
use zookeeper_client as zk;

use crate::config::{Config, Layout};
use crate::connection::Connection;
use crate::error::{SCHEME, closed, from_zk};
use crate::foreign::Dialect;
use crate::memo::ANY;
use crate::names::escape;
use crate::queue::Queue;
use crate::record::{FORMAT, RootRecord, read, write};
use crate::resume::{Life, begin, believable, patience, resume};
use crate::servers::Servers;
use crate::strangers::Strangers;

/// Where each client has a node through which others get its attention. No resource has a node with this name.
const CLIENTS: &str = ".clients";

/// A session on one of its connections: claims live and die with the session, and survive the connection.
pub(crate) struct Session {
    pub(crate) client: zk::Client,
    pub(crate) connection: Connection,
    pub(crate) id: i64,
    life: Arc<Life>,
    root: String,
    layout: Layout,
    acls: zk::Acls<'static>,
    /// When the last request was sent, in nanoseconds, that a majority agreed to: the session lived on after that.
    ///
    /// Another connection starts without one: its server may not have caught up with what an earlier one has shown us.
    proven: AtomicU64,
    pub(crate) strangers: Strangers,
}

impl Session {
    /// Begins a session.
    async fn begin(config: Config, servers: Arc<Servers>) -> Result<Self> {
        let (connection, life) = begin(&config, &servers).await?;
        let session = Self::on(&config, connection, life, Strangers::default());
        if session.layout == Layout::Native {
            session.make_root().await?;
        }
        Ok(session)
    }

    fn on(config: &Config, connection: Connection, life: Arc<Life>, strangers: Strangers) -> Self {
        let acls = if config.credentials().is_some() { zk::Acls::creator_all() } else { zk::Acls::anyone_all() };
        let (root, layout, proven) = (config.root.clone(), config.layout, AtomicU64::new(0));
        let (client, id) = (connection.client.clone(), life.id);
        Self { client, connection, id, life, root, layout, acls, proven, strangers }
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

    /// How long a request may be believed that was answered on this connection.
    pub(crate) fn lease_ttl(&self, asked: Duration) -> Duration {
        believable(self.client.session_timeout()).min(asked)
    }

    /// What a request is worth that a majority agreed to.
    pub(crate) fn lease(&self, asked: Duration) -> Result<Lease> {
        self.promise(Lease::of(self.lease_ttl(asked)))
    }

    /// Notes how long a lease will be believed, before anything believes in it. An answer that is read after its connection has
    /// ended is worth nothing: the session may be on another server by now.
    fn promise(&self, lease: Lease) -> Result<Lease> {
        let until = || self.life.promise(lease.from.unwrap_or_else(|| BootClock.now()) + lease.ttl);
        let promised = self.connection.standing.meanwhile(until);
        promised.map(|()| lease).ok_or_else(|| from_zk(zk::Error::ConnectionLoss))
    }

    /// A majority agreed to a request of this session that was sent then.
    pub(crate) fn prove(&self, sent: Moment) {
        self.proven.fetch_max(sent.as_nanos(), Ordering::AcqRel);
    }

    /// Whether the session of this place was proven to live on this connection, so lately that no other proof is needed.
    ///
    /// With such a proof any server may be asked for the others, also one that lags behind: whoever was first in line at some
    /// time after its node was made stays it until its node is gone.
    pub(crate) fn is_proven(&self, known: &Known) -> bool {
        let proven = Moment::from_nanos(self.proven.load(Ordering::Acquire));
        let ours = matches!(known, Known::At(place) if place.session == self.id);
        ours && BootClock.now().since(proven) <= self.client.session_timeout() / 4
    }

    /// What a look is worth: it proves nothing by itself, and counts from the last proof.
    pub(crate) fn lease_since_proof(&self, asked: Duration) -> Result<Lease> {
        let proven = Moment::from_nanos(self.proven.load(Ordering::Acquire));
        let ttl = believable(self.client.session_timeout());
        let left = (proven + ttl).since(BootClock.now());
        self.promise(if left < asked { Lease { from: Some(proven), ttl } } else { Lease::of(asked) })
    }

    /// Asks for something that only a majority can agree to, and that changes nothing: a server that is cut off from the others,
    /// also a leader, goes on answering questions (`sync` too) for a while. Whatever is asked for on this connection
    /// afterwards is not older than that.
    pub(crate) fn agree(&self, path: &str) -> impl Future<Output = Result<(), zk::Error>> + Send + use<'_> {
        let (sent, mut check) = (BootClock.now(), self.client.new_multi_writer());
        // Sent at once, and not when the answer is waited for.
        let agreed = check.add_check_version(path, ANY).map(|()| check.commit());
        async move {
            match agreed?.await {
                // Also that a node is not there, or not ours to see, is something that they agreed to.
                Ok(_)
                | Err(zk::MultiWriteError::OperationFailed { source: zk::Error::NoNode | zk::Error::NoAuth, .. }) => {
                    self.prove(sent);
                    Ok(())
                }
                Err(error) => Err(error.into()),
            }
        }
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

    /// A node of ours was made by another session: the server has replaced this one.
    pub(crate) fn give_up(&self) {
        self.life.finish();
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

    /// The claims below `parent` as a majority has them now, which also proves that the session lives.
    pub(crate) async fn look(&self, parent: &str) -> Result<Queue> {
        let (agreed, glance) = (self.agree(parent), self.glance(parent));
        agreed.await.map_err(from_zk)?;
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

impl Ends for Session {
    fn is_ended(&self) -> bool {
        self.life.is_over() || self.connection.has_ended()
    }
}

/// The way to the ensemble: one session at a time, opened when it is needed.
#[derive(Debug)]
pub(crate) struct Link {
    config: Config,
    servers: Arc<Servers>,
    sessions: Reopened<Session>,
    /// What outlives a connection.
    last: Arc<Mutex<Last>>,
    places: Mutex<HashMap<ClaimId, Known>>,
}

/// The last session that there was.
#[derive(Debug)]
struct Last {
    life: Arc<Life>,
    strangers: Strangers,
}

impl Last {
    fn of(session: &Session) -> Self {
        Self { life: session.life.clone(), strangers: session.strangers.clone() }
    }
}

impl Link {
    pub(crate) async fn open(config: Config) -> Result<Self> {
        let whole_tree = config.root.is_empty() && config.layout != Layout::Native;
        if !whole_tree && (!config.root.starts_with('/') || config.root.ends_with('/')) {
            let message = "the root is an absolute path without a slash at its end";
            return Err(Error::new(ErrorKind::Config, message).on(SCHEME));
        }
        // Sessions live on the runtime that the driver was opened on, whichever runtime asks for one.
        let runtime = Handle::try_current()
            .map_err(|error| Error::new(ErrorKind::Config, "a tokio runtime is needed").because(error))?;
        let servers = Arc::new(Servers::of(&config.hosts));
        let session = Session::begin(config.clone(), servers.clone()).await?;
        let (last, sessions) = (Arc::new(Mutex::new(Last::of(&session))), Reopened::new(SCHEME).on(runtime));
        sessions.put(Arc::new(session)).map_err(|_| closed())?;
        Ok(Self { config, servers, sessions, last, places: Mutex::default() })
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

    /// The session, on another connection if it has lost its own; `None` if it is over.
    pub(crate) async fn last_session(&self) -> Result<Option<Arc<Session>>> {
        if let Some(session) = self.sessions.current() {
            return Ok(Some(session));
        }
        let (life, strangers) = {
            let last = last(&self.last);
            (last.life.clone(), last.strangers.clone())
        };
        if life.is_over() {
            return Ok(None);
        }
        let resumed = {
            let (config, servers, life) = (self.config.clone(), self.servers.clone(), life.clone());
            let resume = async move {
                let connection = resume(&config, &servers, &life).await?;
                Ok(Session::on(&config, connection, life, strangers))
            };
            self.sessions.get(|| resume).await
        };
        match resumed {
            Err(_) if life.is_over() => Ok(None),
            resumed => resumed.map(Some),
        }
    }

    /// The session, or a new one if it is over.
    pub(crate) async fn session(&self) -> Result<Arc<Session>> {
        if let Some(session) = self.last_session().await? {
            return Ok(session);
        }
        let (config, servers, kept) = (self.config.clone(), self.servers.clone(), self.last.clone());
        let begin = async move {
            let session = Session::begin(config, servers).await?;
            *last(&kept) = Last::of(&session);
            Ok(session)
        };
        self.sessions.get(|| begin).await
    }

    /// Ends the session, and waits until the server has heard of it or the connection has ended. A request that is under way and not
    /// polled keeps the session: after a while its connection is ended, and the session ends by its time-out.
    pub(crate) async fn close(&self) {
        let Some(session) = self.sessions.close() else { return };
        let (end, stop) = (session.connection.end(), session.connection.stop());
        let limit = patience(session.client.session_timeout());
        // The client closes its session when the last handle to it is gone.
        drop(session);
        if tokio::time::timeout(limit, end).await.is_err() {
            stop();
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

fn last(last: &Mutex<Last>) -> MutexGuard<'_, Last> {
    last.lock().unwrap_or_else(PoisonError::into_inner)
}
