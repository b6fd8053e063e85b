//! Sends single commands to a Redis server, to set it up.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::bail;

/// How long one answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a set-up may take.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Sends one command and returns the answer as text, with each element of a list on a line.
///
/// # Errors
/// When it does not answer, or answers with an error.
pub fn redis_command(addr: SocketAddr, arguments: &[&str]) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&addr, ANSWER_TIMEOUT)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let mut request = format!("*{}\r\n", arguments.len());
    for argument in arguments {
        request.push_str(&format!("${}\r\n{argument}\r\n", argument.len()));
    }
    stream.write_all(request.as_bytes())?;
    let mut lines = Vec::new();
    answer(&mut BufReader::new(stream), &mut lines)?;
    Ok(lines.join("\n"))
}

fn answer(reader: &mut BufReader<TcpStream>, lines: &mut Vec<String>) -> io::Result<()> {
    let mut head = String::new();
    reader.read_line(&mut head)?;
    let head = head.trim_end();
    let (kind, rest) = head.split_at_checked(1).ok_or_else(|| io::Error::other("no answer"))?;
    let count = || rest.parse::<i64>().map_err(io::Error::other);
    match kind {
        "-" => return Err(io::Error::other(rest.to_owned())),
        "$" => {
            let mut bytes = vec![0; usize::try_from(count()? + 2).unwrap_or(0)];
            if bytes.len() >= 2 {
                reader.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                lines.push(String::from_utf8_lossy(&bytes).into_owned());
            }
        }
        "*" => {
            for _ in 0..count()? {
                answer(reader, lines)?;
            }
        }
        _ => lines.push(rest.to_owned()),
    }
    Ok(())
}

/// Asks until the answer is what is wanted.
///
/// # Errors
/// When that does not happen.
pub fn until(addr: SocketAddr, arguments: &[&str], wanted: impl Fn(&str) -> bool) -> anyhow::Result<String> {
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    loop {
        let said = redis_command(addr, arguments);
        match said {
            Ok(said) if wanted(&said) => return Ok(said),
            said if Instant::now() > deadline => bail!("{addr} still says {said:?} to {arguments:?}"),
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
