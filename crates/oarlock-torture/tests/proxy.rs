//! Every control of the proxy, in front of a server that sends back what it gets.

// The configured exception for tests does not reach the functions they share.
#![allow(clippy::expect_used, clippy::panic)]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use oarlock_torture::proxy::{Direction, Held, Proxy, Then};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Nothing here takes this long unless it is broken.
const BOUND: Duration = Duration::from_secs(10);

/// Long enough for something that must not happen to happen.
const QUIET: Duration = Duration::from_millis(50);

/// Sends back what it gets.
struct Echo {
    addr: SocketAddr,
    got: Arc<AtomicUsize>,
}

impl Echo {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("an address");
        let got = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&got);
        // Both kinds of threads end with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let counted = Arc::clone(&counted);
                std::thread::spawn(move || {
                    let mut chunk = [0; 4096];
                    while let Ok(count) = stream.read(&mut chunk) {
                        counted.fetch_add(count, Ordering::SeqCst);
                        if count == 0 || stream.write_all(&chunk[..count]).is_err() {
                            break;
                        }
                    }
                });
            }
        });
        Self { addr, got }
    }

    fn got(&self) -> usize {
        self.got.load(Ordering::SeqCst)
    }
}

/// A client of the proxy.
struct Client(TcpStream);

impl Client {
    async fn connect(proxy: &Proxy) -> Self {
        Self(within(TcpStream::connect(proxy.addr())).await.expect("a connection"))
    }

    async fn say(&mut self, text: &str) {
        within(self.0.write_all(text.as_bytes())).await.expect("sent");
    }

    async fn receives(&mut self, text: &str) {
        let mut received = vec![0; text.len()];
        within(self.0.read_exact(&mut received)).await.expect("an answer");
        assert_eq!(String::from_utf8_lossy(&received), text);
    }

    async fn echoes(&mut self, text: &str) {
        self.say(text).await;
        self.receives(text).await;
    }

    async fn hears_nothing(&mut self) {
        let mut byte = [0];
        let received = tokio::time::timeout(QUIET, self.0.read(&mut byte)).await;
        assert!(received.is_err(), "{received:?}");
    }

    async fn is_reset(&mut self) {
        let error = within(self.0.read(&mut [0])).await.expect_err("not an orderly end");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, work).await.expect("in time")
}

fn setting() -> (Echo, Proxy) {
    let echo = Echo::start();
    let proxy = Proxy::start(echo.addr).expect("a proxy");
    (echo, proxy)
}

#[tokio::test]
async fn without_faults_it_is_not_noticed() {
    let (echo, proxy) = setting();
    let mut clients = [Client::connect(&proxy).await, Client::connect(&proxy).await];
    for round in 0..100 {
        for client in &mut clients {
            client.echoes(&format!("round {round};")).await;
        }
    }
    let bytes = u64::try_from(echo.got()).expect("a count");
    // A byte is counted after it has passed.
    let seen = within(proxy.until(|seen| seen.to_client >= bytes && seen.held_to_client == 0)).await;
    assert_eq!((seen.accepted, seen.open), (2, 2));
    assert_eq!((seen.to_server, seen.to_client), (bytes, bytes));
    assert_eq!((seen.held_to_server, seen.held_to_client), (0, 0));
    drop(clients);
    within(proxy.until(|seen| seen.open == 0)).await;
}

#[tokio::test]
async fn much_passes_whole_and_the_end_of_one_side_is_told() {
    let (_echo, proxy) = setting();
    let sent: Vec<u8> = (0..4_000_000_u32).map(|n| n.to_le_bytes()[n as usize % 4]).collect();
    let (mut reader, mut writer) = Client::connect(&proxy).await.0.into_split();
    let write = async {
        writer.write_all(&sent).await.expect("sent");
        writer.shutdown().await.expect("ended");
    };
    let mut received = Vec::new();
    let (_, result) = within(async { tokio::join!(write, reader.read_to_end(&mut received)) }).await;
    result.expect("an orderly end");
    assert!(received == sent, "{} of {} bytes", received.len(), sent.len());
}

#[tokio::test]
async fn a_delay_holds_for_its_direction_and_ends_at_once() {
    let (echo, proxy) = setting();
    let mut client = Client::connect(&proxy).await;
    client.echoes("warm").await;
    let delay = Duration::from_millis(80);
    for direction in [Direction::ToServer, Direction::ToClient] {
        proxy.delay(direction, delay);
        let before = echo.got();
        let start = Instant::now();
        client.say("late").await;
        if direction == Direction::ToClient {
            within(proxy.until(|seen| seen.held_to_client == 4)).await;
            assert_eq!(echo.got(), before + 4);
        }
        client.receives("late").await;
        assert!(start.elapsed() >= delay, "{direction:?}: {:?}", start.elapsed());
        proxy.delay(direction, Duration::ZERO);
    }
    proxy.delay(Direction::ToServer, Duration::from_secs(3600));
    client.say("under way").await;
    within(proxy.until(|seen| seen.held_to_server == 9)).await;
    proxy.delay(Direction::ToServer, Duration::ZERO);
    client.receives("under way").await;
}

#[tokio::test]
async fn a_cut_passes_nothing_until_healed() {
    for (held, survives, received) in [(Held::Deliver, true, "lost?"), (Held::Drop, true, ""), (Held::Reset, false, "")]
    {
        let (echo, proxy) = setting();
        let mut old = Client::connect(&proxy).await;
        old.echoes("before").await;
        proxy.cut();
        old.say("lost?").await;
        let mut new = Client::connect(&proxy).await;
        new.say("lost?").await;
        within(proxy.until(|seen| seen.held_to_server == 10)).await;
        old.hears_nothing().await;
        new.hears_nothing().await;
        assert_eq!(echo.got(), "before".len());
        proxy.heal(held).expect("healed");
        for client in [&mut old, &mut new] {
            if survives {
                client.receives(received).await;
                client.echoes("after").await;
            } else {
                client.is_reset().await;
            }
        }
        Client::connect(&proxy).await.echoes("again").await;
    }
}

#[tokio::test]
async fn a_cut_hides_the_end_of_a_connection() {
    let (_echo, proxy) = setting();
    let mut client = Client::connect(&proxy).await;
    client.echoes("before").await;
    proxy.cut();
    drop(client);
    let closed = tokio::time::timeout(QUIET, proxy.until(|seen| seen.open == 0)).await;
    assert!(closed.is_err());
    proxy.heal(Held::Deliver).expect("healed");
    within(proxy.until(|seen| seen.open == 0)).await;
}

#[tokio::test]
async fn a_cut_of_replies_lets_requests_pass() {
    let (echo, proxy) = setting();
    let mut client = Client::connect(&proxy).await;
    client.echoes("before").await;
    proxy.cut_one_way(Direction::ToClient);
    client.say("done").await;
    let mut new = Client::connect(&proxy).await;
    new.say("this too").await;
    within(proxy.until(|seen| seen.held_to_client == 12)).await;
    assert_eq!(echo.got(), 18);
    client.hears_nothing().await;
    proxy.heal(Held::Deliver).expect("healed");
    client.receives("done").await;
    new.receives("this too").await;
}

#[tokio::test]
async fn a_cut_of_requests_lets_replies_pass() {
    let (echo, proxy) = setting();
    let mut client = Client::connect(&proxy).await;
    client.echoes("before").await;
    // The reply is on its way back when the way there is cut.
    proxy.cut_one_way(Direction::ToClient);
    client.say("first").await;
    within(proxy.until(|seen| seen.held_to_client == 5)).await;
    proxy.heal(Held::Deliver).expect("healed");
    proxy.cut_one_way(Direction::ToServer);
    client.receives("first").await;
    client.say("second").await;
    within(proxy.until(|seen| seen.held_to_server == 6)).await;
    client.hears_nothing().await;
    assert_eq!(echo.got(), "beforefirst".len());
    proxy.heal(Held::Drop).expect("healed");
    client.echoes("third").await;
    assert_eq!(echo.got(), "beforefirstthird".len());
}

#[tokio::test]
async fn exactly_the_next_reply_is_dropped_and_the_connection_reset() {
    let (echo, proxy) = setting();
    let mut victim = Client::connect(&proxy).await;
    let mut other = Client::connect(&proxy).await;
    victim.echoes("before").await;
    other.echoes("before").await;
    let dropped = proxy.drop_next_reply(Then::Close);
    victim.say("applied").await;
    assert_eq!(within(dropped.wait()).await, Some(7));
    victim.is_reset().await;
    assert_eq!(echo.got(), "beforebeforeapplied".len());
    other.echoes("after").await;
    Client::connect(&proxy).await.echoes("again").await;
    assert_eq!(proxy.seen().replies_dropped, 1);
}

#[tokio::test]
async fn the_next_reply_is_dropped_and_silence_follows() {
    let (echo, proxy) = setting();
    let mut victim = Client::connect(&proxy).await;
    victim.echoes("before").await;
    let dropped = proxy.drop_next_reply(Then::Silence);
    victim.say("applied").await;
    assert_eq!(within(dropped.wait()).await, Some(7));
    victim.say("applied too").await;
    let expected = "beforeappliedapplied too".len();
    within(proxy.until(|seen| seen.to_server == expected as u64)).await;
    victim.hears_nothing().await;
    assert_eq!(echo.got(), expected);
    proxy.heal(Held::Deliver).expect("healed");
    victim.hears_nothing().await;
    drop(victim);
    within(proxy.until(|seen| seen.open == 0)).await;
    Client::connect(&proxy).await.echoes("again").await;
}

#[tokio::test]
async fn a_reply_that_was_not_asked_for_in_time_is_not_dropped() {
    let (_echo, proxy) = setting();
    let mut client = Client::connect(&proxy).await;
    let dropped = proxy.drop_next_reply(Then::Close);
    proxy.heal(Held::Deliver).expect("healed");
    assert_eq!(within(dropped.wait()).await, None);
    client.echoes("kept").await;
}

#[tokio::test]
async fn refused_connections_are_reset_and_new_ones_are_not_taken() {
    let (_echo, proxy) = setting();
    let mut client = Client::connect(&proxy).await;
    client.echoes("before").await;
    for _ in 0..3 {
        proxy.refuse();
        client.is_reset().await;
        let error = within(TcpStream::connect(proxy.addr())).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        proxy.heal(Held::Deliver).expect("healed");
        client = Client::connect(&proxy).await;
        client.echoes("after").await;
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_resets_its_clients() {
    let unused = oarlock_torture::ports::Port::reserve().expect("a port");
    let proxy = Proxy::start(unused.addr()).expect("a proxy");
    // The reset may come before the client has noticed that it was connected.
    let error = match within(TcpStream::connect(proxy.addr())).await {
        Ok(mut stream) => within(stream.read(&mut [0])).await.expect_err("not an orderly end"),
        Err(error) => error,
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_dropped_proxy_resets_its_clients() {
    let (_echo, proxy) = setting();
    let mut client = Client::connect(&proxy).await;
    client.echoes("before").await;
    let addr = proxy.addr();
    drop(proxy);
    client.is_reset().await;
    assert!(within(TcpStream::connect(addr)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_paused_clock_does_not_stop_it() {
    let (_echo, proxy) = setting();
    proxy.delay(Direction::ToServer, Duration::from_millis(20));
    let start = Instant::now();
    // A timeout would be over at once: this clock jumps when nothing else is to be done.
    let mut stream = TcpStream::connect(proxy.addr()).await.expect("a connection");
    stream.write_all(b"late").await.expect("sent");
    let mut received = [0; 4];
    stream.read_exact(&mut received).await.expect("an answer");
    assert!(start.elapsed() >= Duration::from_millis(20));
}

#[tokio::test]
async fn what_is_stranded_stays_so_until_it_is_reset_and_new_ones_pass() {
    let (echo, proxy) = setting();
    let mut old = Client::connect(&proxy).await;
    old.echoes("one").await;
    proxy.strand();
    let mut new = Client::connect(&proxy).await;
    new.echoes("four").await;
    old.say("six").await;
    old.hears_nothing().await;
    assert_eq!(echo.got(), 7);
    proxy.reset_stranded();
    old.is_reset().await;
    new.echoes("five").await;
}

#[tokio::test]
async fn new_connections_lead_where_it_was_aimed_last() {
    let (first, second) = (Echo::start(), Echo::start());
    let proxy = Proxy::start(first.addr).expect("a proxy");
    let mut old = Client::connect(&proxy).await;
    old.echoes("one").await;
    proxy.aim(second.addr);
    let mut new = Client::connect(&proxy).await;
    new.echoes("four").await;
    old.echoes("six").await;
    assert_eq!((first.got(), second.got()), (6, 4));
}

#[test]
fn a_url_leads_to_the_proxy() {
    let (echo, proxy) = setting();
    let url = proxy.url(&format!("postgres://postgres@{}/postgres", echo.addr), echo.addr);
    assert_eq!(url, format!("postgres://postgres@{}/postgres", proxy.addr()));
}
