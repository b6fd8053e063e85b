//! The drawing: a pure function of the model, the time and the size of the screen. It draws the rows that are visible,
//! and looks at no others.

use std::time::{Duration, Instant};

use oarlock::state::Waiters;
use oarlock_core::text;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};

use crate::top::model::{Broken, Mode, Model};
use crate::top::snapshot::Row;

/// How it looks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Theme {
    colour: bool,
}

impl Theme {
    pub(crate) fn new(colour: bool) -> Self {
        Self { colour }
    }

    /// `NO_COLOR` is set by users who want none.
    pub(crate) fn from_environment() -> Self {
        Self::new(std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()))
    }

    fn of(self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }

    fn lease(self, share: f64) -> Style {
        self.of(match share {
            share if share > 0.5 => Color::Green,
            share if share > 0.25 => Color::Yellow,
            _ => Color::Red,
        })
    }
}

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);

const KEYS: &str = "q quit  s sort  r reverse  / filter  p pause  Enter open  b break  ? help";

/// Draws everything. Returns how many rows fit.
pub(crate) fn draw(model: &Model, now: Instant, theme: Theme, area: Rect, out: &mut Buffer) -> usize {
    if area.height < 4 || area.width < 20 {
        put(out, area, 0, 0, "too small", BOLD);
        return 1;
    }
    head(model, now, area, out);
    let body = Rect { y: area.y + 1, height: area.height - 2, ..area };
    let page = match &model.mode {
        Mode::Open { from } => open(model, *from, body, out),
        Mode::Help => help(body, out),
        _ => list(model, now, theme, body, out),
    };
    foot(model, area, out);
    page
}

fn put(out: &mut Buffer, area: Rect, x: u16, y: u16, words: &str, style: Style) {
    if y < area.height && x < area.width {
        out.set_stringn(area.x + x, area.y + y, words, usize::from(area.width - x), style);
    }
}

fn head(model: &Model, now: Instant, area: Rect, out: &mut Buffer) {
    let filter = if model.filter.is_empty() { String::new() } else { format!("  filter: {}", model.filter) };
    let age = now.saturating_duration_since(model.snapshot.at);
    let state = if model.paused { format!("  PAUSED for {}", short(age)) } else { String::new() };
    let reverse = if model.reverse { ", reversed" } else { "" };
    let line = format!(
        "{} locks, {} waited for  by {}{reverse}{filter}{state}  {}",
        model.order.len(),
        model.waited,
        model.sort.word(),
        model.url
    );
    put(out, area, 0, 0, &line, BOLD);
}

/// Where columns begin, and how wide they are.
struct Columns {
    name: u16,
    holder: u16,
    bar: u16,
}

const AGE: u16 = 5;
const LEFT: u16 = 4;
const FENCE: u16 = 16;
const WAITERS: u16 = 5;
const OLDEST: u16 = 6;
/// Seven columns, and the bar, have a space after them.
const GAPS: u16 = 8;

impl Columns {
    fn of(width: u16) -> Self {
        let bar = (width / 12).clamp(4, 20);
        let rest = width.saturating_sub(AGE + bar + LEFT + FENCE + WAITERS + OLDEST + GAPS);
        let name = rest * 3 / 5;
        Self { name, holder: rest - name, bar }
    }
}

fn list(model: &Model, now: Instant, theme: Theme, area: Rect, out: &mut Buffer) -> usize {
    let columns = Columns::of(area.width);
    let lease = columns.bar + 1 + LEFT;
    let head = [
        ("NAME", columns.name),
        ("HOLDER", columns.holder),
        ("AGE", AGE),
        ("LEASE", lease),
        ("FENCE", FENCE),
        ("WAIT", WAITERS),
        ("OLDEST", OLDEST),
    ];
    let mut x = 0;
    for (word, width) in head {
        put(out, Rect { width: (x + width).min(area.width), ..area }, x, 0, word, BOLD);
        x += width + 1;
    }
    let page = usize::from(area.height - 1);
    // The selected row is always visible.
    let from = model.selected.saturating_sub(page / 2).min(model.order.len().saturating_sub(page));
    for (line, &at) in model.order.iter().skip(from).take(page).enumerate() {
        let Some((row, y)) = model.snapshot.rows.get(at).zip(u16::try_from(line + 1).ok()) else { continue };
        draw_row(model, row, now, theme, &columns, Rect { y: area.y + y, height: 1, ..area }, out);
        if from + line == model.selected {
            out.set_style(Rect { y: area.y + y, height: 1, ..area }, REVERSED);
        }
    }
    page
}

fn draw_row(model: &Model, row: &Row, now: Instant, theme: Theme, columns: &Columns, area: Rect, out: &mut Buffer) {
    let mut x = 0;
    let mut cell = |out: &mut Buffer, words: &str, width: u16, style: Style| {
        put(out, Rect { width: (x + width).min(area.width), ..area }, x, 0, words, style);
        x += width + 1;
    };
    cell(out, &row.name, columns.name, Style::new());
    cell(out, &row.holder, columns.holder, Style::new());
    if row.claim().is_some() {
        let (left, whole) = (model.lease_left(row, now), model.leases.whole(row));
        let share = if whole.is_zero() { 0.0 } else { left.as_secs_f64() / whole.as_secs_f64() };
        cell(out, &short(row.held), AGE, Style::new());
        cell(out, &bar(share, columns.bar), columns.bar, theme.lease(share));
        cell(out, &short(left), LEFT, theme.lease(share));
        cell(out, &if row.fence == 0 { "-".to_owned() } else { row.fence.to_string() }, FENCE, Style::new());
    } else {
        for width in [AGE, columns.bar, LEFT, FENCE] {
            cell(out, "-", width, Style::new());
        }
    }
    if row.waiters > 0 {
        cell(out, &row.waiters.to_string(), WAITERS, theme.of(Color::Yellow));
        cell(out, &short(row.oldest_wait), OLDEST, theme.of(Color::Yellow));
    }
}

/// What is left of a lease.
fn bar(share: f64, width: u16) -> String {
    let whole = f64::from(width);
    let full = (1..=width).filter(|&step| f64::from(step) <= (share * whole).round()).count();
    let width = usize::from(width);
    format!("{}{}", "█".repeat(full), "░".repeat(width - full))
}

/// A span in at most four characters.
fn short(span: Duration) -> String {
    match span.as_secs() {
        0 if span.as_millis() > 0 => format!(".{}s", span.as_millis() / 100),
        seconds @ 0..=99 => format!("{seconds}s"),
        seconds @ 100..=5999 => format!("{}m", seconds / 60),
        seconds @ 6000..=359_999 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

fn open(model: &Model, from: usize, area: Rect, out: &mut Buffer) -> usize {
    let Some(row) = model.row() else {
        put(out, area, 0, 0, "this lock is free now", Style::new());
        return 1;
    };
    let holders = row.state.holders.len();
    let waiters: &[_] = if let Waiters::Listed(waiters) = &row.state.waiters { waiters } else { &[] };
    put(out, area, 0, 0, &format!("{}: {holders} hold, {} wait", row.name, row.waiters), BOLD);
    let page = usize::from(area.height - 1);
    // Only the visible lines are written.
    let from = from.min((holders + waiters.len()).saturating_sub(1));
    for line in 0..page {
        let at = from + line;
        let words = if let Some(holder) = row.state.holders.get(at) {
            let fence = holder.fence.map_or_else(|| format!("id {}", holder.id), |fence| format!("fence {fence}"));
            let (who, held, left) =
                (text::holder(&holder.label), text::span(holder.held_for), text::span(holder.lease_left));
            format!("  holds  {who}, {} for {held}, lease left {left}, {fence}", holder.kind)
        } else if let Some(waiter) = waiters.get(at - holders) {
            let (who, waited) = (text::holder(&waiter.label), text::span(waiter.waited));
            let behind =
                if waiter.behind > 0 { format!(", and {} more behind it", waiter.behind) } else { String::new() };
            format!("  {:5}. {who}, {} for {waited}{behind}", at - holders + 1, waiter.kind)
        } else {
            break;
        };
        put(out, area, 0, u16::try_from(line + 1).unwrap_or(u16::MAX), &words, Style::new());
    }
    page
}

fn help(area: Rect, out: &mut Buffer) -> usize {
    let lines = [
        "Up Down PgUp PgDn Home End, j k g G    move",
        "s    sort by oldest waiter, waiters, age, lease left, fence, name",
        "r    reverse the order",
        "/    filter by name or holder: a text, or a pattern with * and ?; Esc removes it",
        "p    pause: the locks stay as they are shown",
        "Enter    open the lock: holders, and the queue in order; Esc closes it",
        "b    break: ask the holder to end, and end the hold when the grace is over",
        "q, Ctrl-C    quit",
        "",
        "The bar is what is left of the lease, of the longest that was seen of this hold.",
    ];
    for (y, line) in (0..).zip(lines) {
        put(out, area, 1, y, line, Style::new());
    }
    lines.len()
}

fn foot(model: &Model, area: Rect, out: &mut Buffer) {
    let line = match &model.mode {
        Mode::Filter => format!("filter: {}_", model.filter),
        Mode::Confirm(Broken { name, holder, fence, .. }) => {
            let fence = fence.map(|fence| format!(", fence {fence}")).unwrap_or_default();
            format!("end the hold of {} by {holder}{fence}? y / n", text::quoted(name))
        }
        _ if !model.said.is_empty() => model.said.clone(),
        Mode::Open { .. } => "Esc back  Up Down scroll  p pause  b break".to_owned(),
        _ => KEYS.to_owned(),
    };
    let y = area.height - 1;
    put(out, area, 0, y, &line, Style::new());
    out.set_style(Rect { y: area.y + y, height: 1, ..area }, REVERSED);
}
