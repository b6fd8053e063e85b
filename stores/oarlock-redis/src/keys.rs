//! The keys of a name in the store.

use std::sync::LazyLock;

use oarlock_core::ResourceName;

use crate::config::Layout;
use crate::redisson;

/// The largest hash tag of the native layout. It is part of the format: all programs that share locks must agree.
pub(crate) const TAGS: u8 = 255;

/// How many slots a cluster has.
const SLOTS: u16 = 16_384;

/// The keys of one resource. All are in one slot of a cluster, so that one script may use them.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) key: String,
    /// The index of the native layout; what this library keeps beside a lock of another layout.
    pub(crate) side: String,
    /// The hash tag in the names of the mailboxes for this resource, where they are sharded.
    pub(crate) tag: String,
    /// Further keys of other programs.
    pub(crate) more: Vec<String>,
}

impl Keys {
    pub(crate) fn of(layout: Layout, prefix: &str, name: &ResourceName) -> Self {
        match layout {
            Layout::Native => {
                let NativeKey { key, index, tag } = NativeKey::of(prefix, name);
                let side = key.get(..index).unwrap_or_default().to_owned();
                Self { key, side, tag: format!("{{{tag:02x}}}:"), more: Vec::new() }
            }
            Layout::Plain => {
                let key = format!("{prefix}{name}");
                let side = beside(&key);
                Self { key, side, tag: String::new(), more: Vec::new() }
            }
            Layout::Redisson => {
                let key = format!("{prefix}{name}");
                let (side, more) = (beside(&key), redisson::keys(&key));
                Self { key, side, tag: String::new(), more }
            }
        }
    }
}

/// The key of a name in the native layout.
pub(crate) struct NativeKey {
    pub(crate) key: String,
    /// How many of its bytes are the key of its index.
    pub(crate) index: usize,
    pub(crate) tag: u8,
}

impl NativeKey {
    pub(crate) fn of(prefix: &str, name: &ResourceName) -> Self {
        let (name, tag) = (name.as_str(), tag(name.as_str()));
        let mut key = String::with_capacity(prefix.len() + name.len() + 5);
        key.push_str(prefix);
        push_tag(&mut key, tag);
        let index = key.len();
        // The first braces of a key count, so a name may have its own.
        key.push(':');
        key.push_str(name);
        Self { key, index, tag }
    }
}

/// Adds a hash tag: two hexadecimal digits in braces.
pub(crate) fn push_tag(text: &mut String, tag: u8) {
    let digit = |digit: u8| char::from_digit(u32::from(digit), 16).unwrap_or('0');
    text.extend(['{', digit(tag >> 4), digit(tag & 15), '}']);
}

/// The index of the names with this tag.
pub(crate) fn index(prefix: &str, tag: u8) -> String {
    format!("{prefix}{{{tag:02x}}}")
}

/// The name that has this key in this index.
pub(crate) fn name(index: &str, key: &str) -> Option<ResourceName> {
    ResourceName::new(key.strip_prefix(index)?.strip_prefix(':')?).ok()
}

/// A `MATCH` pattern for exactly this text.
pub(crate) fn literal(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for character in text.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '\\' | '^') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}

/// FNV-1a of the name, folded to eight bits.
fn tag(name: &str) -> u8 {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash.to_be_bytes().into_iter().fold(0, |tag, byte| tag ^ byte)
}

/// The key beside a lock of another layout: the whole key in braces, which puts it into the same slot. That does not
/// work for a key with braces: its hash tag is then a number of the same slot.
fn beside(key: &str) -> String {
    if key.contains(['{', '}']) {
        let number = NUMBERS.get(usize::from(slot(key))).copied().unwrap_or_default();
        format!("oarlock:beside:{{{number}}}:{key}")
    } else {
        format!("oarlock:beside:{{{key}}}")
    }
}

/// The queue beside a lock of the layout `plain`, whose side key this is. It is the side key of no lock: those have a
/// brace where it has a letter.
pub(crate) fn queue_of(side: &str) -> String {
    side.replacen("oarlock:beside:", "oarlock:beside:queue:", 1)
}

/// For each slot the smallest number whose digits hash to it.
static NUMBERS: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let mut numbers = vec![u32::MAX; usize::from(SLOTS)];
    let mut missing = numbers.len();
    for number in 0..u32::MAX {
        if let Some(unset @ &mut u32::MAX) = numbers.get_mut(usize::from(slot(&number.to_string()))) {
            *unset = number;
            missing -= 1;
        }
        if missing == 0 {
            break;
        }
    }
    numbers
});

/// The slot of a key in a cluster: that of its hash tag (the text in its first braces, if not empty), else of the key.
pub(crate) fn slot(key: &str) -> u16 {
    let braced = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(inner, _)| inner);
    crc16(braced.filter(|inner| !inner.is_empty()).unwrap_or(key)) % SLOTS
}

/// CRC-16/XMODEM, a byte at a time: [`NUMBERS`] computes it a hundred thousand times within a request.
fn crc16(text: &str) -> u16 {
    text.bytes().fold(0, |crc, byte| (crc << 8) ^ CRC[usize::from((crc >> 8) as u8 ^ byte)])
}

/// The CRC of each byte.
const CRC: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    fn of(layout: Layout, prefix: &str, name: &str) -> Keys {
        Keys::of(layout, prefix, &ResourceName::new(name).unwrap())
    }

    #[test]
    fn keys_do_not_change() {
        let keys = of(Layout::Native, "oarlock:", "deploy/{prod}");
        assert_eq!((&*keys.key, &*keys.side), ("oarlock:{df}:deploy/{prod}", "oarlock:{df}"));
        assert_eq!(name(&keys.side, &keys.key).unwrap().as_str(), "deploy/{prod}");
        assert_eq!(index("oarlock:", 0xdf), keys.side);
        let keys = of(Layout::Plain, "", "deploy");
        assert_eq!((&*keys.key, &*keys.side), ("deploy", "oarlock:beside:{deploy}"));
        let keys = of(Layout::Plain, "team:", "a}b");
        assert_eq!((&*keys.key, &*keys.side), ("team:a}b", "oarlock:beside:{6881}:team:a}b"));
        assert_eq!(queue_of(&keys.side), "oarlock:beside:queue:{6881}:team:a}b");
    }

    #[test]
    fn names_are_spread_over_all_tags() {
        let tags: std::collections::HashSet<_> = (0..10_000).map(|n| tag(&format!("job/{n}"))).collect();
        assert_eq!(tags.len(), usize::from(TAGS) + 1);
    }

    #[test]
    fn slots_are_those_of_the_cluster() {
        // As `CLUSTER KEYSLOT` says.
        for (key, wanted) in
            [("123456789", 12_739), ("foo", 12_182), ("{user1000}.following", 3443), ("foo{}{bar}", 8363)]
        {
            assert_eq!(slot(key), wanted, "{key}");
        }
    }

    #[test]
    fn the_keys_of_a_name_are_in_one_slot_whatever_it_is_called() {
        for name in ["deploy", "{a}b", "a}b", "a{b", "{}", "{}{x}", "}{", "a{b}c{d}", "\u{1f512}", "{", "}"] {
            for (layout, prefix) in
                [(Layout::Native, "oarlock:"), (Layout::Native, "{p}:"), (Layout::Plain, ""), (Layout::Plain, "p{")]
            {
                let keys = of(layout, prefix, name);
                assert_eq!(slot(&keys.key), slot(&keys.side), "{keys:?}");
                if layout == Layout::Native {
                    assert_eq!(slot(&keys.key), slot(&format!("{prefix}mail:{}x", keys.tag)), "{keys:?}");
                }
            }
        }
    }
}
