//! The processes of a contended load, as the one that measures sees them. Each is this program once more; see
//! [`worker`](super::worker) for what is said between them.

use std::time::Duration;

use oarlock_bench::grants::{Grant, Window};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

use crate::bench::worker::{DONE, READY, process};
use crate::exit::{Code, Failure};

/// Longer than a worker needs to give everything back.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Default)]
pub(crate) struct Workers(Vec<Worker>);

struct Worker {
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Workers {
    /// Starts as many, and waits until all are connected.
    pub(crate) async fn start(&mut self, count: u32) -> Result<(), Failure> {
        for number in 0..count {
            self.0.push(Worker::start(number)?);
        }
        for worker in &mut self.0 {
            let answer = worker.answer().await?;
            if answer != READY {
                return Err(strange());
            }
        }
        Ok(())
    }

    /// Lets all of them contend for `name` at once; their grants in no order.
    pub(crate) async fn contend(&mut self, who: &str, name: &str, window: Window) -> Result<Vec<Grant>, Failure> {
        let order = format!("{who} {} {} {name}\n", window.start, window.end);
        for worker in &mut self.0 {
            worker.orders.write_all(order.as_bytes()).await.map_err(|_| gone())?;
        }
        let mut grants = Vec::new();
        for worker in &mut self.0 {
            loop {
                let answer = worker.answer().await?;
                if answer == DONE {
                    break;
                }
                grants.push(answer.parse().map_err(|()| strange())?);
            }
        }
        Ok(grants)
    }

    /// Ends all of them: each gives back what it has, and goes.
    pub(crate) async fn end(&mut self) -> Result<(), Failure> {
        let mut children = Vec::new();
        // All at once: the end of their orders is what they wait for.
        for Worker { child, orders, answers } in self.0.drain(..) {
            drop((orders, answers));
            children.push(child);
        }
        let mut all_well = true;
        for mut child in children {
            let ended = tokio::time::timeout(PATIENCE, child.wait()).await;
            all_well &= matches!(ended, Ok(Ok(status)) if status.success());
        }
        if all_well { Ok(()) } else { Err(Failure::new(Code::Internal, "a process of the load did not end well")) }
    }
}

impl Worker {
    fn start(number: u32) -> Result<Self, Failure> {
        let mut child = process(&number.to_string()).map_err(|error| Failure::os("cannot start a process", error))?;
        let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else { return Err(gone()) };
        Ok(Self { child, orders, answers: BufReader::new(answers).lines() })
    }

    async fn answer(&mut self) -> Result<String, Failure> {
        self.answers.next_line().await.ok().flatten().ok_or_else(gone)
    }
}

fn gone() -> Failure {
    Failure::new(Code::Internal, "a process of the load ended early")
}

fn strange() -> Failure {
    Failure::new(Code::Internal, "unexpected output from a worker process")
}
