//! The paths of a name. A name can be a kilobyte long and hold any character, so its file is named by a hash.

use oarlock_core::ResourceName;
use sha2::{Digest, Sha256};

/// The shard of a name, and its file in there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Paths {
    pub(crate) shard: u8,
    /// The file's name inside the shard's folder.
    pub(crate) file: String,
}

impl Paths {
    pub(crate) fn of(name: &ResourceName) -> Self {
        let hash: [u8; 32] = Sha256::digest(name.as_str().as_bytes()).into();
        let [shard, rest @ ..] = hash;
        // Every step does this: formatting each byte would take longer than the hash.
        let mut file = [0; 62];
        for (digits, byte) in file.as_chunks_mut().0.iter_mut().zip(rest) {
            *digits = [byte >> 4, byte & 15].map(digit);
        }
        Self { shard, file: String::from_utf8_lossy(&file).into_owned() }
    }
}

/// The hexadecimal digit of a number below 16.
fn digit(number: u8) -> u8 {
    if number < 10 { b'0' + number } else { b'a' + number - 10 }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_that_look_alike_have_different_files() {
        let long = "x".repeat(1024);
        let names = ["a", "A", "a ", "..", ".", "/", "a/b", "a\0b", "a\0", "ä", "a\u{308}", "a.new", long.as_str()];
        let paths: HashSet<_> = names.iter().map(|name| Paths::of(&ResourceName::new(name).unwrap())).collect();
        assert_eq!(paths.len(), names.len());
        assert!(paths.iter().all(|it| it.file.len() == 62));
    }

    #[test]
    fn the_paths_of_a_name_are_part_of_the_format() {
        let paths = Paths::of(&ResourceName::new("abc").unwrap());
        assert_eq!(paths.shard, 0xba);
        assert_eq!(paths.file, "7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
