//! Where things lie: the keys of one location are in one slot, those of different locations in different ones.

use std::fmt;

/// Where units lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Location {
    /// Where deliveries come in.
    Room,
    /// A segment.
    Segment(u32),
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Room => f.write_str("room"),
            Self::Segment(segment) => segment.fmt(f),
        }
    }
}

impl Location {
    /// The location that [`fmt::Display`] wrote.
    pub(super) fn read(text: &str) -> Option<Self> {
        if text == "room" { Some(Self::Room) } else { text.parse().ok().map(Self::Segment) }
    }

    /// Units, reservations, ends of holds, units under way from here, transfers that are over.
    pub(super) fn keys(self, sku: &str) -> [String; 5] {
        let tag = match self {
            Self::Room => escaped(sku),
            Self::Segment(segment) => format!("{}#{segment}", escaped(sku)),
        };
        ["", ":r", ":e", ":o", ":i"].map(|end| format!("oarlock:stock:{{{tag}}}{end}"))
    }
}

/// The map, the deliveries and what is coming in, in the slot of the store room.
pub(super) fn map(sku: &str) -> [String; 3] {
    [":map", ":deliveries", ":coming"].map(|end| format!("oarlock:stock:{{{}}}{end}", escaped(sku)))
}

/// Without what means something in a key.
fn escaped(sku: &str) -> String {
    let mut escaped = String::with_capacity(sku.len());
    for letter in sku.chars() {
        match letter {
            '%' | '{' | '}' | '#' => escaped.push_str(&format!("%{:02x}", u32::from(letter))),
            _ => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_places_are_one() {
        assert_eq!(Location::Room.keys("a")[1], "oarlock:stock:{a}:r");
        assert_eq!(Location::Segment(3).keys("a")[0], "oarlock:stock:{a#3}");
        assert_ne!(Location::Room.keys("a#3"), Location::Segment(3).keys("a"));
        assert_ne!(Location::Room.keys("a%233"), Location::Segment(3).keys("a"));
        assert!(!Location::Room.keys("}{")[0].contains("{}"));
    }

    #[test]
    fn a_place_is_read_as_it_was_written() {
        for location in [Location::Room, Location::Segment(0), Location::Segment(77)] {
            assert_eq!(Location::read(&location.to_string()), Some(location));
        }
        assert_eq!(Location::read("kitchen"), None);
    }
}
