//! The suite on the embedded store.

use std::sync::Arc;
use std::time::Duration;

use oarlock_conformance::faulty::Faulty;
use oarlock_conformance::{Connection, Fixture, Pace, Power, Powers};
use oarlock_core::driver::BoxFuture;
use oarlock_core::memory::Verb;
use oarlock_core::{DynDriver, Result};
use oarlock_local::{Config, Local};
use tempfile::TempDir;

struct Directory(TempDir);

/// There is no network to cut, so the line between the engine and the driver is.
struct Line(Arc<Faulty>);

impl Fixture for Directory {
    fn name(&self) -> String {
        "local".into()
    }

    fn powers(&self) -> Powers {
        let restart = Power::Lacks("there is no server");
        Powers::none().kill(Power::Has).cut(Power::Has).drop_reply(Power::Has).restart(restart)
    }

    fn pace(&self) -> Pace {
        Pace::of(Duration::from_millis(600))
    }

    fn connect(&self) -> BoxFuture<Result<Arc<dyn Connection>>> {
        let config = Config::new(self.0.path());
        Box::pin(async move {
            let driver = Arc::new(Local::open(config).await?);
            Ok(Arc::new(Line(Arc::new(Faulty::new(driver)))) as Arc<dyn Connection>)
        })
    }
}

fn done(_: ()) -> BoxFuture<Result<()>> {
    Box::pin(std::future::ready(Ok(())))
}

impl Connection for Line {
    fn driver(&self) -> Arc<dyn DynDriver> {
        self.0.clone()
    }

    /// The kernel does to the session of a dead process what closing does.
    fn kill(&self) -> BoxFuture<Result<()>> {
        self.driver().close()
    }

    fn cut(&self) -> BoxFuture<Result<()>> {
        done(self.0.cut())
    }

    fn heal(&self) -> BoxFuture<Result<()>> {
        done(self.0.heal())
    }

    fn drop_reply(&self, verb: Verb) -> BoxFuture<Result<()>> {
        done(self.0.drop_reply(verb))
    }
}

fn main() -> std::io::Result<()> {
    oarlock_conformance::run(Directory(tempfile::tempdir()?))
}
