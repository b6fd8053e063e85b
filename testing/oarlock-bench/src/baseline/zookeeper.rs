//! `zk:`: the fewest requests that a lock needs, and the usual recipe of a queue.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oarlock::driver::BoxFuture;
use oarlock::url::Url;
use oarlock::{Error, ErrorKind, Result};
use oarlock_zookeeper::Config;
use zookeeper_client as zk;

use super::{Baseline, Rival, disturbed};

const SCHEME: &str = "zk";

/// Longer than any queue of a measurement takes to come round.
const TAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// A session of its own, and who may use the nodes that it makes.
#[derive(Clone)]
struct Session {
    client: zk::Client,
    acls: zk::Acls<'static>,
}

impl Session {
    async fn begin(url: &Url) -> Result<Self> {
        let mut connector = zk::Client::connector().with_session_timeout(Config::from_url(url)?.session_timeout);
        let mut acls = zk::Acls::anyone_all();
        if let (Some(user), Some(password)) = (url.user(), url.password()?) {
            connector = connector.with_auth("digest", format!("{user}:{}", password.reveal()).as_bytes());
            acls = zk::Acls::creator_all();
        }
        let hosts: Vec<_> = url.hosts().iter().map(ToString::to_string).collect();
        Ok(Self { client: connector.connect(&hosts.join(",")).await.map_err(failed)?, acls })
    }

    fn options(&self, mode: zk::CreateMode) -> zk::CreateOptions<'_> {
        mode.with_acls(self.acls)
    }
}

fn failed(error: zk::Error) -> Error {
    let kind = match error {
        zk::Error::NoAuth | zk::Error::AuthFailed | zk::Error::InvalidAcl => ErrorKind::Denied,
        _ => ErrorKind::Unreachable,
    };
    Error::new(kind, "a request of the baseline failed").on(SCHEME).because(error)
}

/// Nodes of a session, in a folder beside those of the locks.
struct Nodes {
    url: Url,
    session: Session,
    root: String,
    /// Where rivals queue.
    queues: String,
    made: tokio::sync::Mutex<HashMap<Arc<str>, Arc<str>>>,
}

/// Makes a folder beside the root of the store.
pub(super) async fn open(url: &Url) -> Result<Arc<dyn Baseline>> {
    let config = Config::from_url(url)?;
    // Beside the locks, also where those may be anywhere.
    let above = if config.root.is_empty() { "/oarlock" } else { &config.root };
    let (root, queues) = (format!("{above}.baseline-{}", std::process::id()), format!("{above}.baseline"));
    let session = Session::begin(url).await?;
    session.client.mkdir(&root, &session.options(zk::CreateMode::Persistent)).await.map_err(failed)?;
    Ok(Arc::new(Nodes { url: url.clone(), session, root, queues, made: tokio::sync::Mutex::default() }))
}

impl Nodes {
    /// The folder of a name, made when it is first needed.
    async fn folder(&self, name: &Arc<str>) -> Result<Arc<str>> {
        let mut made = self.made.lock().await;
        if let Some(folder) = made.get(name) {
            return Ok(folder.clone());
        }
        let folder: Arc<str> = format!("{}/{}", self.root, escape(name)).into();
        let persistent = self.session.options(zk::CreateMode::Persistent);
        self.session.client.mkdir(&folder, &persistent).await.map_err(failed)?;
        made.insert(name.clone(), folder.clone());
        Ok(folder)
    }
}

/// A name as the name of one node.
fn escape(name: &str) -> String {
    name.replace('/', "%2F")
}

impl Baseline for Nodes {
    fn what(&self) -> &'static str {
        "an ephemeral sequential node made, its folder listed, the node deleted"
    }

    fn pair(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let folder = self.folder(&name).await?;
            let session = &self.session;
            let ephemeral = session.options(zk::CreateMode::EphemeralSequential);
            let path = format!("{folder}/lock-");
            // Sent together: nothing of the first answer is needed to ask the second question.
            let (made, listed) = (session.client.create(&path, b"", &ephemeral), session.client.list_children(&folder));
            let (_, sequence) = made.await.map_err(failed)?;
            let node = format!("lock-{sequence}");
            if listed.await.map_err(failed)?.iter().min() != Some(&node) {
                return Err(disturbed(SCHEME));
            }
            session.client.delete(&format!("{folder}/{node}"), None).await.map_err(failed)
        })
    }

    fn rival(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<Option<Arc<dyn Rival>>>> {
        Box::pin(async move {
            let session = Session::begin(&self.url).await?;
            let folder = format!("{}/{}", self.queues, escape(&name));
            make_queue(&session, &folder).await?;
            Ok(Some(Arc::new(Queued { session, folder, node: Mutex::default() }) as Arc<dyn Rival>))
        })
    }

    fn close(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let session = &self.session;
            for folder in self.made.lock().await.values() {
                session.client.delete(folder, None).await.map_err(failed)?;
            }
            session.client.delete(&self.root, None).await.map_err(failed)
        })
    }
}

/// Makes the folder of a queue. Rivals are in other processes, too, and none of them knows whether it is the last: the
/// server removes the folder when it was empty for a while, perhaps between two turns of the same rivals.
async fn make_queue(session: &Session, folder: &str) -> Result<()> {
    session.client.mkdir(folder, &session.options(zk::CreateMode::Container)).await.map_err(failed)
}

/// A rival in a queue of nodes. It watches the node before its own.
struct Queued {
    session: Session,
    folder: String,
    node: Mutex<Option<String>>,
}

impl Queued {
    async fn queue(&self) -> Result<()> {
        let session = &self.session;
        let ephemeral = session.options(zk::CreateMode::EphemeralSequential);
        let path = format!("{}/lock-", self.folder);
        let (made, mut listed) =
            (session.client.create(&path, b"", &ephemeral), session.client.list_children(&self.folder));
        let mut made = made.await;
        if let Err(zk::Error::NoNode) = made {
            make_queue(session, &self.folder).await?;
            made = session.client.create(&path, b"", &ephemeral).await;
            listed = session.client.list_children(&self.folder);
        }
        let (_, sequence) = made.map_err(failed)?;
        let node = format!("lock-{sequence}");
        *self.node.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("{path}{sequence}"));
        loop {
            let before = listed.await.map_err(failed)?.into_iter().filter(|other| *other < node).max();
            let Some(before) = before else { return Ok(()) };
            match session.client.get_and_watch_data(&format!("{}/{before}", self.folder)).await {
                Ok((_, _, gone)) => drop(gone.changed().await),
                Err(zk::Error::NoNode) => {}
                Err(error) => return Err(failed(error)),
            }
            listed = session.client.list_children(&self.folder);
        }
    }
}

impl Rival for Queued {
    fn what(&self) -> &'static str {
        "an ephemeral sequential node, a watch on the one before it, a look, the node deleted"
    }

    fn take(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let late = |_| Error::unreachable("the queue of the baseline does not move").on(SCHEME);
            tokio::time::timeout(TAKE_TIMEOUT, self.queue()).await.map_err(late)?
        })
    }

    fn give(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let node = self.node.lock().unwrap_or_else(PoisonError::into_inner).take();
            match node {
                Some(node) => self.session.client.delete(&node, None).await.map_err(failed),
                None => Err(Error::new(ErrorKind::Internal, "given without having been taken").on(SCHEME)),
            }
        })
    }
}
