//! A token that contenders pass round by datagram: one message, one wake-up, and nothing that could be shared out
//! wrongly, because each contender knows only the next one.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oarlock::driver::BoxFuture;
use oarlock::{Error, Result};
use tokio::net::UnixDatagram;

use super::failed;
use crate::baseline::Rival;

/// A token that is not passed on for this long was lost.
const TAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a contender that leaves waits for the token.
const LEAVE_TIMEOUT: Duration = Duration::from_millis(250);

/// How long to wait for room in the queue of the next contender.
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// The longest path of a socket that every system accepts.
const MAX_SOCKET_PATH: usize = 103;

const TOKEN: [u8; 1] = *b"t";
/// Another contender joined: the ring has to be read again.
const JOINED: [u8; 1] = *b"j";

/// One contender of the ring that a folder of sockets is. It joins with its first `take`.
pub(super) struct Token {
    folder: PathBuf,
    member: Mutex<Option<Arc<Member>>>,
}

struct Member {
    socket: UnixDatagram,
    /// The same socket: the kernel does not tell when the queue of another one has room again.
    sender: std::os::unix::net::UnixDatagram,
    path: PathBuf,
    next: Mutex<PathBuf>,
}

impl Token {
    /// A contender of the ring in this folder; `None` if the path of the folder is too long for a socket.
    pub(super) fn new(folder: PathBuf) -> Option<Self> {
        let longest = folder.join(format!("{:x}", u64::MAX));
        (longest.as_os_str().len() <= MAX_SOCKET_PATH).then(|| Self { folder, member: Mutex::default() })
    }

    /// This member of the ring, and whether the token starts here.
    fn member(&self) -> io::Result<(Arc<Member>, bool)> {
        let mut member = lock(&self.member);
        if let Some(member) = &*member {
            return Ok((member.clone(), false));
        }
        std::fs::create_dir_all(&self.folder)?;
        let path = self.folder.join(format!("{:x}", fastrand::u64(..)));
        let socket = std::os::unix::net::UnixDatagram::bind(&path)?;
        socket.set_nonblocking(true)?;
        for other in ring(&self.folder)? {
            match socket.send_to(&JOINED, other) {
                // Its queue is full of these already.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => drop(sent?),
            }
        }
        let sender = socket.try_clone()?;
        let socket = UnixDatagram::from_std(socket)?;
        let joined = Arc::new(Member { socket, sender, next: Mutex::new(path.clone()), path });
        let laid = std::fs::File::create_new(self.folder.join("token.laid"));
        *member = Some(joined.clone());
        Ok((joined, laid.is_ok()))
    }

    async fn receive(&self) -> io::Result<()> {
        let (member, begins) = self.member()?;
        if begins {
            return Ok(());
        }
        loop {
            let mut message = [0];
            member.socket.recv(&mut message).await?;
            if message == TOKEN {
                return Ok(());
            }
            member.find_next()?;
        }
    }

    async fn send(&self) -> io::Result<()> {
        let (member, _) = self.member()?;
        let next = lock(&member.next).clone();
        loop {
            match member.sender.send_to(&TOKEN, &next) {
                // Only while many join: the next one has not read yet that they did.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::time::sleep(FULL_PAUSE).await,
                sent => return sent.map(drop),
            }
        }
    }
}

impl Member {
    /// Finds the next contender.
    fn find_next(&self) -> io::Result<()> {
        let ring = ring(self.path.parent().unwrap_or(Path::new(".")))?;
        let next = ring.iter().find(|path| **path > self.path).or(ring.first());
        *lock(&self.next) = next.unwrap_or(&self.path).clone();
        Ok(())
    }
}

impl Rival for Token {
    fn what(&self) -> &'static str {
        "a token passed round by datagram"
    }

    fn take(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            tokio::time::timeout(TAKE_TIMEOUT, self.receive()).await.map_err(|_| lost())?.map_err(failed)
        })
    }

    fn give(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(
            async move { tokio::time::timeout(TAKE_TIMEOUT, self.send()).await.map_err(|_| lost())?.map_err(failed) },
        )
    }

    /// The token goes round once more, and stays with the first contender that has left and passed it on. One that has
    /// waited for it in vain passes it on in the background: another contender may be slow, and others wait behind it.
    fn leave(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            // A contender that never took is no member, and is not missed.
            if lock(&self.member).is_none() {
                return Ok(());
            }
            let passed_on = tokio::spawn(async move {
                self.receive().await.map_err(failed)?;
                self.give().await
            });
            match tokio::time::timeout(LEAVE_TIMEOUT, passed_on).await {
                Ok(passed_on) => passed_on.unwrap_or(Ok(())),
                // The others have ended, or are slow.
                Err(_) => Ok(()),
            }
        })
    }
}

fn lost() -> Error {
    Error::unreachable("the token of the baseline was lost").on("local")
}

/// All contenders, in their order.
fn ring(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut ring = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        ring.push(entry?.path());
    }
    ring.retain(|path| path.extension().is_none());
    ring.sort_unstable();
    Ok(ring)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The one between them is slow, and holds the token.
    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn a_contender_that_has_left_still_passes_the_token_on() {
        let folder = std::env::temp_dir().join(format!("oarlock-ring-{:x}", fastrand::u64(..)));
        let mut ring: Vec<_> = (0..3).map(|_| Arc::new(Token::new(folder.clone()).unwrap())).collect();
        let first = ring[0].clone();
        for one in &ring {
            one.member().unwrap();
        }
        ring.sort_by_key(|one| one.member().unwrap().0.path.clone());
        // It was laid for the first one that joined, which holds it now.
        let at = ring.iter().position(|one| Arc::ptr_eq(one, &first)).unwrap();
        let (leaves, waits) = (ring[(at + 1) % 3].clone(), ring[(at + 2) % 3].clone());
        leaves.leave().await.unwrap();
        let waiting = tokio::spawn(waits.take());
        // What it reads before it gives: that others have joined.
        first.member().unwrap().0.find_next().unwrap();
        first.give().await.unwrap();
        let passed = tokio::time::timeout(std::time::Duration::from_secs(30), waiting).await;
        passed.expect("the token was not passed on").unwrap().unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// All leave when the turn is over, and none of them waits in vain.
    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn the_token_goes_round_for_as_long_as_a_contender_waits() {
        let folder = std::env::temp_dir().join(format!("oarlock-ring-{:x}", fastrand::u64(..)));
        let ring: Vec<_> = (0..3).map(|_| Arc::new(Token::new(folder.clone()).unwrap())).collect();
        for _ in 0..5 {
            // Long enough for all of them to start on a busy machine.
            let end = std::time::Instant::now() + Duration::from_millis(200);
            let pass = |at: usize| {
                let one: Arc<Token> = ring[at].clone();
                tokio::spawn(async move {
                    let mut taken = 0;
                    while std::time::Instant::now() < end {
                        one.clone().take().await.unwrap();
                        one.clone().give().await.unwrap();
                        taken += 1;
                    }
                    one.leave().await.unwrap();
                    taken
                })
            };
            let (first, second, third) = tokio::join!(pass(0), pass(1), pass(2));
            assert!([first, second, third].map(Result::unwrap).iter().all(|taken| *taken > 0));
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
