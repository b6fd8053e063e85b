//! A session with the ensemble: proofs that it lives, and the nodes below its root.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oarlock_core::clock::{BootClock, Clock, Moment};
use oarlock_core::driver::{Grant, Lease};
use oarlock_core::reconnect::Ends;
use oarlock_core::{Fence, ResourceName, Result};
use zookeeper_client as zk;

use crate::compat::Dialect;
use crate::config::{Config, Layout};
use crate::connection::Connection;
use crate::error::from_zk;
use crate::memo::ANY;
use crate::names::escape;
use crate::queue::Queue;
use crate::record::{FORMAT, RootRecord, read, write};
use crate::resume::{Life, begin, believable};
use crate::route::Known;
use crate::servers::Servers;
use crate::unknown_nodes::UnknownNodes;

/// The folder of mailboxes: one node for each client, through which others notify it. No resource has a node with this
/// name.
const CLIENTS: &str = ".clients";

/// A session on one of its connections: claims live and die with the session, and survive the connection.
pub(crate) struct Session {
    pub(crate) client: zk::Client,
    pub(crate) connection: Connection,
    pub(crate) id: i64,
    pub(crate) life: Arc<Life>,
    root: String,
    layout: Layout,
    acls: zk::Acls<'static>,
    /// When the last request was sent, in nanoseconds, that a majority agreed to: the session lived on after that.
    ///
    /// Another connection starts without one: its server may not have caught up with what an earlier one has shown us.
    proven: AtomicU64,
    pub(crate) unknown: UnknownNodes,
}

impl Session {
    /// Begins a session.
    pub(crate) async fn begin(config: Config, servers: Arc<Servers>) -> Result<Self> {
        let (connection, life) = begin(&config, &servers).await?;
        let session = Self::on(&config, connection, life, UnknownNodes::default());
        if session.layout == Layout::Native {
            session.make_root().await?;
        }
        Ok(session)
    }

    pub(crate) fn on(config: &Config, connection: Connection, life: Arc<Life>, unknown: UnknownNodes) -> Self {
        let acls = if config.credentials().is_some() { zk::Acls::creator_all() } else { zk::Acls::anyone_all() };
        let (root, layout, proven) = (config.root.clone(), config.layout, AtomicU64::new(0));
        let (client, id) = (connection.client.clone(), life.id);
        Self { client, connection, id, life, root, layout, acls, proven, unknown }
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
                // A root that was created by hand, to grant permissions on it, need not have a record.
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

    /// How long an answer on this connection may be believed.
    pub(crate) fn lease_ttl(&self, asked: Duration) -> Duration {
        believable(self.client.session_timeout()).min(asked)
    }

    /// A grant of a claim in this session.
    pub(crate) fn grant(&self, fence: Fence, lease: Lease) -> Grant {
        let mut grant = Grant::new(fence, lease);
        grant.ends_with = Some(self.life.over.clone());
        grant
    }

    /// What a request is worth that a majority agreed to.
    pub(crate) fn lease(&self, asked: Duration) -> Result<Lease> {
        self.promise(Lease::of(self.lease_ttl(asked)))
    }

    /// Notes how long a lease will be believed, before anything believes in it. An answer that is read after its
    /// connection has ended is worth nothing: the session may be on another server by now.
    fn promise(&self, lease: Lease) -> Result<Lease> {
        let until = || self.life.promise(lease.from.unwrap_or_else(|| BootClock.now()) + lease.ttl);
        let promised = self.connection.alive.while_alive(until);
        promised.map(|()| lease).ok_or_else(|| from_zk(zk::Error::ConnectionLoss))
    }

    /// A majority agreed to a request of this session that was sent then.
    pub(crate) fn prove(&self, sent: Moment) {
        self.proven.fetch_max(sent.as_nanos(), Ordering::AcqRel);
    }

    /// Whether the session of this node was proven to live on this connection, so recently that no other proof is
    /// needed.
    ///
    /// With such a proof any server may be read, also one that lags behind: a claim that was first in the queue at
    /// some time after its node was created stays first until its node is gone.
    pub(crate) fn is_proven(&self, known: &Known) -> bool {
        let proven = Moment::from_nanos(self.proven.load(Ordering::Acquire));
        let ours = matches!(known, Known::At(node) if node.session == self.id);
        ours && BootClock.now().since(proven) <= self.client.session_timeout() / 4
    }

    /// What a read is worth: it proves nothing by itself, and counts from the last proof.
    pub(crate) fn lease_since_proof(&self, asked: Duration) -> Result<Lease> {
        let proven = Moment::from_nanos(self.proven.load(Ordering::Acquire));
        let ttl = believable(self.client.session_timeout());
        let left = (proven + ttl).since(BootClock.now());
        self.promise(if left < asked { Lease::sent_at(proven, ttl) } else { Lease::of(asked) })
    }

    /// Requests something that only a majority can agree to, and that changes nothing: a server that is cut off, also
    /// a leader, goes on answering reads (and `sync`) for a while. Later requests on this connection are not older
    /// than that.
    pub(crate) fn agree(&self, path: &str) -> impl Future<Output = Result<(), zk::Error>> + Send + use<'_> {
        let (sent, mut check) = (BootClock.now(), self.client.new_multi_writer());
        // Sent at once, and not when the answer is waited for.
        let agreed = check.add_check_version(path, ANY).map(|()| check.commit());
        async move {
            match agreed?.await {
                // That a node does not exist, or may not be read, is also something that a majority agreed to.
                Ok(_)
                | Err(zk::MultiWriteError::OperationFailed { source: zk::Error::NoNode | zk::Error::NoAuth, .. }) => {
                    self.prove(sent);
                    Ok(())
                }
                Err(error) => Err(error.into()),
            }
        }
    }

    /// A path for requests that concern no claim.
    pub(crate) fn root(&self) -> &str {
        if self.root.is_empty() { "/" } else { &self.root }
    }

    /// The node of a resource in the layout of another program.
    pub(crate) fn base(&self, dialect: Dialect, resource: &ResourceName) -> Result<String> {
        dialect.path(&self.root, resource)
    }

    /// The layout, if it is that of another program.
    pub(crate) fn dialect(&self) -> Option<Dialect> {
        self.layout.dialect()
    }

    /// A node of this client belongs to another session: the server has replaced this one.
    pub(crate) fn give_up(&self) {
        self.life.finish();
    }

    pub(crate) fn parent(&self, resource: &ResourceName) -> String {
        format!("{}/{}", self.root, escape(resource.as_str()))
    }

    fn clients(&self) -> String {
        format!("{}/{CLIENTS}", self.root)
    }

    /// The mailbox of a client.
    pub(crate) fn mailbox(&self, session: i64) -> String {
        format!("{}/{session:016x}", self.clients())
    }

    pub(crate) fn options(&self, mode: zk::CreateMode) -> zk::CreateOptions<'_> {
        mode.with_acls(self.acls)
    }

    /// The claims below `parent` as a majority has them now, which also proves that the session lives.
    pub(crate) async fn poll(&self, parent: &str) -> Result<Queue> {
        let (agreed, peek) = (self.agree(parent), self.peek(parent));
        agreed.await.map_err(from_zk)?;
        peek.await
    }

    /// The claims below `parent` as the connected server has them.
    pub(crate) fn peek(&self, parent: &str) -> impl Future<Output = Result<Queue>> + Send + use<> {
        // Sent at once, and not when the answer is waited for.
        let (children, unknown, parent) = (self.client.get_children(parent), self.unknown.clone(), parent.to_owned());
        async move {
            let found = if_there(children.await)?;
            Ok(found.map_or_else(Queue::default, |(children, above)| unknown.queue(&parent, children, &above)))
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

impl Ends for Session {
    fn is_ended(&self) -> bool {
        self.life.is_over() || self.connection.has_ended()
    }
}
