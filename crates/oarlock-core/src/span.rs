//! Durations as people write them: `30s`, `500ms`, `5m`, `1h`, `2d`; a bare number is seconds.

use std::time::Duration;

use crate::{Error, ErrorKind, Result};

/// Reads a duration. Fractions are fine (`0.5`, `1.5h`); signs are not.
///
/// # Errors
/// [`ErrorKind::Config`] for anything else.
///
/// # Examples
/// ```
/// # use std::time::Duration;
/// assert_eq!(oarlock_core::span::parse("500ms")?, Duration::from_millis(500));
/// assert_eq!(oarlock_core::span::parse("2")?, Duration::from_secs(2));
/// # Ok::<(), oarlock_core::Error>(())
/// ```
pub fn parse(text: &str) -> Result<Duration> {
    let bad = || {
        let quoted = crate::text::quoted(text);
        Error::new(ErrorKind::Config, format!("{quoted} is not a duration; write 30s, 500ms, 5m or 1h"))
    };
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(bad()),
    };
    let number: f64 = number.parse().map_err(|_| bad())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| bad())
}

/// Writes a duration so that [`parse`] reads it back.
#[must_use]
pub fn write(span: Duration) -> String {
    let millis = span.as_millis();
    match (millis, span.as_secs()) {
        (millis, _) if millis % 1000 != 0 => format!("{millis}ms"),
        (_, seconds) if seconds > 0 && seconds.is_multiple_of(3600) => format!("{}h", seconds / 3600),
        (_, seconds) if seconds > 0 && seconds.is_multiple_of(60) => format!("{}m", seconds / 60),
        (_, seconds) => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_written() {
        let cases =
            [("30s", 30_000), ("500ms", 500), ("5m", 300_000), ("1h", 3_600_000), ("7", 7000), ("0", 0), ("0.5", 500)];
        for (text, millis) in cases {
            assert_eq!(parse(text).unwrap(), Duration::from_millis(millis), "{text}");
        }
        for bad in ["", "s", "-1", "+1", "1 s", "1e3", "nan", "inf", "5x", "1.2.3", "99999999999999999999d", "∞"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        for millis in [0, 1, 500, 1000, 1500, 60_000, 90_000, 3_600_000] {
            let span = Duration::from_millis(millis);
            assert_eq!(parse(&write(span)).unwrap(), span);
        }
    }
}
