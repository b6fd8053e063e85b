//! Values that refuse writes of a holder that has lost its lock: the protected side of a fence.

use oarlock_core::fenced::Written;
use oarlock_core::{Error, Fence, Result};
use zookeeper_client as zk;

use crate::config::Config;
use crate::error::{changed_meanwhile, from_zk, not_ours};
use crate::route::Route;
use crate::session::{Session, if_there};

/// How often other writers may be faster before a write gives up. Each time one of them succeeded.
const MAX_ROUNDS: usize = 16;

/// Values in ZooKeeper that are written only with a fence that is not smaller than the last one.
///
/// A value is a node whose data is the fence in decimal digits, a line feed, and the value, so other programs can read
/// it.
///
/// # Guarantees
/// Of two writes with different fences, in whichever order they arrive, the one with the larger fence stays: a write
/// is made only to the version of the node whose fence was read. Two writes with the same fence come from the same
/// holder, and the later one stays.
///
/// # Examples
/// ```no_run
/// # async fn example(guard: oarlock_core::Guard) -> oarlock_core::Result<()> {
/// use oarlock_zookeeper::{Checked, Config, Written};
///
/// let values = Checked::open(Config::new(["zk1:2181"]).root("/app")).await?;
/// match values.set("balance", guard.fence(), b"42").await? {
///     Written::Stored => {}
///     Written::Refused { stored } => eprintln!("refused: fence {stored} was stored before"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Checked {
    route: Route,
    root: String,
}

impl Checked {
    /// Opens a session, as [`ZooKeeper::open`](crate::ZooKeeper::open) does. Keys are paths below the root of the
    /// configuration.
    ///
    /// # Errors
    /// Those of [`ZooKeeper::open`](crate::ZooKeeper::open).
    pub async fn open(mut config: Config) -> Result<Self> {
        let root = config.root.clone();
        // Values are where the caller says: Oarlock keeps no record beside them.
        config.layout = crate::config::Layout::Curator;
        let route = Route::open(config).await.map_err(|error| error.during("open"))?;
        Ok(Self { route, root })
    }

    /// Writes `value` to `key`, unless a larger fence was there before. What is missing above it is made.
    ///
    /// # Cancel safety
    /// A write that was sent arrives, also when this future is dropped. Sending it again is safe.
    ///
    /// # Errors
    /// [`ErrorKind::Foreign`](oarlock_core::ErrorKind::Foreign) if the node holds something else; an error that says
    /// to retry now ([`Retry::Now`](oarlock_core::Retry::Now)) if others kept writing meanwhile; those of any request.
    pub async fn set(&self, key: &str, fence: Fence, value: &[u8]) -> Result<Written> {
        let written = async {
            let session = self.route.session().await?;
            let path = format!("{}/{key}", self.root);
            for _ in 0..MAX_ROUNDS {
                if let Some(written) = session.write_checked(&path, fence, value).await? {
                    return Ok(written);
                }
            }
            Err(changed_meanwhile())
        };
        written.await.map_err(|error: Error| error.during("set"))
    }

    /// What is stored at `key`, with the fence it was written with.
    ///
    /// # Errors
    /// [`ErrorKind::Foreign`](oarlock_core::ErrorKind::Foreign) if the node holds something else; those of any request.
    pub async fn get(&self, key: &str) -> Result<Option<(Fence, Vec<u8>)>> {
        let read = async {
            let session = self.route.session().await?;
            let path = format!("{}/{key}", self.root);
            let (fresh, data) = (session.client.sync(&path), session.client.get_data(&path));
            fresh.await.map_err(from_zk)?;
            match if_there(data.await)? {
                Some((data, _)) => parse(&path, &data).map(Some),
                None => Ok(None),
            }
        };
        read.await.map_err(|error: Error| error.during("get"))
    }

    /// Ends the session.
    pub async fn close(&self) {
        self.route.close().await;
    }
}

impl Session {
    /// One read, and one write to the version that was read; `None` if another writer was faster.
    async fn write_checked(&self, path: &str, fence: Fence, value: &[u8]) -> Result<Option<Written>> {
        let data = [fence.to_string().as_bytes(), b"\n", value].concat();
        let answer = match if_there(self.client.get_data(path).await)? {
            Some((before, stat)) => {
                let (stored, _) = parse(path, &before)?;
                if stored > fence {
                    return Ok(Some(Written::Refused { stored }));
                }
                self.client.set_data(path, &data, Some(stat.version)).await.map(drop)
            }
            None => {
                let persistent = self.options(zk::CreateMode::Persistent);
                let made = self.client.create(path, &data, &persistent).await.map(drop);
                if let (Err(zk::Error::NoNode), Some((above, _))) = (&made, path.rsplit_once('/')) {
                    self.client.mkdir(above, &persistent).await.map_err(from_zk)?;
                }
                made
            }
        };
        match answer {
            Ok(()) => Ok(Some(Written::Stored)),
            Err(zk::Error::BadVersion | zk::Error::NodeExists | zk::Error::NoNode) => Ok(None),
            Err(error) => Err(from_zk(error)),
        }
    }
}

fn parse(path: &str, data: &[u8]) -> Result<(Fence, Vec<u8>)> {
    let end = data.iter().position(|byte| *byte == b'\n').ok_or_else(|| not_ours(path))?;
    let fence = std::str::from_utf8(&data[..end]).ok().and_then(|digits| digits.parse().ok());
    Ok((fence.ok_or_else(|| not_ours(path))?, data[end + 1..].to_vec()))
}
