//! Many who do something at the same moment, each on a thread of its own: SQLite blocks the thread while it waits.

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::demo::database::PATIENCE;
use crate::demo::trouble::Boxed;

/// Starts one of them.
pub(crate) fn start<T: Send + 'static>(
    work: impl AsyncFnOnce() -> Result<T, Boxed> + Send + 'static,
) -> JoinHandle<Result<T, Boxed>> {
    let runtime = Handle::current();
    tokio::task::spawn_blocking(move || runtime.block_on(work()))
}

/// Waits for all of them, but not for ever.
pub(crate) async fn all<T>(crowd: Vec<JoinHandle<Result<T, Boxed>>>) -> Result<Vec<T>, Boxed> {
    let all = async {
        let mut results = Vec::with_capacity(crowd.len());
        for one in crowd {
            results.push(one.await??);
        }
        Ok(results)
    };
    let late = || Boxed::from(oarlock::Error::unreachable("the store took too long"));
    tokio::time::timeout(2 * PATIENCE, all).await.unwrap_or_else(|_| Err(late()))
}
