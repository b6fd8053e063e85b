//! A server's name that leads to another address, as that of a managed database does at a failover. A process of its own
//! view of `/etc/hosts` resolves it, which needs the right to mount.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use oarlock_testbed::{Etcd, MariaDb, MySql, Postgres, Redis, ZooKeeper};
use rustix::process::Signal;
use tempfile::NamedTempFile;

use super::support::{PATIENCE, Running, TestContext};

const NAME: &str = "moved.example";

/// Runs a command with a file of ours in the place of `/etc/hosts`.
const WITH_HOSTS: &str = r#"mount --bind "$HOSTS" /etc/hosts && exec "$0" "$@""#;

/// An address that leads to a server, until it is closed.
struct Door {
    addr: SocketAddr,
    open: Arc<Mutex<Option<Vec<TcpStream>>>>,
    /// How many connections came in.
    count: Arc<AtomicUsize>,
}

impl Door {
    fn open(at: (Ipv4Addr, u16), server: SocketAddr) -> Self {
        let listener = TcpListener::bind(at).unwrap();
        let addr = listener.local_addr().unwrap();
        let (open, count) = (Arc::new(Mutex::new(Some(Vec::new()))), Arc::<AtomicUsize>::default());
        let (kept, counted) = (open.clone(), count.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let mut kept = kept.lock().unwrap();
                let (Some(kept), Ok(server)) = (kept.as_mut(), TcpStream::connect(server)) else { continue };
                counted.fetch_add(1, Ordering::AcqRel);
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                kept.push(client);
            }
        });
        Self { addr, open, count }
    }

    /// Ends all its connections, and each that comes later.
    fn close(&self) {
        for client in self.open.lock().unwrap().take().into_iter().flatten() {
            let _ = client.shutdown(Shutdown::Both);
        }
    }
}

struct Hosts(NamedTempFile);

impl Hosts {
    fn new(addr: IpAddr) -> Self {
        let hosts = Self(NamedTempFile::new().unwrap());
        hosts.aim(addr);
        hosts
    }

    /// The name leads here from now on. The file stays the same one, which is mounted.
    fn aim(&self, addr: IpAddr) {
        let mut file = std::fs::OpenOptions::new().write(true).truncate(true).open(self.0.path()).unwrap();
        writeln!(file, "127.0.0.1 localhost\n{addr} {NAME}").unwrap();
    }

    /// The same command, with these hosts.
    fn around(&self, command: &Command) -> Command {
        let mut around = Command::new("unshare");
        around.args(["--mount", "sh", "-c", WITH_HOSTS]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => around.env(name, value),
                None => around.env_remove(name),
            };
        }
        around.env("HOSTS", self.0.path());
        around
    }
}

/// Whether this process may mount anything.
fn may_mount() -> bool {
    let probe = Hosts::new(Ipv4Addr::LOCALHOST.into());
    let done = probe.around(Command::new("true").env_remove("OARLOCK_URL")).stderr(Stdio::null()).status();
    done.is_ok_and(|status| status.success())
}

/// A waiter that came by the name gets its turn by the new address.
fn follows_its_name(url: &str, server: SocketAddr) {
    if !may_mount() {
        println!("skipped: no right to mount a file over /etc/hosts");
        return;
    }
    let context = TestContext::new();
    let before = Door::open((Ipv4Addr::new(127, 0, 0, 2), 0), server);
    let after = Door::open((Ipv4Addr::new(127, 0, 0, 3), before.addr.port()), server);
    let hosts = Hosts::new(before.addr.ip());
    let named = url.replace(&server.to_string(), &format!("{NAME}:{}", before.addr.port()));
    assert_ne!(named, url);

    let command = |url: &str, args: &[&str]| {
        let mut command = context.bare(args);
        command.env("OARLOCK_URL", url);
        command
    };
    let start = |mut command: Command| {
        command.stdin(Stdio::piped());
        Running::start(command)
    };
    let mut holder = start(command(url, &["hold", "job", "-t", "6s"]));
    holder.line();
    let mut waiter = start(hosts.around(&command(&named, &["hold", "job", "-t", "6s", "-w", "60s"])));
    let give_up = Instant::now() + PATIENCE;
    while !start(command(url, &["show", "job"])).finish().out.contains("waiters   1") {
        assert!(Instant::now() < give_up, "no waiter came by {named}");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(before.count.load(Ordering::Acquire) > 0 && after.count.load(Ordering::Acquire) == 0);

    hosts.aim(after.addr.ip());
    before.close();
    let give_up = Instant::now() + PATIENCE;
    while after.count.load(Ordering::Acquire) == 0 {
        assert!(Instant::now() < give_up, "the client of {named} stays with the old address");
        std::thread::sleep(Duration::from_millis(20));
    }
    holder.signal(Signal::TERM);
    holder.finish();
    assert!(waiter.line().contains("job"), "{named}");
    waiter.signal(Signal::TERM);
    waiter.finish();
}

macro_rules! on {
    ($($name:ident: $server:ident;)+) => {$(
        #[test]
        fn $name() {
            let Some(server) = $server::start_or_skip().unwrap() else { return };
            follows_its_name(&server.url(), server.addr());
        }
    )+};
}

on! {
    redis: Redis;
    etcd: Etcd;
    zookeeper: ZooKeeper;
    postgres: Postgres;
    mariadb: MariaDb;
    mysql: MySql;
}
