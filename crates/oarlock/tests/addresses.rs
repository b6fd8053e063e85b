//! IPv6 addresses on every store, and passwords that are changed while a client runs.

#![cfg(all(feature = "redis", feature = "etcd", feature = "zookeeper", feature = "postgres", feature = "mysql"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oarlock::{ErrorKind, Locks};
use oarlock_testbed::server::{EtcdProgram, PostgresProgram, RedisProgram, Server, ZooKeeperProgram, redis_command};
use oarlock_testbed::{Flavour, SqlServer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// Leads from an address of IPv6 to a server.
struct Door {
    addr: SocketAddr,
    open: Arc<Mutex<Vec<AbortHandle>>>,
}

impl Door {
    async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("[::1]:0").await.unwrap();
        let (addr, open) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let connections = Arc::clone(&open);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let connection = tokio::spawn(async move {
                    let mut server = TcpStream::connect(server).await?;
                    tokio::io::copy_bidirectional(&mut client, &mut server).await
                });
                connections.lock().unwrap().push(connection.abort_handle());
            }
        });
        Self { addr, open }
    }

    /// Ends all connections.
    fn cut(&self) {
        self.open.lock().unwrap().drain(..).for_each(|connection| connection.abort());
    }
}

async fn works(locks: &Locks) {
    let guard = locks.mutex("job").wait(Duration::from_secs(20)).lock().await.unwrap();
    guard.release().await.unwrap();
}

/// The URL of a server with the address of the door in place of its own.
fn through(door: &Door, url: &str, server: SocketAddr) -> String {
    url.replace(&server.to_string(), &door.addr.to_string())
}

/// A file with a password.
fn file(password: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{password}").unwrap();
    file
}

#[tokio::test(flavor = "multi_thread")]
async fn redis() {
    let Some(server) = Server::<RedisProgram>::start_or_skip().unwrap() else { return };
    let user = |password| ["ACL", "SETUSER", "app", "on", "resetpass", password, "~*", "&*", "+@all"];
    redis_command(server.addr(), &user(">one")).unwrap();
    let (door, file) = (Door::to(server.addr()).await, file("one"));
    let url = format!("redis://app@{}?password_file={}", door.addr, file.path().display());
    let locks = oarlock::connect(&*url).await.unwrap();
    works(&locks).await;

    redis_command(server.addr(), &user(">two")).unwrap();
    std::fs::write(file.path(), "two\n").unwrap();
    door.cut();
    works(&locks).await;
    // A file that is gone for a moment is no reason to stop; one that has another password is.
    std::fs::write(file.path(), "three\n").unwrap();
    door.cut();
    let refused = locks.mutex("job").lock().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    std::fs::write(file.path(), "two\n").unwrap();
    // A connection that is being opened still has the password that it read.
    let opened = async {
        while let Err(error) = locks.mutex("job").lock().await {
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), opened).await.unwrap();
    works(&locks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd() {
    let Some(server) = Server::<EtcdProgram>::start_or_skip().unwrap() else { return };
    let door = Door::to(server.addr()).await;
    let url = format!("etcd://app@{}", door.addr);
    for words in
        [&["user", "add", "app:one"][..], &["user", "add", "root:secret"], &["user", "grant-role", "root", "root"]]
    {
        server.ctl(words).unwrap();
    }
    // As an administrator does it.
    for command in oarlock::setup::script(&*url, None).unwrap().unwrap().lines() {
        server.ctl(&command.split(' ').skip(1).collect::<Vec<_>>()).unwrap();
    }
    server.ctl(&["auth", "enable"]).unwrap();
    let file = file("one");
    let url = format!("{url}?password_file={}", file.path().display());
    let locks = oarlock::connect(&*url).await.unwrap();
    works(&locks).await;

    // This ends all tokens that were given before.
    let mut change = server.ctl_command().unwrap();
    change.args(["--user", "root:secret", "user", "passwd", "--interactive=false", "app"]);
    let mut change = change.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    change.stdin.take().unwrap().write_all(b"two\n").unwrap();
    assert!(change.wait().unwrap().success());
    std::fs::write(file.path(), "two\n").unwrap();
    works(&locks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn zookeeper() {
    let Some(server) = Server::<ZooKeeperProgram>::start_or_skip().unwrap() else { return };
    let door = Door::to(server.addr()).await;
    works(&oarlock::connect(&*through(&door, &server.url(), server.addr())).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres() {
    let Some(server) = Server::<PostgresProgram>::start_or_skip().unwrap() else { return };
    let door = Door::to(server.addr()).await;
    works(&oarlock::connect(&*through(&door, &server.url(), server.addr())).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb() {
    let Some(server) = SqlServer::start_with_or_skip(Flavour::MariaDb, &[]).unwrap() else { return };
    let door = Door::to(server.addr()).await;
    works(&oarlock::connect(&*through(&door, &server.url(), server.addr())).await.unwrap()).await;
}
