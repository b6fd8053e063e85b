//! Two checksummed slots, written alternately: when a writer is killed, the other slot is whole.
//!
//! A file is exactly two slots of one size. A slot is a header, its payload, and whatever was there before:
//!
//! | bytes | meaning |
//! |---|---|
//! | 8 | `oarlock` and the number of the layout, which says how to read the payload |
//! | 8 | sequence number, little endian: the valid slot with the larger one counts |
//! | 4 | length of the payload |
//! | 4 | CRC-32 of sequence number, length and payload |

use std::ops::Range;

/// The smallest slot: both fit into one block of a common file system.
pub(crate) const SMALLEST: usize = 2048;
const HEADER: usize = 24;
const MAGIC: [u8; 7] = *b"oarlock";
/// The layout that this code writes.
const LAYOUT: u8 = 2;
/// The oldest layout that this code reads: its payload is JSON.
pub(crate) const OLDEST: u8 = 1;

/// The newest whole record of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Newest {
    pub(crate) sequence: u64,
    /// How to read its payload.
    pub(crate) layout: u8,
    /// Its checksum.
    pub(crate) crc: u32,
    /// Which slot it is in: 0 or 1.
    pub(crate) slot: usize,
    /// Where its payload is in the file.
    pub(crate) payload: Range<usize>,
}

/// Why a file has no usable record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Its layout is of a later version.
    Newer,
    /// Neither slot is whole.
    Damaged,
}

/// Finds the newest record in the bytes of a file; `None` if nothing was ever written there.
///
/// Zeros count as nothing written: a file whose blocks never reached the disk comes back like that after a power loss,
/// and every claim it held ended then.
pub(crate) fn newest(file: &[u8]) -> Result<Option<Newest>, Trouble> {
    if file.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let size = file.len() / 2;
    if !is_slot_size(size) || !file.len().is_multiple_of(2) {
        return Err(Trouble::Damaged);
    }
    let mut best: Option<Newest> = None;
    for slot in 0..2 {
        let start = slot * size;
        let Some(found) = record(&file[start..start + size])? else { continue };
        if best.as_ref().is_none_or(|best| found.sequence > best.sequence) {
            let payload = start + found.payload.start..start + found.payload.end;
            best = Some(Newest { slot, payload, ..found });
        }
    }
    best.map(Some).ok_or(Trouble::Damaged)
}

/// Whether the record `known`, which this process wrote or read as a whole one, is still the newest one of the file.
///
/// Its header is there, and that of the other slot has a smaller number: so the other slot does not count, whole or not.
/// No checksum is needed for that. False says nothing: then [`newest`] decides.
pub(crate) fn is_still_newest(file: &[u8], known: &Newest) -> bool {
    let size = file.len() / 2;
    let header = |slot: usize| file.get(slot * size..)?.split_first_chunk::<HEADER>().map(|(header, _)| header);
    let (Some(ours), Some(other)) = (header(known.slot), header(1 - known.slot)) else { return false };
    let length = u32::try_from(known.payload.len()).unwrap_or(u32::MAX);
    let is_older = |header: &[u8; HEADER]| {
        let (magic, rest) = split::<7>(header);
        let ([layout], rest) = split::<1>(rest);
        let sequence = u64::from_le_bytes(split::<8>(rest).0);
        magic == MAGIC && (OLDEST..=LAYOUT).contains(&layout) && sequence < known.sequence
    };
    known.layout == LAYOUT
        && *ours == header_of(known.sequence, length, known.crc)
        && (*other == [0; HEADER] || is_older(other))
}

/// A record in a slot, as if the slot were the first.
fn record(slot: &[u8]) -> Result<Option<Newest>, Trouble> {
    let Some((header, rest)) = slot.split_first_chunk::<HEADER>() else { return Ok(None) };
    let (magic, header) = split::<7>(header);
    let ([layout], header) = split::<1>(header);
    if magic != MAGIC || layout < OLDEST {
        return Ok(None);
    }
    if layout > LAYOUT {
        return Err(Trouble::Newer);
    }
    let (sequence, header) = split::<8>(header);
    let (length, header) = split::<4>(header);
    let (crc, _) = split::<4>(header);
    let length_bytes = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    let Some(payload) = rest.get(..length_bytes) else { return Ok(None) };
    let crc = u32::from_le_bytes(crc);
    let whole = checksum(sequence, length, payload) == crc;
    let (sequence, payload) = (u64::from_le_bytes(sequence), HEADER..HEADER + length_bytes);
    Ok(whole.then_some(Newest { sequence, layout, crc, slot: 0, payload }))
}

/// The first `N` bytes, zeros where there are too few, and what follows.
fn split<const N: usize>(bytes: &[u8]) -> ([u8; N], &[u8]) {
    bytes.split_first_chunk::<N>().map_or(([0; N], &[]), |(first, rest)| (*first, rest))
}

fn checksum(sequence: [u8; 8], length: [u8; 4], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&sequence);
    hasher.update(&length);
    hasher.update(payload);
    hasher.finalize()
}

/// Starts a record in `buffer`. Append the payload, then call [`seal`].
pub(crate) fn begin(buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.resize(HEADER, 0);
}

/// Writes the header of the record in `buffer`. Returns its checksum; `None` if the payload is too long.
#[must_use]
pub(crate) fn seal(buffer: &mut [u8], sequence: u64) -> Option<u32> {
    let (header, payload) = buffer.split_at_mut_checked(HEADER)?;
    let length = u32::try_from(payload.len()).ok()?;
    let crc = checksum(sequence.to_le_bytes(), length.to_le_bytes(), payload);
    header.copy_from_slice(&header_of(sequence, length, crc));
    Some(crc)
}

fn header_of(sequence: u64, length: u32, crc: u32) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let fields = MAGIC.into_iter().chain([LAYOUT]).chain(sequence.to_le_bytes());
    for (at, byte) in header.iter_mut().zip(fields.chain(length.to_le_bytes()).chain(crc.to_le_bytes())) {
        *at = byte;
    }
    header
}

impl Newest {
    /// The record of this many bytes that was [sealed](seal) and then written to a slot.
    pub(crate) fn written(sequence: u64, crc: u32, (slot, slot_size): (usize, usize), record: usize) -> Self {
        let start = slot * slot_size;
        Self { sequence, layout: LAYOUT, crc, slot, payload: start + HEADER..start + record }
    }
}

/// The size of slots for a record of this many bytes, with room to grow.
pub(crate) fn size_for(record: usize) -> usize {
    record.next_power_of_two().max(SMALLEST)
}

fn is_slot_size(size: usize) -> bool {
    size >= SMALLEST && size.is_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record_of(sequence: u64, payload: &[u8]) -> Vec<u8> {
        let mut buffer = Vec::new();
        begin(&mut buffer);
        buffer.extend_from_slice(payload);
        assert!(seal(&mut buffer, sequence).is_some());
        buffer
    }

    fn file_of(slots: [Vec<u8>; 2]) -> Vec<u8> {
        let mut file = Vec::new();
        for mut slot in slots {
            slot.resize(SMALLEST, 0);
            file.extend(slot);
        }
        file
    }

    #[test]
    fn the_newest_whole_slot_counts() {
        let file = file_of([record_of(7, b"seven"), record_of(8, b"eight")]);
        let found = newest(&file).unwrap().unwrap();
        assert_eq!((found.sequence, found.slot, &file[found.payload]), (8, 1, &b"eight"[..]));
    }

    #[test]
    fn when_a_record_is_torn_the_other_one_counts() {
        let old = record_of(6, b"the record before last");
        let new = record_of(8, b"the last record");
        for torn_at in 0..new.len() {
            // A writer that was killed after this many bytes leaves the rest as it was.
            let mut slot = new[..torn_at].to_vec();
            slot.extend_from_slice(&old[torn_at..]);
            let file = file_of([slot, record_of(7, b"seven")]);
            let found = newest(&file).unwrap().unwrap();
            assert_eq!((found.sequence, &file[found.payload]), (7, &b"seven"[..]), "torn at {torn_at}");
        }
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        let record = record_of(9, b"payload");
        for bit in 0..record.len() * 8 {
            let mut flipped = record.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let found = newest(&file_of([flipped, Vec::new()]));
            assert!(found.is_err(), "bit {bit}");
        }
    }

    #[test]
    fn garbage_newer_layouts_and_empty_files_are_distinguished() {
        assert_eq!(newest(&[]), Ok(None));
        assert_eq!(newest(&[0; 4096]), Ok(None));
        assert_eq!(newest(b"a note to self"), Err(Trouble::Damaged));
        assert_eq!(newest(&[7; 4096]), Err(Trouble::Damaged));
        let mut newer = record_of(9, b"payload");
        newer[7] = LAYOUT + 1;
        assert_eq!(newest(&file_of([newer, record_of(8, b"ours")])), Err(Trouble::Newer));
    }

    /// Each time it says yes, a full check must agree.
    #[test]
    fn a_known_record_is_the_newest_only_while_its_header_is_there_and_the_other_is_older() {
        let known = |file: &[u8]| newest(file).unwrap().unwrap();
        let file = file_of([record_of(7, b"seven"), record_of(8, b"eight")]);
        let (eight, seven) = (known(&file), known(&file_of([record_of(7, b"seven"), Vec::new()])));
        assert!(is_still_newest(&file, &eight));
        assert!(!is_still_newest(&file, &seven), "another process wrote after it");
        let next = file_of([record_of(9, b"nine"), record_of(8, b"eight")]);
        assert!(!is_still_newest(&next, &eight), "another process wrote after it");
        assert!(!is_still_newest(&file_of([record_of(9, b""), Vec::new()]), &eight), "the file was replaced");
        assert!(is_still_newest(&file_of([Vec::new(), record_of(8, b"eight")]), &eight));
        assert!(!is_still_newest(&file_of([record_of(7, b"seven"), record_of(8, b"other")]), &eight));
        for bit in 0..HEADER * 8 {
            for slot in 0..2 {
                let mut flipped = file.clone();
                flipped[slot * SMALLEST + bit / 8] ^= 1 << (bit % 8);
                if is_still_newest(&flipped, &eight) {
                    assert_eq!(newest(&flipped).as_ref(), Ok(&Some(eight.clone())), "bit {bit} of slot {slot}");
                }
            }
        }
        let mut later = file.clone();
        later[7] = LAYOUT + 1;
        assert!(!is_still_newest(&later, &eight), "a later version wrote to the other slot");
        for short in [0, 1, HEADER, SMALLEST] {
            assert!(!is_still_newest(&file[..short], &eight));
        }
    }
}
