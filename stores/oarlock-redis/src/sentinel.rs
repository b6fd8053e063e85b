//! Finds the master through Sentinels, and follows it after a failover.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use oarlock_core::reconnect::{Ends, Reopened};
use oarlock_core::{Error, ErrorKind, Result, Retry};
use redis::{Msg, PushInfo, PushKind, Value};

use crate::config::Host;
use crate::connection::{Connection, Connector, Login, Target};
use crate::error::{SCHEME, failed, unexpected};
use crate::node::{Make, Node};
use crate::notifications::{Notifications, Source};

/// Finds a master and follows it.
pub(crate) struct Sentinels {
    hosts: Vec<Host>,
    master: String,
    connector: Arc<Connector>,
    make: Make,
    /// The Sentinel to ask first.
    next: AtomicUsize,
    followed: Reopened<Followed>,
    last: Mutex<Option<Arc<Node>>>,
    notifications: Arc<Notifications>,
    /// While the master cannot be reached: a connection to a Sentinel, which will notify of another master.
    switch_listener: Mutex<Option<SwitchListener>>,
}

/// A subscribed connection to a Sentinel. As a source of notifications it ends when the Sentinel names another master.
struct SwitchListener {
    source: Source,
    notifications: Arc<Notifications>,
    _connection: Connection,
}

impl Drop for SwitchListener {
    fn drop(&mut self) {
        self.notifications.end(self.source);
    }
}

/// A master, until the Sentinel names another one.
struct Followed {
    node: Arc<Node>,
    over: Arc<AtomicBool>,
    /// Notifies of another master.
    _connection: Connection,
}

impl Ends for Followed {
    fn is_ended(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

impl Sentinels {
    pub(crate) fn new(
        hosts: Vec<Host>,
        master: String,
        connector: Arc<Connector>,
        make: Make,
        notifications: Arc<Notifications>,
    ) -> Self {
        let (next, followed, last) = (AtomicUsize::new(0), Reopened::new(SCHEME), Mutex::default());
        Self { hosts, master, connector, make, next, followed, last, notifications, switch_listener: Mutex::default() }
    }

    /// The source that ends when another master is named, while this one cannot be reached.
    pub(crate) fn switch_listener(&self) -> Option<Source> {
        let switch_listener = self.switch_listener.lock().unwrap_or_else(PoisonError::into_inner);
        switch_listener
            .as_ref()
            .map(|switch_listener| switch_listener.source)
            .filter(|source| !self.notifications.is_ended(*source))
    }

    fn set_switch_listener(&self, switch_listener: Option<SwitchListener>) {
        *self.switch_listener.lock().unwrap_or_else(PoisonError::into_inner) = switch_listener;
    }

    /// The master.
    pub(crate) async fn node(self: &Arc<Self>) -> Result<Arc<Node>> {
        let find = || {
            let sentinels = self.clone();
            async move { sentinels.find().await }
        };
        Ok(self.followed.get(find).await?.node.clone())
    }

    /// The master failed, or is no master any more: the Sentinels are asked again before the next request.
    pub(crate) fn doubt(&self, node: &Arc<Node>) {
        if let Some(followed) = self.followed.current().filter(|followed| Arc::ptr_eq(&followed.node, node)) {
            self.followed.discard(&followed);
        }
    }

    async fn find(&self) -> Result<Followed> {
        let mut worst = Error::new(ErrorKind::Config, "the configuration names no Sentinels").on(SCHEME);
        for _ in 0..self.hosts.len() {
            let at = self.next.load(Ordering::Relaxed) % self.hosts.len();
            match self.query(&self.hosts[at]).await {
                Ok(followed) => return Ok(followed),
                Err(error) => worst = error,
            }
            self.next.store(at + 1, Ordering::Relaxed);
        }
        Err(worst)
    }

    async fn query(&self, (host, port): &Host) -> Result<Followed> {
        let over = Arc::new(AtomicBool::new(false));
        // The source of notifications that ends with this connection; 0 if no watch depends on it.
        let source = Arc::new(AtomicU64::new(0));
        let leaves: Arc<Mutex<Weak<Node>>> = Arc::default();
        let sentinel = Target::Tcp(host.clone(), *port);
        let on_push = || {
            let (name, over, leaves) = (self.master.clone(), over.clone(), leaves.clone());
            let (notifications, source) = (self.notifications.clone(), source.clone());
            move |push: PushInfo| {
                let switched = push.kind != PushKind::Disconnection && names(push.clone(), &name);
                if switched || push.kind == PushKind::Disconnection {
                    over.store(true, Ordering::Release);
                    notifications.end(source.load(Ordering::Acquire));
                }
                if switched && let Some(node) = leaves.lock().unwrap_or_else(PoisonError::into_inner).upgrade() {
                    // Requests that are still under way there may be lost: their claims are checked on the new master.
                    node.close();
                }
            }
        };
        let opened = match self.connector.open(&sentinel, Login::None, on_push()).await {
            Err(error) if error.kind() == ErrorKind::Denied => {
                self.connector.open(&sentinel, Login::Sentinel, on_push()).await?
            }
            opened => opened?,
        };
        let mut connection = opened.client.clone();
        // Before the query, so that a switch after its reply is noticed.
        connection.subscribe("+switch-master").await.map_err(failed)?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master);
        let answer = connection.send_packed_command(&question).await.and_then(Value::extract_error).map_err(failed)?;
        let Value::Array(parts) = answer else {
            let message = format!("{sentinel} knows no master with the name {:?}", self.master);
            return Err(Error::new(ErrorKind::Config, message).on(SCHEME));
        };
        let parts: Vec<String> = redis::from_redis_value(Value::Array(parts)).map_err(|e| unexpected().because(e))?;
        let [host, port] = &parts[..] else { return Err(unexpected()) };
        let target = Target::Tcp(host.clone(), port.parse().map_err(|error| unexpected().because(error))?);
        let node = self.followed_at((self.make)(target));
        *leaves.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&node);
        let reached = node.reach().await;
        if let Err(error) = &reached {
            // Watches depend on this connection until another master is named.
            if error.retry() != Retry::Never && self.switch_listener().is_none() {
                let switch_listener = SwitchListener {
                    source: self.notifications.begin(),
                    notifications: self.notifications.clone(),
                    _connection: opened,
                };
                source.store(switch_listener.source, Ordering::Release);
                if !over.load(Ordering::Acquire) {
                    self.set_switch_listener(Some(switch_listener));
                }
            }
            return Err(error.clone());
        }
        self.set_switch_listener(None);
        if reached?.replica {
            node.close();
            let message = format!("{} was named the master of {:?}, and is still a replica", node.target, self.master);
            return Err(Error::new(ErrorKind::Unreachable, message).on(SCHEME).retry_later());
        }
        Ok(Followed { node, over, _connection: opened })
    }

    /// Keeps the connections to a master that is named again.
    fn followed_at(&self, node: Arc<Node>) -> Arc<Node> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last.as_ref().filter(|last| last.target == node.target) {
            return last.clone();
        }
        if let Some(left) = last.replace(node.clone()) {
            left.close();
        }
        node
    }

    pub(crate) fn close(&self) {
        drop(self.followed.take());
        self.set_switch_listener(None);
        if let Some(node) = self.last.lock().unwrap_or_else(PoisonError::into_inner).take() {
            node.close();
        }
    }
}

/// Whether this message names a new master with this name: `<name> <old host> <old port> <new host> <new port>`.
fn names(push: PushInfo, name: &str) -> bool {
    let Some(message) = Msg::from_push_info(push) else { return false };
    let payload = String::from_utf8_lossy(message.get_payload_bytes());
    payload.split(' ').next() == Some(name)
}
