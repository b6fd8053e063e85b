//! The fewest requests that a lock on ZooKeeper needs, for `oarlock bench`. Not a lock.

use std::sync::Arc;

use oarlock_core::driver::BoxFuture;
use oarlock_core::floor::{Floor, Rival};
use oarlock_core::{Error, ErrorKind, Result};
use zookeeper_client as zk;

use crate::config::Config;
use crate::error::{SCHEME, from_zk};
use crate::link::Link;
use crate::names::escape;

/// Nodes of a session, in a folder beside those of the locks.
struct Nodes {
    link: Link,
    root: String,
    made: tokio::sync::Mutex<std::collections::HashMap<Arc<str>, Arc<str>>>,
}

/// The floor beneath the store with this configuration.
///
/// # Errors
/// As for [`ZooKeeper::open`](crate::ZooKeeper::open); when no node may be made beside the root.
pub async fn open(config: Config) -> Result<Arc<dyn Floor>> {
    let root = format!("{}.floor-{}", config.root, std::process::id());
    let link = Link::open(config).await?;
    let session = link.session().await?;
    let persistent = session.options(zk::CreateMode::Persistent);
    match session.client.create(&root, b"", &persistent).await {
        Ok(_) | Err(zk::Error::NodeExists) => {}
        Err(error) => return Err(from_zk(error)),
    }
    Ok(Arc::new(Nodes { link, root, made: tokio::sync::Mutex::default() }))
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

    /// A queue of nodes and watches is no longer the fewest requests of anything.
    fn rival(self: Arc<Self>, _: Arc<str>) -> BoxFuture<Result<Option<Arc<dyn Rival>>>> {
        Box::pin(async { Ok(None) })
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
