//! The thread of an open store that receives datagrams and file events. It works also while the runtime is blocked.

use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::event::{PollFd, PollFlags, poll};

use crate::inotify::Inotify;
use crate::notify::{ID_BYTES, MAX_IDS, ids};
use crate::turn;
use crate::watch::Hub;

/// Linux drops datagrams to a receiver with this many unread, unless `net.unix.max_dgram_qlen` says otherwise.
const DEFAULT_QUEUE: usize = 10;

/// One byte more than the longest message, to recognize a message that is too long.
const MAX_MESSAGE: usize = if MAX_IDS * ID_BYTES > turn::MAX_BYTES { MAX_IDS * ID_BYTES } else { turn::MAX_BYTES } + 1;

/// The thread, from before its start until its end.
#[derive(Debug)]
pub(crate) struct EventThread {
    /// What the thread will own, until it is started.
    idle: Mutex<Option<Idle>>,
    /// A byte makes the thread build its list of descriptors again; closing the pipe ends the thread.
    wakeup: Mutex<Option<PipeWriter>>,
    /// Whether the thread receives datagrams.
    receives: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Idle {
    socket: Option<UnixDatagram>,
    wakeup: PipeReader,
}

impl EventThread {
    pub(crate) fn new(socket: Option<UnixDatagram>) -> std::io::Result<Self> {
        let (reader, writer) = std::io::pipe()?;
        let idle = Mutex::new(Some(Idle { socket, wakeup: reader }));
        Ok(Self { idle, wakeup: Mutex::new(Some(writer)), receives: Arc::default() })
    }

    /// Starts the thread, unless it runs already. If it cannot be started, the engine's slow poll notices changes.
    pub(crate) fn start(&self, hub: &Arc<Hub>) {
        let Some(idle) = lock(&self.idle).take() else { return };
        let (hub, receives) = (Arc::downgrade(hub), self.receives.clone());
        let has_socket = idle.socket.is_some();
        let run = move || {
            idle.run(&hub);
            receives.store(false, Ordering::Relaxed);
        };
        self.receives.store(has_socket, Ordering::Relaxed);
        if std::thread::Builder::new().name("oarlock-local".to_owned()).spawn(run).is_err() {
            self.receives.store(false, Ordering::Relaxed);
        }
    }

    /// Whether the thread receives datagrams.
    pub(crate) fn receives(&self) -> bool {
        self.receives.load(Ordering::Relaxed)
    }

    pub(crate) fn reload(&self) {
        if let Some(wakeup) = &mut *lock(&self.wakeup) {
            let _ = wakeup.write(&[0]);
        }
    }

    pub(crate) fn stop(&self) {
        lock(&self.wakeup).take();
    }
}

/// Which descriptors have something to read.
struct Ready {
    wakeup: bool,
    socket: bool,
    inotify: bool,
}

impl Idle {
    fn run(mut self, hub: &Weak<Hub>) {
        let queue = std::fs::read_to_string("/proc/sys/net/unix/max_dgram_qlen");
        let queue = queue.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(DEFAULT_QUEUE);
        loop {
            // Not kept while waiting: this thread must end when the store is dropped.
            let Some(inotify) = hub.upgrade().map(|hub| hub.inotify.clone()) else { return };
            let Some(ready) = self.wait(&inotify) else { return };
            let Some(hub) = hub.upgrade() else { return };
            if ready.wakeup && self.wakeup.read(&mut [0; 64]).is_ok_and(|read| read == 0) {
                return;
            }
            if let Some(socket) = self.socket.as_ref().filter(|_| ready.socket) {
                receive(socket, queue, &hub);
            }
            if ready.inotify {
                inotify.read(&hub);
            }
        }
    }

    /// Waits until a descriptor is ready. `None` if poll(2) fails.
    fn wait(&self, inotify: &Inotify) -> Option<Ready> {
        let socket = self.socket.as_ref().map(|socket| PollFd::new(socket, PollFlags::IN));
        let files = inotify.fd().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let (has_socket, has_inotify) = (socket.is_some(), files.is_some());
        let mut fds: Vec<_> =
            [PollFd::new(&self.wakeup, PollFlags::IN)].into_iter().chain(socket).chain(files).collect();
        loop {
            match poll(&mut fds, None) {
                Ok(_) => {
                    let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
                    let mut next = |is_there: bool| is_there && ready.next().unwrap_or(false);
                    return Some(Ready { wakeup: next(true), socket: next(has_socket), inotify: next(has_inotify) });
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }
}

/// Reads all datagrams. If the queue may have been full, the kernel may have dropped some: then all claims are
/// notified.
fn receive(socket: &UnixDatagram, queue: usize, hub: &Hub) {
    let mut message = [0; MAX_MESSAGE];
    let mut received = 0;
    while let Ok(length) = socket.recv(&mut message) {
        received += 1;
        let message = message.get(..length).unwrap_or_default();
        match turn::read(message) {
            Some(handed) => hub.notify_granted(handed),
            None => hub.notify(ids(message)),
        }
    }
    if received >= queue {
        hub.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
