//! A member that only learns, named first: it is left for one that has a vote.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use oarlock_core::Locks;
use oarlock_etcd::{Config, Etcd};
use oarlock_testbed::EtcdCluster;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Nothing here takes longer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A lock, held until it was renewed, and released.
async fn works(config: Config) -> Outcome {
    let client = Locks::over(tokio::time::timeout(PATIENCE, Etcd::open(config)).await??)?;
    let lock = client.mutex("job").ttl(Duration::from_secs(2)).wait(PATIENCE);
    let guard = tokio::time::timeout(PATIENCE, lock.lock()).await??;
    let first = guard.ends_at();
    let renewed = async {
        while guard.is_held() && guard.ends_at() == first {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, renewed).await?;
    assert!(guard.is_held(), "{:?}", guard.loss());
    guard.release().await?;
    Ok(())
}

/// Debian has 3.4, whose learners answer that they are unavailable.
#[tokio::test(flavor = "multi_thread")]
async fn a_learner_of_an_older_cluster_is_left() -> Outcome {
    let Some(context) = EtcdCluster::start_or_skip()? else { return Ok(()) };
    let learner = context.start_learner()?;
    let members = [&learner, &context.members[0], &context.members[1]].map(|member| member.addr().to_string());
    works(Config::new(members)).await
}

/// Learners from 3.6 on answer every request with a failed precondition.
#[tokio::test(flavor = "multi_thread")]
async fn a_learner_of_a_newer_cluster_is_left() -> Outcome {
    let Some(server) = oarlock_testbed::Etcd::start_or_skip()? else { return Ok(()) };
    let learner = Learner::start()?;
    let members = || [learner.0, server.addr()].map(|member| member.to_string());
    works(Config::new(members())).await?;
    // A user is configured, and this cluster has none: the answer of a learner does not decide that.
    let mut config = Config::new(members());
    (config.user, config.password) = (Some("ada".into()), Some("secret".into()));
    works(config).await
}

/// Answers every request as a learner of 3.6 does.
struct Learner(SocketAddr);

impl Learner {
    fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let addr = listener.local_addr()?;
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // It ends with the connection.
                std::thread::spawn(move || refuse_all(client));
            }
        });
        Ok(Self(addr))
    }
}

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;

const ACKNOWLEDGED: u8 = 0x1;
/// The whole answer, and nothing after it.
const WHOLE: u8 = 0x4 | 0x1;

/// Just enough of HTTP/2 to refuse every stream.
fn refuse_all(mut client: TcpStream) -> std::io::Result<()> {
    let mut preface = [0; 24];
    client.read_exact(&mut preface)?;
    write(&mut client, SETTINGS, 0, [0; 4], &[])?;
    loop {
        let mut head = [0; 9];
        client.read_exact(&mut head)?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap_or(0)];
        client.read_exact(&mut payload)?;
        match kind {
            HEADERS => write(&mut client, HEADERS, WHOLE, stream, &refusal())?,
            SETTINGS | PING if flags & ACKNOWLEDGED == 0 => {
                let echoed = if kind == PING { &payload[..] } else { &[] };
                write(&mut client, kind, ACKNOWLEDGED, stream, echoed)?;
            }
            _ => {}
        }
    }
}

fn write(client: &mut TcpStream, kind: u8, flags: u8, stream: [u8; 4], payload: &[u8]) -> std::io::Result<()> {
    let [_, a, b, c] = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    client.write_all(&[&[a, b, c, kind, flags][..], &stream, payload].concat())
}

/// The headers, each spelt out.
fn refusal() -> Vec<u8> {
    // The status is 200.
    let mut headers = vec![0x88];
    let fields = [
        ("content-type", "application/grpc"),
        ("grpc-status", "9"),
        ("grpc-message", "etcdserver: rpc not supported for learner"),
    ];
    for (name, value) in fields {
        headers.push(0);
        for text in [name, value] {
            headers.push(u8::try_from(text.len()).unwrap_or(0));
            headers.extend(text.as_bytes());
        }
    }
    headers
}
