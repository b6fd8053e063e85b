//! The audit log: who did what, one JSON object a line.
//!
//! A thread of its own writes it: a disk that is slow, or standard error that is not read, must not stop requests.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::Duration;

use oarlock::{Error, ErrorKind, Result};
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use crate::access::Client;

/// Entries that wait to be written; more are counted, and dropped.
const MAX_QUEUED: usize = 1000;

/// How long an operation waits for its entry, and the end of the server for the last ones.
const PATIENCE: Duration = Duration::from_secs(2);

/// The audit log: a file if there is one, else standard error.
#[derive(Debug)]
pub(crate) struct Audit {
    /// `None` once it ends.
    queue: Option<SyncSender<Entry>>,
    dropped: Arc<AtomicU64>,
    /// Disconnected when all is written.
    done: std::sync::Mutex<Receiver<()>>,
}

/// What the thread writes to.
type Log = Box<dyn Write + Send>;

enum Entry {
    Line {
        line: String,
        /// Told whether it was written.
        told: Option<oneshot::Sender<bool>>,
    },
    /// The entries after it go there.
    Next(Log),
}

impl Audit {
    /// Appends to the file, which only its owner can read.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self> {
        match path {
            None => Self::over(Box::new(io::stderr())),
            Some(path) => Self::over(file(path)?),
        }
    }

    /// Opens the file again, which may have been renamed since. Entries before this are in the earlier one.
    pub(crate) fn reopen(&self, path: Option<&Path>) -> Result<()> {
        let Some(path) = path else { return Ok(()) };
        let next = Entry::Next(file(path)?);
        if self.queue.as_ref().is_some_and(|queue| queue.try_send(next).is_ok()) {
            return Ok(());
        }
        let detail = format!("cannot change to {}: the audit log is written too slowly", path.display());
        Err(Error::new(ErrorKind::Config, detail))
    }

    fn over(mut log: Log) -> Result<Self> {
        let (queue, entries) = mpsc::sync_channel::<Entry>(MAX_QUEUED);
        let (is_done, done) = mpsc::channel();
        let dropped = Arc::new(AtomicU64::new(0));
        let missing = dropped.clone();
        let thread = std::thread::Builder::new().name("audit".to_owned()).spawn(move || {
            let _is_done: mpsc::Sender<()> = is_done;
            for entry in entries {
                let (line, told) = match entry {
                    Entry::Line { line, told } => (line, told),
                    Entry::Next(next) => {
                        log = next;
                        continue;
                    }
                };
                let mut written = log.write_all(line.as_bytes());
                let missing = missing.swap(0, Ordering::Relaxed);
                if missing > 0 && written.is_ok() {
                    let facts = json!({ "entries": missing, "why": "the log is written too slowly" });
                    written = log.write_all(text("dropped", &facts).as_bytes());
                }
                if let Some(told) = told {
                    let _ = told.send(written.is_ok());
                }
                if let Err(error) = written {
                    let _ = writeln!(io::stderr(), "warning: the audit log could not be written: {error}");
                }
            }
        });
        thread.map_err(|error| Error::new(ErrorKind::Os, "cannot start a thread").because(error))?;
        Ok(Self { queue: Some(queue), dropped, done: done.into() })
    }

    /// Writes an entry: what was done, by whom, from where, and the facts. The names of locks and the reasons are
    /// escaped by JSON; there is no secret among them. It never waits: if too many entries wait, this one is counted.
    pub(crate) fn write(&self, what: &str, client: Option<&Client>, peer: IpAddr, facts: &Value) {
        self.enqueue(Entry::Line { line: entry(what, client, peer, facts), told: None });
    }

    /// Writes an entry, and returns whether it was written in time.
    pub(crate) async fn write_first(&self, what: &str, client: &Client, peer: IpAddr, facts: &Value) -> bool {
        let (told, written) = oneshot::channel();
        let line = entry(what, Some(client), peer, facts);
        self.enqueue(Entry::Line { line, told: Some(told) })
            && matches!(tokio::time::timeout(PATIENCE, written).await, Ok(Ok(true)))
    }

    fn enqueue(&self, entry: Entry) -> bool {
        let is_queued = self.queue.as_ref().is_some_and(|queue| queue.try_send(entry).is_ok());
        if !is_queued {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        is_queued
    }
}

/// Waits for the last entries, but not for a log that takes none.
impl Drop for Audit {
    fn drop(&mut self) {
        self.queue = None;
        if let Ok(done) = self.done.get_mut() {
            let _ = done.recv_timeout(PATIENCE);
        }
    }
}

/// Opens the file to append to it; only its owner can read it.
fn file(path: &Path) -> Result<Log> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    let config = |error| Error::new(ErrorKind::Config, format!("cannot write {}: {error}", path.display()));
    Ok(Box::new(file.map_err(config)?))
}

fn entry(what: &str, client: Option<&Client>, peer: IpAddr, facts: &Value) -> String {
    let mut all = json!({ "client": client.map(|client| &client.name), "peer": peer.to_string() });
    if let (Some(all), Some(facts)) = (all.as_object_mut(), facts.as_object()) {
        all.extend(facts.clone());
    }
    text(what, &all)
}

fn text(what: &str, facts: &Value) -> String {
    let at = format!("{:.3}", jiff::Timestamp::now());
    let mut entry = Map::from_iter([("at".to_owned(), json!(at)), ("audit".to_owned(), json!(what))]);
    entry.extend(facts.as_object().cloned().unwrap_or_default());
    format!("{}\n", Value::Object(entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes nothing until it is let go, then everything.
    struct Stuck {
        until: Receiver<()>,
        written: mpsc::Sender<String>,
    }

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.until.recv();
            let _ = self.written.send(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_log_that_takes_nothing_stops_no_request_and_lets_no_break_pass() {
        let (let_go, until) = mpsc::channel();
        let (written, log) = mpsc::channel();
        let audit = Arc::new(Audit::over(Box::new(Stuck { until, written })).unwrap());
        let peer = [127, 0, 0, 1].into();
        let (finished, finish) = mpsc::channel();
        std::thread::spawn({
            let audit = audit.clone();
            move || {
                for number in 0..2 * MAX_QUEUED {
                    audit.write("locked", None, peer, &json!({ "number": number }));
                }
                let _ = finished.send(());
            }
        });
        finish.recv_timeout(Duration::from_secs(20)).expect("no entry waits");
        let client = crate::access::Access::open().client(&http::HeaderMap::new(), None).unwrap();
        assert!(!audit.write_first("break", &client, peer, &json!({})).await, "no break without an entry");
        drop(let_go);
        let patience = Duration::from_secs(20);
        assert!(log.recv_timeout(patience).unwrap().contains(r#""audit":"locked","client":null,"number":0"#));
        assert!(log.recv_timeout(patience).unwrap().contains(r#""audit":"dropped","entries":"#), "it says so");
        while !audit.write_first("break", &client, peer, &json!({})).await {}
        drop(audit);
        assert!(log.iter().last().unwrap().contains(r#""audit":"break""#), "written before it ends");
    }

    /// As a rotation does: the file is renamed, and a new one takes the next entries.
    #[test]
    fn a_file_that_was_renamed_is_opened_again() {
        let dir = tempfile::TempDir::new().unwrap();
        let (path, old) = (dir.path().join("audit"), dir.path().join("audit.1"));
        let (audit, peer) = (Audit::open(Some(&path)).unwrap(), [127, 0, 0, 1].into());
        audit.write("locked", None, peer, &json!({ "name": "before" }));
        std::fs::rename(&path, &old).unwrap();
        audit.write("locked", None, peer, &json!({ "name": "between" }));
        assert!(audit.reopen(Some(&dir.path().join("no/such/folder"))).is_err());
        audit.reopen(Some(&path)).unwrap();
        audit.write("locked", None, peer, &json!({ "name": "after" }));
        drop(audit);
        let names = |path| std::fs::read_to_string(path).unwrap().matches("\"name\"").count();
        assert_eq!((names(old), names(path)), (2, 1), "none is lost");
    }

    #[tokio::test]
    async fn a_break_that_waits_for_its_entry_gives_up() {
        let (_let_go, until) = mpsc::channel();
        let audit = Audit::over(Box::new(Stuck { until, written: mpsc::channel().0 })).unwrap();
        let client = crate::access::Access::open().client(&http::HeaderMap::new(), None).unwrap();
        let facts = json!({});
        let entry = audit.write_first("break", &client, [127, 0, 0, 1].into(), &facts);
        let is_written = tokio::time::timeout(10 * PATIENCE, entry).await.expect("in time");
        assert!(!is_written);
    }
}
