//! The workers as the parent sees them: their processes, their proxies, and what each of them reported last.

mod recorder;
mod status;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oarlock_core::clock::{BootClock, Clock, Moment};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin};
use tokio::sync::{mpsc, watch};

use crate::proxy::Proxy;
use crate::record::{Event, Header, What};
use crate::worker::{Assignment, Order};

pub(crate) use recorder::{BY_ITSELF, Recorder};
pub(crate) use status::{Counted, Doing, Status};

/// The exit code of a process whose main thread panicked.
const PANICKED: i32 = 101;

/// A server: what the URL calls it, and where it is.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its name and its port, as the URL or another server names them.
    pub host: (String, u16),
    /// Where it is.
    pub addr: SocketAddr,
}

impl Server {
    /// For messages.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}:{}", self.host.0, self.host.1)
    }
}

/// What every worker of a run is told.
pub(crate) struct Terms {
    pub(crate) header: Header,
    pub(crate) pause: Duration,
    pub(crate) servers: Vec<Server>,
    pub(crate) with: Option<String>,
    pub(crate) command: Box<dyn Fn() -> Command + Send + Sync>,
}

/// The processes. Those that are left are killed when it is dropped.
pub(crate) struct Workers {
    terms: Terms,
    slots: Vec<Slot>,
    next: u32,
    pub(crate) shared: Arc<Shared>,
    reports: mpsc::UnboundedSender<(u32, Report)>,
}

/// What came from a worker.
pub(crate) enum Report {
    Event(Event),
    /// A line that could not be read.
    Garbled,
    /// Nothing follows.
    End,
}

/// The position of a worker; another one follows when it was killed.
struct Slot {
    w: u32,
    child: Child,
    proxies: Vec<Proxy>,
}

/// What the recorder and the faults share.
pub(crate) struct Shared {
    started: Moment,
    status: watch::Sender<Status>,
    inputs: Mutex<BTreeMap<u32, mpsc::UnboundedSender<Order>>>,
    pids: Mutex<BTreeMap<u32, Pid>>,
    events: mpsc::UnboundedSender<Event>,
}

impl Shared {
    pub(crate) fn new(events: mpsc::UnboundedSender<Event>) -> Self {
        let started = BootClock.now();
        Self { started, status: watch::Sender::default(), inputs: Mutex::default(), pids: Mutex::default(), events }
    }

    /// Nanoseconds since the start.
    pub(crate) fn now(&self) -> u64 {
        self.since(BootClock.now())
    }

    fn since(&self, moment: Moment) -> u64 {
        moment.as_nanos().saturating_sub(self.started.as_nanos())
    }

    /// Writes an event down.
    pub(crate) fn record(&self, what: What) {
        self.record_at(self.now(), what);
    }

    pub(crate) fn record_at(&self, at: u64, what: What) {
        // The writer ends last.
        let _ = self.events.send(Event { at, what });
    }

    pub(crate) fn order(&self, w: u32, order: Order) {
        if let Some(input) = locked(&self.inputs).get(&w) {
            // A worker that has died needs no orders.
            let _ = input.send(order);
        }
    }

    pub(crate) fn signal(&self, w: u32, signal: Signal) {
        if let Some(pid) = locked(&self.pids).get(&w) {
            // Its group: another library has a process of its own there.
            let _ = kill_process_group(*pid, signal);
        }
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Status)) {
        self.status.send_modify(change);
    }

    pub(crate) fn look<T>(&self, look: impl FnOnce(&Status) -> T) -> T {
        look(&self.status.borrow())
    }

    /// Waits until `found` finds something on the status; `None` after `bound`.
    pub(crate) async fn until<T>(&self, bound: Duration, mut found: impl FnMut(&Status) -> Option<T>) -> Option<T> {
        let mut status = self.status.subscribe();
        let waiting = async {
            loop {
                if let Some(found) = found(&status.borrow_and_update()) {
                    return Some(found);
                }
                status.changed().await.ok()?;
            }
        };
        tokio::time::timeout(bound, waiting).await.ok().flatten()
    }
}

impl Workers {
    pub(crate) fn new(terms: Terms, shared: Arc<Shared>, reports: mpsc::UnboundedSender<(u32, Report)>) -> Self {
        Self { terms, slots: Vec::new(), next: 0, shared, reports }
    }

    /// Starts a worker in a slot of its own.
    pub(crate) async fn add(&mut self) -> io::Result<()> {
        let proxies = self.terms.servers.iter().map(|server| Proxy::start(server.addr)).collect::<io::Result<_>>()?;
        let slot = self.slots.len();
        let (w, child) = self.start(slot, &proxies).await?;
        self.slots.push(Slot { w, child, proxies });
        Ok(())
    }

    async fn start(&mut self, slot: usize, proxies: &Vec<Proxy>) -> io::Result<(u32, Child)> {
        let w = self.next;
        self.next += 1;
        let mut command = (self.terms.command)();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = tokio::process::Command::from(command).kill_on_drop(true).process_group(0).spawn()?;
        let gone = || io::Error::other("a worker process has ended at once");
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else { return Err(gone()) };
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw).ok_or_else(gone)?;
        let Terms { header, pause, servers, with, .. } = &self.terms;
        let number = u32::try_from(slot).unwrap_or(u32::MAX);
        let routes = servers.iter().zip(proxies);
        let assignment = Assignment {
            w,
            seed: header.seed.wrapping_add(u64::from(w).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            run: header.run.clone(),
            ttl_ms: header.ttl_ms,
            pause_ms: millis(*pause),
            locks: header.locks.clone(),
            routes: routes.map(|(server, proxy)| (server.host.clone(), address(proxy.addr()))).collect(),
            with: with.clone().filter(|_| header.is_library(number)),
        };
        let mut first = serde_json::to_vec(&assignment)?;
        first.push(b'\n');
        input.write_all(&first).await?;
        let (orders, queue) = mpsc::unbounded_channel();
        locked(&self.shared.inputs).insert(w, orders);
        locked(&self.shared.pids).insert(w, pid);
        tokio::spawn(pass_orders(input, queue));
        let reports = self.reports.clone();
        tokio::spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let report = serde_json::from_str(&line).map_or(Report::Garbled, Report::Event);
                let _ = reports.send((w, report));
            }
            let _ = reports.send((w, Report::End));
        });
        let has_no_fence = header.has_fences_beside() && header.is_library(number);
        self.shared.record(What::Started { w, slot: number });
        self.shared.change(|status| status.started(w, has_no_fence));
        Ok((w, child))
    }

    pub(crate) fn size(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn worker(&self, slot: usize) -> u32 {
        self.slots.get(slot).map_or(u32::MAX, |slot| slot.w)
    }

    /// Whether the process of a worker ended with a panic.
    pub(crate) fn has_panicked(&mut self, w: u32) -> bool {
        let slot = self.slots.iter_mut().find(|slot| slot.w == w);
        let ended = slot.and_then(|slot| slot.child.try_wait().ok().flatten());
        ended.and_then(|status| status.code()) == Some(PANICKED)
    }

    pub(crate) fn slot_of(&self, w: u32) -> Option<usize> {
        self.slots.iter().position(|slot| slot.w == w)
    }

    /// The proxies of a worker.
    pub(crate) fn proxies(&self, slot: usize) -> &[Proxy] {
        self.slots.get(slot).map_or(&[], |slot| &slot.proxies)
    }

    pub(crate) fn servers(&self) -> &[Server] {
        &self.terms.servers
    }

    /// Kills the worker of a slot, and starts the next one there.
    pub(crate) async fn replace(&mut self, slot: usize, why: &str) -> io::Result<()> {
        let Some(old) = self.slots.get_mut(slot) else { return Ok(()) };
        let w = old.w;
        // Before its end is seen, or it would be taken for one that ended by itself.
        self.shared.change(|status| status.gone(w));
        // It believes nothing after this moment. The process itself may need a little longer to die.
        let at = self.shared.now();
        self.shared.signal(w, Signal::KILL);
        old.child.kill().await?;
        locked(&self.shared.pids).remove(&w);
        locked(&self.shared.inputs).remove(&w);
        self.shared.record_at(at, What::Died { w, why: why.to_owned() });
        let proxies = std::mem::take(&mut self.slots[slot].proxies);
        let started = self.start(slot, &proxies).await;
        let place = &mut self.slots[slot];
        place.proxies = proxies;
        (place.w, place.child) = started?;
        Ok(())
    }

    /// Ends the orders of all workers and waits for them, or kills them after `bound`.
    pub(crate) async fn end(&mut self, bound: Duration) {
        self.shared.change(|status| status.is_ending = true);
        locked(&self.shared.inputs).clear();
        let end = tokio::time::Instant::now() + bound;
        for slot in &mut self.slots {
            if tokio::time::timeout_at(end, slot.child.wait()).await.is_err() {
                self.shared.signal(slot.w, Signal::KILL);
                // It is killed at the latest when it is dropped.
                let _ = slot.child.kill().await;
            }
            // The process of another library may outlive its worker.
            self.shared.signal(slot.w, Signal::KILL);
        }
        locked(&self.shared.pids).clear();
    }
}

/// The workers die with their groups.
impl Drop for Workers {
    fn drop(&mut self) {
        for slot in &self.slots {
            self.shared.signal(slot.w, Signal::KILL);
        }
    }
}

async fn pass_orders(mut input: ChildStdin, mut queue: mpsc::UnboundedReceiver<Order>) {
    while let Some(order) = queue.recv().await {
        let Ok(mut text) = serde_json::to_vec(&order) else { continue };
        text.push(b'\n');
        if input.write_all(&text).await.is_err() {
            return;
        }
    }
}

fn address(addr: SocketAddr) -> (String, u16) {
    (addr.ip().to_string(), addr.port())
}

pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
