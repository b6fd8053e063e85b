//! The pieces of a URL after its scheme.

use std::fmt;
use std::path::Path;

use super::bad;
use super::scheme::Scheme;
use crate::{Result, text};

/// Something that must not be printed. [`reveal`](Self::reveal) is the only way to it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The content of a file, without the end of its line.
    pub(super) fn from_file(path: &Path) -> Result<Self> {
        let unread = |error| bad(format!("the password file {} cannot be read", path.display())).because(error);
        let mut text = std::fs::read_to_string(path).map_err(unread)?;
        let end = text.strip_suffix('\n').map_or(text.len(), |line| line.strip_suffix('\r').unwrap_or(line).len());
        text.truncate(end);
        if text.is_empty() || text.contains(['\n', '\0']) {
            return Err(bad(format!("the password file {} must have one line: the password", path.display())));
        }
        Ok(Self(text))
    }

    /// The secret itself, to be sent to a server and never to be shown.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

/// The password for one more connection: what `file` says now, so that a password can be changed while a client runs;
/// or `known`, if there is no file or it cannot be read.
#[must_use]
pub fn current_password(file: Option<&Path>, known: Option<&str>) -> Option<String> {
    let read = file.and_then(|file| Secret::from_file(file).ok()).map(|Secret(password)| password);
    read.or_else(|| known.map(str::to_owned))
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// One server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Host {
    /// A name or an address; an IPv6 address has no brackets here.
    pub name: String,
    /// Its port.
    pub port: u16,
}

impl Host {
    /// The server at this port of a name or an address.
    #[must_use]
    pub fn new(name: impl Into<String>, port: u16) -> Self {
        Self { name: name.into(), port }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = text::plain(&self.name);
        if name.contains(':') { write!(f, "[{name}]:{}", self.port) } else { write!(f, "{name}:{}", self.port) }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) user: Option<String>,
    pub(super) password: Option<Secret>,
    pub(super) hosts: Vec<Host>,
    pub(super) path: String,
    pub(super) query: Vec<(String, String)>,
}

/// Takes apart what follows `scheme:`. No error repeats more than a host, a port or a key: the rest may be secret.
pub(super) fn split(scheme: &Scheme, rest: &str) -> Result<Parts> {
    if rest.contains('#') {
        return Err(bad("# is not allowed in a URL: write it as %23"));
    }
    let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut parts = Parts { query: pairs(query)?, ..Parts::default() };
    let Some(after) = address.strip_prefix("//") else {
        if scheme.remote {
            return Err(bad(format!("{}: must be followed by //", scheme.name)));
        }
        parts.path = decode(address)?;
        return Ok(parts);
    };
    // The password may hold a slash; the last @ ends it, as browsers have it.
    let (userinfo, after) = match after.rsplit_once('@') {
        Some((userinfo, after)) => (Some(userinfo), after),
        None => (None, after),
    };
    let (hosts, path) = after.split_at(after.find('/').unwrap_or(after.len()));
    parts.path = decode(path)?;
    if let Some(userinfo) = userinfo {
        let (user, password) = match userinfo.split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (userinfo, None),
        };
        parts.user = Some(decode(user)?).filter(|user| !user.is_empty());
        parts.password = password.map(decode).transpose()?.map(Secret);
    }
    match scheme.port {
        Some(port) => parts.hosts = host_list(scheme, hosts, port)?,
        None if !hosts.is_empty() => return Err(bad(format!("{}: takes no host", scheme.name))),
        None => {}
    }
    Ok(parts)
}

fn host_list(scheme: &Scheme, text: &str, default_port: u16) -> Result<Vec<Host>> {
    let hosts: Vec<Host> = text.split(',').map(|host| one_host(host, default_port)).collect::<Result<_>>()?;
    if hosts.len() > 1 && !scheme.many_hosts {
        return Err(bad(format!("{}:// takes one host, not {}", scheme.name, hosts.len())));
    }
    if hosts.len() < scheme.least_hosts {
        let (least, have) = (scheme.least_hosts, hosts.len());
        return Err(bad(format!("{}:// needs at least {least} hosts, not {have}", scheme.name)));
    }
    Ok(hosts)
}

fn one_host(text: &str, default_port: u16) -> Result<Host> {
    let unclosed = || bad("an IPv6 address is written in brackets, as in [::1]:6379");
    let (name, port) = if let Some(rest) = text.strip_prefix('[') {
        let (name, port) = rest.split_once(']').ok_or_else(unclosed)?;
        match port.strip_prefix(':') {
            Some(port) => (name, Some(port)),
            None if port.is_empty() => (name, None),
            None => return Err(unclosed()),
        }
    } else {
        match text.split_once(':') {
            Some((_, port)) if port.contains(':') => return Err(unclosed()),
            Some((name, port)) => (name, Some(port)),
            None => (text, None),
        }
    };
    let name = decode(name)?;
    if name.is_empty() {
        return Err(bad("a host is missing"));
    }
    let port = match port {
        None => default_port,
        Some(port) => port.parse().map_err(|_| bad(format!("the port of {} is not a number", text::quoted(&name))))?,
    };
    Ok(Host { name, port })
}

fn pairs(query: &str) -> Result<Vec<(String, String)>> {
    let pair = |text: &str| {
        let (key, value) = text.split_once('=').unwrap_or((text, ""));
        Ok((decode(key)?, decode(value)?))
    };
    query.split('&').filter(|text| !text.is_empty()).map(pair).collect()
}

/// Turns `%41` into `A`.
fn decode(text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        let code = digit().zip(digit()).and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
        bytes.push(code.ok_or_else(|| bad("a % in a URL is followed by two hexadecimal digits"))?);
    }
    String::from_utf8(bytes).map_err(|_| bad("a URL must be UTF-8 once decoded"))
}
