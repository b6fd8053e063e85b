//! The server that Sentinels call the master, for as long as they do.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use oarlock_core::reconnect::{Ends, Reopened};
use oarlock_core::{Error, ErrorKind, Result, Retry};
use redis::{Msg, PushInfo, PushKind, Value};

use crate::config::Host;
use crate::dial::{Dialler, Greeting, Target, Wire};
use crate::error::{SCHEME, failed, unexpected};
use crate::node::{Make, Node};
use crate::watch::{Hub, Source};

/// Finds a master and follows it.
pub(crate) struct Sentinels {
    hosts: Vec<Host>,
    master: String,
    dialler: Arc<Dialler>,
    make: Make,
    /// The Sentinel to ask first.
    next: AtomicUsize,
    followed: Reopened<Followed>,
    last: Mutex<Option<Arc<Node>>>,
    hub: Arc<Hub>,
    /// While the master cannot be reached: a Sentinel that will tell when another is named.
    sentry: Mutex<Option<Sentry>>,
}

/// A connection to a Sentinel that is only listened to. As a source of news it ends when another master is named.
struct Sentry {
    source: Source,
    hub: Arc<Hub>,
    _wire: Wire,
}

impl Drop for Sentry {
    fn drop(&mut self) {
        self.hub.end(self.source);
    }
}

/// A master, while the Sentinel that named it has not named another.
struct Followed {
    node: Arc<Node>,
    over: Arc<AtomicBool>,
    /// Tells when another is named.
    _wire: Wire,
}

impl Ends for Followed {
    fn is_ended(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

impl Sentinels {
    pub(crate) fn new(hosts: Vec<Host>, master: String, dialler: Arc<Dialler>, make: Make, hub: Arc<Hub>) -> Self {
        let (next, followed, last) = (AtomicUsize::new(0), Reopened::new(SCHEME), Mutex::default());
        Self { hosts, master, dialler, make, next, followed, last, hub, sentry: Mutex::default() }
    }

    /// Where word would come from that another master was named, while this one cannot be reached.
    pub(crate) fn sentry(&self) -> Option<Source> {
        let sentry = self.sentry.lock().unwrap_or_else(PoisonError::into_inner);
        sentry.as_ref().map(|sentry| sentry.source).filter(|source| !self.hub.is_ended(*source))
    }

    fn set_sentry(&self, sentry: Option<Sentry>) {
        *self.sentry.lock().unwrap_or_else(PoisonError::into_inner) = sentry;
    }

    /// The master.
    pub(crate) async fn node(self: &Arc<Self>) -> Result<Arc<Node>> {
        let find = || {
            let sentinels = self.clone();
            async move { sentinels.find().await }
        };
        Ok(self.followed.get(find).await?.node.clone())
    }

    /// The master is not what it was, or cannot be reached: the Sentinels are asked again before the next request.
    pub(crate) fn doubt(&self, node: &Arc<Node>) {
        if let Some(followed) = self.followed.current().filter(|followed| Arc::ptr_eq(&followed.node, node)) {
            self.followed.discard(&followed);
        }
    }

    async fn find(&self) -> Result<Followed> {
        let mut worst = Error::new(ErrorKind::Config, "no Sentinels are named").on(SCHEME);
        for _ in 0..self.hosts.len() {
            let at = self.next.load(Ordering::Relaxed) % self.hosts.len();
            match self.ask(&self.hosts[at]).await {
                Ok(followed) => return Ok(followed),
                Err(error) => worst = error,
            }
            self.next.store(at + 1, Ordering::Relaxed);
        }
        Err(worst)
    }

    async fn ask(&self, (host, port): &Host) -> Result<Followed> {
        let over = Arc::new(AtomicBool::new(false));
        // The source of news that ends with this, if somebody listens: 0 if not.
        let source = Arc::new(AtomicU64::new(0));
        let leaves: Arc<Mutex<Weak<Node>>> = Arc::default();
        let sentinel = Target::Tcp(host.clone(), *port);
        let heard = || {
            let (name, over, leaves) = (self.master.clone(), over.clone(), leaves.clone());
            let (hub, source) = (self.hub.clone(), source.clone());
            move |push: PushInfo| {
                let switched = push.kind != PushKind::Disconnection && names(push.clone(), &name);
                if switched || push.kind == PushKind::Disconnection {
                    over.store(true, Ordering::Release);
                    hub.end(source.load(Ordering::Acquire));
                }
                if switched && let Some(node) = leaves.lock().unwrap_or_else(PoisonError::into_inner).upgrade() {
                    // What is still under way there may be lost: its claims are looked at on the new master.
                    node.close();
                }
            }
        };
        let wire = match self.dialler.open(&sentinel, Greeting::Nobody, heard()).await {
            Err(error) if error.kind() == ErrorKind::Denied => {
                self.dialler.open(&sentinel, Greeting::Sentinel, heard()).await?
            }
            opened => opened?,
        };
        let mut connection = wire.connection.clone();
        // Before the question, so that no answer is outdated without our knowing.
        connection.subscribe("+switch-master").await.map_err(failed)?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master);
        let answer = connection.send_packed_command(&question).await.and_then(Value::extract_error).map_err(failed)?;
        let Value::Array(parts) = answer else {
            let message = format!("{sentinel} knows no master called {:?}", self.master);
            return Err(Error::new(ErrorKind::Config, message).on(SCHEME));
        };
        let parts: Vec<String> = redis::from_redis_value(Value::Array(parts)).map_err(|e| unexpected().because(e))?;
        let [host, port] = &parts[..] else { return Err(unexpected()) };
        let target = Target::Tcp(host.clone(), port.parse().map_err(|error| unexpected().because(error))?);
        let node = self.followed_at((self.make)(target));
        *leaves.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&node);
        let reached = node.reach().await;
        if let Err(error) = &reached {
            // Whoever waits for news hears it from here as soon as another is named.
            if error.retry() != Retry::Never && self.sentry().is_none() {
                let sentry = Sentry { source: self.hub.begin(), hub: self.hub.clone(), _wire: wire };
                source.store(sentry.source, Ordering::Release);
                if !over.load(Ordering::Acquire) {
                    self.set_sentry(Some(sentry));
                }
            }
            return Err(error.clone());
        }
        self.set_sentry(None);
        if reached?.replica {
            node.close();
            let message = format!("{} is called the master of {:?}, and is none yet", node.target, self.master);
            return Err(Error::new(ErrorKind::Unreachable, message).on(SCHEME).retry_later());
        }
        Ok(Followed { node, over, _wire: wire })
    }

    /// The connections to a master that is named again are kept.
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
        self.set_sentry(None);
        if let Some(node) = self.last.lock().unwrap_or_else(PoisonError::into_inner).take() {
            node.close();
        }
    }
}

/// Whether this is word of a new master with this name: `<name> <old host> <old port> <new host> <new port>`.
fn names(push: PushInfo, name: &str) -> bool {
    let Some(message) = Msg::from_push_info(push) else { return false };
    let payload = String::from_utf8_lossy(message.get_payload_bytes());
    payload.split(' ').next() == Some(name)
}
