//! Where a name lives: names may be a kilobyte long and hold any character, so files are named by a hash.

use std::fmt::Write as _;

use oarlock_core::ResourceName;
use sha2::{Digest, Sha256};

/// The shard and the file of a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) shard: u8,
    /// The file's name inside the shard's folder.
    pub(crate) file: String,
}

impl Place {
    pub(crate) fn of(name: &ResourceName) -> Self {
        let hash: [u8; 32] = Sha256::digest(name.as_str().as_bytes()).into();
        let [shard, rest @ ..] = hash;
        let mut file = String::with_capacity(2 * rest.len());
        for byte in rest {
            // Writing to a string cannot fail.
            let _ = write!(file, "{byte:02x}");
        }
        Self { shard, file }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_that_look_alike_live_apart() {
        let long = "x".repeat(1024);
        let names = ["a", "A", "a ", "..", ".", "/", "a/b", "a\0b", "a\0", "ä", "a\u{308}", "a.new", long.as_str()];
        let places: HashSet<_> = names.iter().map(|name| Place::of(&ResourceName::new(name).unwrap())).collect();
        assert_eq!(places.len(), names.len());
        assert!(places.iter().all(|place| place.file.len() == 62));
    }

    #[test]
    fn the_place_of_a_name_is_part_of_the_format() {
        let place = Place::of(&ResourceName::new("abc").unwrap());
        assert_eq!(place.shard, 0xba);
        assert!(place.file.starts_with("7816bf8f01cfea41"));
    }
}
