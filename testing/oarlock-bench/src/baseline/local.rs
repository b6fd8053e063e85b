//! `local:`: `flock(2)` of one open file for each name, and a token that goes from process to process.

mod token;

use std::collections::HashMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use oarlock::driver::BoxFuture;
use oarlock::url::Url;
use oarlock::{Error, ErrorKind, Result};

use super::{Baseline, Rival};
use token::Token;

struct Flock {
    dir: PathBuf,
    /// The folders in which tokens of this run go round, to be removed. Other processes use them too.
    rings: Mutex<Vec<PathBuf>>,
    files: Mutex<HashMap<Arc<str>, Arc<File>>>,
}

/// Makes a directory for its files in that of the store.
pub(super) fn open(url: &Url) -> Result<Arc<dyn Baseline>> {
    let dir = oarlock_local::Config::from_url(url)?.dir.join(format!("baseline-{}", std::process::id()));
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(|error| {
        Error::new(ErrorKind::CannotCreate, format!("cannot create {}", dir.display())).on("local").because(error)
    })?;
    Ok(Arc::new(Flock { dir, rings: Mutex::default(), files: Mutex::default() }))
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

    /// Waiting for a flock blocks a thread, and wakes a contender in no order. So the name is a token here.
    fn rival(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<Option<Arc<dyn Rival>>>> {
        // The address of a socket must be short. Every process hashes alike: this hasher has no random keys.
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let ring = self.dir.with_file_name(format!("ring-{:x}", hasher.finish()));
        self.rings.lock().unwrap_or_else(PoisonError::into_inner).push(ring.clone());
        Box::pin(async { Ok(Token::new(ring).map(|token| Arc::new(token) as Arc<dyn Rival>)) })
    }

    fn close(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            self.files.lock().unwrap_or_else(PoisonError::into_inner).clear();
            for ring in self.rings.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
                // Another process of the load may have removed it.
                let _ = std::fs::remove_dir_all(ring);
            }
            std::fs::remove_dir_all(&self.dir).map_err(failed)
        })
    }
}
