//! How far a run is, and how long it will still take.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// One line on a terminal; elsewhere one line for each store.
pub(super) struct Progress {
    steps: usize,
    done: usize,
    store: &'static str,
    start: Instant,
    terminal: bool,
}

impl Progress {
    pub(super) fn of(steps: usize) -> Self {
        Self { steps, done: 0, store: "", start: Instant::now(), terminal: std::io::stderr().is_terminal() }
    }

    /// The next store begins.
    pub(super) fn store(&mut self, name: &'static str) {
        self.store = name;
        if !self.terminal {
            eprintln!("{}", self.line(""));
        }
    }

    /// The next turn begins.
    pub(super) fn step(&mut self, who: &str) {
        if self.terminal {
            eprint!("\r\x1b[K{}", self.line(who));
            // A progress that cannot be shown is no reason to stop.
            let _ = std::io::stderr().flush();
        }
        self.done += 1;
    }

    /// Takes the line away.
    pub(super) fn end(&self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
    }

    fn line(&self, who: &str) -> String {
        const WIDTH: usize = 24;
        let filled = (self.done * WIDTH).checked_div(self.steps).unwrap_or(WIDTH).min(WIDTH);
        let bar = format!("{}{}", "#".repeat(filled), "-".repeat(WIDTH - filled));
        format!("[{bar}] {}/{} {} {who}  {}", self.done, self.steps, self.store, left(self.remaining()))
    }

    fn remaining(&self) -> Option<Duration> {
        let done = u32::try_from(self.done).ok().filter(|done| *done > 0)?;
        let each = self.start.elapsed() / done;
        Some(each * u32::try_from(self.steps.saturating_sub(self.done)).ok()?)
    }
}

fn left(remaining: Option<Duration>) -> String {
    match remaining.map(|remaining| remaining.as_secs()) {
        None => String::new(),
        Some(seconds) if seconds >= 60 => format!("about {} min left", seconds.div_ceil(60)),
        Some(seconds) => format!("about {seconds} s left"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_far_it_is() {
        let mut progress = Progress { terminal: false, ..Progress::of(4) };
        progress.store("redis");
        assert_eq!(progress.line("rslock"), "[------------------------] 0/4 redis rslock  ");
        progress.step("a");
        progress.step("b");
        assert!(
            progress.line("c").starts_with("[############------------] 2/4 redis c  about "),
            "{}",
            progress.line("c")
        );
        assert_eq!(left(Some(Duration::from_secs(61))), "about 2 min left");
    }
}
