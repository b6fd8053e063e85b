//! Deliberately broken locks as a fixture: the cases must catch them, or they prove nothing.

use std::sync::Arc;

use oarlock_core::Result;
use oarlock_core::driver::BoxFuture;
pub use oarlock_torture::broken::{BrokenStore, Flaw, is_right, judged, storm};

use crate::fixture::{Connection, Fixture, Power, Powers};
use crate::memory_connection::MemoryConnection;

impl Fixture for BrokenStore {
    fn name(&self) -> String {
        format!("{:?}", self.flaw())
    }

    fn powers(&self) -> Powers {
        Powers::none().kill(Power::Has).cut(Power::Has).drop_reply(Power::Has)
    }

    fn connect(&self) -> BoxFuture<Result<Arc<dyn Connection>>> {
        let (driver, kit) = self.open();
        Box::pin(async move { Ok(Arc::new(MemoryConnection { driver, kit }) as Arc<dyn Connection>) })
    }
}
