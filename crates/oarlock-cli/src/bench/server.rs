//! The server of the pairs over HTTP: a process of its own, as `oarlock serve` is.

use std::time::Duration;

use oarlock::Runtime;
use oarlock_serve::{Config, Server};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, ChildStdin};

use crate::bench::plan::Plan;
use crate::bench::worker::{SERVES, answer, process};
use crate::exit::{Code, Exit, Failure};
use crate::signals::{self, FORWARDED, Signals};
use crate::store::block_on;

/// How long the store may take to hear that the server ends.
const FAREWELL: Duration = Duration::from_secs(1);

/// A server that runs until this is dropped.
pub(crate) struct Running {
    child: Child,
    orders: Option<ChildStdin>,
}

impl Running {
    /// Starts one, and returns it with its address.
    pub(crate) async fn start() -> Result<(Self, String), Failure> {
        let mut child = process(SERVES).map_err(|error| Failure::os("cannot start a process", error))?;
        let gone = || Failure::new(Code::Internal, "the server of the pairs over HTTP ended early");
        let lines = child.stdout.take().ok_or_else(gone)?;
        let address = BufReader::new(lines).lines().next_line().await.ok().flatten().ok_or_else(gone)?;
        let orders = child.stdin.take();
        Ok((Self { child, orders }, address))
    }

    /// Ends it in order.
    pub(crate) async fn end(mut self) {
        drop(self.orders.take());
        let _ = self.child.wait().await;
    }
}

/// Serves until there are no more orders.
pub(crate) fn serve(plan: &Plan) -> Result<Exit, Failure> {
    block_on(async {
        // The process that started us hears the signals of the terminal too, and ends our orders.
        let _unmoved = Signals::new(FORWARDED.iter().copied())?;
        let runtime = signals::unheard(Runtime::own_thread)?;
        let locks = oarlock::builder(plan.store.url.clone()).runtime(runtime).connect().await?;
        let mut config = Config::default();
        config.listen.set_port(0);
        // One client sends all of it.
        config.rate = u32::MAX;
        config.audit = Some("/dev/null".into());
        let server = Server::bind(locks.clone(), config).await?;
        answer(&format!("{}\n", server.address())).await?;
        server
            .run(async {
                let _ = tokio::io::stdin().read_to_end(&mut Vec::new()).await;
            })
            .await;
        let _ = tokio::time::timeout(FAREWELL * 2, locks.shutdown(FAREWELL)).await;
        Ok(Code::Success.into())
    })
}
