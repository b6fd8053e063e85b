//! Data that new servers are copied from: making the system's tables takes longer than all else that a start does.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use anyhow::{Context as _, bail};
use tempfile::TempDir;

/// One folder for all servers of a kind, as long as one of them lives.
pub(super) struct Made(Mutex<Weak<TempDir>>);

/// What a server keeps of it while it lives.
#[derive(Debug, Default)]
pub(super) struct FolderRef(Mutex<Option<Arc<TempDir>>>);

impl Made {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(Weak::new()))
    }

    /// Copies `parts` into `folder`. Makes them first if there is no folder.
    ///
    /// # Errors
    /// When it cannot be made or copied.
    pub(super) fn copy(
        &self,
        parts: &[&str],
        folder: &Path,
        folder_ref: &FolderRef,
        make: impl FnOnce() -> anyhow::Result<TempDir>,
    ) -> anyhow::Result<()> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let made = match shared.upgrade() {
            Some(made) => made,
            None => Arc::new(make()?),
        };
        *shared = Arc::downgrade(&made);
        drop(shared);
        let mut copy = Command::new("cp");
        let copied = copy.arg("-a").args(parts.iter().map(|part| made.path().join(part))).arg(folder).status();
        *folder_ref.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
        if !copied.context("cannot start cp")?.success() {
            bail!("the data could not be copied");
        }
        Ok(())
    }
}
