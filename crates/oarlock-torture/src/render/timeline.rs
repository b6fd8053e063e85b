//! The timeline as SVG: a lane for each slot, time from left to right.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{escaped, seconds};
use crate::history::Violation;
use crate::judge::{Belief, BeliefEnd, violations};
use crate::record::{FaultKind, Record, What};

/// A part of the run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) from: u64,
    pub(super) to: u64,
}

/// No picture has more elements than this: a browser has to draw it.
const ELEMENTS: usize = 20_000;

const WIDTH: f64 = 1180.0;
const LEFT: f64 = 70.0;
const LANE: f64 = 34.0;
const TOP: f64 = 28.0;

/// Colours that people with colour blindness can tell apart.
const COLOURS: [&str; 6] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"];

pub(super) fn colour(number: usize) -> &'static str {
    COLOURS[number % COLOURS.len()]
}

struct Band {
    kind: FaultKind,
    slot: Option<u32>,
    from: u64,
    to: u64,
    text: String,
}

pub(super) struct Timeline<'a> {
    record: &'a Record,
    beliefs: &'a [Belief],
    slots: BTreeMap<u32, u32>,
    lanes: u32,
    bands: Vec<Band>,
    /// From when to when two believed too much.
    broken: Vec<(u64, u64)>,
    pub(super) end: u64,
}

impl<'a> Timeline<'a> {
    pub(super) fn new(record: &'a Record, beliefs: &'a [Belief]) -> Self {
        let slots: BTreeMap<u32, u32> = record
            .events
            .iter()
            .filter_map(|event| match event.what {
                // A hostile file may name any slot; a page has room for so many.
                What::Started { w, slot } => Some((w, slot.min(63))),
                _ => None,
            })
            .collect();
        let lanes = slots.values().max().map_or(0, |slot| slot + 1);
        let end = record.events.last().map_or(1, |event| event.at).max(1);
        let broken = violations(record).iter().filter_map(overlap).collect();
        Self { bands: bands(record, &slots, end), record, beliefs, slots, lanes, broken, end }
    }

    fn height(&self) -> f64 {
        TOP + f64::from(self.lanes) * LANE + 20.0
    }

    fn lane(&self, w: u32) -> Option<f64> {
        self.slots.get(&w).map(|slot| TOP + f64::from(*slot) * LANE)
    }

    /// Draws a part of the run, with fences and writes if there is room for them.
    pub(super) fn draw(&self, window: Window, detailed: bool) -> String {
        let Window { from, to } = window;
        let span = to.saturating_sub(from).max(1);
        let scale = (WIDTH - LEFT - 10.0) / seconds(span);
        let x = |at: u64| LEFT + seconds(at.clamp(from, to) - from) * scale;
        let height = self.height();
        let mut svg = format!(
            "<svg role=\"img\" viewBox=\"0 0 {WIDTH} {height}\" width=\"100%\" xmlns=\"http://www.w3.org/2000/svg\">\
             <defs><pattern id=\"stop\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">\
             <path d=\"M0 6L6 0\" stroke=\"#000\" stroke-width=\"1\"/></pattern></defs>"
        );
        let mut left = ELEMENTS;
        self.grid(&mut svg, window, &x);
        for band in self.bands.iter().filter(|band| band.from < to && band.to > from) {
            let (y, tall) = match band.slot {
                Some(slot) => (TOP + f64::from(slot) * LANE, LANE - 2.0),
                None => (TOP, f64::from(self.lanes) * LANE),
            };
            let fill = if band.kind == FaultKind::Pause { "url(#stop)" } else { "#777" };
            let (begin, wide) = (x(band.from), (x(band.to) - x(band.from)).max(1.0));
            let _ = write!(
                svg,
                "<rect x=\"{begin:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"{tall:.1}\" fill=\"{fill}\" \
                 fill-opacity=\"0.25\"><title>{}</title></rect>",
                escaped(&band.text)
            );
            if detailed {
                let _ = write!(svg, "<text x=\"{begin:.1}\" y=\"{:.1}\">{}</text>", y + 9.0, band.kind.words());
            }
        }
        for belief in self.beliefs.iter().filter(|belief| belief.asked < to && belief.perhaps > from) {
            let Some(y) = self.lane(belief.w) else { continue };
            if left == 0 {
                let _ = write!(svg, "<text x=\"{LEFT}\" y=\"12\">too many holds: only the first are drawn</text>");
                break;
            }
            left -= 1;
            self.belief(&mut svg, belief, y, &x, detailed);
        }
        if detailed {
            self.writes(&mut svg, window, &x);
        }
        for (begin, end) in self.broken.iter().filter(|(begin, end)| *begin < to && *end > from).take(ELEMENTS) {
            let (begin, wide, tall) = (x(*begin), (x(*end) - x(*begin)).max(2.0), f64::from(self.lanes) * LANE);
            let _ = write!(
                svg,
                "<rect x=\"{begin:.1}\" y=\"{TOP}\" width=\"{wide:.1}\" height=\"{tall:.1}\" fill=\"#d00\" \
                 fill-opacity=\"0.35\" stroke=\"#d00\"/>"
            );
        }
        svg.push_str("</svg>");
        svg
    }

    fn grid(&self, svg: &mut String, window: Window, x: &impl Fn(u64) -> f64) {
        let height = self.height();
        let span = window.to.saturating_sub(window.from);
        for step in 0..=10 {
            let at = window.from.saturating_add(span / 10 * step);
            let place = x(at);
            let _ = write!(
                svg,
                "<path d=\"M{place:.1} {TOP}V{:.1}\" stroke=\"#eee\"/><text x=\"{place:.1}\" y=\"{:.1}\">{:.2} s</text>",
                height - 16.0,
                height - 4.0,
                seconds(at)
            );
        }
        for lane in 0..self.lanes {
            let y = TOP + f64::from(lane) * LANE;
            let header = &self.record.header;
            let side = if header.beside && header.is_library(lane) { "other" } else { "slot" };
            let _ = write!(
                svg,
                "<text x=\"4\" y=\"{:.1}\">{side} {lane}</text><path d=\"M0 {y:.1}H{WIDTH}\" stroke=\"#eee\"/>",
                y + 18.0
            );
        }
        for event in &self.record.events {
            if let What::Phase { name } = &event.what
                && (window.from..window.to).contains(&event.at)
            {
                let place = x(event.at);
                let _ = write!(
                    svg,
                    "<path d=\"M{place:.1} 14V{height:.1}\" stroke=\"#000\" stroke-dasharray=\"2 3\"/>\
                     <text x=\"{:.1}\" y=\"22\">{}</text>",
                    place + 2.0,
                    escaped(name)
                );
            }
        }
    }

    fn belief(&self, svg: &mut String, belief: &Belief, y: f64, x: &impl Fn(u64) -> f64, detailed: bool) {
        let number = self.record.header.locks.iter().position(|lock| lock.name == belief.lock).unwrap_or(0);
        let colour = colour(number);
        let waited = belief.granted.map_or(belief.ended, |(granted, _)| granted);
        let _ = write!(
            svg,
            "<path d=\"M{:.1} {middle:.1}H{:.1}\" stroke=\"{colour}\" stroke-opacity=\"0.5\"/>",
            x(belief.asked),
            x(waited),
            middle = y + 18.0,
        );
        let Some((granted, fence)) = belief.granted else { return };
        let (begin, end) = (x(granted), x(belief.ended.max(granted)));
        let wide = (end - begin).max(0.6);
        let (edge, mark) = match belief.end {
            BeliefEnd::Lost(_) => ("stroke-dasharray=\"3 2\"", "lost"),
            BeliefEnd::Died => ("", "died"),
            _ => ("", "released"),
        };
        let how = match &belief.end {
            BeliefEnd::Lost(why) => format!("lost: {why}"),
            _ => mark.to_owned(),
        };
        let title = format!(
            "worker {} held {} with fence {fence} from {:.4} s to {:.4} s, {how}",
            belief.w,
            belief.lock,
            seconds(granted),
            seconds(belief.ended)
        );
        let _ = write!(
            svg,
            "<rect x=\"{begin:.1}\" y=\"{:.1}\" width=\"{wide:.1}\" height=\"12\" fill=\"{colour}\" fill-opacity=\"0.8\" \
             stroke=\"#000\" stroke-width=\"{}\" {edge}><title>{}</title></rect>",
            y + 12.0,
            if edge.is_empty() { "0" } else { "1" },
            escaped(&title)
        );
        if belief.perhaps > belief.ended {
            let wide = (x(belief.perhaps) - end).max(0.6);
            let _ = write!(
                svg,
                "<rect x=\"{end:.1}\" y=\"{:.1}\" width=\"{wide:.1}\" height=\"12\" fill=\"{colour}\" \
                 fill-opacity=\"0.3\"><title>may have held until {:.4} s</title></rect>",
                y + 12.0,
                seconds(belief.perhaps)
            );
        }
        if belief.end == BeliefEnd::Died {
            let _ = write!(svg, "<text x=\"{end:.1}\" y=\"{:.1}\">&#x271D;</text>", y + 12.0);
        }
        if detailed && wide > 24.0 {
            let _ = write!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"#fff\">{}</text>",
                begin + 2.0,
                y + 22.0,
                short(fence)
            );
        }
    }

    fn writes(&self, svg: &mut String, window: Window, x: &impl Fn(u64) -> f64) {
        let events = self.record.events.iter().filter(|event| (window.from..window.to).contains(&event.at));
        for event in events.take(ELEMENTS) {
            let What::Wrote { w, fence, accepted, .. } = &event.what else { continue };
            let Some(y) = self.lane(*w) else { continue };
            let (place, title) = (x(event.at), format!("write with fence {fence}"));
            let _ = if *accepted {
                write!(
                    svg,
                    "<circle cx=\"{place:.1}\" cy=\"{:.1}\" r=\"1.5\"><title>{title}: accepted</title></circle>",
                    y + 29.0
                )
            } else {
                write!(
                    svg,
                    "<text x=\"{place:.1}\" y=\"{:.1}\" fill=\"#d00\">&#x2717;<title>{title}: refused</title></text>",
                    y + 32.0
                )
            };
        }
    }
}

/// The last digits, which are those that differ.
fn short(fence: u64) -> String {
    let text = fence.to_string();
    match text.len() {
        0..=6 => text,
        long => format!("\u{2026}{}", &text[long - 6..]),
    }
}

fn overlap(violation: &Violation) -> Option<(u64, u64)> {
    match violation {
        Violation::Overlap { first, second } | Violation::CapacityExceeded { first, second, .. } => {
            Some((second.granted.as_nanos(), first.ended.min(second.ended).as_nanos()))
        }
        Violation::FenceOrder { later, .. } => {
            Some((later.granted.as_nanos(), later.granted.as_nanos().saturating_add(1)))
        }
        Violation::FenceRepeated { second, .. } => {
            Some((second.granted.as_nanos(), second.granted.as_nanos().saturating_add(1)))
        }
        _ => None,
    }
}

fn bands(record: &Record, slots: &BTreeMap<u32, u32>, end: u64) -> Vec<Band> {
    let mut bands: Vec<Band> = Vec::new();
    let mut open: BTreeMap<u64, usize> = BTreeMap::new();
    for event in &record.events {
        match &event.what {
            What::Fault { id, kind, w, host } => {
                let who = w.map_or_else(|| "all workers".to_owned(), |w| format!("worker {w}"));
                let host = host.as_ref().map_or_else(String::new, |host| format!(" to {host}"));
                let text = format!("{}: {who}{host}, from {:.3} s", kind.words(), seconds(event.at));
                let slot = w.and_then(|w| slots.get(&w).copied());
                open.insert(*id, bands.len());
                bands.push(Band { kind: *kind, slot, from: event.at, to: end, text });
            }
            What::FaultEnded { id, .. } => {
                if let Some(band) = open.remove(id).and_then(|place| bands.get_mut(place)) {
                    band.to = event.at;
                }
            }
            _ => {}
        }
    }
    bands
}
