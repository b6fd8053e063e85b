//! A server on a store of its own, and a small HTTP client.

use std::any::Any;
use std::net::SocketAddr;
use std::time::Duration;

use oarlock::Locks;
use oarlock_serve::{Access, Config, Reload, Server};
use oarlock_testbed::{Etcd, MariaDb, MySql, Postgres, Redis};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// Longer than anything here takes, even on a machine that does other things.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

pub(super) const TOKEN: &str = "a-token-that-no-one-can-guess";

/// A store that ends with its test.
pub(super) struct Store {
    pub(super) url: String,
    dir: TempDir,
    /// Its server, if it has one, which ends with it.
    _server: Option<Box<dyn Any + Send + Sync>>,
}

/// Whether the tests that take long run, too.
pub(super) fn is_long() -> bool {
    std::env::var_os("OARLOCK_LONG").is_some()
}

impl Store {
    pub(super) fn local() -> Self {
        let dir = TempDir::new().unwrap();
        Self { url: format!("local:{}/store", dir.path().display()), dir, _server: None }
    }

    /// Redis in a layout that other programs share: it has no index of its locks.
    pub(super) fn plain() -> Option<Self> {
        Redis::start_or_skip()
            .unwrap()
            .map(|redis| Self::of(format!("{}?layout=plain&prefix=lock:", redis.url()), redis))
    }

    /// etcd in a layout that cannot list its locks.
    pub(super) fn unlisted() -> Option<Self> {
        Etcd::start_or_skip().unwrap().map(|etcd| Self::of(format!("{}?layout=go", etcd.url()), etcd))
    }

    pub(super) fn of(url: String, server: impl Any + Send + Sync) -> Self {
        Self { url, dir: TempDir::new().unwrap(), _server: Some(Box::new(server)) }
    }

    /// The stores that every round trip is tested on, where they are installed: the embedded one and Redis; in a long run
    /// each that keeps leases.
    pub(super) fn all() -> Vec<Self> {
        if is_long() {
            return Self::everywhere();
        }
        let redis = Redis::start_or_skip().unwrap().map(|redis| Self::of(redis.url(), redis));
        [Self::local()].into_iter().chain(redis).collect()
    }

    /// Each store that keeps leases, where it is installed.
    pub(super) fn everywhere() -> Vec<Self> {
        let redis = Redis::start_or_skip().unwrap().map(|redis| Self::of(redis.url(), redis));
        let etcd = Etcd::start_or_skip().unwrap().map(|etcd| Self::of(etcd.url(), etcd));
        let postgres = Postgres::start_or_skip().unwrap().map(|postgres| Self::of(postgres.url(), postgres));
        let mariadb = MariaDb::start_or_skip().unwrap().map(|mariadb| Self::of(mariadb.url(), mariadb));
        let mysql = is_long().then(|| MySql::start_or_skip().unwrap()).flatten();
        let mysql = mysql.map(|mysql| Self::of(mysql.url(), mysql));
        [Some(Self::local()), redis, etcd, postgres, mariadb, mysql].into_iter().flatten().collect()
    }

    pub(super) async fn connect(&self) -> Locks {
        oarlock::connect(&self.url).await.unwrap()
    }
}

/// A server that runs until it is dropped.
pub(super) struct Running {
    pub(super) address: SocketAddr,
    pub(super) reload: Reload,
    stop: Option<oneshot::Sender<()>>,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    pub(super) async fn start(store: &Store) -> Self {
        Self::with(store, Config::default()).await
    }

    /// With a token that may do everything.
    pub(super) async fn guarded(store: &Store) -> Self {
        let mut config = Config::default();
        config.access = Access::token(TOKEN).unwrap().allow_break(true);
        Self::with(store, config).await
    }

    pub(super) async fn with(store: &Store, mut config: Config) -> Self {
        config.listen = "127.0.0.1:0".parse().unwrap();
        config.audit.get_or_insert_with(|| store.dir.path().join("audit"));
        config.store = Some(oarlock::url::parse(&store.url).unwrap());
        Self::over(store.connect().await, config).await
    }

    /// Over these locks, with settings that are complete.
    pub(super) async fn over(locks: Locks, config: Config) -> Self {
        let server = Server::bind(locks, config).await.unwrap();
        let (stop, stopped) = oneshot::channel();
        let (address, reload) = (server.address(), server.reload());
        let task = tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        Self { address, reload, stop: Some(stop), task }
    }

    /// Ends it in order.
    pub(super) async fn stop(mut self) {
        drop(self.stop.take());
        tokio::time::timeout(PATIENCE, self.task).await.expect("it ends").unwrap();
    }

    /// Ends it as a crash would: nothing is said to anyone.
    pub(super) async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    pub(super) async fn send(&self, method: &str, path: &str, body: &str) -> Reply {
        self.send_with(method, path, body, &[("authorization", &format!("Bearer {TOKEN}"))]).await
    }

    pub(super) async fn send_with(&self, method: &str, path: &str, body: &str, headers: &[(&str, &str)]) -> Reply {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request(self.address, method, path, body, headers).as_bytes()).await.unwrap();
        tokio::time::timeout(PATIENCE, Reply::read(&mut stream)).await.expect("an answer in time")
    }

    /// What these bytes are answered with; all that comes until the connection ends.
    pub(super) async fn raw(&self, bytes: &[u8]) -> String {
        raw(self.address, bytes).await
    }

    pub(super) async fn events(&self, path: &str, headers: &[(&str, &str)]) -> Events {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request(self.address, "GET", path, "", headers).as_bytes()).await.unwrap();
        Events { stream: BufReader::new(stream), is_in_body: false, text: Vec::new() }
    }
}

/// What these bytes are answered with; all that comes until the connection ends.
pub(super) async fn raw(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // It may refuse before it has read everything.
    let _ = stream.write_all(bytes).await;
    let mut all = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut all)).await.expect("it ends the connection");
    String::from_utf8_lossy(&all).into_owned()
}

fn request(address: SocketAddr, method: &str, path: &str, body: &str, headers: &[(&str, &str)]) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| *name == "host") {
        text.push_str(&format!("host: {address}\r\n"));
    }
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text + "\r\n" + body
}

/// An answer.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) text: String,
}

impl Reply {
    async fn read(stream: &mut TcpStream) -> Self {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        let all = String::from_utf8_lossy(&all).into_owned();
        let (head, text) = all.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {all:?}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
        Self { status, head: head.to_ascii_lowercase(), text: text.to_owned() }
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// A problem in the words of the command line.
    #[track_caller]
    pub(super) fn problem(&self, status: u16, code: &str) -> String {
        assert_eq!(self.status, status, "{self:?}");
        assert!(self.head.contains("content-type: application/problem+json"), "{self:?}");
        let body = self.json();
        assert_eq!((body["code"].as_str(), body["status"].as_u64()), (Some(code), Some(status.into())), "{body}");
        body["detail"].as_str().expect("a detail").to_owned()
    }
}

/// A stream of events, in chunks.
pub(super) struct Events {
    stream: BufReader<TcpStream>,
    is_in_body: bool,
    /// What has come of the body, and was not read.
    text: Vec<u8>,
}

impl Events {
    /// Whether the server answered with a stream. It reads the first line of the answer.
    pub(super) async fn is_open(&mut self) -> bool {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line);
        tokio::time::timeout(PATIENCE, read).await.expect("an answer in time").unwrap();
        line.starts_with("HTTP/1.1 200")
    }

    /// Reads a chunk of the body, and returns whether there was one.
    async fn more(&mut self) -> bool {
        let mut line = String::new();
        while !self.is_in_body {
            line.clear();
            self.stream.read_line(&mut line).await.unwrap();
            self.is_in_body = line.trim().is_empty();
        }
        line.clear();
        self.stream.read_line(&mut line).await.unwrap();
        let length = usize::from_str_radix(line.trim(), 16).unwrap_or_default();
        // With the end of its line.
        let mut chunk = vec![0; length + 2];
        if length == 0 || self.stream.read_exact(&mut chunk).await.is_err() {
            return false;
        }
        self.text.extend(&chunk[..length]);
        true
    }

    /// The next event with this name; others are passed over.
    pub(super) async fn next(&mut self, wanted: &str) -> Value {
        let found = async {
            loop {
                let (name, data) = self.any().await.unwrap_or_else(|| panic!("the stream ended before {wanted}"));
                if name == wanted {
                    return data;
                }
            }
        };
        tokio::time::timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("no {wanted} in time"))
    }

    /// The next event with its name, whatever it is; `None` at the end of the stream.
    pub(super) async fn any(&mut self) -> Option<(String, Value)> {
        let mut name = String::new();
        loop {
            let Some(end) = self.text.iter().position(|byte| *byte == b'\n') else {
                if self.more().await {
                    continue;
                }
                return None;
            };
            let line: Vec<u8> = self.text.drain(..=end).collect();
            let line = String::from_utf8(line).unwrap();
            if let Some(event) = line.strip_prefix("event: ") {
                name = event.trim().to_owned();
            } else if let Some(data) = line.strip_prefix("data: ") {
                return Some((name, serde_json::from_str(data).unwrap()));
            }
        }
    }

    /// Reads to the end of the stream.
    pub(super) async fn end(&mut self) {
        self.rest().await;
    }

    /// All that comes until the stream ends.
    pub(super) async fn rest(&mut self) -> String {
        let read = async { while self.more().await {} };
        tokio::time::timeout(PATIENCE, read).await.expect("the stream ends");
        String::from_utf8(std::mem::take(&mut self.text)).unwrap()
    }
}

/// Waits until `done` says so.
pub(super) async fn eventually<F: Future<Output = bool>>(what: &str, mut done: impl FnMut() -> F) {
    let all = async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, all).await.unwrap_or_else(|_| panic!("{what}: not in time"));
}

pub(super) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("no {key} in {value}"))
}
