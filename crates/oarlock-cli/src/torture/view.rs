//! A run while it goes on: a few lines that are redrawn in place, for people who look at a terminal.

use std::time::Duration;

use oarlock_core::text::plain;
use oarlock_torture::judge::Ruling;
use oarlock_torture::record::Header;
use oarlock_torture::run::Progress;

use crate::bar::Bar;
use crate::messages::Messages;
use crate::output;

/// More faults than this are counted and not named: a line has no room for them.
const NAMED: usize = 3;

pub(crate) struct View(Bar);

impl View {
    pub(crate) fn new(messages: Messages, header: &Header) -> Self {
        Self(Bar::new(messages, header.duration_ms, "{bar:20} {msg}"))
    }

    /// Whether there is a terminal that shows it.
    pub(crate) fn is_seen(&self) -> bool {
        self.0.is_seen()
    }

    pub(crate) fn show(&self, progress: &Progress) {
        self.0.position(output::millis(progress.elapsed));
        self.0.message(lines(progress).join("\n"));
    }
}

/// What is shown: the first line stands beside the bar.
fn lines(progress: &Progress) -> Vec<String> {
    let Progress { phase, holds, losses, faults, writes, refused, lost_without_fence, .. } = progress;
    let seconds = |span: Duration| span.as_millis().div_ceil(1000);
    let left = match progress.left {
        Some(left) => format!("about {} s of faults left", seconds(left)),
        None => "faults are over".to_owned(),
    };
    vec![
        format!("{phase}: {} s, {left}", progress.elapsed.as_secs()),
        format!("  broken now    {} ({faults} faults so far)", broken(&progress.active)),
        format!("  locks         {holds} grants, {losses} losses told to holders"),
        format!("  fenced        {writes} writes, {refused} stale ones refused"),
        format!("  not fenced    {lost_without_fence} updates lost"),
        format!("  so far        {}", verdict(progress)),
    ]
}

fn broken(active: &[String]) -> String {
    let mut words: Vec<_> = active.iter().take(NAMED).map(|words| plain(words)).collect();
    if words.is_empty() {
        return "nothing".to_owned();
    }
    if active.len() > NAMED {
        words.push(format!("{} more", active.len() - NAMED));
    }
    words.join(", ")
}

fn verdict(progress: &Progress) -> String {
    let Some(found) = &progress.found else { return "not looked at yet".to_owned() };
    let said = match found.ruling {
        Ruling::Ok => "no promise was broken".to_owned(),
        ruling => format!("{ruling}: {}", found.names.join(", ")),
    };
    if found.is_final { format!("{said}; the rest is judged at the end") } else { said }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_can_follow_what_happens() {
        let mut progress = Progress::default();
        progress.phase = "storm";
        progress.elapsed = Duration::from_millis(31_400);
        progress.left = Some(Duration::from_millis(12_001));
        (progress.holds, progress.losses, progress.faults) = (812, 9, 77);
        (progress.writes, progress.refused, progress.lost_without_fence) = (500, 4, 6);
        let shown = lines(&progress);
        assert_eq!(shown[0], "storm: 31 s, about 13 s of faults left");
        assert_eq!(shown[1], "  broken now    nothing (77 faults so far)");
        assert_eq!(shown[2], "  locks         812 grants, 9 losses told to holders");
        assert_eq!(shown[3], "  fenced        500 writes, 4 stale ones refused");
        assert_eq!(shown[4], "  not fenced    6 updates lost");
        assert_eq!(shown[5], "  so far        not looked at yet");
        progress.active = ["delay of worker 1", "a\u{1b}[2J", "c", "d", "e"].map(str::to_owned).to_vec();
        progress.left = None;
        let shown = lines(&progress);
        assert!(shown[0].ends_with("faults are over"), "{shown:?}");
        assert!(shown[1].contains("delay of worker 1, a") && shown[1].contains("c, 2 more"), "{shown:?}");
        assert!(shown.iter().all(|line| !line.contains(char::is_control) && line.len() < 100), "{shown:?}");
    }
}
