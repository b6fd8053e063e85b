//! The way to the ensemble: the current session, and what this process knows of the nodes of its claims.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oarlock_core::reconnect::Reopened;
use oarlock_core::{ClaimId, Error, ErrorKind, Fence, ResourceName, Result};
use tokio::runtime::Handle;

use crate::compat::Dialect;
use crate::config::{Config, Layout};
use crate::error::{SCHEME, closed};
use crate::resume::{Life, patience, resume};
use crate::servers::Servers;
use crate::session::Session;
use crate::unknown_nodes::UnknownNodes;

/// The node of a claim of this process.
#[derive(Clone, Debug)]
pub(crate) struct ClaimNode {
    pub(crate) session: i64,
    pub(crate) name: String,
    /// The transaction that made it.
    pub(crate) made: i64,
    /// Of its grant, once it has one.
    pub(crate) fence: Option<Fence>,
    /// No other node of its claim exists, and none can still be created.
    pub(crate) sole: bool,
}

impl ClaimNode {
    /// Its node in full. In the layouts of other programs its name is the path.
    pub(crate) fn path(&self, session: &Session, resource: &ResourceName) -> String {
        if self.name.starts_with('/') {
            self.name.clone()
        } else {
            format!("{}/{}", session.parent(resource), self.name)
        }
    }
}

/// What this process knows of a claim's node.
#[derive(Clone, Debug)]
pub(crate) enum Known {
    /// None was ever requested.
    Nothing,
    /// It was requested, and no answer came.
    Doubt,
    /// It has one.
    At(ClaimNode),
}

/// The way to the ensemble: one session at a time, opened when it is needed.
#[derive(Debug)]
pub(crate) struct Route {
    config: Config,
    servers: Arc<Servers>,
    sessions: Reopened<Session>,
    /// What outlives a connection.
    last: Arc<Mutex<Last>>,
    nodes: Mutex<HashMap<ClaimId, Known>>,
}

/// The last session.
#[derive(Debug)]
struct Last {
    life: Arc<Life>,
    unknown: UnknownNodes,
}

impl Last {
    fn of(session: &Session) -> Self {
        Self { life: session.life.clone(), unknown: session.unknown.clone() }
    }
}

impl Route {
    pub(crate) async fn open(config: Config) -> Result<Self> {
        let whole_tree = config.root.is_empty() && config.layout != Layout::Native;
        if !whole_tree && (!config.root.starts_with('/') || config.root.ends_with('/')) {
            let message = "the root is an absolute path without a slash at its end";
            return Err(Error::new(ErrorKind::Config, message).on(SCHEME));
        }
        // Sessions live on the runtime that the driver was opened on, whichever runtime asks for one.
        let runtime = Handle::try_current()
            .map_err(|error| Error::new(ErrorKind::Config, "a tokio runtime is needed").because(error))?;
        let servers = Arc::new(Servers::from_config(&config)?);
        let session = Session::begin(config.clone(), servers.clone()).await?;
        let (last, sessions) = (Arc::new(Mutex::new(Last::of(&session))), Reopened::new(SCHEME).on(runtime));
        sessions.put(Arc::new(session)).map_err(|_| closed())?;
        Ok(Self { config, servers, sessions, last, nodes: Mutex::default() })
    }

    pub(crate) fn address(&self) -> String {
        let address = format!("{}{}", self.config.hosts.join(","), self.config.root);
        match self.dialect() {
            None => address,
            // Another layout is another store.
            Some(dialect) => format!("{address}?layout={}", dialect.name()),
        }
    }

    pub(crate) fn dialect(&self) -> Option<Dialect> {
        self.config.layout.dialect()
    }

    /// The session, on another connection if it has lost its own; `None` if it is over.
    pub(crate) async fn last_session(&self) -> Result<Option<Arc<Session>>> {
        if let Some(session) = self.sessions.current() {
            return Ok(Some(session));
        }
        let (life, unknown) = {
            let last = last(&self.last);
            (last.life.clone(), last.unknown.clone())
        };
        if life.is_over() {
            return Ok(None);
        }
        let resumed = {
            let (config, servers, life) = (self.config.clone(), self.servers.clone(), life.clone());
            let resume = async move {
                let connection = resume(&config, &servers, &life).await?;
                Ok(Session::on(&config, connection, life, unknown))
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

    /// Ends the session, and waits until the server has confirmed it or the connection has ended. A request that is
    /// under way and not polled keeps the session: after a while its connection is ended, and the session expires.
    pub(crate) async fn close(&self) {
        let session = self.sessions.close();
        // Before the ensemble hears of it, and also while the session has no connection. It wakes tasks: not while this
        // client holds its mutex, which they may want.
        let life = last(&self.last).life.clone();
        life.finish();
        let Some(session) = session else { return };
        let (end, stop) = (session.connection.end(), session.connection.stop());
        let limit = patience(session.client.session_timeout());
        // The client closes its session when the last handle to it is gone.
        drop(session);
        if tokio::time::timeout(limit, end).await.is_err() {
            stop();
        }
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<ClaimId, Known>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn known(&self, id: ClaimId) -> Known {
        self.nodes().get(&id).cloned().unwrap_or(Known::Nothing)
    }

    pub(crate) fn note(&self, id: ClaimId, known: Known) {
        self.nodes().insert(id, known);
    }

    pub(crate) fn forget(&self, id: ClaimId) {
        self.nodes().remove(&id);
    }

    /// Forgets this node of a claim, which may have another one by now.
    pub(crate) fn forget_node(&self, id: ClaimId, gone: &ClaimNode) {
        let mut nodes = self.nodes();
        if matches!(nodes.get(&id), Some(Known::At(node)) if node.name == gone.name && node.session == gone.session) {
            nodes.remove(&id);
        }
    }
}

fn last(last: &Mutex<Last>) -> MutexGuard<'_, Last> {
    last.lock().unwrap_or_else(PoisonError::into_inner)
}
