//! Notices of files that change, from inotify(7).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use crate::watch::Hub;

/// The inotify instance of an open store, created when it is first needed. Empty where the system has none to give.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inotify(Arc<OnceLock<Option<OwnedFd>>>);

impl Inotify {
    /// An instance that the system refused.
    #[cfg(test)]
    pub(crate) fn unavailable() -> Self {
        Self(Arc::new(OnceLock::from(None)))
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.get()?.as_ref().map(AsFd::as_fd)
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
impl Inotify {
    /// Watches a file or folder. Answers with its watch descriptor; `None` if it cannot be watched.
    pub(crate) fn add(&self, path: &Path) -> Option<i32> {
        use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
        let fd = self.0.get_or_init(|| init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok());
        // A killed process closes its session file, which it had open for writing. A state file is written or renamed.
        let flags = WatchFlags::CLOSE_WRITE | WatchFlags::MODIFY | WatchFlags::MOVED_TO | WatchFlags::DELETE;
        add_watch(fd.as_ref()?, path, flags).ok()
    }

    /// Stops watching.
    pub(crate) fn remove(&self, descriptor: i32) {
        if let Some(fd) = self.fd() {
            let _ = rustix::fs::inotify::remove_watch(fd, descriptor);
        }
    }

    /// Reads all events and passes them on.
    pub(crate) fn read(&self, hub: &Arc<Hub>) {
        use std::os::unix::ffi::OsStrExt;

        use rustix::fs::inotify::{ReadFlags, Reader};
        let Some(fd) = self.fd() else { return };
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(fd, &mut buffer);
        while let Ok(event) = events.next() {
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                hub.notify_all();
            } else if event.events().contains(ReadFlags::IGNORED) {
                hub.watch_removed(event.wd());
            } else {
                let file = event.file_name().map(|name| std::ffi::OsStr::from_bytes(name.to_bytes()));
                let ended = event.events().intersects(ReadFlags::CLOSE_WRITE | ReadFlags::DELETE);
                hub.file_changed(event.wd(), file, ended);
            }
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
impl Inotify {
    /// This system has no inotify.
    #[expect(clippy::unused_self, reason = "the same signature as on Linux")]
    pub(crate) fn add(&self, _: &Path) -> Option<i32> {
        None
    }

    #[expect(clippy::unused_self, reason = "the same signature as on Linux")]
    pub(crate) fn remove(&self, _: i32) {}

    #[expect(clippy::unused_self, reason = "the same signature as on Linux")]
    pub(crate) fn read(&self, _: &Arc<Hub>) {}
}
