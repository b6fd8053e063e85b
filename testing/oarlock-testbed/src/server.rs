//! Real servers as child processes: a free port, a temporary folder, a log file, and an end when dropped.
//!
//! Every call blocks the thread until it has been done; none takes longer than half a minute. The servers end with the
//! process that started them, however it ends.

mod certificates;
mod clocked;
mod disk;
mod etcd;
mod etcd_cluster;
mod etcd_peers;
mod etcd_tls;
mod flavour;
mod log;
mod made;
mod mariadb;
mod missing;
mod mysql;
mod network;
mod pgbouncer;
mod postgres;
mod process;
mod redis;
mod redis_cluster;
mod redis_command;
mod redis_sentinel;
mod redis_tls;
mod redis_user;
mod socks;
mod zookeeper;
mod zookeeper_peers;
mod zookeeper_tls;

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::Signal;
use tempfile::TempDir;

pub use self::certificates::{CertificateFolder, Encrypted};
pub use self::clocked::Clocked;
pub use self::disk::{ChangedSyncs, Disk, FullDisk, Syncs};
pub use self::etcd::EtcdProgram;
pub use self::etcd_cluster::EtcdCluster;
pub use self::etcd_tls::EtcdTlsProgram;
pub use self::flavour::{Flavour, SqlServer};
pub use self::mariadb::MariaDbProgram;
pub use self::missing::{Missing, newer};
pub use self::mysql::MySqlProgram;
pub use self::network::{Drops, Host, Network};
pub use self::pgbouncer::PgBouncerProgram;
pub use self::postgres::PostgresProgram;
pub use self::redis::RedisProgram;
pub use self::redis_cluster::{RedisCluster, RedisNodeProgram};
pub use self::redis_command::{redis_command, until};
pub use self::redis_sentinel::{MASTER, Machine, RedisSentinel, SentinelProgram};
pub use self::redis_tls::RedisTlsProgram;
pub use self::redis_user::{RedisUser, UsedCommands, redis_version};
pub use self::zookeeper::{ZooKeeperEnsemble, ZooKeeperProgram};
pub use self::zookeeper_tls::ZooKeeperTlsProgram;

use self::log::Log;
use self::process::Tree;
use crate::child::plain;
use crate::ports::Port;

/// A Redis that appends every write to a file before it answers, and leaves syncing to the kernel: it survives its
/// own death, not that of the machine.
pub type Redis = Server<RedisProgram>;

/// The same with a wall clock that can be moved: see [`RedisClock::set_clock`].
pub type RedisClock = Server<Clocked<RedisProgram>>;

/// The same behind TLS, with certificates of its own.
pub type RedisTls = Server<RedisTlsProgram>;

/// An etcd of one member, with the timings it has by default.
pub type Etcd = Server<EtcdProgram>;

/// The same behind TLS, for clients with a certificate.
pub type EtcdTls = Server<EtcdTlsProgram>;

/// A ZooKeeper alone, with ticks of half a second: sessions last between 1 s and 10 s.
pub type ZooKeeper = Server<ZooKeeperProgram>;

/// The same behind TLS. Clients need no certificate.
pub type ZooKeeperTls = Server<ZooKeeperTlsProgram>;

/// A PostgreSQL that trusts all connections on the loopback interface, takes 200 connections, and does not sync: it
/// survives its own death, not that of the machine.
pub type Postgres = Server<PostgresProgram>;

/// The same with a wall clock that can be moved.
pub type PostgresClock = Server<Clocked<PostgresProgram>>;

/// A MariaDB that lets `root` in without a password, takes 500 connections, and does not sync: it survives its own
/// death, not that of the machine. It has a database `locks`.
pub type MariaDb = Server<MariaDbProgram>;

/// The same with a wall clock that can be moved.
pub type MariaDbClock = Server<Clocked<MariaDbProgram>>;

/// A MySQL with the same.
pub type MySql = Server<MySqlProgram>;

/// A PgBouncer in transaction mode that trusts all connections, in front of a PostgreSQL: see
/// [`PgBouncer::in_front_of`].
pub type PgBouncer = Server<PgBouncerProgram>;

/// Settings beyond those that a server gets anyway, by the names it has for them itself. The last of a name counts.
pub type Settings<'a> = &'a [(&'a str, &'a str)];

/// The setting of Redis and etcd that names another program: a newer server with the same data.
pub const PROGRAM: &str = "program";

/// The program that the settings name, or this one; and all other settings.
fn program_in<'a>(settings: Settings<'a>, own: &Path) -> (PathBuf, Vec<(&'a str, &'a str)>) {
    let (named, others): (Vec<_>, Vec<_>) = settings.iter().partition(|(name, _)| *name == PROGRAM);
    (named.last().map_or_else(|| own.to_owned(), |(_, path)| path.into()), others)
}

/// A server that does not answer after this has failed to start.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A server that is still there after this is killed.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Between two questions whether it answers.
const PROBE_EVERY: Duration = Duration::from_millis(5);

/// How long the first answer may take before it is asked again: a question that comes too early may be lost.
const FIRST_PROBE_TIMEOUT: Duration = Duration::from_millis(50);

/// How long any answer may take. A machine that is busy gets there by doubling.
const LAST_PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Another program may take a port between its choice and its use.
const PORTS_TRIED: u32 = 5;

/// What one kind of server needs to be started, asked and stopped.
pub trait Program: Sized + fmt::Debug {
    /// Its name: in `OARLOCK_REQUIRE`, and in the names of files.
    const NAME: &'static str;

    /// The scheme of its URLs.
    const SCHEME: &'static str;

    /// Ends it in good order, without waiting for its clients.
    const STOP: Signal = Signal::TERM;

    /// Whether it is killed when it is dropped: it leaves nothing behind outside its folder, and takes its time to end
    /// in good order.
    const KILLABLE: bool = false;

    /// Finds its files.
    ///
    /// # Errors
    /// [`Missing`] when it is not installed.
    fn find() -> Result<Self, Missing>;

    /// Fills its folder, once.
    ///
    /// # Errors
    /// When that fails.
    fn prepare(&self, folder: &Path) -> anyhow::Result<()> {
        let _ = folder;
        Ok(())
    }

    /// How it is started: the program and its arguments. Standard input, output and error are seen to.
    ///
    /// # Errors
    /// When its settings cannot be written.
    fn command(&self, folder: &Path, addr: SocketAddr, settings: Settings<'_>) -> anyhow::Result<Command>;

    /// The user it has to run as, if not the current one: user and group.
    fn user(&self) -> Option<(u32, u32)> {
        None
    }

    /// Asks it once whether it serves, and waits so long for each part of the answer.
    ///
    /// # Errors
    /// When it does not.
    fn probe(addr: SocketAddr, timeout: Duration) -> io::Result<()>;

    /// Its URL.
    fn url(addr: SocketAddr) -> String {
        format!("{}://{addr}", Self::SCHEME)
    }
}

/// A server that runs as a child process. Dropped, it is stopped and its folder removed; its log is kept, and its
/// place printed, when that happens in a panic.
pub struct Server<P: Program> {
    program: P,
    settings: Vec<(String, String)>,
    log: Log,
    tree: Mutex<Option<Tree>>,
    port: Port,
    folder: TempDir,
    /// Where it runs, if not on this machine's own network.
    host: Option<Arc<Host>>,
}

/// Where the files of a server are, and its network, if not those of this machine.
#[derive(Clone, Copy, Default)]
struct Place<'a> {
    disk: Option<&'a Path>,
    host: Option<&'a Arc<Host>>,
}

impl<P: Program> Server<P> {
    /// Starts a server, and waits until it answers.
    ///
    /// # Errors
    /// [`Missing`] when it is not installed; otherwise with the end of its log.
    pub fn start() -> anyhow::Result<Self> {
        Self::start_with(&[])
    }

    /// [`Server::start`] with settings of the server itself, such as `("appendonly", "no")` for Redis.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn start_with(settings: Settings<'_>) -> anyhow::Result<Self> {
        Self::start_in(Place::default(), settings)
    }

    /// [`Server::start_with`] with all its files on this disk.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn start_on(disk: &Disk, settings: Settings<'_>) -> anyhow::Result<Self> {
        Self::start_in(Place { disk: Some(&disk.root()), host: None }, settings)
    }

    /// [`Server::start_with`] on a host with a network of its own.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn start_at(host: &Arc<Host>, settings: Settings<'_>) -> anyhow::Result<Self> {
        Self::start_in(Place { disk: None, host: Some(host) }, settings)
    }

    fn start_in(place: Place<'_>, settings: Settings<'_>) -> anyhow::Result<Self> {
        let mut tried = 1;
        loop {
            let server = Self::prepare(P::find()?, place, settings)?;
            match server.launch() {
                Ok(()) => return Ok(server),
                Err(_) if tried < PORTS_TRIED && server.log.says_port_is_taken() => tried += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// [`Server::start`] for a test that may be skipped: nothing, and a printed reason, when it is not installed.
    ///
    /// # Errors
    /// As for [`Server::start`], and also when it is not installed although `CI` is set or `OARLOCK_REQUIRE` lists it.
    pub fn start_or_skip() -> anyhow::Result<Option<Self>> {
        Self::start_with_or_skip(&[])
    }

    /// [`Server::start_with`] for a test that may be skipped.
    ///
    /// # Errors
    /// As for [`Server::start_or_skip`].
    pub fn start_with_or_skip(settings: Settings<'_>) -> anyhow::Result<Option<Self>> {
        match Self::start_with(settings) {
            Ok(server) => Ok(Some(server)),
            Err(error) => missing::skip(error).map(|()| None),
        }
    }

    /// The URL that reaches it.
    #[must_use]
    pub fn url(&self) -> String {
        P::url(self.addr())
    }

    /// The address it listens on. It stays the same when restarted.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        match &self.host {
            Some(host) => (host.ip(), self.port.number()).into(),
            None => self.port.addr(),
        }
    }

    /// The number of its process, while there is one.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.tree().as_ref().map(Tree::pid)
    }

    /// The numbers of all its processes.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pids(&self) -> anyhow::Result<Vec<u32>> {
        Ok(self.tree().as_ref().with_context(Self::not_running)?.pids()?)
    }

    /// The file it logs to.
    #[must_use]
    pub fn log(&self) -> &Path {
        self.log.path()
    }

    /// Stops all its processes where they are. When this returns, none of them runs; the kernel still accepts
    /// connections for it.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.running(Tree::freeze)
    }

    /// Undoes [`Server::pause`].
    ///
    /// # Errors
    /// When it does not run.
    pub fn resume(&self) -> anyhow::Result<()> {
        self.running(Tree::thaw)
    }

    /// Kills all its processes at once. It gets no chance to tidy up; what it had written is kept.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill(&self) -> anyhow::Result<()> {
        self.tree().take().with_context(Self::not_running)?.kill()?;
        Ok(())
    }

    /// Ends it in good order, and does not start it again.
    ///
    /// # Errors
    /// When it does not run.
    pub fn stop(&self) -> anyhow::Result<()> {
        self.tree().take().with_context(Self::not_running)?.stop(P::STOP, STOP_GRACE)?;
        Ok(())
    }

    /// Ends it in good order if it runs, and starts it again at the same address with the data it had.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn restart(&self) -> anyhow::Result<()> {
        self.restart_with(&[])
    }

    /// [`Server::restart`] with settings that are added to, or go before, those it was started with.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn restart_with(&self, settings: Settings<'_>) -> anyhow::Result<()> {
        if let Some(tree) = self.tree().take() {
            tree.stop(P::STOP, STOP_GRACE)?;
        }
        self.launch_with(settings)
    }

    fn prepare(program: P, place: Place<'_>, settings: Settings<'_>) -> anyhow::Result<Self> {
        let folder = disk::folder(&format!("oarlock-{}-", P::NAME), place.disk)?;
        program.prepare(folder.path()).with_context(|| format!("cannot prepare a folder for {}", P::NAME))?;
        Ok(Self {
            program,
            settings: settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            log: Log::create(P::NAME)?,
            tree: Mutex::new(None),
            port: Port::reserve()?,
            folder,
            host: place.host.cloned(),
        })
    }

    fn launch(&self) -> anyhow::Result<()> {
        self.launch_with(&[])
    }

    /// Starts its process, and waits until it answers.
    fn launch_with(&self, settings: Settings<'_>) -> anyhow::Result<()> {
        use std::os::unix::process::CommandExt as _;

        let own = self.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let settings: Vec<_> = own.chain(settings.iter().copied()).collect();
        let wanted = self.program.command(self.folder.path(), self.addr(), &settings)?;
        let mut command = dying_with_us(&wanted, self.program.user());
        if let Some(host) = &self.host {
            command = host.within(&command);
            command.process_group(0);
        }
        command.current_dir(self.folder.path());
        self.log.attach(&mut command)?;
        let tree = Tree::spawn(command).with_context(|| format!("cannot start {}", P::NAME))?;
        match Self::await_answer(&tree, self.addr()) {
            Ok(()) => {
                *self.tree() = Some(tree);
                Ok(())
            }
            Err(error) => {
                tree.kill()?;
                Err(error.context(format!("{} did not start\n{}", P::NAME, self.log.keep())))
            }
        }
    }

    fn await_answer(tree: &Tree, addr: SocketAddr) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        let mut timeout = FIRST_PROBE_TIMEOUT;
        loop {
            let answer = P::probe(addr, timeout);
            if tree.ends_within(PROBE_EVERY)? {
                bail!("it ended by itself");
            }
            match answer {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() > deadline => {
                    return Err(error).with_context(|| format!("no answer after {START_TIMEOUT:?}"));
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    timeout = LAST_PROBE_TIMEOUT.min(timeout * 2);
                }
                Err(_) => {}
            }
        }
    }

    fn running(&self, act: impl FnOnce(&Tree) -> io::Result<()>) -> anyhow::Result<()> {
        act(self.tree().as_ref().with_context(Self::not_running)?)?;
        Ok(())
    }

    fn not_running() -> String {
        format!("{} does not run", P::NAME)
    }

    fn tree(&self) -> MutexGuard<'_, Option<Tree>> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Program> Drop for Server<P> {
    fn drop(&mut self) {
        if let Some(tree) = self.tree().take()
            && let Err(error) = if P::KILLABLE { tree.kill() } else { tree.stop(P::STOP, STOP_GRACE) }
        {
            eprintln!("{} may still run: {error}", P::NAME);
        }
        if std::thread::panicking() {
            eprintln!("{}", self.log.keep());
        }
    }
}

impl<P: Program> fmt::Debug for Server<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("url", &self.url()).field("pid", &self.pid()).finish_non_exhaustive()
    }
}

/// `wanted` in a process group of its own, as `user`, and killed by the kernel when this process is no more.
fn dying_with_us(wanted: &Command, user: Option<(u32, u32)>) -> Command {
    use std::os::unix::process::CommandExt as _;

    let mut command = plain("setpriv");
    if let Some((user, group)) = user {
        command.arg(format!("--reuid={user}")).arg(format!("--regid={group}")).arg("--clear-groups");
    }
    command.args(["--pdeathsig", "KILL", "--"]).arg(wanted.get_program()).args(wanted.get_args());
    for (name, value) in wanted.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.process_group(0);
    command
}

/// Writes a file that the user of a server can read, whatever the umask.
fn write_for_all(path: &Path, text: &str) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;

    std::fs::write(path, text)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644))
}

/// Sends `question` and reads until `answered` is content with what has come so far.
fn probe(addr: SocketAddr, timeout: Duration, question: &[u8], answered: impl Fn(&[u8]) -> bool) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&addr, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    stream.write_all(question)?;
    let mut answer = Vec::new();
    let mut chunk = [0; 4096];
    while !answered(&answer) {
        let count = stream.read(&mut chunk)?;
        if count == 0 {
            return Err(io::Error::other(format!("it said {:?}", String::from_utf8_lossy(&answer))));
        }
        answer.extend_from_slice(&chunk[..count]);
    }
    Ok(())
}

/// Whether `text` contains `part`.
fn contains(text: &[u8], part: &str) -> bool {
    text.windows(part.len()).any(|window| window == part.as_bytes())
}
