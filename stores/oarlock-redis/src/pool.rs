//! The connections of one client: which server serves a key, and where to subscribe.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use oarlock_core::driver::Watch;
use oarlock_core::{Claim, Error, ErrorKind, ResourceName, Result};

use crate::cluster::Cluster;
use crate::config::{Address, Config};
use crate::connection::{Connection, Connector, Login, Target};
use crate::error::{SCHEME, closed, unexpected};
use crate::keys::{self, Keys, NativeKey};
use crate::node::{Make, Node};
use crate::notifications::{Notifications, Source, Topic};
use crate::sentinel::Sentinels;
use crate::server_info::{Requirements, ServerInfo};

/// All connections of one client.
pub(crate) struct Pool {
    pub(crate) config: Config,
    /// Names the mailbox of this client.
    pub(crate) session: String,
    /// The channel of the mailbox, where it is not sharded.
    mailbox: String,
    required: Requirements,
    connector: Arc<Connector>,
    notifications: Arc<Notifications>,
    pub(crate) route: Route,
    closed: AtomicBool,
}

/// How to find the server for a request.
pub(crate) enum Route {
    One(Arc<Node>),
    Sentinels(Arc<Sentinels>),
    Cluster(Arc<Cluster>),
}

/// Where to send a call.
#[derive(Clone)]
pub(crate) enum Destination {
    /// To the node that serves its slot.
    SlotOwner,
    /// To this node; with `asking` for this call only (`ASK` redirection).
    Node { target: Target, asking: bool },
}

impl Pool {
    pub(crate) async fn open(config: Config) -> Result<(Self, ServerInfo)> {
        let mut bits = [0; 16];
        getrandom::fill(&mut bits)
            .map_err(|error| Error::new(ErrorKind::Os, "the system has no random numbers").on(SCHEME).because(error))?;
        let (connector, required) = (Arc::new(Connector::new(&config)?), Requirements::of(&config));
        let notifications = Notifications::new(format!("{}mail:", config.prefix));
        let node: Make = {
            let (connector, notifications) = (connector.clone(), notifications.clone());
            Arc::new(move |target| Arc::new(Node::new(target, connector.clone(), required, notifications.clone())))
        };
        let route = match &config.address {
            Address::Tcp(host, port) => Route::One(node(Target::Tcp(host.clone(), *port))),
            Address::Unix(path) => Route::One(node(Target::Unix(path.clone()))),
            Address::Sentinel { hosts, master } => {
                let (hosts, master) = (hosts.clone(), master.clone());
                let sentinels = Sentinels::new(hosts, master, connector.clone(), node, notifications.clone());
                Route::Sentinels(Arc::new(sentinels))
            }
            Address::Cluster(hosts) => {
                let seeds = hosts.iter().map(|(host, port)| Target::Tcp(host.clone(), *port)).collect();
                Route::Cluster(Arc::new(Cluster::new(seeds, node)))
            }
        };
        let session = format!("{:032x}", u128::from_be_bytes(bits));
        let pool = Self {
            mailbox: format!("{}mail:{session}", config.prefix),
            session,
            config,
            required,
            connector,
            notifications,
            route,
            closed: AtomicBool::new(false),
        };
        let server_info = pool.reach_all().await?;
        Ok((pool, server_info))
    }

    /// Connects to all servers, and returns what is true of each of them. In a cluster a master may be down until a
    /// replica takes its slots: the client works with the other masters, and checks that one when it is back.
    async fn reach_all(&self) -> Result<ServerInfo> {
        let (mut weakest, mut missing): (Option<ServerInfo>, _) = (None, unexpected());
        let nodes = self.nodes().await?;
        let reached = join_all(nodes.iter().map(Node::reach)).await;
        for (node, info) in nodes.iter().zip(reached) {
            let info = match info {
                Ok(info) => info,
                Err(error) if self.is_cluster() && error.kind() == ErrorKind::Unreachable => {
                    self.doubt(node);
                    missing = error;
                    continue;
                }
                Err(error) => return Err(error),
            };
            if info.replica && matches!(self.route, Route::One(_)) {
                let message =
                    format!("{} is a replica, which takes no writes: name its master, or its Sentinels", node.target);
                return Err(Error::new(ErrorKind::Config, message).on(SCHEME));
            }
            weakest = Some(weakest.map_or(info.clone(), |weakest| weakest.weaker(info)));
        }
        weakest.ok_or(missing)
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.route, Route::Cluster(_))
    }

    /// Which acknowledged writes the servers may lose.
    pub(crate) fn consistency(&self, server_info: &ServerInfo) -> oarlock_core::capabilities::Consistency {
        server_info.consistency(!matches!(self.route, Route::One(_)), self.required)
    }

    /// Whether a grant counts only when replicas have it.
    pub(crate) fn confirms(&self) -> bool {
        self.required.replicas > 0
    }

    pub(crate) fn keys(&self, name: &ResourceName) -> Keys {
        Keys::of(self.config.layout, &self.config.prefix, name)
    }

    /// The slot of a key; 0 outside a cluster.
    pub(crate) fn slot(&self, key: &str) -> u16 {
        if self.is_cluster() { keys::slot(key) } else { 0 }
    }

    /// What a mailbox for this resource begins with; the session follows.
    pub(crate) fn mail(&self, keys: &Keys) -> String {
        let tag = if self.is_cluster() { &*keys.tag } else { "" };
        format!("{}mail:{tag}", self.config.prefix)
    }

    /// The channel of the mailbox, where it is not sharded.
    pub(crate) fn mailbox(&self) -> &str {
        &self.mailbox
    }

    /// The channel of the mailbox for names with this hash tag.
    pub(crate) fn mailbox_of(&self, tag: u8) -> Cow<'_, str> {
        if !self.is_cluster() {
            return Cow::Borrowed(&self.mailbox);
        }
        let mut mailbox = format!("{}mail:", self.config.prefix);
        keys::push_tag(&mut mailbox, tag);
        mailbox.push(':');
        mailbox.push_str(&self.session);
        Cow::Owned(mailbox)
    }

    pub(crate) async fn node(&self, slot: u16, to: &Destination) -> Result<Arc<Node>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        match (&self.route, to) {
            (Route::One(node), _) => Ok(node.clone()),
            (Route::Sentinels(sentinels), _) => sentinels.node().await,
            (Route::Cluster(cluster), Destination::SlotOwner) => cluster.node(slot).await,
            (Route::Cluster(cluster), Destination::Node { target, .. }) => Ok(cluster.at(target.clone())),
        }
    }

    pub(crate) async fn node_of(&self, key: &str) -> Result<Arc<Node>> {
        self.node(self.slot(key), &Destination::SlotOwner).await
    }

    /// Every server that takes writes.
    pub(crate) async fn nodes(&self) -> Result<Vec<Arc<Node>>> {
        match &self.route {
            Route::Cluster(cluster) => cluster.nodes().await,
            Route::One(_) | Route::Sentinels(_) => Ok(vec![self.node(0, &Destination::SlotOwner).await?]),
        }
    }

    /// Makes the next request check whether this server still serves it.
    pub(crate) fn doubt(&self, node: &Arc<Node>) {
        match &self.route {
            Route::One(_) => {}
            Route::Sentinels(sentinels) => sentinels.doubt(node),
            Route::Cluster(cluster) => cluster.doubt(node),
        }
    }

    /// The address of the server of this key.
    pub(crate) async fn target(&self, key: &str) -> Result<Target> {
        Ok(self.node_of(key).await?.target.clone())
    }

    /// The addresses of all servers that take writes.
    pub(crate) async fn targets(&self) -> Result<Vec<Target>> {
        Ok(self.nodes().await?.iter().map(|node| node.target.clone()).collect())
    }

    /// Opens another connection to this server, like those for requests.
    pub(crate) async fn connect(&self, target: &Target) -> Result<Connection> {
        self.connector.open(target, Login::User, |_| {}).await
    }

    pub(crate) fn notifications(&self) -> &Notifications {
        &self.notifications
    }

    /// Arms a watch. Notifications from now on reach it, once this returns.
    pub(crate) async fn listen(&self, topic: Topic, keys: Option<&Keys>) -> Result<Watch> {
        let (key, channel) = match (&topic, keys) {
            (Topic::Channel(channel) | Topic::Freed(channel), Some(keys)) => (keys.key.as_str(), channel.clone()),
            (_, Some(keys)) => (keys.key.as_str(), format!("{}{}", self.mail(keys), self.session)),
            (_, None) => ("", self.mailbox.clone()),
        };
        let node = match (keys, &self.route) {
            (None, Route::Cluster(_)) => self.nodes().await?.pop().ok_or_else(unexpected)?,
            (None, Route::Sentinels(sentinels)) => match self.node(0, &Destination::SlotOwner).await {
                Ok(node) => node,
                // This watch ends when the Sentinels name another master, so that all claims are checked there.
                Err(error) => {
                    let source = sentinels.switch_listener().ok_or(error)?;
                    return Ok(self.notifications.listen(topic, &channel, source));
                }
            },
            _ => self.node_of(key).await?,
        };
        let watch = node.listen(topic, &channel, self.is_cluster() && keys.is_some()).await;
        watch.inspect_err(|_| self.doubt(&node))
    }

    /// Keeps notifications for a claim that is about to wait, if its mailbox is subscribed to; returns the connection.
    pub(crate) async fn expect(&self, claim: &Claim) -> Option<Source> {
        let (source, mailbox) = self.source(claim).await?;
        self.notifications.expect(claim.id, &mailbox, source).then_some(source)
    }

    /// The connection on which a claim is notified, and its mailbox.
    pub(crate) async fn source(&self, claim: &Claim) -> Option<(Source, Cow<'_, str>)> {
        let source = match &self.route {
            Route::One(node) => node.source(false)?,
            Route::Sentinels(_) => self.node(0, &Destination::SlotOwner).await.ok()?.source(false)?,
            Route::Cluster(_) => {
                let NativeKey { key, tag, .. } = NativeKey::of(&self.config.prefix, &claim.resource);
                return Some((self.node_of(&key).await.ok()?.source(true)?, self.mailbox_of(tag)));
            }
        };
        Some((source, Cow::Borrowed(&self.mailbox)))
    }

    /// Subscribes to the mailbox for this resource, where each slot has its own.
    pub(crate) async fn subscribe_mailbox(&self, name: &ResourceName) {
        let Some((slot, mailbox)) = self.missing_mailbox(name) else { return };
        // If this fails, the holder learns from its next renewal what the notification would have said.
        let Ok(node) = self.node(slot, &Destination::SlotOwner).await else { return };
        let _ = node.subscribe(&mailbox, true).await.inspect_err(|_| self.doubt(&node));
    }

    /// As [`subscribe_mailbox`](Self::subscribe_mailbox) for all of these, in a task: a node may hang.
    pub(crate) fn subscribe_mailboxes<'a>(self: &Arc<Self>, names: impl Iterator<Item = &'a ResourceName>) {
        let missing: Vec<_> = names.filter(|name| self.missing_mailbox(name).is_some()).cloned().collect();
        if !missing.is_empty() {
            let pool = self.clone();
            tokio::spawn(async move { join_all(missing.iter().map(|name| pool.subscribe_mailbox(name))).await });
        }
    }

    /// The mailbox for this resource, and its slot, if this client should be subscribed to it and is not.
    fn missing_mailbox(&self, name: &ResourceName) -> Option<(u16, String)> {
        let keys = self.keys(name);
        if !self.is_cluster() || keys.tag.is_empty() {
            return None;
        }
        let mailbox = format!("{}{}", self.mail(&keys), self.session);
        (!self.notifications.is_subscribed_anywhere(&mailbox)).then(|| (keys::slot(&keys.key), mailbox))
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        match &self.route {
            Route::One(node) => node.close(),
            Route::Sentinels(sentinels) => sentinels.close(),
            Route::Cluster(cluster) => cluster.close(),
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("config", &self.config).finish_non_exhaustive()
    }
}
