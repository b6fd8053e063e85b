//! The names that other programs give to the nodes of their locks, to the byte.

use oarlock_core::{Claim, ClaimId, Error, ErrorKind, Kind, ResourceName, Result, Weight};
use sha2::{Digest, Sha256};

use crate::error::SCHEME;

/// The program whose names are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Curator,
    Kazoo,
}

/// What a node is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tag {
    /// Curator's `InterProcessMutex` and `LeaderSelector`; kazoo's `Lock`, `WriteLock` and `Election`; the gate of a
    /// semaphore.
    Lock,
    /// Curator's `LeaderLatch`.
    Latch,
    /// The writer of Curator's `InterProcessReadWriteLock`.
    Write,
    /// A reader.
    Read,
    /// One permit of a semaphore.
    Lease,
}

impl Tag {
    /// Whether two of the same recipe hold together.
    pub(crate) fn shares(self) -> bool {
        matches!(self, Self::Read | Self::Lease)
    }
}

/// A node of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) node: String,
    pub(crate) tag: Tag,
    pub(crate) id: ClaimId,
    /// As text: the other programs compare it so.
    pub(crate) sequence: String,
}

impl Dialect {
    /// The tag of a node of this claim.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the recipe of its kind cannot express the claim.
    pub(crate) fn tag(self, claim: &Claim) -> Result<Tag> {
        let tag = match (self, claim.kind) {
            (_, Kind::Read) => Tag::Read,
            (_, Kind::Semaphore) => Tag::Lease,
            (Self::Curator, Kind::Election) => Tag::Latch,
            (Self::Curator, Kind::Write) => Tag::Write,
            _ => Tag::Lock,
        };
        let why = match (tag.shares(), claim.weight) {
            (false, Weight::All) | (true, Weight::Units(std::num::NonZeroU32::MIN)) => return Ok(tag),
            (true, Weight::All) => format!("a {} takes one unit in the layout {}", claim.kind, self.name()),
            (true, Weight::Units(_)) => {
                format!(
                    "a claim has one unit at most in the layout {}: every permit is a lease of its own",
                    self.name()
                )
            }
            (false, Weight::Units(_)) => {
                format!(
                    "a {} is exclusive in the layout {}: use a read-write lock or a semaphore",
                    claim.kind,
                    self.name()
                )
            }
        };
        Err(unsupported(why))
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Curator => "curator",
            Self::Kazoo => "kazoo",
        }
    }

    fn text(self, tag: Tag) -> &'static str {
        match (self, tag) {
            (Self::Curator, Tag::Lock) => "lock-",
            (Self::Curator, Tag::Latch) => "latch-",
            (Self::Curator, Tag::Write) => "__WRIT__",
            (Self::Curator, Tag::Read) => "__READ__",
            (Self::Curator, Tag::Lease) => "lease-",
            (Self::Kazoo, Tag::Read) => "__rlock__",
            (Self::Kazoo, Tag::Lease) => "",
            (Self::Kazoo, _) => "__lock__",
        }
    }

    /// The name of a node, but for the sequence that the server adds.
    pub(crate) fn prefix(self, id: ClaimId, tag: Tag) -> String {
        match self {
            Self::Curator => format!("_c_{}-{}", uuid(id), self.text(tag)),
            Self::Kazoo => format!("{id}{}", self.text(tag)),
        }
    }

    /// Whether both may be in one queue. The other recipes do not see each other, so they would not exclude each
    /// other.
    pub(crate) fn same_recipe(self, one: Tag, other: Tag) -> bool {
        let recipe = |tag| match (self, tag) {
            (Self::Curator, Tag::Read) => Tag::Write,
            (Self::Kazoo, Tag::Read) => Tag::Lock,
            _ => tag,
        };
        recipe(one) == recipe(other)
    }

    /// What a child is; `None` if it is no part of a lock.
    pub(crate) fn parse(self, node: &str) -> Option<Entry> {
        let tags: &[Tag] = match self {
            Self::Curator => &[Tag::Lock, Tag::Latch, Tag::Write, Tag::Read, Tag::Lease],
            Self::Kazoo => &[Tag::Lock, Tag::Read],
        };
        for tag in tags {
            if let Some((owner, sequence)) = node.rsplit_once(self.text(*tag))
                && is_sequence(sequence)
            {
                let (tag, sequence) = (*tag, sequence.to_owned());
                return Some(Entry { node: node.to_owned(), tag, id: self.id(owner, node), sequence });
            }
        }
        let permit: Option<ClaimId> = if self == Self::Kazoo { node.parse().ok() } else { None };
        permit.map(|id| Entry { node: node.to_owned(), tag: Tag::Lease, id, sequence: String::new() })
    }

    /// The id in a name. A node without one is identified by its whole name.
    fn id(self, owner: &str, node: &str) -> ClaimId {
        let digits = match self {
            Self::Kazoo => owner.to_owned(),
            // Go's client writes no dashes.
            Self::Curator => owner.strip_prefix("_c_").unwrap_or_default().replace('-', ""),
        };
        digits.parse().unwrap_or_else(|_| {
            let digest = Sha256::digest(node.as_bytes());
            ClaimId::from_bits(digest.iter().take(16).fold(0, |bits, byte| (bits << 8) | u128::from(*byte)))
        })
    }

    /// The node of a resource: its name is a path.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] if it is not a path.
    pub(crate) fn path(self, root: &str, resource: &ResourceName) -> Result<String> {
        let name = resource.as_str();
        let why = if name.starts_with('/') || name.ends_with('/') || name.contains("//") {
            "has an empty path segment"
        } else if name.split('/').any(|part| part == "." || part == "..") {
            "has a part that is . or .."
        } else if name.chars().any(is_forbidden) {
            "has a character that ZooKeeper does not allow"
        } else {
            return Ok(format!("{root}/{name}"));
        };
        let message = format!("a name is a path in the layout {}, and this one {why}", self.name());
        Err(Error::new(ErrorKind::InvalidName, message).on(SCHEME))
    }

    /// The folder of claims that wait for a permit of a semaphore.
    pub(crate) fn gate(self, base: &str) -> String {
        match self {
            Self::Curator => format!("{base}/locks"),
            Self::Kazoo => format!("{base}-__lock__"),
        }
    }

    /// Where the permits of a semaphore are.
    pub(crate) fn leases(self, base: &str) -> String {
        match self {
            Self::Curator => format!("{base}/leases"),
            Self::Kazoo => base.to_owned(),
        }
    }
}

pub(crate) fn unsupported(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, why).on(SCHEME)
}

fn uuid(id: ClaimId) -> String {
    let id = id.to_string();
    format!("{}-{}-{}-{}-{}", &id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..])
}

fn is_sequence(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    digits.len() == 10 && digits.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_forbidden(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: ClaimId = ClaimId::from_bits(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);

    /// Names as Curator 5 and kazoo 2.11 made them.
    #[test]
    fn names_are_theirs_to_the_byte() {
        let curator = [Tag::Lock, Tag::Latch, Tag::Write, Tag::Read, Tag::Lease];
        let texts = ["lock-", "latch-", "__WRIT__", "__READ__", "lease-"];
        for (tag, text) in curator.into_iter().zip(texts) {
            let name = Dialect::Curator.prefix(ID, tag);
            assert_eq!(name, format!("_c_01234567-89ab-cdef-0123-456789abcdef-{text}"));
            let node = format!("{name}0000000007");
            let entry = Dialect::Curator.parse(&node).unwrap();
            assert_eq!((entry.tag, entry.id, entry.sequence.as_str()), (tag, ID, "0000000007"));
        }
        for (tag, text) in [(Tag::Lock, "__lock__"), (Tag::Read, "__rlock__")] {
            let node = format!("0123456789abcdef0123456789abcdef{text}0000000007");
            assert_eq!(format!("{}0000000007", Dialect::Kazoo.prefix(ID, tag)), node);
            let entry = Dialect::Kazoo.parse(&node).unwrap();
            assert_eq!((entry.tag, entry.id), (tag, ID));
        }
        let permit = Dialect::Kazoo.prefix(ID, Tag::Lease);
        assert_eq!((permit.as_str(), Dialect::Kazoo.parse(&permit).unwrap().tag), (&*ID.to_string(), Tag::Lease));
    }

    #[test]
    fn names_of_go_and_names_without_an_id_count_too() {
        let go = Dialect::Curator.parse("_c_0123456789abcdef0123456789abcdef-lock-0000000001").unwrap();
        assert_eq!(go.id, ID);
        let bare = Dialect::Curator.parse("lock-0000000001").unwrap();
        assert_eq!(bare.id, Dialect::Curator.parse("lock-0000000001").unwrap().id);
        assert_ne!(bare.id, Dialect::Curator.parse("lock-0000000002").unwrap().id);
        for stray in ["000", "locks", "lock-1", "_c_x-lock-", "x__lock__0000000001", &ID.to_string()] {
            assert!(Dialect::Curator.parse(stray).is_none(), "{stray}");
        }
        for stray in ["000", "lock-0000000001", "ready", "_c_x-__WRIT__0000000001"] {
            assert!(Dialect::Kazoo.parse(stray).is_none(), "{stray}");
        }
    }

    #[test]
    fn a_name_is_a_path() {
        let path = |name: &str| Dialect::Curator.path("/app", &ResourceName::new(name).unwrap());
        assert_eq!(path("locks/job").unwrap(), "/app/locks/job");
        for bad in ["/job", "job/", "a//b", "..", "a/./b", "a\nb", "a\u{f8ff}"] {
            assert_eq!(path(bad).unwrap_err().kind(), ErrorKind::InvalidName, "{bad:?}");
        }
    }

    #[test]
    fn what_a_recipe_does_not_have_is_refused() {
        let mut claim = Claim::new(ID, ResourceName::new("job").unwrap());
        assert_eq!(Dialect::Curator.tag(&claim).unwrap(), Tag::Lock);
        claim.weight = Weight::ONE;
        assert_eq!(Dialect::Curator.tag(&claim).unwrap_err().kind(), ErrorKind::Unsupported);
        claim.kind = Kind::Semaphore;
        assert_eq!(Dialect::Curator.tag(&claim).unwrap(), Tag::Lease);
        claim.weight = std::num::NonZeroU32::new(2).map_or(Weight::All, Weight::Units);
        assert_eq!(Dialect::Kazoo.tag(&claim).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
