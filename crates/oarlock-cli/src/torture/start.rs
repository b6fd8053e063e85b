//! A run: what is to be tried on this store, then the run itself, then the judgement.

use std::ffi::OsString;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oarlock::Locks;
use oarlock::driver::{MAX_TTL, MIN_TTL};
use oarlock_torture::judge::judge;
use oarlock_torture::record::{FaultKind, Header, LockKind, LockSpec, MOST_CLAIMS, OARLOCK, VERSION};
use oarlock_torture::run::clean::{LOCKS, clean};
use oarlock_torture::run::{Server, Setup, run};

use crate::child::this_program;
use crate::cmd::torture::TortureRunArgs;
use crate::exit::{Code, Exit, Failure};
use crate::messages::Messages;
use crate::output::{self, Format};
use crate::signals::{self, FORWARDED, Signals};
use crate::store::Store;
use crate::torture::view::View;
use crate::torture::worker::SUBCOMMAND;
use crate::torture::{files, show};

/// The shortest and the longest run.
const DURATIONS: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

/// How often workers ask in a second: servers on this machine are most likely there to be tried.
const NEAR_RATE: u32 = 100;
const FAR_RATE: u32 = 50;

/// Two workers of Oarlock contend with two of the other library.
const LEAST_BESIDE: u32 = 4;

pub(crate) fn main(args: &TortureRunArgs) -> Result<Exit, Failure> {
    if !DURATIONS.contains(&args.duration) {
        return Err(Failure::usage("--duration is between 1s and 1h"));
    }
    if !(MIN_TTL..=MAX_TTL).contains(&args.ttl) {
        return Err(Failure::usage("--ttl: a lease is between 50 ms and 30 days long"));
    }
    let store = Store::new(&args.store)?;
    if store.url.scheme() == "mem" {
        let message = "the locks of mem: exist in one process only, so that no other process can contend for them";
        return Err(Failure::new(Code::Config, message));
    }
    if args.beside {
        can_share(store.url.layout(), args.workers)?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().on_thread_start(signals::block_all).build();
    let runtime = runtime.map_err(|error| Failure::os("cannot start", error))?;
    let done = runtime.block_on(start(args, &store));
    runtime.shutdown_background();
    done
}

/// Another library excludes Oarlock only where Oarlock writes what that library reads.
fn can_share(layout: Option<&str>, workers: u32) -> Result<(), Failure> {
    let refused = |why: &str| Err(Failure::new(Code::Config, format!("--beside: {why}")));
    match layout {
        None => refused("no other library takes the locks of this store"),
        Some("native") => refused(
            "in the native layout Oarlock and another library do not exclude each other: write ?layout=plain or redisson \
             (Redis), go (etcd), curator or kazoo (ZooKeeper) in the URL",
        ),
        Some(_) if workers < LEAST_BESIDE => {
            Err(Failure::usage(format!("--beside needs at least {LEAST_BESIDE} workers, two of each library")))
        }
        Some(_) => Ok(()),
    }
}

/// How many claims a run may make: its scenes alone take about 25 leases, and each fault has some seconds for its takeover.
fn claims(duration: Duration, ttl: Duration, rate: u32) -> u64 {
    let span = duration.max(ttl * 30) + Duration::from_secs(60);
    span.as_secs().saturating_mul(rate.into())
}

async fn start(args: &TortureRunArgs, store: &Store) -> Result<Exit, Failure> {
    let mut signals = Signals::new(FORWARDED.iter().copied())?;
    let also = args.also.as_deref().map(other_build).transpose()?;
    let locks = store.connect().await?;
    let (servers, untried) = if args.no_network {
        (Vec::new(), vec!["the connections were left alone, by --no-network".to_owned()])
    } else {
        servers(args, store).await?
    };
    let header = Header { also, ..header(args, store, &locks, &servers, untried) };
    // Only now is it known how far the servers are, and so how often they are asked.
    if claims(args.duration, args.ttl, header.rate) > MOST_CLAIMS {
        return Err(Failure::usage(format!(
            "a run makes at most {MOST_CLAIMS} claims, so that its history can be read: lower --rate, --duration or --ttl"
        )));
    }
    let path = args.history.clone().unwrap_or_else(|| format!("oarlock-torture-{}.jsonl", header.run).into());
    let failed = |error| Failure::os(&format!("cannot write {}", path.display()), error);
    let out = BufWriter::new(File::create(&path).map_err(failed)?);
    store.messages.detail(&format!("seed {}, history {}", header.seed, path.display()));
    let name = header.run.clone();
    let view = View::new(store.messages, &header);
    let setup = Setup {
        header,
        servers,
        command: worker_command(args.also.clone()),
        with: args.with.clone(),
        fault_cmd: args.fault_cmd.clone(),
        locks: locks.clone(),
        live: view.is_seen(),
    };
    let ran = tokio::select! {
        biased;
        signal = signals.stop() => Err(Failure::quiet(Exit::signal(signal.as_raw()))),
        ran = run(setup, out, |progress| view.show(&progress)) => ran.map(drop).map_err(Failure::from),
    };
    drop(view);
    if ran.is_err() {
        // The workers are dead; what they held need not wait for its lease.
        match clean(&locks, Some(&name)).await {
            Ok(cleaned) => store.messages.detail(&format!("ended {} claims that were left", cleaned.len())),
            Err(error) => store.messages.detail(&format!("what is left ends with its leases: {error}")),
        }
    }
    let closed = locks.shutdown(Duration::from_secs(2)).await;
    ran?;
    let shown = judged(&path, store.messages.format)?;
    closed?;
    Ok(shown)
}

/// Reads the history that was just written, as `check` does.
fn judged(path: &Path, format: Format) -> Result<Exit, Failure> {
    let record = files::read(path)?;
    show::judgement(&record, &judge(&record), Some(path), format)
}

/// Starts workers: this program once more, and every second one `also`.
fn worker_command(also: Option<PathBuf>) -> Box<dyn Fn() -> Command + Send + Sync> {
    let count = AtomicUsize::new(0);
    Box::new(move || {
        let second = count.fetch_add(1, Ordering::Relaxed) % 2 == 1;
        let arguments: Vec<_> = std::env::args_os().skip(1).collect();
        let (mut command, arguments) = match also.as_ref().filter(|_| second) {
            Some(program) => (Command::new(program), for_another_build(arguments)),
            None => (this_program(), arguments),
        };
        command.args([SUBCOMMAND, &std::process::id().to_string()]).args(arguments);
        command
    })
}

/// What the other build calls itself. This very program is no other build.
fn other_build(program: &Path) -> Result<String, Failure> {
    let failed = |error| Failure::os(&format!("cannot run {}", program.display()), error);
    let this = std::env::current_exe().and_then(std::fs::read).map_err(failed)?;
    if std::fs::read(program).map_err(failed)? == this {
        return Err(Failure::usage("--also names this very program: it has to be another build"));
    }
    let said = Command::new(program).arg("--version").output().map_err(failed)?;
    let version = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    if said.status.success() && version.starts_with("oarlock ") {
        Ok(version)
    } else {
        Err(Failure::usage(format!("--also {}: this is no build of oarlock", program.display())))
    }
}

/// The words without flags that an older build does not know. A worker needs none of them.
fn for_another_build(arguments: Vec<OsString>) -> Vec<OsString> {
    let mut arguments = arguments.into_iter();
    let mut kept = Vec::new();
    while let Some(word) = arguments.next() {
        if word == "--also" || word == "--faults" {
            arguments.next();
        } else if !word.as_encoded_bytes().starts_with(b"--also=") && !word.as_encoded_bytes().starts_with(b"--faults=")
        {
            kept.push(word);
        }
    }
    kept
}

/// The servers that workers reach through proxies, and what cannot be tried.
async fn servers(args: &TortureRunArgs, store: &Store) -> Result<(Vec<Server>, Vec<String>), Failure> {
    let url = &store.url;
    let mut untried = Vec::new();
    let named = url.hosts().iter().map(|host| (host.name.clone(), host.port));
    let hosts: Vec<_> = named.chain(args.server.iter().cloned()).collect();
    if hosts.is_empty() {
        if url.scheme() != "local" {
            untried.push("the connections were left alone: there is no proxy for a socket".to_owned());
        }
        return Ok((Vec::new(), untried));
    }
    let mut found = Vec::new();
    for host in hosts {
        let addr = address(&host.0, host.1).await?;
        found.push(Server { host, addr });
    }
    // Before anything is started: a URL that cannot go through proxies says why.
    let routes = found.iter().map(|server| {
        let (name, port) = server.host.clone();
        let way = oarlock::url::Host::new("127.0.0.1", 1);
        (oarlock::url::Host::new(name, port), way)
    });
    if let Err(error) = url.clone().route(routes) {
        let what = format!("{error}: use --no-network to hurt processes only");
        return Err(Failure::new(Code::Config, what));
    }
    if url.announces() && args.server.is_empty() {
        untried.push(
            "these servers announce further ones, which workers reach past the proxies: name them with --server HOST:PORT"
                .to_owned(),
        );
    }
    Ok((found, untried))
}

/// The first address of a host that answers; the first at all if none does.
async fn address(name: &str, port: u16) -> Result<std::net::SocketAddr, Failure> {
    let unknown = |why: String| Failure::new(Code::Unreachable, format!("{}: {why}", oarlock_core::text::quoted(name)));
    let found = tokio::net::lookup_host((name, port)).await.map_err(|error| unknown(error.to_string()))?;
    let all: Vec<_> = found.collect();
    for addr in &all {
        let connected = tokio::time::timeout(Duration::from_secs(2), tokio::net::TcpStream::connect(addr)).await;
        if matches!(connected, Ok(Ok(_))) {
            return Ok(*addr);
        }
    }
    all.first().copied().ok_or_else(|| unknown("it has no address".to_owned()))
}

fn header(args: &TortureRunArgs, store: &Store, locks: &Locks, servers: &[Server], untried: Vec<String>) -> Header {
    let can = &locks.info().capabilities;
    let words = can.words();
    let word = |key: &str| words.iter().find(|(name, _)| *name == key).map_or("", |(_, value)| *value).to_owned();
    let near = servers.iter().all(|server| server.addr.ip().is_loopback());
    let mut kinds = vec![(LOCKS[0], LockKind::Mutex), (LOCKS[1], LockKind::Mutex)];
    // Another library is tried with what every library has, and alone it promises what its own page says.
    let ours = args.with.is_none() || args.beside;
    if can.units && args.with.is_none() {
        kinds.extend([(LOCKS[2], LockKind::ReadWrite), (LOCKS[3], LockKind::Semaphore(3))]);
    }
    let mut faults = FaultKind::OF_PROCESSES.to_vec();
    faults.retain(|kind| ours || !matches!(kind, FaultKind::Repeat | FaultKind::Cancel));
    if !servers.is_empty() {
        faults.extend(FaultKind::OF_NETWORKS);
    }
    if args.fault_cmd.is_some() {
        faults.push(FaultKind::Command);
    }
    faults.retain(|kind| args.faults.is_empty() || args.faults.contains(kind));
    let ttl_ms = output::millis(args.ttl);
    // Where claims live as long as a session, the URL says how long that is.
    let session = output::millis(store.url.ttl().unwrap_or_default());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let run = format!("{:x}-{:x}", now.as_secs(), std::process::id());
    Header {
        oarlock_torture: VERSION,
        // Random by default, and short enough to be typed.
        seed: args.seed.unwrap_or_else(|| u64::from(now.subsec_nanos()) ^ u64::from(std::process::id())),
        run,
        url: store.url.to_string(),
        lock: args.with.clone().unwrap_or_else(|| OARLOCK.to_owned()),
        also: None,
        beside: args.beside,
        consistency: if ours { word("consistency") } else { "unknown".to_owned() },
        liveness: if ours { word("liveness") } else { "unknown".to_owned() },
        fencing: if ours { word("fencing") } else { "none".to_owned() },
        ttl_ms,
        duration_ms: output::millis(args.duration),
        workers: args.workers,
        rate: args.rate.unwrap_or(if near { NEAR_RATE } else { FAR_RATE }),
        started_ms: output::millis(now),
        // A lease, a missed one, and the time that a store needs to notice.
        takeover_ms: ttl_ms.max(session).saturating_mul(2).saturating_add(10_000),
        locks: kinds.into_iter().map(|(name, kind)| LockSpec { name: name.to_owned(), kind }).collect(),
        faults,
        by_hand: args.by_hand,
        loses_data: args.fault_loses_data,
        untried,
    }
}

/// What `clean` ended, or would end.
pub(crate) fn say_cleaned(names: &[String], ended: bool, messages: Messages) -> Result<(), Failure> {
    match messages.format {
        Format::Json | Format::Jsonl => {
            let key = if ended { "ended" } else { "left" };
            output::print_line(&serde_json::json!({ key: names }).to_string())
        }
        Format::Name => names.iter().try_for_each(|name| output::print_line(&oarlock_core::text::plain(name))),
        Format::Table => {
            for name in names {
                let said = if ended { "ended the claims of" } else { "left, or of a run that goes on:" };
                output::print_line(&format!("{said} {}", oarlock_core::text::plain(name)))?;
            }
            if names.is_empty() {
                return output::print_line("nothing was left");
            }
            if !ended {
                messages.note("end the claims of one run with --run ID, or of all with --all");
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_lease_fits_where_servers_are_far() {
        let claims_at = |rate| claims(Duration::from_secs(60), Duration::from_secs(15 * 60), rate);
        assert!(claims_at(FAR_RATE) <= MOST_CLAIMS && claims_at(NEAR_RATE) > MOST_CLAIMS);
    }

    #[test]
    fn another_build_gets_no_flag_that_it_may_not_know() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let given = words("torture --also ./old --faults pause,kill -u local:x --also=./old --faults=cut --ttl 1s");
        assert_eq!(for_another_build(given), words("torture -u local:x --ttl 1s"));
    }
}
