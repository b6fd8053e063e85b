//! The suite on the reference store, and an example of a fixture with every power but a restart.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oarlock_conformance::{Connection, Fixture, MemoryConnection, Pace, Power, Powers};
use oarlock_core::Result;
use oarlock_core::driver::BoxFuture;
use oarlock_core::memory::{Memory, Snapshot};

#[derive(Default)]
struct Mem {
    store: Memory,
    earlier: Mutex<Option<Snapshot>>,
}

impl Fixture for Mem {
    fn name(&self) -> String {
        "mem".into()
    }

    fn powers(&self) -> Powers {
        let restart = Power::Lacks("a store in memory does not survive a restart");
        Powers::none()
            .kill(Power::Has)
            .cut(Power::Has)
            .drop_reply(Power::Has)
            .restart(restart)
            .pause(Power::Lacks("a store in memory stops only with its clients"))
            .fall_back(Power::Has)
    }

    fn pace(&self) -> Pace {
        Pace::of(Duration::from_millis(1000))
    }

    fn connect(&self) -> BoxFuture<Result<Arc<dyn Connection>>> {
        let driver = Arc::new(self.store.connect());
        let kit = driver.kit();
        Box::pin(async move { Ok(Arc::new(MemoryConnection { driver, kit }) as Arc<dyn Connection>) })
    }

    fn remember(&self) -> BoxFuture<Result<()>> {
        *self.earlier.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.store.kit().snapshot());
        Box::pin(std::future::ready(Ok(())))
    }

    fn fall_back(&self) -> BoxFuture<Result<()>> {
        if let Some(earlier) = &*self.earlier.lock().unwrap_or_else(PoisonError::into_inner) {
            self.store.kit().fall_back(earlier);
        }
        Box::pin(std::future::ready(Ok(())))
    }
}

fn main() {
    oarlock_conformance::run(Mem::default());
}
