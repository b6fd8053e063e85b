//! Small changes of an input.

/// Numbers at the edges of what readers compute with.
const NUMBERS: &[&str] = &[
    "0",
    "-1",
    "1",
    "255",
    "256",
    "65535",
    "65536",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "9007199254740991",
    "9007199254740992",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e308",
    "-0",
    "0.1",
    "NaN",
    "00",
];

/// What text readers stumble over.
const TEXTS: &[&str] = &[
    "", " ", "\0", "\n", "\u{feff}", "\u{202e}", "é", "🦀", "%", "%00", "%zz", "%ff", "/", "//", "..", "{", "}", "[",
    "]", "\"", "\\", "'", ":", "::", ",", ";", "@", "#", "?", "&", "=", "null", "true", "*", "*/0",
];

/// Makes one to four changes; `other` is another input to take parts from.
pub(crate) fn change(input: &mut Vec<u8>, other: &[u8], words: &[&str], rng: &mut fastrand::Rng) {
    for _ in 0..rng.u8(1..=4) {
        one(input, other, words, rng);
    }
}

fn one(input: &mut Vec<u8>, other: &[u8], words: &[&str], rng: &mut fastrand::Rng) {
    let at = rng.usize(..=input.len());
    let end = (at + rng.usize(..=16)).min(input.len());
    match rng.u8(..13) {
        0 => splice(input, at, at, &[rng.u8(..)]),
        1 => splice(input, at, end, &[]),
        2 if at < input.len() => input[at] = rng.u8(..),
        3 if at < input.len() => input[at] ^= 1 << rng.u8(..8),
        4 => input.truncate(at),
        5 => splice(input, at, end, NUMBERS[rng.usize(..NUMBERS.len())].as_bytes()),
        6 => splice(input, at, end, TEXTS[rng.usize(..TEXTS.len())].as_bytes()),
        7 if !words.is_empty() => splice(input, at, at, words[rng.usize(..words.len())].as_bytes()),
        8 if !words.is_empty() => splice(input, at, end, words[rng.usize(..words.len())].as_bytes()),
        9 if !other.is_empty() => {
            let from = rng.usize(..other.len());
            let to = (from + rng.usize(1..=64)).min(other.len());
            splice(input, at, end, &other[from..to]);
        }
        10 => {
            // The same part again and again: nesting, long lists.
            let part = input[at..end].to_vec();
            let times = 1_usize << rng.u8(..10);
            splice(input, end, end, &part.repeat(times.min(8192 / part.len().max(1))));
        }
        11 => number(input, rng),
        _ => {
            // A number in binary, at any place.
            let number = [0, 1, u64::MAX, 1 << 53, 1 << 63, rng.u64(..)][rng.usize(..6)].to_be_bytes();
            let width = [1, 2, 4, 8][rng.usize(..4)];
            splice(input, at, (at + width).min(input.len()), &number[8 - width..]);
        }
    }
}

/// Replaces a number that is there.
fn number(input: &mut Vec<u8>, rng: &mut fastrand::Rng) {
    let starts: Vec<_> = (0..input.len())
        .filter(|at| input[*at].is_ascii_digit() && (*at == 0 || !input[*at - 1].is_ascii_digit()))
        .collect();
    if let Some(&start) = starts.get(rng.usize(..starts.len().max(1))) {
        let length = input[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        splice(input, start, start + length, NUMBERS[rng.usize(..NUMBERS.len())].as_bytes());
    }
}

fn splice(input: &mut Vec<u8>, from: usize, to: usize, with: &[u8]) {
    input.splice(from..to.max(from), with.iter().copied());
}
