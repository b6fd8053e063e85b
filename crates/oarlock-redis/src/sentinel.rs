//! The server that Sentinels call the master, for as long as they do.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use oarlock_core::{Error, ErrorKind, Result};
use redis::{Msg, PushInfo, PushKind, Value};

use crate::config::Host;
use crate::dial::{Dialler, Greeting, Target, Wire};
use crate::error::{SCHEME, failed, unexpected};
use crate::node::Node;
use crate::reopen::{Ends, Reopened};

/// Finds a master and follows it.
pub(crate) struct Sentinels {
    hosts: Vec<Host>,
    master: String,
    dialler: Arc<Dialler>,
    /// The Sentinel to ask first.
    next: AtomicUsize,
    followed: Reopened<Followed>,
    last: Mutex<Option<Arc<Node>>>,
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
    pub(crate) fn new(hosts: Vec<Host>, master: String, dialler: Arc<Dialler>) -> Self {
        let (next, followed, last) = (AtomicUsize::new(0), Reopened::default(), Mutex::default());
        Self { hosts, master, dialler, next, followed, last }
    }

    /// The master. `node` makes one of its address.
    pub(crate) async fn node(&self, node: impl Fn(Target) -> Arc<Node>) -> Result<Arc<Node>> {
        Ok(self.followed.get(Box::pin(self.find(node))).await?.node.clone())
    }

    /// The master is not what it was, or cannot be reached: the Sentinels are asked again before the next request.
    pub(crate) fn doubt(&self, node: &Arc<Node>) {
        if let Some(followed) = self.followed.current().filter(|followed| Arc::ptr_eq(&followed.node, node)) {
            self.followed.discard(&followed);
        }
    }

    async fn find(&self, node: impl Fn(Target) -> Arc<Node>) -> Result<Followed> {
        let mut worst = Error::new(ErrorKind::Config, "no Sentinels are named").on(SCHEME);
        for _ in 0..self.hosts.len() {
            let at = self.next.load(Ordering::Relaxed) % self.hosts.len();
            match self.ask(&self.hosts[at], &node).await {
                Ok(followed) => return Ok(followed),
                Err(error) => worst = error,
            }
            self.next.store(at + 1, Ordering::Relaxed);
        }
        Err(worst)
    }

    async fn ask(&self, (host, port): &Host, node: &impl Fn(Target) -> Arc<Node>) -> Result<Followed> {
        let over = Arc::new(AtomicBool::new(false));
        let leaves: Arc<Mutex<Weak<Node>>> = Arc::default();
        let sentinel = Target::Tcp(host.clone(), *port);
        let heard = || {
            let (name, over, leaves) = (self.master.clone(), over.clone(), leaves.clone());
            move |push: PushInfo| {
                let switched = push.kind != PushKind::Disconnection && names(push.clone(), &name);
                if switched || push.kind == PushKind::Disconnection {
                    over.store(true, Ordering::Release);
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
        let node = self.followed_at(node(target));
        *leaves.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&node);
        let facts = node.reach().await?;
        if facts.replica {
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
