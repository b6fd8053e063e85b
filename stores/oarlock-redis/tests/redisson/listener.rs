//! Programs of Redisson, as far as the server sees them: what they send, and what they hear.

use std::net::SocketAddr;
use std::time::Duration;

use oarlock_redis::{Config, Layout, Redis};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::context::{Raw, config};

/// A client of theirs, thread 57.
pub(crate) const JAVA: &str = "8743c9c0-0795-4907-87fd-6c719a6b4586:57";

pub(crate) fn redisson(addr: SocketAddr) -> Config {
    let mut config = config(addr);
    (config.layout, config.prefix) = (Layout::Redisson, String::new());
    config
}

pub(crate) async fn open(addr: SocketAddr) -> (Redis, Raw) {
    (Redis::open(redisson(addr)).await.unwrap(), Raw::to(addr).await)
}

/// What the claim with this number is called in their objects.
pub(crate) fn owner(id: u128) -> String {
    let hex = format!("{id:032x}");
    format!("{}-{}-{}-{}-{}:0", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

impl Raw {
    /// Takes or re-enters a lock as they do; how long to wait if it is another's.
    pub(crate) async fn lock(&mut self, name: &str, lease_ms: &str) -> Option<i64> {
        const LOCK: &str = "if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then \
                            redis.call('hincrby', KEYS[1], ARGV[2], 1) redis.call('pexpire', KEYS[1], ARGV[1]) \
                            return nil end return redis.call('pttl', KEYS[1])";
        self.ask(&["EVAL", LOCK, "1", name, lease_ms, JAVA]).await
    }

    /// Force-unlocks as Redisson does: the holder loses the lock, and the waiters are notified.
    pub(crate) async fn force_unlock(&mut self, name: &str) -> bool {
        let was: bool = self.ask(&["DEL", name]).await;
        let _: i64 = self.ask(&["PUBLISH", &format!("redisson_lock__channel:{{{name}}}"), "0"]).await;
        was
    }
}

/// A subscriber of a channel, which reads the bytes of the server.
pub(crate) struct Listener {
    line: TcpStream,
    heard: String,
}

impl Listener {
    pub(crate) async fn on(addr: SocketAddr, verb: &str, channel: &str) -> Self {
        let mut line = TcpStream::connect(addr).await.unwrap();
        line.write_all(format!("{verb} {channel}\r\n").as_bytes()).await.unwrap();
        let mut listener = Self { line, heard: String::new() };
        listener.hears(":1\r\n").await;
        listener.heard.clear();
        listener
    }

    /// Waits until these words were heard.
    pub(crate) async fn hears(&mut self, words: &str) {
        while !self.heard.contains(words) {
            let mut some = [0; 512];
            let read = tokio::time::timeout(Duration::from_secs(5), self.line.read(&mut some)).await;
            let count = read.unwrap_or_else(|_| panic!("waited in vain for {words:?}: {:?}", self.heard)).unwrap();
            assert!(count > 0, "the line was closed");
            self.heard.push_str(std::str::from_utf8(&some[..count]).unwrap());
        }
    }

    /// Waits for a message with this payload, and forgets what was heard.
    pub(crate) async fn told(&mut self, payload: &str) {
        self.hears(&format!("${}\r\n{payload}\r\n", payload.len())).await;
        self.heard.clear();
    }
}
