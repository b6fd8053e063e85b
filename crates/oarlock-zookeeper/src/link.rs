//! The session with the ensemble, and what this process knows of its own places.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oarlock_core::driver::Lease;
use oarlock_core::{ClaimId, Error, ErrorKind, Fence, ResourceName, Result};
use tokio::runtime::Handle;
use zookeeper_client as zk;

use crate::config::Config;
use crate::error::{SCHEME, closed, from_zk};
use crate::names::escape;
use crate::queue::Queue;
use crate::record::{FORMAT, RootRecord, read, write};

/// Where each client has a node through which others get its attention. No resource has a node with this name.
const CLIENTS: &str = ".clients";

/// One session: claims live and die with it, and it never comes back once it has ended.
pub(crate) struct Session {
    pub(crate) client: zk::Client,
    pub(crate) id: i64,
    root: String,
    acls: zk::Acls<'static>,
}

impl Session {
    async fn open(config: &Config) -> Result<Self> {
        let timeout = config.session_timeout;
        let mut connector = zk::Client::connector().with_session_timeout(timeout);
        // A dead server is given up on early enough for another to be found within the lease.
        connector = connector.with_connection_timeout(timeout / 5);
        let mut acls = zk::Acls::anyone_all();
        if let Some(credentials) = config.credentials() {
            connector = connector.with_auth("digest", credentials.as_bytes());
            acls = zk::Acls::creator_all();
        }
        let client = connector.connect(&config.hosts.join(",")).await.map_err(from_zk)?;
        let session = Self { id: client.session_id().0, client, root: config.root.clone(), acls };
        session.make_root().await?;
        Ok(session)
    }

    async fn make_root(&self) -> Result<()> {
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
    /// half tick. A session is never shorter than two ticks, so a quarter of it covers what the leader has not heard of.
    pub(crate) fn lease(&self, asked: Duration) -> Lease {
        Lease::of((self.client.session_timeout() * 3 / 4).min(asked))
    }

    pub(crate) fn root(&self) -> &str {
        &self.root
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
        let (fresh, children) = (self.client.sync(parent), self.client.get_children(parent));
        fresh.await.map_err(from_zk)?;
        let found = if_there(children.await)?;
        Ok(found.map_or_else(Queue::default, |(children, home)| Queue::of(&children, &home)))
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
        if !config.root.starts_with('/') || config.root.ends_with('/') {
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
        format!("{}{}", self.config.hosts.join(","), self.config.root)
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session, if it has not ended.
    pub(crate) fn current(&self) -> Result<Option<Arc<Session>>> {
        match &*self.slot() {
            Slot::Closed => Err(closed()),
            Slot::Open(session) if session.client.state().is_terminated() => Ok(None),
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
