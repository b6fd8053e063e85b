//! A server that is too old for what the client needs of it.

use std::io::{BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

use oarlock_core::ErrorKind;
use oarlock_redis::{Address, Config, Redis};

use super::context::host;

/// Answers like a server of this version to a user who may say `HELLO` and nothing else; without a version like one that
/// does not know `HELLO`. It ends with the test.
fn old_server(version: Option<&'static str>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream, version));
        }
    });
    addr
}

fn serve(mut stream: TcpStream, version: Option<&str>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let words = number(&mut reader, '*')?;
        let words: Vec<_> = (0..words).map(|_| word(&mut reader)).collect::<Result<_, _>>()?;
        match (words[0].to_uppercase().as_str(), version) {
            ("HELLO", Some(version)) => {
                let length = version.len();
                write!(stream, "%2\r\n$5\r\nproto\r\n:3\r\n$7\r\nversion\r\n${length}\r\n{version}\r\n")?;
            }
            ("HELLO", None) => write!(stream, "-ERR unknown command `HELLO`\r\n")?,
            _ => write!(stream, "-NOPERM this user has no permissions to run this command\r\n")?,
        }
    }
}

fn number(reader: &mut impl std::io::BufRead, mark: char) -> std::io::Result<usize> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let number = line.trim_end().strip_prefix(mark).and_then(|number| number.parse().ok());
    number.ok_or_else(|| std::io::Error::other("the client is gone"))
}

fn word(reader: &mut impl std::io::BufRead) -> std::io::Result<String> {
    let mut bytes = vec![0; number(reader, '$')? + 2];
    reader.read_exact(&mut bytes)?;
    bytes.truncate(bytes.len() - 2);
    String::from_utf8(bytes).map_err(std::io::Error::other)
}

/// It has no channels that belong to slots: waiters would wait in vain.
#[tokio::test]
async fn an_old_cluster_is_refused_with_the_version_that_it_needs() {
    let addr = old_server(Some("6.2.14"));
    let error = Redis::open(Config::new(Address::Cluster(vec![host(addr)]))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    let told = error.to_string();
    assert!(told.contains("6.2.14") && told.contains("Redis 7") && told.contains(&addr.to_string()), "{told}");
}

#[tokio::test]
async fn a_server_of_the_same_age_outside_a_cluster_is_not() {
    let store = Redis::open(Config::new(Address::Tcp("127.0.0.1".into(), old_server(Some("6.2.14")).port()))).await;
    assert_eq!(store.unwrap().server_info().version.as_deref(), Some("6.2.14"));
}

#[tokio::test]
async fn a_server_before_resp3_is_refused_with_the_version_that_it_needs() {
    let addr = old_server(None);
    let error = Redis::open(Config::new(Address::Tcp("127.0.0.1".into(), addr.port()))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("Redis 6 or later"), "{error}");
}
