//! Text for output: durations, quoted names, and the message of a busy lock.
//!
//! Names and labels are not trusted: control characters are escaped, so that they cannot reach a terminal.

use std::fmt;
use std::time::Duration;

use crate::claim::{Label, ResourceName};
use crate::error::Busy;

/// `text` in double quotes, with control characters and quotes escaped.
#[must_use]
pub fn quoted(text: &str) -> String {
    format!("\"{}\"", plain(text).replace('"', "\\\""))
}

/// `text` with control and invisible formatting characters escaped.
#[must_use]
pub fn plain(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => clean.push_str("\\\\"),
            c if c.is_control() || is_formatting(c) => clean.extend(c.escape_default()),
            c => clean.push(c),
        }
    }
    clean
}

/// Characters that reorder or hide their neighbours on a screen.
fn is_formatting(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// A duration in short form: `340 ms`, `12 s`, `14 min`, `3 h 5 min`, `2 d 4 h`.
#[must_use]
pub fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0 => format!("{} ms", span.as_millis()),
        1..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// `host (pid 4121, "release 2.3")`.
#[must_use]
pub fn holder(label: &Label) -> String {
    let host = if label.host.is_empty() { "an unnamed holder".to_owned() } else { plain(&label.host) };
    match (label.pid, &label.reason) {
        (0, None) => host,
        (0, Some(reason)) => format!("{host} ({})", quoted(reason)),
        (pid, None) => format!("{host} (pid {pid})"),
        (pid, Some(reason)) => format!("{host} (pid {pid}, {})", quoted(reason)),
    }
}

pub(crate) fn write_busy(f: &mut fmt::Formatter<'_>, name: Option<&ResourceName>, busy: &Busy) -> fmt::Result {
    f.write_str("busy: ")?;
    match name {
        Some(name) => f.write_str(&quoted(name.as_str()))?,
        None => f.write_str("the lock")?,
    }
    match &busy.holder {
        Some(first) => {
            write!(f, " is held by {} for {}", holder(&first.label), span(first.held_for))?;
            if let Some(fence) = first.fence {
                write!(f, ", fence {fence}")?;
            }
            if busy.holders > 1 {
                write!(f, ", and by {} more", busy.holders - 1)?;
            }
        }
        None if busy.holders > 0 => write!(f, " is held by {}", busy.holders)?,
        None => match busy.ahead {
            None | Some(0) => f.write_str(" was not granted in time")?,
            Some(1) => return f.write_str(" is free, but 1 claim waits before this one"),
            Some(ahead) => return write!(f, " is free, but {ahead} claims wait before this one"),
        },
    }
    match busy.ahead {
        None => f.write_str("; the number of waiters is unknown"),
        Some(0) => Ok(()),
        Some(1) => f.write_str("; 1 waits before you"),
        Some(ahead) => write!(f, "; {ahead} wait before you"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_naturally() {
        let cases = [
            (Duration::from_millis(340), "340 ms"),
            (Duration::from_secs(12), "12 s"),
            (Duration::from_secs(14 * 60 + 3), "14 min"),
            (Duration::from_secs(3 * 3600 + 300), "3 h 5 min"),
            (Duration::from_secs(2 * 86_400 + 4 * 3600), "2 d 4 h"),
        ];
        for (duration, words) in cases {
            assert_eq!(span(duration), words);
        }
    }

    #[test]
    fn hostile_text_is_inert() {
        assert_eq!(quoted("a\"b\x1b[31m\u{202e}"), "\"a\\\"b\\u{1b}[31m\\u{202e}\"");
        assert_eq!(plain("naïve/キー"), "naïve/キー");
    }
}
