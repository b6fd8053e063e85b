//! The drawing and the keys, without a terminal and without a store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oarlock::Label;
use oarlock::state::{ClaimId, HolderState, Kind, ResourceName, ResourceState, WaiterState, Waiters, Weight};
use ratatui_core::backend::TestBackend;
use ratatui_core::buffer::Buffer;
use ratatui_core::style::Color;
use ratatui_core::terminal::Terminal;
use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::top::draw::{Theme, draw};
use crate::top::keys::Action;
use crate::top::model::{Mode, Model, Sort};
use crate::top::snapshot::Snapshot;

fn label(host: &str) -> Arc<Label> {
    let mut label = Label::default();
    host.clone_into(&mut label.host);
    Arc::new(label)
}

/// A lock that is held for `number` seconds of a lease of 30 s, and that `waiters` wait for.
fn lock(number: u64, waiters: u64) -> ResourceState {
    let mut state = ResourceState::free(ResourceName::new(format!("lock-{number:05}")).unwrap());
    let mut holder = HolderState::new(ClaimId::from_bits(u128::from(number)), Kind::Mutex, Weight::All);
    holder.label = label(&format!("host-{number}"));
    holder.fence = Some(oarlock::Fence::new(1_794_746_305_188_557 + number));
    (holder.held_for, holder.lease_left) = (Duration::from_secs(number), Duration::from_secs(30));
    state.holders = vec![holder];
    let waiting = (0..waiters).map(|place| {
        let mut waiter = WaiterState::new(ClaimId::from_bits(u128::MAX - u128::from(place)), Kind::Mutex, Weight::All);
        waiter.label = label(&format!("waiter-{place}"));
        waiter.waited = Duration::from_secs(10 * waiters - place);
        waiter
    });
    state.waiters = Waiters::Listed(waiting.collect());
    state
}

fn model(locks: impl IntoIterator<Item = ResourceState>, now: Instant) -> Model {
    let mut model = Model::new("mem:".to_owned(), now);
    model.refresh(Snapshot::of(locks.into_iter().collect(), now));
    model
}

fn screen(model: &mut Model, now: Instant, (width, height): (u16, u16), colour: bool) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let drawn = terminal.draw(|frame| {
        let area = frame.area();
        model.page = draw(model, now, Theme::new(colour), area, frame.buffer_mut());
    });
    drawn.unwrap();
    terminal.backend().buffer().clone()
}

fn lines(buffer: &Buffer) -> Vec<String> {
    let width = usize::from(buffer.area.width);
    let cells: Vec<_> = buffer.content().iter().map(ratatui_core::buffer::Cell::symbol).collect();
    cells.chunks(width).map(|line| line.concat().trim_end().to_owned()).collect()
}

fn press(model: &mut Model, keys: &str) -> Action {
    let mut last = Action::Nothing;
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            key => KeyCode::Char(key),
        };
        last = model.press(KeyEvent::new(code, KeyModifiers::NONE));
    }
    last
}

#[test]
fn a_screen_of_80_by_24_has_every_column() {
    let now = Instant::now();
    let mut model = model([lock(1, 0), lock(2, 3), lock(3, 1)], now);
    let shown = lines(&screen(&mut model, now, (80, 24), true));
    assert!(shown[0].starts_with("3 locks, 2 waited for  by oldest waiter  mem:"), "{shown:#?}");
    assert_eq!(shown[1], "NAME               HOLDER       AGE   LEASE       FENCE            WAIT  OLDEST");
    assert_eq!(shown[2], "lock-00002         host-2       2s    ██████ 30s  1794746305188559 3     30s");
    assert!(shown[3].starts_with("lock-00003") && shown[4].starts_with("lock-00001"), "{shown:#?}");
    assert!(shown[23].starts_with("q quit  s sort"), "{shown:#?}");
    assert!(shown.iter().all(|line| line.chars().count() <= 80));
}

#[test]
fn a_screen_of_300_by_80_is_filled_and_a_tiny_one_is_no_crash() {
    let now = Instant::now();
    let mut model = model((0..1000).map(|number| lock(number, 0)), now);
    let shown = lines(&screen(&mut model, now, (300, 80), true));
    assert_eq!(shown.iter().filter(|line| line.starts_with("lock-")).count(), 77);
    assert!(shown[2].contains(&"█".repeat(20)), "{}", shown[2]);
    for size in [(1, 1), (19, 24), (80, 3), (20, 4), (40, 10)] {
        for mode in [Mode::List, Mode::Open { from: 0 }, Mode::Help] {
            model.mode = mode;
            screen(&mut model, now, size, true);
        }
    }
}

#[test]
fn a_lease_drains_between_two_answers_of_the_store() {
    let now = Instant::now();
    let mut model = model([lock(1, 0)], now);
    for (seconds, bar, colour) in [
        (0, "██████ 30s", Color::Green),
        (16, "███░░░ 14s", Color::Yellow),
        (24, "█░░░░░ 6s", Color::Red),
        (31, "░░░░░░ 0s", Color::Red),
    ] {
        let buffer = screen(&mut model, now + Duration::from_secs(seconds), (80, 24), true);
        assert!(lines(&buffer)[2].contains(bar), "{seconds}: {}", lines(&buffer)[2]);
        let cell = buffer.content().iter().find(|cell| ["█", "░"].contains(&cell.symbol())).unwrap();
        assert_eq!(cell.fg, colour, "{seconds}");
    }
    // A renewal fills it; a claim that was first seen late is full at what it had then.
    let mut later = lock(1, 0);
    later.holders[0].lease_left = Duration::from_secs(15);
    model.refresh(Snapshot::of(vec![later], now));
    assert!(lines(&screen(&mut model, now, (80, 24), true))[2].contains("███░░░ 15s"));
}

#[test]
fn without_colours_there_are_none() {
    let now = Instant::now();
    let mut model = model([lock(1, 2), lock(2, 0)], now);
    let buffer = screen(&mut model, now, (80, 24), false);
    assert!(buffer.content().iter().all(|cell| (cell.fg, cell.bg) == (Color::Reset, Color::Reset)));
}

#[test]
fn keys_sort_reverse_and_filter_and_the_selected_lock_stays_selected() {
    let now = Instant::now();
    let mut model = model([lock(1, 0), lock(2, 3), lock(30, 1)], now);
    assert_eq!(model.row().unwrap().name, "lock-00002");
    press(&mut model, "ss");
    assert_eq!((model.sort, model.selected), (Sort::Age, 1));
    assert_eq!(model.row().unwrap().name, "lock-00002");
    press(&mut model, "r");
    assert_eq!(model.order, [0, 1, 2]);
    press(&mut model, "G");
    assert_eq!(model.row().unwrap().name, "lock-00030");
    press(&mut model, "/0003");
    assert_eq!((model.order.len(), &model.mode), (1, &Mode::Filter));
    press(&mut model, "q\x7f");
    assert_eq!(model.filter, "0003q\x7f", "in a filter letters are letters");
    press(&mut model, "\x1b");
    assert_eq!((model.order.len(), &model.mode), (3, &Mode::List));
    press(&mut model, "/*-00002\n");
    assert_eq!((model.order.as_slice(), &model.mode), (&[1][..], &Mode::List));
    press(&mut model, "\x1b");
    assert_eq!(model.order.len(), 3, "Esc removes the filter");
    assert_eq!(press(&mut model, "q"), Action::Quit);
    assert_eq!(model.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Action::Quit);
}

#[test]
fn a_pause_keeps_what_is_shown_until_it_ends() {
    let now = Instant::now();
    let mut model = model([lock(1, 0)], now);
    assert_eq!(press(&mut model, "p"), Action::Nothing);
    let shown = lines(&screen(&mut model, now + Duration::from_secs(3), (80, 24), true));
    assert!(shown[0].contains("PAUSED for 3s"), "{}", shown[0]);
    assert_eq!(press(&mut model, "p"), Action::Refresh);
}

#[test]
fn an_open_lock_shows_its_queue_in_order() {
    let now = Instant::now();
    let mut model = model([lock(7, 40)], now);
    press(&mut model, "\n");
    let shown = lines(&screen(&mut model, now, (80, 24), true));
    assert_eq!(shown[1], "lock-00007: 1 hold, 40 wait");
    assert!(shown[2].contains("holds  host-7, mutex for 7 s, lease left 30 s, fence 1794746305188564"), "{}", shown[2]);
    assert!(shown[3].contains("1. waiter-0, mutex for 400 s") || shown[3].contains("1. waiter-0, mutex for 6 min"));
    press(&mut model, "jj");
    assert!(lines(&screen(&mut model, now, (80, 24), true))[2].contains("2. waiter-1"));
    press(&mut model, "\x1b");
    assert_eq!(model.mode, Mode::List);
}

#[test]
fn a_break_is_confirmed_and_names_the_hold_that_was_shown() {
    let now = Instant::now();
    let mut model = model([lock(7, 1), lock(8, 0)], now);
    assert_eq!(press(&mut model, "b"), Action::Nothing);
    let shown = lines(&screen(&mut model, now, (120, 24), true));
    assert!(
        shown[23].contains("end the hold of \"lock-00007\" by host-7, fence 1794746305188564? y / n"),
        "{}",
        shown[23]
    );
    assert_eq!(press(&mut model, "n"), Action::Nothing);
    assert_eq!((model.said.as_str(), &model.mode), ("nothing was done", &Mode::List));
    press(&mut model, "b");
    // The lock is granted to another client while it is asked: that hold is not meant.
    let mut again = lock(7, 1);
    again.holders[0].id = ClaimId::from_bits(99);
    model.refresh(Snapshot::of(vec![lock(9, 5), again], now));
    let Action::Break(broken) = press(&mut model, "y") else { panic!("nothing is broken") };
    assert_eq!((broken.name.as_str(), broken.id), ("lock-00007", ClaimId::from_bits(7)));
    assert_eq!(broken.fence.map(oarlock::Fence::get), Some(1_794_746_305_188_564));
    // A lock without a holder has nothing to break.
    let mut free = lock(1, 1);
    free.holders.clear();
    model.refresh(Snapshot::of(vec![free], now));
    assert_eq!((press(&mut model, "b"), &model.mode), (Action::Nothing, &Mode::List));
}

/// A frame draws what is visible: its time does not grow with the number of locks.
#[test]
fn ten_thousand_locks_take_as_long_to_draw_as_a_hundred() {
    let now = Instant::now();
    let time = |count: u64| {
        let mut model = model((0..count).map(|number| lock(number, number % 3)), now);
        model.move_to(usize::MAX);
        let mut terminal = Terminal::new(TestBackend::new(300, 80)).unwrap();
        // The shortest of several: other programs run here, too.
        let frames = (0..20).map(|_| {
            let begun = Instant::now();
            terminal
                .draw(|frame| {
                    let area = frame.area();
                    draw(&model, now, Theme::new(true), area, frame.buffer_mut());
                })
                .unwrap();
            begun.elapsed()
        });
        frames.min().unwrap()
    };
    let (few, many) = (time(100), time(10_000));
    println!("a frame of 300 by 80: {few:?} with 100 locks, {many:?} with 10,000");
    assert!(many < few * 3, "{few:?} with 100 locks, {many:?} with 10,000");
}
