//! Every server starts, answers, survives a restart, pauses on request, and leaves nothing behind.

// The configured exception for tests does not reach the functions they share.
#![allow(clippy::expect_used, clippy::panic)]

#[path = "servers/client.rs"]
mod client;

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use oarlock_testbed::server::{Program, Server};
use oarlock_testbed::{Etcd, Postgres, Redis, ZooKeeper};

use self::client::TestClient;

/// What must hold for each of them.
fn lives_up_to_its_promises<P: TestClient>() {
    let start = Instant::now();
    let Some(server) = Server::<P>::start_or_skip().expect("it starts") else {
        return;
    };
    println!("{}: {:?} from start to the first answer", P::NAME, start.elapsed());
    let addr = server.addr();
    assert!(server.url().starts_with(P::SCHEME) && server.url().contains(&addr.to_string()), "{}", server.url());

    P::write(addr, "one").expect("it takes data");
    assert_eq!(P::read(addr).expect("it has data"), "one");

    let start = Instant::now();
    server.restart().expect("it starts again");
    println!("{}: {:?} for a restart", P::NAME, start.elapsed());
    assert_eq!(server.addr(), addr);
    assert_eq!(P::read(addr).expect("it kept its data"), "one");

    P::write(addr, "two").expect("it takes data");
    let before = server.pid().expect("it runs");
    server.kill().expect("it dies");
    assert!(is_gone(before));
    assert_eq!(server.pid(), None);
    assert!(server.kill().is_err() && server.pause().is_err() && server.resume().is_err() && server.stop().is_err());
    let error = P::read(addr).expect_err("it is dead");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
    let start = Instant::now();
    server.restart().expect("it starts after a crash");
    println!("{}: {:?} for a start after a crash", P::NAME, start.elapsed());
    assert_eq!(P::read(addr).expect("it kept its data"), "two");

    server.pause().expect("it is paused");
    let error = P::read(addr).expect_err("it does not answer");
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error:?}");
    server.resume().expect("it goes on");
    assert_eq!(P::read(addr).expect("it is there again"), "two");

    let (pid, log) = (server.pid().expect("it runs"), server.log().to_owned());
    let folder = Path::new("/proc").join(pid.to_string()).join("cwd").read_link().expect("its folder");
    assert!(log.exists() && folder.exists());
    let start = Instant::now();
    drop(server);
    println!("{}: {:?} to stop", P::NAME, start.elapsed());
    assert!(is_gone(pid));
    assert!(!log.exists() && !folder.exists());
    TcpListener::bind(addr).expect("the port is free again");
}

fn is_gone(pid: u32) -> bool {
    !Path::new("/proc").join(pid.to_string()).exists()
}

#[test]
fn redis() {
    lives_up_to_its_promises::<oarlock_testbed::server::RedisProgram>();
}

#[test]
fn etcd() {
    lives_up_to_its_promises::<oarlock_testbed::server::EtcdProgram>();
}

#[test]
fn zookeeper() {
    lives_up_to_its_promises::<oarlock_testbed::server::ZooKeeperProgram>();
}

#[test]
fn postgres() {
    lives_up_to_its_promises::<oarlock_testbed::server::PostgresProgram>();
}

/// Backends have process groups of their own, and outlive a parent that is killed: one in a query would for long.
#[test]
fn postgres_dies_with_its_backends() {
    let Some(server) = Postgres::start_or_skip().expect("it starts") else {
        return;
    };
    let mut busy = client::send_query(server.addr(), "select pg_sleep(600)").expect("asked");
    let asked = "select count(*) from pg_stat_activity where query = 'select pg_sleep(600)' and state = 'active'";
    let deadline = Instant::now() + Duration::from_secs(10);
    while client::query(server.addr(), asked).expect("an answer") != "1" {
        assert!(Instant::now() < deadline, "the query does not start");
    }
    server.kill().expect("it dies");
    let end = busy.read_to_end(&mut Vec::new()).map_err(|error| error.kind());
    assert!(matches!(end, Ok(_) | Err(ErrorKind::ConnectionReset)), "the backend lives: {end:?}");
    server.restart().expect("no backend is in the way");
}

/// A paused server cannot react to a request to stop.
#[test]
fn a_paused_server_is_stopped_all_the_same() {
    let Some(server) = Redis::start_or_skip().expect("it starts") else {
        return;
    };
    let pid = server.pid().expect("it runs");
    server.pause().expect("it is paused");
    drop(server);
    assert!(is_gone(pid));
}

#[test]
fn settings_reach_every_server() {
    fn start<P: Program>(settings: &[(&str, &str)]) -> Option<Server<P>> {
        match Server::start_with(settings) {
            Ok(server) => Some(server),
            Err(error) if error.is::<oarlock_testbed::server::Missing>() => None,
            Err(error) => panic!("{error:?}"),
        }
    }
    if let Some(server) = start(&[("appendonly", "no")]) {
        let server: Redis = server;
        assert_eq!(client::redis_line(server.addr(), "CONFIG GET appendonly").expect("an answer"), "no");
    }
    if let Some(server) = start(&[("max_connections", "17")]) {
        let server: Postgres = server;
        assert_eq!(client::query(server.addr(), "show max_connections").expect("an answer"), "17");
    }
    if let Some(server) = start(&[("maxSessionTimeout", "4321")]) {
        let server: ZooKeeper = server;
        assert_eq!(client::zookeeper_timeout(server.addr(), 60_000).expect("a session"), 4321);
    }
    if let Some(server) = start(&[("max-txn-ops", "1")]) {
        let server: Etcd = server;
        let put = r#"{"requestPut":{"key":"a2V5","value":"b25l"}}"#;
        client::etcd_post(server.addr(), "kv/txn", &format!(r#"{{"success":[{put}]}}"#)).expect("one is fine");
        let error = client::etcd_post(server.addr(), "kv/txn", &format!(r#"{{"success":[{put},{put}]}}"#));
        let error = error.expect_err("two are too many").to_string();
        assert!(error.contains("too many operations"), "{error}");
    }
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let error = match Redis::start_with(&[("no-such-setting", "1")]) {
        Ok(_) => panic!("it accepts anything"),
        Err(error) if error.is::<oarlock_testbed::server::Missing>() => return,
        Err(error) => format!("{error:?}"),
    };
    assert!(error.contains("no-such-setting"), "{error}");
    let kept = error.split_once("its log is ").and_then(|(_, rest)| rest.split_once(',')).expect("a place").0;
    std::fs::remove_file(kept).expect("the log was kept");
}

/// A test that fails leaves the log behind, and says where.
#[test]
fn a_panic_keeps_the_log() {
    let Some(server) = Redis::start_or_skip().expect("it starts") else {
        return;
    };
    let kept = server.log().with_extension("kept.log");
    let result = std::thread::spawn(move || {
        let _server = server;
        panic!("on purpose");
    })
    .join();
    assert!(result.is_err());
    assert!(std::fs::read_to_string(&kept).expect("kept").contains("Ready to accept connections"));
    std::fs::remove_file(kept).expect("clean");
}

/// Set for the process that is to be killed.
const VICTIM: &str = "OARLOCK_TESTBED_VICTIM";

/// Does nothing unless started by the next test: then it starts servers, says where, and waits for its end.
#[test]
fn servers_of_a_victim() {
    if std::env::var_os(VICTIM).is_none() {
        return;
    }
    let redis = Redis::start_or_skip().expect("it starts");
    let postgres = Postgres::start_or_skip().expect("it starts");
    let addresses = redis.iter().map(Server::addr).chain(postgres.iter().map(Server::addr));
    println!("\nservers {}", addresses.map(|addr| addr.to_string()).collect::<Vec<_>>().join(" "));
    // What we were started by holds the other end until we are dead.
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn servers_end_with_a_process_that_is_killed() {
    // The dead do not tidy up. Other users have to pass through, whatever the umask.
    let litter = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(litter.path(), Permissions::from_mode(0o711)).expect("its mode");
    let mut victim = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "servers_of_a_victim", "--nocapture"])
        .env(VICTIM, "1")
        .env("TMPDIR", litter.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a victim");
    let said = BufReader::new(victim.stdout.as_mut().expect("its output"));
    let line = said.lines().map_while(Result::ok).find(|line| line.starts_with("servers"));
    victim.kill().expect("killed");
    victim.wait().expect("dead");
    let deadline = Instant::now() + Duration::from_secs(10);
    for addr in line.expect("it started them").split_whitespace().skip(1) {
        while TcpStream::connect(addr).is_ok() {
            assert!(Instant::now() < deadline, "a server still listens at {addr}");
        }
    }
}

/// The kernel ends the servers of a test that is killed. They must not end with the thread that asked for them.
#[test]
fn a_server_outlives_the_thread_that_started_it() {
    let started = std::thread::spawn(Redis::start_or_skip).join().expect("no panic");
    let Some(server) = started.expect("it starts") else {
        return;
    };
    assert_eq!(client::redis_line(server.addr(), "PING").expect("an answer"), "+PONG");
}

#[test]
fn several_servers_do_not_get_in_each_others_way() {
    let servers: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(Redis::start_or_skip)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic").expect("it starts")).collect()
    });
    let mut addresses: Vec<_> = servers.iter().flatten().map(Server::addr).collect();
    let count = addresses.len();
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len(), count);
}
