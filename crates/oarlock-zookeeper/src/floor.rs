//! The fewest requests that a lock on ZooKeeper needs, for `oarlock bench`. Not a lock.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oarlock_core::driver::BoxFuture;
use oarlock_core::floor::{Floor, Rival};
use oarlock_core::{Error, ErrorKind, Result};
use zookeeper_client as zk;

use crate::config::Config;
use crate::error::{SCHEME, from_zk};
use crate::link::{Link, Session};
use crate::names::escape;

/// Longer than any queue of a measurement takes to come round.
const TAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// Nodes of a session, in a folder beside those of the locks.
struct Nodes {
    link: Link,
    root: String,
    /// Where rivals queue up.
    queues: String,
    made: tokio::sync::Mutex<std::collections::HashMap<Arc<str>, Arc<str>>>,
}

/// The floor beneath the store with this configuration.
///
/// # Errors
/// As for [`ZooKeeper::open`](crate::ZooKeeper::open); when no node may be made beside the root.
pub async fn open(config: Config) -> Result<Arc<dyn Floor>> {
    // Beside the locks, also where those may be anywhere.
    let above = if config.root.is_empty() { "/oarlock" } else { &config.root };
    let (root, queues) = (format!("{above}.floor-{}", std::process::id()), format!("{above}.floor"));
    let link = Link::open(config).await?;
    let session = link.session().await?;
    let persistent = session.options(zk::CreateMode::Persistent);
    match session.client.create(&root, b"", &persistent).await {
        Ok(_) | Err(zk::Error::NodeExists) => {}
        Err(error) => return Err(from_zk(error)),
    }
    Ok(Arc::new(Nodes { link, root, queues, made: tokio::sync::Mutex::default() }))
}

impl Nodes {
    /// The folder of a name, made when it is first needed.
    async fn folder(&self, name: &Arc<str>) -> Result<Arc<str>> {
        let mut made = self.made.lock().await;
        if let Some(folder) = made.get(name) {
            return Ok(folder.clone());
        }
        let folder: Arc<str> = format!("{}/{}", self.root, escape(name)).into();
        let session = self.link.session().await?;
        let persistent = session.options(zk::CreateMode::Persistent);
        match session.client.create(&folder, b"", &persistent).await {
            Ok(_) | Err(zk::Error::NodeExists) => {}
            Err(error) => return Err(from_zk(error)),
        }
        made.insert(name.clone(), folder.clone());
        Ok(folder)
    }
}

impl Floor for Nodes {
    fn what(&self) -> &'static str {
        "an ephemeral sequential node made, its folder listed, the node deleted"
    }

    fn pair(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let folder = self.folder(&name).await?;
            let session = self.link.session().await?;
            let ephemeral = session.options(zk::CreateMode::EphemeralSequential);
            let path = format!("{folder}/lock-");
            // Sent together: nothing of the first answer is needed to ask the second question.
            let (made, listed) = (session.client.create(&path, b"", &ephemeral), session.client.list_children(&folder));
            let (_, sequence) = made.await.map_err(from_zk)?;
            let node = format!("lock-{sequence}");
            if listed.await.map_err(from_zk)?.iter().min() != Some(&node) {
                return Err(Error::new(ErrorKind::Foreign, "somebody else uses the nodes of the floor").on(SCHEME));
            }
            session.client.delete(&format!("{folder}/{node}"), None).await.map_err(from_zk)
        })
    }

    fn rival(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<Option<Arc<dyn Rival>>>> {
        Box::pin(async move {
            let link = Link::open(self.link.config().clone()).await?;
            let folder = format!("{}/{}", self.queues, escape(&name));
            let session = link.session().await?;
            make_queue(&session, &folder).await?;
            drop(session);
            Ok(Some(Arc::new(InLine { link, folder, node: Mutex::default() }) as Arc<dyn Rival>))
        })
    }

    fn close(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let session = self.link.session().await?;
            for folder in self.made.lock().await.values() {
                session.client.delete(folder, None).await.map_err(from_zk)?;
            }
            session.client.delete(&self.root, None).await.map_err(from_zk)?;
            drop(session);
            self.link.close().await;
            Ok(())
        })
    }
}

/// Makes the folder of a queue. Rivals are in other processes, too, and nobody knows who is the last: the server removes it
/// when it was empty for a while, perhaps between two turns of the same rivals.
async fn make_queue(session: &Session, folder: &str) -> Result<()> {
    session.client.mkdir(folder, &session.options(zk::CreateMode::Container)).await.map_err(from_zk)
}

/// Somebody in a queue of nodes, who watches the one before it.
struct InLine {
    link: Link,
    folder: String,
    node: Mutex<Option<String>>,
}

impl InLine {
    async fn stand(&self) -> Result<()> {
        let session = self.link.session().await?;
        let ephemeral = session.options(zk::CreateMode::EphemeralSequential);
        let path = format!("{}/lock-", self.folder);
        let (made, mut listed) =
            (session.client.create(&path, b"", &ephemeral), session.client.list_children(&self.folder));
        let mut made = made.await;
        if let Err(zk::Error::NoNode) = made {
            make_queue(&session, &self.folder).await?;
            made = session.client.create(&path, b"", &ephemeral).await;
            listed = session.client.list_children(&self.folder);
        }
        let (_, sequence) = made.map_err(from_zk)?;
        let node = format!("lock-{sequence}");
        *self.node.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("{path}{sequence}"));
        loop {
            let before = listed.await.map_err(from_zk)?.into_iter().filter(|other| *other < node).max();
            let Some(before) = before else { return Ok(()) };
            match session.client.get_and_watch_data(&format!("{}/{before}", self.folder)).await {
                Ok((_, _, gone)) => drop(gone.changed().await),
                Err(zk::Error::NoNode) => {}
                Err(error) => return Err(from_zk(error)),
            }
            listed = session.client.list_children(&self.folder);
        }
    }
}

impl Rival for InLine {
    fn what(&self) -> &'static str {
        "an ephemeral sequential node, a watch on the one before it, a look, the node deleted"
    }

    fn take(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let late = |_| Error::unreachable("the queue of the floor does not move").on(SCHEME);
            tokio::time::timeout(TAKE_TIMEOUT, self.stand()).await.map_err(late)?
        })
    }

    fn give(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let node = self.node.lock().unwrap_or_else(PoisonError::into_inner).take();
            match node {
                Some(node) => self.link.session().await?.client.delete(&node, None).await.map_err(from_zk),
                None => Err(Error::new(ErrorKind::Internal, "given without having been taken").on(SCHEME)),
            }
        })
    }
}
