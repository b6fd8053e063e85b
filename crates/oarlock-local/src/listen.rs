//! The one thread of an open store: it hears datagrams and sees files change, whatever the runtime is busy with.

use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};

use crate::post::{ID_BYTES, MAX_IDS, ids};
use crate::turn;
use crate::watch::Hub;

/// Linux drops datagrams to a receiver with this many unread, unless `net.unix.max_dgram_qlen` says otherwise.
const DEFAULT_QUEUE: usize = 10;

/// One byte more than the longest message: what is longer is not whole.
const MAX_MESSAGE: usize = if MAX_IDS * ID_BYTES > turn::MAX_BYTES { MAX_IDS * ID_BYTES } else { turn::MAX_BYTES } + 1;

/// The thread, from before it is started until it is stopped.
#[derive(Debug)]
pub(crate) struct Listener {
    /// Until somebody listens.
    idle: Mutex<Option<Idle>>,
    /// A byte lets the thread look at what there is to poll; closing it ends the thread.
    bell: Mutex<Option<PipeWriter>>,
    /// Whether the thread reads datagrams.
    hears: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Idle {
    socket: Option<UnixDatagram>,
    bell: PipeReader,
}

impl Listener {
    pub(crate) fn new(socket: Option<UnixDatagram>) -> std::io::Result<Self> {
        let (reader, writer) = std::io::pipe()?;
        let idle = Mutex::new(Some(Idle { socket, bell: reader }));
        Ok(Self { idle, bell: Mutex::new(Some(writer)), hears: Arc::default() })
    }

    /// Starts the thread, the first time. Without one, as without a wake-up, the engine's slow poll has to do.
    pub(crate) fn start(&self, hub: &Arc<Hub>) {
        let Some(idle) = lock(&self.idle).take() else { return };
        let (hub, hears) = (Arc::downgrade(hub), self.hears.clone());
        let has_socket = idle.socket.is_some();
        let run = move || {
            idle.listen(&hub);
            hears.store(false, Ordering::Relaxed);
        };
        self.hears.store(has_socket, Ordering::Relaxed);
        if std::thread::Builder::new().name("oarlock-local".to_owned()).spawn(run).is_err() {
            self.hears.store(false, Ordering::Relaxed);
        }
    }

    /// Whether datagrams are heard.
    pub(crate) fn hears(&self) -> bool {
        self.hears.load(Ordering::Relaxed)
    }

    pub(crate) fn reload(&self) {
        if let Some(bell) = &mut *lock(&self.bell) {
            let _ = bell.write(&[0]);
        }
    }

    pub(crate) fn stop(&self) {
        lock(&self.bell).take();
    }
}

/// What has something to say.
struct Ready {
    bell: bool,
    socket: bool,
    eye: bool,
}

impl Idle {
    fn listen(mut self, hub: &std::sync::Weak<Hub>) {
        let queue = std::fs::read_to_string("/proc/sys/net/unix/max_dgram_qlen");
        let queue = queue.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(DEFAULT_QUEUE);
        loop {
            // Held only while there is news, so that the last one to drop the store ends this thread.
            let Some(sight) = hub.upgrade().map(|hub| hub.sight.clone()) else { return };
            let Some(ready) = self.wait(&sight) else { return };
            let Some(hub) = hub.upgrade() else { return };
            if ready.bell && self.bell.read(&mut [0; 64]).is_ok_and(|read| read == 0) {
                return;
            }
            if let Some(socket) = self.socket.as_ref().filter(|_| ready.socket) {
                hear(socket, queue, &hub);
            }
            if ready.eye {
                sight.look(&hub);
            }
        }
    }

    /// Waits for anything to happen. `None` if waiting itself fails.
    fn wait(&self, sight: &Sight) -> Option<Ready> {
        let socket = self.socket.as_ref().map(|socket| PollFd::new(socket, PollFlags::IN));
        let eye = sight.eye().map(|eye| PollFd::from_borrowed_fd(eye, PollFlags::IN));
        let (has_socket, has_eye) = (socket.is_some(), eye.is_some());
        let mut fds: Vec<_> = [PollFd::new(&self.bell, PollFlags::IN)].into_iter().chain(socket).chain(eye).collect();
        loop {
            match poll(&mut fds, None) {
                Ok(_) => {
                    let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
                    let mut next = |is_there: bool| is_there && ready.next().unwrap_or(false);
                    return Some(Ready { bell: next(true), socket: next(has_socket), eye: next(has_eye) });
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }
}

/// Reads all there is. If the queue may have been full meanwhile, something may have been dropped.
fn hear(socket: &UnixDatagram, queue: usize, hub: &Hub) {
    let mut message = [0; MAX_MESSAGE];
    let mut heard = 0;
    while let Ok(length) = socket.recv(&mut message) {
        heard += 1;
        let message = message.get(..length).unwrap_or_default();
        match turn::read(message) {
            Some(handed) => hub.hand(handed),
            None => hub.tell(ids(message)),
        }
    }
    if heard >= queue {
        hub.tell_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The store's inotify instance, where there is one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sight(Arc<OnceLock<Option<std::os::fd::OwnedFd>>>);

impl Sight {
    /// As where there is no inotify, or no instance left.
    #[cfg(test)]
    pub(crate) fn blind() -> Self {
        Self(Arc::new(OnceLock::from(None)))
    }

    pub(crate) fn eye(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.0.get()?.as_ref().map(AsFd::as_fd)
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
impl Sight {
    /// Watches a file or folder from now on; its number, unless it cannot be watched.
    pub(crate) fn add(&self, path: &Path) -> Option<i32> {
        use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
        let eye = self.0.get_or_init(|| init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok());
        // A killed process closes the session file it wrote to; a state file is written in place or renamed.
        let flags = WatchFlags::CLOSE_WRITE | WatchFlags::MODIFY | WatchFlags::MOVED_TO | WatchFlags::DELETE;
        add_watch(eye.as_ref()?, path, flags).ok()
    }

    /// Watches `number` no longer.
    pub(crate) fn remove(&self, number: i32) {
        if let Some(eye) = self.eye() {
            let _ = rustix::fs::inotify::remove_watch(eye, number);
        }
    }

    /// Passes on what was seen.
    fn look(&self, hub: &Arc<Hub>) {
        use std::os::unix::ffi::OsStrExt;

        use rustix::fs::inotify::{ReadFlags, Reader};
        let Some(eye) = self.eye() else { return };
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(eye, &mut buffer);
        while let Ok(event) = events.next() {
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                hub.tell_all();
            } else if event.events().contains(ReadFlags::IGNORED) {
                hub.unsaw(event.wd());
            } else {
                let file = event.file_name().map(|name| std::ffi::OsStr::from_bytes(name.to_bytes()));
                let ended = event.events().intersects(ReadFlags::CLOSE_WRITE | ReadFlags::DELETE);
                hub.saw(event.wd(), file, ended);
            }
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
impl Sight {
    /// There is no inotify here.
    #[expect(clippy::unused_self, reason = "the same shape as where there is one")]
    pub(crate) fn add(&self, _: &Path) -> Option<i32> {
        None
    }

    #[expect(clippy::unused_self, reason = "the same shape as where there is one")]
    pub(crate) fn remove(&self, _: i32) {}

    #[expect(clippy::unused_self, reason = "the same shape as where there is one")]
    fn look(&self, _: &Arc<Hub>) {}
}
