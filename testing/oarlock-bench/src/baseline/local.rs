//! `local:`: `flock(2)` of one open file for each name.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use oarlock::driver::BoxFuture;
use oarlock::url::Url;
use oarlock::{Error, ErrorKind, Result};

use super::{Baseline, Rival};

struct Flock {
    dir: PathBuf,
    files: Mutex<HashMap<Arc<str>, Arc<File>>>,
}

/// Makes a directory for its files in that of the store.
pub(super) fn open(url: &Url) -> Result<Arc<dyn Baseline>> {
    let dir = oarlock_local::Config::from_url(url)?.dir.join(format!("baseline-{}", std::process::id()));
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(|error| {
        Error::new(ErrorKind::CannotCreate, format!("cannot create {}", dir.display())).on("local").because(error)
    })?;
    Ok(Arc::new(Flock { dir, files: Mutex::default() }))
}

fn failed(error: io::Error) -> Error {
    Error::new(ErrorKind::Os, "a system call of the baseline failed").on("local").because(error)
}

impl Flock {
    fn file(&self, name: &Arc<str>) -> io::Result<Arc<File>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = files.get(name) {
            return Ok(file.clone());
        }
        let path = self.dir.join(files.len().to_string());
        let file = Arc::new(File::options().write(true).create(true).mode(0o600).truncate(false).open(path)?);
        files.insert(name.clone(), file.clone());
        Ok(file)
    }

    fn pair(&self, name: &Arc<str>) -> io::Result<()> {
        let file = self.file(name)?;
        file.try_lock()?;
        file.unlock()
    }
}

impl Baseline for Flock {
    fn what(&self) -> &'static str {
        "flock(2) and unlock of an open file"
    }

    fn pair(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<()>> {
        Box::pin(async move { Flock::pair(&self, &name).map_err(failed) })
    }

    /// Waiting for a flock blocks a thread: tasks have no plain way to do that.
    fn rival(self: Arc<Self>, _: Arc<str>) -> BoxFuture<Result<Option<Arc<dyn Rival>>>> {
        Box::pin(async { Ok(None) })
    }

    fn close(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            self.files.lock().unwrap_or_else(PoisonError::into_inner).clear();
            std::fs::remove_dir_all(&self.dir).map_err(failed)
        })
    }
}
