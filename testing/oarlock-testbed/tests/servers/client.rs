//! Just enough of each server's protocol to write one value and read it back.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use oarlock_testbed::server::{EtcdProgram, PostgresProgram, Program, RedisProgram, ZooKeeperProgram};

/// A server that does not answer after this does not answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// A server that keeps one value for us.
pub(crate) trait TestClient: Program {
    fn write(addr: SocketAddr, value: &str) -> io::Result<()>;
    fn read(addr: SocketAddr) -> io::Result<String>;
}

fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&addr, ANSWER_TIMEOUT)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    Ok(stream)
}

fn unexpected(answer: impl std::fmt::Debug) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("{answer:?}"))
}

impl TestClient for RedisProgram {
    fn write(addr: SocketAddr, value: &str) -> io::Result<()> {
        match redis_line(addr, &format!("SET key {value}"))?.as_str() {
            "+OK" => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    fn read(addr: SocketAddr) -> io::Result<String> {
        redis_line(addr, "GET key")
    }
}

/// The last line of the answer to one command.
pub(crate) fn redis_line(addr: SocketAddr, command: &str) -> io::Result<String> {
    let mut stream = connect(addr)?;
    stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let answer = answer.strip_suffix("+OK\r\n").ok_or_else(|| unexpected(&answer))?;
    answer.lines().last().map(String::from).ok_or_else(|| unexpected(answer))
}

impl TestClient for EtcdProgram {
    // Keys and values travel in base 64, and any text that is one will do.
    fn write(addr: SocketAddr, value: &str) -> io::Result<()> {
        etcd_post(addr, "kv/put", &format!(r#"{{"key":"a2V5","value":"{value}0"}}"#)).map(drop)
    }

    fn read(addr: SocketAddr) -> io::Result<String> {
        let answer = etcd_post(addr, "kv/range", r#"{"key":"a2V5"}"#)?;
        let value = answer.split_once(r#""value":""#).and_then(|(_, rest)| rest.split_once("0\""));
        value.map(|(value, _)| value.to_owned()).ok_or_else(|| unexpected(&answer))
    }
}

/// The answer to one request, whole and as text.
pub(crate) fn etcd_post(addr: SocketAddr, method: &str, body: &str) -> io::Result<String> {
    let mut stream = connect(addr)?;
    let head = format!("POST /v3/{method} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n");
    stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    if answer.starts_with("HTTP/1.1 200") { Ok(answer) } else { Err(unexpected(answer)) }
}

impl TestClient for PostgresProgram {
    fn write(addr: SocketAddr, value: &str) -> io::Result<()> {
        let sql = format!("drop table if exists kept; create table kept as select '{value}'::text as value");
        query(addr, &sql).map(drop)
    }

    fn read(addr: SocketAddr) -> io::Result<String> {
        query(addr, "select value from kept")
    }
}

/// The last value that `sql` gives, or nothing.
pub(crate) fn query(addr: SocketAddr, sql: &str) -> io::Result<String> {
    let mut stream = send_query(addr, sql)?;
    let mut value = String::new();
    let mut turns = 0;
    // Ready before the query and after it.
    while turns < 2 {
        let mut head = [0; 5];
        stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let mut body = vec![0; length - 4];
        stream.read_exact(&mut body)?;
        match head[0] {
            b'E' => return Err(unexpected(String::from_utf8_lossy(&body))),
            // One column: the number of columns, the length, the value.
            b'D' => value = String::from_utf8_lossy(&body[6..]).into_owned(),
            b'Z' => turns += 1,
            _ => {}
        }
    }
    Ok(value)
}

/// A connection on which `sql` has been asked.
pub(crate) fn send_query(addr: SocketAddr, sql: &str) -> io::Result<TcpStream> {
    let mut stream = connect(addr)?;
    let mut start = b"\0\x03\0\0user\0postgres\0database\0postgres\0\0".to_vec();
    prefix_length(&mut start, 4);
    stream.write_all(&start)?;
    let mut question = format!("{sql}\0").into_bytes();
    prefix_length(&mut question, 4);
    stream.write_all(&[b"Q", question.as_slice()].concat())?;
    Ok(stream)
}

/// Puts the length before `message`, and counts so many bytes more.
fn prefix_length(message: &mut Vec<u8>, more: usize) {
    let length = u32::try_from(message.len() + more).expect("a short message");
    message.splice(..0, length.to_be_bytes());
}

impl TestClient for ZooKeeperProgram {
    fn write(addr: SocketAddr, value: &str) -> io::Result<()> {
        const CREATE: i32 = 1;
        const SET: i32 = 5;
        const EXISTS_ALREADY: i32 = -110;
        let (mut stream, _) = zookeeper_session(addr, 5000)?;
        let named = [text("/kept"), text(value)].concat();
        // All users have all rights, and the node is persistent.
        let acl = [int(1), int(31), text("world"), text("anyone"), int(0)].concat();
        let (mut error, _) = zookeeper_ask(&mut stream, CREATE, &[named.clone(), acl].concat())?;
        if error == EXISTS_ALREADY {
            (error, _) = zookeeper_ask(&mut stream, SET, &[named, int(-1)].concat())?;
        }
        if error == 0 { Ok(()) } else { Err(unexpected(error)) }
    }

    fn read(addr: SocketAddr) -> io::Result<String> {
        const GET: i32 = 4;
        let (mut stream, _) = zookeeper_session(addr, 5000)?;
        let (error, body) = zookeeper_ask(&mut stream, GET, &[text("/kept"), vec![0]].concat())?;
        if error != 0 || body.len() < 4 {
            return Err(unexpected(error));
        }
        let length = u32::from_be_bytes([body[0], body[1], body[2], body[3]]) as usize;
        Ok(String::from_utf8_lossy(&body[4..4 + length]).into_owned())
    }
}

/// The timeout, in milliseconds, that the server grants when asked for this one.
pub(crate) fn zookeeper_timeout(addr: SocketAddr, wanted: i32) -> io::Result<i32> {
    zookeeper_session(addr, wanted).map(|(_, granted)| granted)
}

fn int(value: i32) -> Vec<u8> {
    value.to_be_bytes().to_vec()
}

fn text(value: &str) -> Vec<u8> {
    let mut bytes = value.as_bytes().to_vec();
    prefix_length(&mut bytes, 0);
    bytes
}

fn zookeeper_session(addr: SocketAddr, wanted: i32) -> io::Result<(TcpStream, i32)> {
    let mut stream = connect(addr)?;
    // Version 0, nothing seen yet, the timeout, a new session, no password.
    let hello = [int(0), vec![0; 8], int(wanted), vec![0; 8], int(16), vec![0; 16]].concat();
    let answer = zookeeper_frame(&mut stream, hello)?;
    match answer.get(4..8) {
        Some(&[a, b, c, d]) => Ok((stream, i32::from_be_bytes([a, b, c, d]))),
        _ => Err(unexpected(answer)),
    }
}

/// The error code and the rest of the answer.
fn zookeeper_ask(stream: &mut TcpStream, kind: i32, body: &[u8]) -> io::Result<(i32, Vec<u8>)> {
    let mut answer = zookeeper_frame(stream, [int(1), int(kind), body.to_vec()].concat())?;
    if answer.len() < 16 {
        return Err(unexpected(answer));
    }
    let rest = answer.split_off(16);
    Ok((i32::from_be_bytes([answer[12], answer[13], answer[14], answer[15]]), rest))
}

fn zookeeper_frame(stream: &mut TcpStream, mut question: Vec<u8>) -> io::Result<Vec<u8>> {
    prefix_length(&mut question, 0);
    stream.write_all(&question)?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}
