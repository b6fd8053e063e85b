//! A holder is stopped for longer than its lease, wakes up, and writes before it looks. The lock cannot stop it: it was
//! granted to another meanwhile. What it writes to can: it has seen a larger fence.
//!
//! `cargo run -p oarlock --example paused_holder -- [--url URL]`. Two real processes, a real SIGSTOP; without a URL the
//! embedded store, in a folder of its own.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use oarlock::{Fence, Fenced};

type Failure = Box<dyn std::error::Error>;

const LEASE: Duration = Duration::from_secs(1);

fn main() -> Result<(), Failure> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            let folder = tempfile::tempdir()?;
            scene(&format!("local:{}", folder.path().display()))
        }
        ["--url", url] => scene(url),
        ["holder", url] => holder(url),
        _ => Err(format!("usage: [--url URL], not {args:?}").into()),
    }
}

/// The process that will be stopped. It takes the lock, does its reading, and writes when told to, without looking
/// back.
fn holder(url: &str) -> Result<(), Failure> {
    let locks = oarlock::blocking::connect(url)?;
    let guard = locks.mutex("stock").ttl(LEASE).lock()?;
    println!("{}", guard.fence());
    std::io::stdin().lock().lines().next().transpose()?;
    println!("{}", guard.fence());
    // Had it looked, it would have known:
    let lost = guard.lost_within(Duration::from_secs(5))?;
    println!("{}", lost.map_or_else(|| "still held".to_owned(), |reason| reason.to_string()));
    Ok(())
}

/// Everything else: the data that is protected, the rival, and the one who stops and wakes the holder.
fn scene(url: &str) -> Result<(), Failure> {
    let stock = Fenced::new(3);
    let (mut sleeper, mut says) = start_holder(url)?;
    let first = fence_in(&mut says)?;
    println!("process {} holds the lock with fence {first}, and has read: 3 left", sleeper.id());

    signal(&sleeper, "-STOP")?;
    println!("it is stopped, as by a long GC pause or a suspended machine");
    let locks = oarlock::blocking::connect(url)?;
    let started = Instant::now();
    let rival = locks.mutex("stock").ttl(LEASE).lock()?;
    println!(
        "after {:.1} s the lock is granted to another process, with fence {}",
        started.elapsed().as_secs_f64(),
        rival.fence()
    );
    let left = stock.change(rival.fence(), |stock| {
        *stock -= 2;
        *stock
    })?;
    println!("which sells two: {left} left");

    writeln!(sleeper.stdin.take().ok_or("no line to the holder")?, "go on")?;
    signal(&sleeper, "-CONT")?;
    let late = fence_in(&mut says)?;
    // It had read 3, and sells one.
    let Err(refused) = stock.change(late, |stock| *stock = 3 - 1) else {
        return Err("the late write got through".into());
    };
    println!("the first process continues and writes what it had computed, 2 left: {refused}");
    println!("then it learns of its loss: {}", next(&mut says)?);
    sleeper.wait()?;
    let left = stock.read(|stock| *stock);
    if left != 1 || late != first || rival.fence() <= first {
        return Err(format!("{left} left, fences {first}, {late} and {}", rival.fence()).into());
    }
    println!("{left} left: no sale was undone");
    rival.release()?;
    Ok(())
}

fn start_holder(url: &str) -> Result<(Child, Lines<BufReader<ChildStdout>>), Failure> {
    let mut holder = Command::new(std::env::current_exe()?)
        .args(["holder", url])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let says = holder.stdout.take().ok_or("no line from the holder")?;
    Ok((holder, BufReader::new(says).lines()))
}

fn next(says: &mut Lines<BufReader<ChildStdout>>) -> Result<String, Failure> {
    Ok(says.next().ok_or("the holder said nothing")??)
}

fn fence_in(says: &mut Lines<BufReader<ChildStdout>>) -> Result<Fence, Failure> {
    Ok(Fence::new(next(says)?.parse()?))
}

fn signal(process: &Child, signal: &str) -> Result<(), Failure> {
    let sent = Command::new("kill").arg(signal).arg(process.id().to_string()).status()?;
    if sent.success() { Ok(()) } else { Err(format!("kill {signal} failed").into()) }
}
