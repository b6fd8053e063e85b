//! The fewest calls that a lock between processes of one machine needs, for `oarlock bench`. Not a lock.

use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use oarlock_core::Result;
use oarlock_core::driver::BoxFuture;
use oarlock_core::floor::{Floor, Rival};

use crate::config::Config;
use crate::directory::Access;
use crate::error::{os, os_at};

/// flock(2) of one open file for each name.
struct Flock {
    dir: PathBuf,
    files: Mutex<HashMap<Arc<str>, Arc<File>>>,
}

/// The floor beneath the store with this configuration.
///
/// # Errors
/// When a folder for its files cannot be made in the store's directory.
pub async fn open(config: Config) -> Result<Arc<dyn Floor>> {
    let dir = config.dir.join(format!("floor-{}", std::process::id()));
    Access::Owner.make(&dir)?;
    Ok(Arc::new(Flock { dir, files: Mutex::default() }))
}

impl Flock {
    fn file(&self, name: &Arc<str>) -> Result<Arc<File>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = files.get(name) {
            return Ok(file.clone());
        }
        let path = self.dir.join(files.len().to_string());
        let file = Arc::new(Access::Owner.open_or_create(&path).map_err(|error| os_at("open", &path, error))?);
        files.insert(name.clone(), file.clone());
        Ok(file)
    }
}

impl Floor for Flock {
    fn what(&self) -> &'static str {
        "flock(2) and unlock of an open file"
    }

    fn pair(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let file = self.file(&name)?;
            file.try_lock().map_err(|error| os("cannot lock a file", error.into()))?;
            file.unlock().map_err(|error| os("cannot unlock a file", error))
        })
    }

    /// Waiting for a flock blocks a thread: tasks have no plain way to do that.
    fn rival(self: Arc<Self>, _: Arc<str>) -> BoxFuture<Result<Option<Arc<dyn Rival>>>> {
        Box::pin(async { Ok(None) })
    }

    fn close(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            self.files.lock().unwrap_or_else(PoisonError::into_inner).clear();
            std::fs::remove_dir_all(&self.dir).map_err(|error| os_at("remove", &self.dir, error))
        })
    }
}
