//! The loop that all peers in Rust share.

// Named in full, because programs outside this crate take this file in by its path.
#[path = "peer/worker.rs"]
mod worker;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::sync::mpsc;

use worker::Worker;

/// One lock library.
pub trait Client: Send + Sync + 'static {
    /// What it makes.
    type Lock: Lock;

    /// The version of the library.
    fn version(&self) -> String;

    /// A lock that is not held yet.
    ///
    /// # Errors
    /// [`Refusal::Cannot`] for a kind that it does not have.
    fn lock(&self, kind: &str, name: &str) -> impl Future<Output = Result<Self::Lock, Refusal>> + Send;

    /// Takes the lock from its holder; false if it was free.
    ///
    /// # Errors
    /// The error of the library. [`Refusal::Cannot`] where that is not possible.
    fn force_unlock(&self, _name: &str) -> impl Future<Output = Result<bool, Refusal>> + Send {
        std::future::ready(Err(Refusal::Cannot("it has no force-unlock".to_owned())))
    }
}

/// One lock of one owner.
pub trait Lock: Send + Sync + 'static {
    /// Waits for `wait` at most, once only if that is zero. With `renewed` it is kept alive until it is released.
    ///
    /// # Errors
    /// The error of the library.
    fn acquire(
        &mut self,
        lease: Duration,
        wait: Duration,
        renewed: bool,
    ) -> impl Future<Output = Result<bool, Refusal>> + Send;

    /// A number that grows with every grant, where there is one.
    fn fence(&self) -> Option<u64> {
        None
    }

    /// Enters once more.
    ///
    /// # Errors
    /// [`Refusal::Cannot`] where that is not possible.
    fn again(&mut self) -> impl Future<Output = Result<bool, Refusal>> + Send {
        std::future::ready(Err(Refusal::Cannot("it is not re-entrant".to_owned())))
    }

    /// Why it is no longer held, where the library knows.
    ///
    /// # Errors
    /// The error of the library.
    fn loss(&mut self) -> impl Future<Output = Result<Option<Loss>, Refusal>> + Send {
        std::future::ready(Ok(None))
    }

    /// Releases it; gives the loss if it was not ours any more.
    ///
    /// # Errors
    /// The error of the library.
    fn release(&mut self) -> impl Future<Output = Result<Option<Loss>, Refusal>> + Send;
}

/// Nanoseconds of the clock that all processes of this machine share, in whatever language.
#[must_use]
pub fn now() -> u64 {
    let at = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(at.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(at.tv_nsec).unwrap_or(0)
}

/// Why a lock is no longer held.
pub type Loss = String;

/// Why a command was not obeyed.
#[derive(Debug)]
pub enum Refusal {
    /// This client has no such thing.
    Cannot(String),
    /// It went wrong.
    Error(String),
}

impl<E: fmt::Display> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self::Error(error.to_string().replace('\n', " "))
    }
}

/// Executes commands until the input ends. Then it releases nothing: the test wants to see the death of this process.
///
/// # Errors
/// When standard input or output fails.
pub async fn run(name: &str, client: impl Client) -> std::io::Result<()> {
    let client = Arc::new(client);
    let (say, mut said) = mpsc::unbounded_channel::<String>();
    let printer = tokio::spawn(async move {
        let mut out = tokio::io::stdout();
        while let Some(line) = said.recv().await {
            if out.write_all(format!("{line}\n").as_bytes()).await.is_err() || out.flush().await.is_err() {
                break;
            }
        }
    });
    // The printer lives as long as the process, so this cannot fail.
    let _ = say.send(format!("ready {name} {}", client.version()));
    let mut workers: HashMap<String, mpsc::UnboundedSender<Vec<String>>> = HashMap::new();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let Some(handle) = words.get(1).cloned() else { continue };
        let commands = workers.entry(handle).or_insert_with_key(|handle| {
            let (commands, mut todo) = mpsc::unbounded_channel::<Vec<String>>();
            let (mut worker, say) = (Worker::new(client.clone(), handle.clone()), say.clone());
            tokio::spawn(async move {
                while let Some(words) = todo.recv().await {
                    let _ = say.send(worker.obey(&words).await);
                }
            });
            commands
        });
        let _ = commands.send(words);
    }
    printer.abort();
    Ok(())
}
