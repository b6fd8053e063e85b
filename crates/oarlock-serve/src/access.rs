//! Who may do what: tokens, each with rights for patterns of names.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use http::{HeaderMap, header};
use oarlock::{Error, ErrorKind, Result};
use oarlock_core::pattern;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// A shorter token could be guessed.
const MIN_TOKEN_BYTES: usize = 20;

/// What a request wants to do with a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    Read,
    Lock,
    Break,
}

impl Right {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Lock => "lock",
            Self::Break => "break",
        }
    }
}

/// A client that was let in: its name, for the audit log, and the patterns of names for each right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Client {
    pub(crate) name: String,
    read: Vec<String>,
    lock: Vec<String>,
    break_: Vec<String>,
}

impl Client {
    /// The patterns of names for which it has the right.
    pub(crate) fn patterns(&self, right: Right) -> &[String] {
        match right {
            Right::Read => &self.read,
            Right::Lock => &self.lock,
            Right::Break => &self.break_,
        }
    }

    pub(crate) fn may(&self, right: Right, name: &str) -> bool {
        self.patterns(right).iter().any(|pattern| pattern::matches(pattern, name))
    }

    /// Whether it has the right for any name.
    pub(crate) fn may_somewhere(&self, right: Right) -> bool {
        !self.patterns(right).is_empty()
    }

    /// The same client without a right.
    fn without(mut self, right: Right) -> Self {
        match right {
            Right::Read => self.read.clear(),
            Right::Lock => self.lock.clear(),
            Right::Break => self.break_.clear(),
        }
        self
    }
}

/// The tokens that are accepted. Without any, every client of the loopback address may read and lock, and none may
/// break.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Access {
    tokens: Vec<Token>,
    allow_lock: bool,
    allow_break: bool,
}

#[derive(Clone, PartialEq, Eq)]
struct Token {
    /// Of the token: the compare takes the same time for each.
    digest: [u8; 32],
    client: Client,
}

/// The file of tokens.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenFile {
    #[serde(default)]
    token: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    secret: Option<String>,
    sha256: Option<String>,
    #[serde(default)]
    read: Vec<String>,
    #[serde(default)]
    lock: Vec<String>,
    #[serde(default, rename = "break")]
    break_: Vec<String>,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Access({} tokens)", self.tokens.len())
    }
}

impl Access {
    /// No token: only for the loopback address.
    #[must_use]
    pub fn open() -> Self {
        Self { tokens: Vec::new(), allow_lock: true, allow_break: false }
    }

    /// One token with every right.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a token that could be guessed.
    pub fn token(secret: &str) -> Result<Self> {
        let all = || vec!["*".to_owned()];
        let client = Client { name: "token".to_owned(), read: all(), lock: all(), break_: all() };
        Ok(Self { tokens: vec![Token { digest: checked(secret, "the token")?, client }], ..Self::open() })
    }

    /// The tokens of a file in TOML. Each has a `name`, a `secret` or its `sha256`, and patterns of lock names for the
    /// rights `read`, `lock` and `break`.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if the file cannot be read or understood; it never names a secret.
    pub fn file(path: &Path) -> Result<Self> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| config(format!("cannot read {shown}: {error}")))?;
        Self::parse(&text).map_err(|why| config(format!("{shown}: {why}")))
    }

    fn parse(text: &str) -> std::result::Result<Self, String> {
        // The whole error of the parser shows the line, and so the secret.
        let file: TokenFile = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        if file.token.is_empty() {
            return Err("it has no [[token]]".to_owned());
        }
        let mut tokens: Vec<Token> = Vec::new();
        for Entry { name, secret, sha256, read, lock, break_ } in file.token {
            let client = Client { name, read, lock, break_ };
            let name = oarlock_core::text::quoted(&client.name);
            let digest = match (secret, sha256) {
                (Some(secret), None) => {
                    checked(&secret, &format!("the secret of {name}")).map_err(|e| e.to_string())?
                }
                (None, Some(hex)) => {
                    from_hex(&hex).ok_or(format!("the sha256 of {name} is not 64 hexadecimal digits"))?
                }
                _ => return Err(format!("{name} needs a secret or a sha256, and not both")),
            };
            if client.name.is_empty() || tokens.iter().any(|token| token.client.name == client.name) {
                return Err(format!("each token needs a name of its own, and {name} is none"));
            }
            if tokens.iter().any(|token| token.digest == digest) {
                return Err(format!("{name} has the secret of another token"));
            }
            tokens.push(Token { digest, client });
        }
        Ok(Self { tokens, ..Self::open() })
    }

    /// Lets tokens with the right `break` end the holds of others.
    #[must_use]
    pub fn allow_break(mut self, allow: bool) -> Self {
        self.allow_break = allow;
        self
    }

    /// Lets clients take locks; true by default.
    #[must_use]
    pub fn allow_lock(mut self, allow: bool) -> Self {
        self.allow_lock = allow;
        self
    }

    /// Whether requests need a token.
    #[must_use]
    pub fn needs_token(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// Whether holds of others can be ended at all.
    pub(crate) fn breaks(&self) -> bool {
        self.allow_break
    }

    /// The names of the tokens.
    #[must_use]
    pub fn names(&self) -> BTreeSet<&str> {
        self.tokens.iter().map(|token| token.client.name.as_str()).collect()
    }

    /// Who sent these headers, by its token, or by the fingerprint of its `certificate`; `None` for a wrong token, and for
    /// none where one is needed.
    pub(crate) fn client(&self, headers: &HeaderMap, certificate: Option<&str>) -> Option<Client> {
        let client = if self.tokens.is_empty() {
            let all = || vec!["*".to_owned()];
            // A certificate is told from others by a part of its fingerprint.
            let name = certificate.and_then(|all| all.get(..16)).map(|part| format!("certificate {part}"));
            let name = name.unwrap_or_else(|| "anonymous".to_owned());
            Client { name, read: all(), lock: all(), break_: Vec::new() }
        } else {
            self.by_token(bearer(headers)?)?
        };
        let client = if self.allow_lock { client } else { client.without(Right::Lock) };
        Some(if self.allow_break { client } else { client.without(Right::Break) })
    }

    fn by_token(&self, token: &str) -> Option<Client> {
        let digest = digest(token);
        // Every token is compared: the time tells neither which one it is, nor how much of it was right.
        let mut found = None;
        for token in &self.tokens {
            if bool::from(token.digest.ct_eq(&digest)) {
                found = Some(&token.client);
            }
        }
        found.cloned()
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

fn checked(secret: &str, what: &str) -> Result<[u8; 32]> {
    if secret.len() < MIN_TOKEN_BYTES || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
        let message = format!(
            "{what} must have at least {MIN_TOKEN_BYTES} visible ASCII characters: make one with \"openssl rand -hex 32\""
        );
        return Err(config(message));
    }
    Ok(digest(secret))
}

fn from_hex(hex: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    for (byte, at) in digest.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&hex[at..at + 2], 16).ok()?;
    }
    Some(digest)
}

fn config(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Config, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "0123456789abcdef0123";

    fn headers(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())])
    }

    #[test]
    fn a_token_has_its_rights_for_its_names_and_no_other() {
        let file = format!("[[token]]\nname = \"ci\"\nsecret = \"{SECRET}\"\nread = [\"*\"]\nlock = [\"ci/*\"]\n");
        let access = Access::parse(&file).unwrap().allow_break(true);
        let client = access.client(&headers(&format!("Bearer {SECRET}")), None).unwrap();
        assert!(client.may(Right::Read, "x") && client.may(Right::Lock, "ci/7"));
        assert!(!client.may(Right::Lock, "prod") && !client.may(Right::Break, "ci/7"));
        for wrong in ["Bearer", "Bearer ", "Basic 0123456789abcdef0123", "Bearer 0123456789abcdef0124", SECRET] {
            assert!(access.client(&headers(wrong), None).is_none(), "{wrong}");
        }
        assert!(access.client(&HeaderMap::new(), None).is_none());
    }

    #[test]
    fn a_digest_stands_for_its_secret() {
        let hex: String = digest(SECRET).iter().map(|byte| format!("{byte:02x}")).collect();
        let file = format!("[[token]]\nname = \"ops\"\nsha256 = \"{hex}\"\nbreak = [\"*\"]\n");
        let access = Access::parse(&file).unwrap();
        let bearer = headers(&format!("bearer {SECRET}"));
        assert!(!access.client(&bearer, None).unwrap().may(Right::Break, "x"), "not without allow_break");
        assert!(access.allow_break(true).client(&bearer, None).unwrap().may(Right::Break, "x"));
    }

    #[test]
    fn without_tokens_no_client_breaks_and_locking_can_be_turned_off() {
        let client = Access::open().allow_break(true).client(&HeaderMap::new(), None).unwrap();
        assert!(client.may(Right::Lock, "x") && !client.may_somewhere(Right::Break));
        let reader = Access::open().allow_lock(false).client(&HeaderMap::new(), None).unwrap();
        assert!(reader.may(Right::Read, "x") && !reader.may_somewhere(Right::Lock));
    }

    #[test]
    fn bad_files_are_refused_without_a_word_of_their_secrets() {
        let long = "s3cr3t-s3cr3t-s3cr3t-s3cr3t";
        let files = [
            String::new(),
            format!("[[token]]\nname = \"a\"\nsecret = \"{long}\"\nwrite = [\"*\"]\n"),
            "[[token]]\nname = \"a\"\nsecret = \"short\"\n".to_owned(),
            "[[token]]\nname = \"a\"\nsha256 = \"zz\"\n".to_owned(),
            format!("[[token]]\nname = \"a\"\nsecret = {long}\n"),
            format!("[[token]]\nname = \"a\"\nsecret = \"{long}\"\n[[token]]\nname = \"a\"\nsecret = \"{long}2\"\n"),
            format!("[[token]]\nname = \"a\"\nsecret = \"{long}\"\n[[token]]\nname = \"b\"\nsecret = \"{long}\"\n"),
            "[[token]]\nname = \"a\"\n".to_owned(),
        ];
        for file in files {
            let why = Access::parse(&file).unwrap_err();
            assert!(!why.contains("s3cr3t") && !why.contains("short") && !why.is_empty(), "{why}");
        }
    }
}
