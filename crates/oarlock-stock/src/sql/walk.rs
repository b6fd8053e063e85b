//! The order in which one taker visits the segments.

/// Every segment once: from a start and with a stride of the taker's own, so that takers do not follow each other from
/// one empty segment to the next.
pub(super) fn walk(seed: u64, segments: u32) -> impl Iterator<Item = u32> {
    let count = u64::from(segments.max(1));
    let start = seed % count;
    // The high half, so that who starts together does not go together.
    let wanted = (seed >> 32) % count;
    let stride = (wanted..wanted + count).find(|stride| common_divisor(*stride, count) == 1).unwrap_or(1);
    (0..count).map(move |step| u32::try_from((start + step * stride) % count).unwrap_or(0))
}

fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn everybody_visits_every_segment_once() {
        for segments in [1, 2, 3, 4, 7, 12, 16, 64, 100] {
            for seed in (0..200).map(|_| fastrand::u64(..)) {
                let visited: Vec<_> = walk(seed, segments).collect();
                assert_eq!(visited.len(), segments as usize);
                assert_eq!(visited.iter().copied().collect::<BTreeSet<_>>(), (0..segments).collect());
            }
        }
    }

    #[test]
    fn takers_start_and_go_on_differently() {
        let walks: BTreeSet<Vec<u32>> = (0..200).map(|_| walk(fastrand::u64(..), 16).collect()).collect();
        // 16 starts, 8 strides without a common divisor with 16.
        assert!(walks.len() > 60, "{}", walks.len());
    }
}
