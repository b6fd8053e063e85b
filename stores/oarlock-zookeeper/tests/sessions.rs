//! Sessions that end, or that a server replaces silently.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use oarlock_core::{Belief, Locks};
use oarlock_zookeeper::{Config, ZooKeeper};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const SESSION: Duration = Duration::from_secs(4);

/// Long enough to find a server again on a busy machine.
const LONG: Duration = Duration::from_secs(8);

/// A connection on which, once it is told to, every new client gets a session of its own instead of the one that it
/// presents: what some servers and load balancers do to their clients.
struct Swapping {
    addr: SocketAddr,
    swap: Arc<AtomicBool>,
    cut: tokio::sync::broadcast::Sender<()>,
}

impl Swapping {
    async fn start(server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (addr, swap) = (listener.local_addr()?, Arc::new(AtomicBool::new(false)));
        let (cut, _) = tokio::sync::broadcast::channel(1);
        let (swapping, cutting) = (swap.clone(), cut.clone());
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let (swap, mut cut) = (swapping.load(Ordering::Acquire), cutting.subscribe());
                tokio::spawn(async move {
                    let mut upstream = TcpStream::connect(server).await?;
                    let mut hello = vec![0; 4];
                    client.read_exact(&mut hello).await?;
                    let length = u32::from_be_bytes([hello[0], hello[1], hello[2], hello[3]]);
                    hello.resize(4 + usize::try_from(length).unwrap_or(0), 0);
                    client.read_exact(&mut hello[4..]).await?;
                    if swap {
                        // Version, last transaction, time-out; then the session, and the length and bytes of its
                        // password.
                        hello[20..28].fill(0);
                        hello[32..48].fill(0);
                    }
                    upstream.write_all(&hello).await?;
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut upstream) => {}
                        _ = cut.recv() => {}
                    }
                    std::io::Result::Ok(())
                });
            }
        });
        Ok(Self { addr, swap, cut })
    }

    /// Ends every connection; the next has another session.
    fn replace_session(&self) {
        self.swap.store(true, Ordering::Release);
        let _ = self.cut.send(());
    }
}

async fn connect(addr: SocketAddr) -> Result<Locks> {
    connect_for(addr, SESSION).await
}

async fn connect_for(addr: SocketAddr, session: Duration) -> Result<Locks> {
    Ok(Locks::over(ZooKeeper::open(Config::new([addr.to_string()]).session_timeout(session)).await?)?)
}

/// The old session is not kept alive any more, but answers go on coming: they must not extend belief.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_replaced_silently_is_a_lost_one() -> Result<()> {
    let Some(server) = oarlock_testbed::ZooKeeper::start_or_skip()? else { return Ok(()) };
    let proxy = Swapping::start(server.addr()).await?;
    let (holder, rival) = (connect(proxy.addr).await?, connect(server.addr()).await?);
    let guard = Arc::new(holder.mutex("job").lock().await?);
    let next = rival.mutex("job").wait(SESSION * 5);
    let waiting = tokio::spawn(async move { next.lock().await.map(|guard| (guard, Instant::now())) });
    let ended = tokio::spawn({
        let guard = guard.clone();
        async move {
            guard.lost().await;
            Instant::now()
        }
    });
    tokio::time::sleep(SESSION / 2).await;
    ensure!(guard.is_held(), "lost before anything happened");
    proxy.replace_session();
    let (theirs, granted) = tokio::time::timeout(SESSION * 4, waiting).await???;
    let ended = tokio::time::timeout(SESSION, ended).await??;
    println!("belief ended {:?} before the next grant", granted.saturating_duration_since(ended));
    ensure!(ended < granted, "believed for {:?} after another had it", ended - granted);
    ensure!(theirs.fence() > guard.fence(), "the fence did not rise");
    let before = theirs.fence();
    theirs.release().await?;
    // The client opens a session that it knows, and goes on.
    let again = holder.mutex("job").wait(SESSION * 5).lock().await?;
    ensure!(again.fence() > before && again.is_held(), "not held again");
    Ok(())
}

/// A connection that is lost and comes back within the session costs nothing: suspected, and held again.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_is_a_suspicion_and_not_a_loss() -> Result<()> {
    let Some(server) = oarlock_testbed::ZooKeeper::start_or_skip()? else { return Ok(()) };
    let proxy = oarlock_testbed::Proxy::start(server.addr())?;
    let holder = connect_for(proxy.addr(), LONG).await?;
    let guard = holder.mutex("job").lock().await?;
    let fence = guard.fence();
    for _ in 0..2 {
        proxy.cut();
        let doubt = async {
            while guard.belief() == Belief::Held {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, doubt).await?;
        ensure!(guard.belief() == Belief::Suspect, "lost with the connection: {:?}", guard.loss());
        proxy.heal(oarlock_testbed::proxy::Held::Reset)?;
        let trust = async {
            while guard.belief() == Belief::Suspect {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, trust).await?;
        ensure!(guard.is_held(), "lost: {:?}", guard.loss());
    }
    ensure!(guard.fence() == fence, "another fence");
    guard.release().await?;
    Ok(())
}

/// A client whose requests arrive and who gets no answers tries to continue its session again and again. That must not
/// prolong the session: the lock goes to the next one while the cut lasts.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_hears_nothing_does_not_keep_its_lock_from_others() -> Result<()> {
    let Some(server) = oarlock_testbed::ZooKeeper::start_or_skip()? else { return Ok(()) };
    let proxy = oarlock_testbed::Proxy::start(server.addr())?;
    let (holder, rival) = (connect(proxy.addr()).await?, connect(server.addr()).await?);
    let guard = holder.mutex("job").lock().await?;
    let next = rival.mutex("job").wait(SESSION * 10);
    let waiting = tokio::spawn(async move { next.lock().await.map(|guard| (guard, Instant::now())) });
    proxy.cut_one_way(oarlock_testbed::proxy::Direction::ToClient);
    let cut = Instant::now();
    tokio::time::timeout(SESSION * 2, guard.lost()).await?;
    let ended = Instant::now();
    // The last ping comes before the client gives the connection up, and the session ends within two ticks of its time.
    let (theirs, granted) = tokio::time::timeout(SESSION * 3, waiting).await.context("the lock stays held")???;
    println!("belief ended {:?} after the cut, the next grant came {:?} after it", ended - cut, granted - cut);
    ensure!(ended < granted, "believed for {:?} after another had it", ended - granted);
    ensure!(theirs.fence() > guard.fence(), "the fence did not rise");
    theirs.release().await?;
    proxy.heal(oarlock_testbed::proxy::Held::Deliver)?;
    let again = holder.mutex("job").wait(SESSION * 5).lock().await?;
    again.release().await?;
    Ok(())
}

/// Set for the process that [`a_stopped_process_loses_its_lock_and_says_so`] stops: the address of its server.
const HOLDER: &str = "OARLOCK_ZOOKEEPER_HOLDER";

/// The other process; nothing where it was not asked for.
#[tokio::test(flavor = "multi_thread")]
async fn the_process_that_is_stopped() -> Result<()> {
    let Ok(addr) = std::env::var(HOLDER) else { return Ok(()) };
    let guard = connect(addr.parse()?).await?.mutex("job").lock().await?;
    println!("\nheld {}", guard.fence());
    let reason = guard.lost().await;
    println!("lost {reason}");
    Ok(())
}

/// A process that is stopped for longer than its session reports the loss as soon as it runs again. Meanwhile another
/// has the lock, within the session time-out and what the server needs to count.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_process_loses_its_lock_and_says_so() -> Result<()> {
    use std::io::BufRead as _;

    let Some(server) = oarlock_testbed::ZooKeeper::start_or_skip()? else { return Ok(()) };
    let mut command = std::process::Command::new(std::env::current_exe()?);
    command.args(["--exact", "the_process_that_is_stopped", "--nocapture"]);
    command.env(HOLDER, server.addr().to_string()).stdout(std::process::Stdio::piped());
    let mut holder = command.spawn()?;
    let (say, mut said) = tokio::sync::mpsc::unbounded_channel();
    let lines = std::io::BufReader::new(holder.stdout.take().context("no output")?);
    std::thread::spawn(move || lines.lines().map_while(std::io::Result::ok).try_for_each(|line| say.send(line)));
    let mut next = async |word: &str| loop {
        let line = tokio::time::timeout(SESSION * 5, said.recv()).await?.context("the holder has ended")?;
        if let Some(rest) = line.strip_prefix(word) {
            return anyhow::Ok(rest.trim().to_owned());
        }
    };
    let signal = |signal: &str| {
        let sent = std::process::Command::new("kill").args([signal, &holder.id().to_string()]).status();
        sent.map_err(anyhow::Error::from).and_then(|status| status.success().then_some(()).context("no such process"))
    };
    let outcome = async {
        let fence: u64 = next("held ").await?.parse()?;
        let rival = connect(server.addr()).await?;
        signal("-STOP")?;
        let stopped = Instant::now();
        let taken = rival.mutex("job").wait(SESSION * 5).lock().await;
        let after = stopped.elapsed();
        signal("-CONT")?;
        let woken = Instant::now();
        let theirs = taken?;
        let reason = next("lost ").await?;
        println!(
            "taken over {after:?} after the stop, session {SESSION:?}; noticed {:?} after the wake-up: {reason}",
            woken.elapsed()
        );
        ensure!(theirs.fence().get() > fence, "fence {} after {fence}", theirs.fence());
        // The session, the ticks in which the server counts it (500 ms), and what a busy machine adds.
        ensure!(after < SESSION * 2, "taken over too late");
        ensure!(woken.elapsed() < SESSION / 2, "noticed too late");
        ensure!(theirs.is_held(), "the woken holder took it back");
        Ok(())
    };
    let outcome = outcome.await;
    signal("-KILL").ok();
    holder.wait()?;
    outcome
}
