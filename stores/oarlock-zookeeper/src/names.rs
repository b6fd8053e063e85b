//! Names of resources as names of nodes, one to one.
//!
//! A node name must be free of `/`, control characters and some of Unicode, and must not be `.` or `..`. What is not
//! plainly harmless is percent-encoded byte by byte; what gets too long that way is named by its SHA-256 after a `#`,
//! and the parent's data keeps the name as written.

use std::fmt::Write;

use oarlock_core::ResourceName;
use sha2::{Digest, Sha256};

/// Longer ones are hashed. Node names have no limit of their own, but a listing of many must fit one packet.
const MAX_PLAIN: usize = 200;

/// The node name of a resource.
pub(crate) fn escape(name: &str) -> String {
    let mut node = String::with_capacity(name.len());
    for (at, byte) in name.bytes().enumerate() {
        let plain = byte.is_ascii_alphanumeric() || b"-_:@+=,~".contains(&byte) || (byte == b'.' && at > 0);
        if plain {
            node.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(node, "%{byte:02X}");
        }
    }
    if node.len() > MAX_PLAIN { format!("#{}", hex(&Sha256::digest(name.as_bytes()))) } else { node }
}

/// The resource of a node name; `None` if it is hashed or not ours.
pub(crate) fn unescape(node: &str) -> Option<ResourceName> {
    let mut bytes = Vec::with_capacity(node.len());
    let mut rest = node.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
            bytes.push(u8::try_from(digit()? * 16 + digit()?).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    let name = ResourceName::new(String::from_utf8(bytes).ok()?).ok()?;
    (escape(name.as_str()) == node).then_some(name)
}

/// The parent of a node, and its name. The parent of `/a` is the root, `/`.
pub(crate) fn split(path: &str) -> (&str, &str) {
    match path.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some(split) => split,
        None => ("/", path),
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_its_own_node() {
        let long = "x".repeat(300);
        let names = ["a", "A", ".", "..", "a/b", "a%2Fb", "%", "#", "a b", "a\0b", "\u{1f512}", ".a", "a.", "m", &long];
        let nodes: std::collections::BTreeSet<_> = names.iter().map(|name| escape(name)).collect();
        assert_eq!(nodes.len(), names.len());
        for node in &nodes {
            let legal = |b: u8| b.is_ascii_graphic() && b != b'/';
            assert!(node.bytes().all(legal) && !node.starts_with('.') && node.len() <= MAX_PLAIN, "{node}");
        }
    }

    #[test]
    fn the_parent_of_a_node_below_the_root_is_the_root() {
        assert_eq!((split("/a"), split("/a/b"), split("/a/b/c")), (("/", "a"), ("/a", "b"), ("/a/b", "c")));
    }

    #[test]
    fn plain_names_are_read_back() {
        for name in ["job", "..", "a/b", "a%2Fb", "caf\u{e9}", "a\nb"] {
            assert_eq!(unescape(&escape(name)).unwrap().as_str(), name);
        }
        for node in [&escape(&"x".repeat(300)), "a b", "%2", "%zz", "%61", ".clients", ""] {
            assert!(unescape(node).is_none(), "{node}");
        }
    }
}
