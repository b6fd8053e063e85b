//! `mem:`, the store in the memory of one process.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use oarlock_core::Memory;
use oarlock_core::memory::GUARANTEES;
use oarlock_core::url::{Scheme, Store};

use crate::driver::DynDriver;

pub(crate) static STORE: Store =
    Store::new("mem", &[Scheme::new("mem", "the memory of one process, for tests")], |url| {
        Box::pin(async move { Ok(open(url.prefix())) })
    })
    .guarantees(&[GUARANTEES]);

/// One store per process and prefix, so that two connections to `mem:` contend.
fn open(prefix: &str) -> Arc<dyn DynDriver> {
    static STORES: LazyLock<Mutex<HashMap<String, Memory>>> = LazyLock::new(Mutex::default);
    let mut stores = STORES.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::new(stores.entry(prefix.to_owned()).or_default().connect())
}

#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn mem_is_one_store_per_process_and_prefix() {
        let (one, two) = (crate::connect("mem:").await.unwrap(), crate::connect("mem:").await.unwrap());
        let apart = crate::connect("mem:?prefix=apart").await.unwrap();
        let guard = one.mutex("one store").lock().await.unwrap();
        assert!(two.mutex("one store").try_lock().await.unwrap().is_none());
        assert!(apart.mutex("one store").try_lock().await.unwrap().is_some());
        guard.release().await.unwrap();
        assert!(two.mutex("one store").try_lock().await.unwrap().is_some());
    }
}
