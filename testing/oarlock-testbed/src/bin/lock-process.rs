//! Takes a lock and reports what happens to it. Tests stop it, kill it and send it commands.
//!
//! `lock-process <url> <name> <lease ms>`. Prints `waiting`, `held <fence> <boot ns>`, `lost <boot ns> <reason>`,
//! `released <boot ns>`, `failed <why>`. Reads `release` and `quit` from standard input, and ends with it.

use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::time::Duration;

use oarlock::driver::clock::{BootClock, Clock};
use oarlock::event::Step;
use oarlock::{ErrorKind, Guard, LockEvent};
use tokio::sync::mpsc;

fn main() -> ExitCode {
    let ended = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| error.to_string())
        .and_then(|runtime| runtime.block_on(run()).map_err(|error| error.to_string()));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            report(&format!("failed {why}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints one whole line at once: the test may stop or kill this process after any of them.
fn report(line: &str) {
    let mut out = std::io::stdout().lock();
    // If the test has ended, the end of standard input ends this process.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn boot() -> u64 {
    BootClock.now().as_nanos()
}

async fn run() -> oarlock::Result<()> {
    let mut args = std::env::args().skip(1);
    let usage = || oarlock::Error::new(ErrorKind::Config, "usage: lock-process <url> <name> <lease ms>");
    let (url, name) = (args.next().ok_or_else(usage)?, args.next().ok_or_else(usage)?);
    let lease = args.next().and_then(|ms| ms.parse().ok()).map(Duration::from_millis).ok_or_else(usage)?;

    let mut commands = commands();
    let waiting = |event: &LockEvent| {
        if matches!(event.step, Step::Waiting { .. }) {
            report("waiting");
        }
    };
    let locks = oarlock::builder(url).observer(waiting).connect().await?;
    let lock = locks.mutex(name).ttl(lease).wait_forever();
    let guard = tokio::select! {
        guard = lock.lock() => guard?,
        _ = commands.recv() => return locks.shutdown(Duration::from_secs(2)).await,
    };
    report(&format!("held {} {}", guard.fence(), boot()));
    let guard = keep(guard, &mut commands).await;
    if let Some(guard) = guard {
        guard.release().await?;
        report(&format!("released {}", boot()));
    }
    locks.shutdown(Duration::from_secs(2)).await
}

/// Keeps the lock until a command comes; `None` if it was lost.
async fn keep(guard: Guard, commands: &mut mpsc::UnboundedReceiver<String>) -> Option<Guard> {
    tokio::select! {
        reason = guard.lost() => {
            report(&format!("lost {} {reason}", boot()));
            None
        }
        _ = commands.recv() => Some(guard),
    }
}

/// The commands on standard input; its end counts as `quit`.
fn commands() -> mpsc::UnboundedReceiver<String> {
    let (send, commands) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    commands
}
