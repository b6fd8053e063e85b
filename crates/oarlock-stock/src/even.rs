//! Units spread over segments.

/// So many units over so many segments, as evenly as can be.
pub(crate) fn evenly(units: u64, segments: u32) -> impl Iterator<Item = (u32, u64)> {
    let count = u64::from(segments.max(1));
    (0..segments).map(move |segment| (segment, units / count + u64::from(u64::from(segment) < units % count)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_and_no_share_has_two_more() {
        for (units, segments) in [(0, 3), (10, 4), (7, 7), (3, 64), (1000, 7)] {
            let parts: Vec<_> = evenly(units, segments).map(|(_, part)| part).collect();
            assert_eq!(parts.iter().sum::<u64>(), units);
            assert!(parts.iter().max().unwrap() - parts.iter().min().unwrap() <= 1);
        }
    }
}
