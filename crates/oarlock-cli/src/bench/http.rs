//! Pairs over HTTP, as a program of another language takes and releases locks.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use oarlock::driver::BoxFuture;
use oarlock::{Error, ErrorKind, Result};
use oarlock_bench::{Baseline, Rival};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufStream};
use tokio::net::TcpStream;

use crate::bench::server::Running;
use crate::exit::Failure;

/// Starts a server for them.
pub(crate) async fn start() -> std::result::Result<Arc<dyn Baseline>, Failure> {
    let (server, address) = Running::start().await?;
    Ok(Arc::new(Http { address, idle: Mutex::default(), server: Mutex::new(Some(server)) }))
}

struct Http {
    address: String,
    /// Connections that no pair uses now.
    idle: Mutex<Vec<Connection>>,
    /// Until it is closed.
    server: Mutex<Option<Running>>,
}

impl Http {
    async fn pair(&self, name: &str) -> Result<()> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => Connection::open(&self.address).await.map_err(unreachable)?,
        };
        // Names of a run have no other character that an address cannot have.
        let path = format!("/v1/locks/{}", name.replace('/', "%2F"));
        let granted = self.post(&mut connection, &path, "{}").await?;
        let lease = json!({ "lease": granted["lease"] }).to_string();
        self.post(&mut connection, &format!("{path}/release"), &lease).await?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        Ok(())
    }

    async fn post(&self, connection: &mut Connection, path: &str, body: &str) -> Result<Value> {
        let (status, answer) = connection.post(&self.address, path, body).await.map_err(unreachable)?;
        let kind = match status {
            200 | 201 => return Ok(answer),
            501 => ErrorKind::Unsupported,
            503 => ErrorKind::Unreachable,
            _ => ErrorKind::Internal,
        };
        let detail = answer["detail"].as_str().unwrap_or("no reason");
        Err(Error::new(kind, format!("over HTTP, status {status}: {detail}")))
    }
}

fn unreachable(error: io::Error) -> Error {
    Error::unreachable("the server of the pairs over HTTP does not answer").because(error)
}

impl Baseline for Http {
    fn what(&self) -> &'static str {
        "POST /v1/locks/NAME, and POST …/release, to an oarlock serve of this machine"
    }

    fn pair(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<()>> {
        Box::pin(async move { Self::pair(&self, &name).await })
    }

    fn rival(self: Arc<Self>, _: Arc<str>) -> BoxFuture<Result<Option<Arc<dyn Rival>>>> {
        Box::pin(async { Ok(None) })
    }

    fn close(self: Arc<Self>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
            let server = self.server.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(server) = server {
                server.end().await;
            }
            Ok(())
        })
    }
}

/// One that stays open.
struct Connection(BufStream<TcpStream>);

impl Connection {
    async fn open(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self(BufStream::new(stream)))
    }

    /// The status and the body of the answer.
    async fn post(&mut self, host: &str, path: &str, body: &str) -> io::Result<(u16, Value)> {
        let head = format!("POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {}\r\n\r\n", body.len());
        self.0.write_all(head.as_bytes()).await?;
        self.0.write_all(body.as_bytes()).await?;
        self.0.flush().await?;
        let unexpected = || io::Error::from(io::ErrorKind::InvalidData);
        let (mut status, mut length) = (None, 0);
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            if status.is_none() {
                status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
            } else if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().map_err(|_| unexpected())?;
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await?;
        let body = serde_json::from_slice(&body).map_err(|_| unexpected())?;
        Ok((status.ok_or_else(unexpected)?, body))
    }
}
