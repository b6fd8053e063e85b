//! Tries everything that can happen in a small world: every order of steps, every loss, every pause.
//!
//! A world is the state of a protocol that is small enough to be searched to the end: two or three clients, a clock of a
//! few ticks, requests that are carried out at any time or never. [`search`] finds the shortest way to what must not
//! happen, or says how many worlds there are in which it does not.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::hash::Hash;

/// What happened: a word for it, and to which of several.
pub type Event = (&'static str, usize);

/// The state of a protocol, and what can happen next.
pub trait World: Clone {
    /// What makes two worlds the same.
    type Key: Eq + Hash;

    /// What makes this world different from others.
    fn key(&self) -> Self::Key;

    /// Adds everything that can happen next.
    ///
    /// # Errors
    /// What has happened that must not.
    fn steps(&self, next: &mut Vec<(Event, Self)>) -> Result<(), String>;

    /// Whether something happened here without which a search proves nothing.
    fn is_goal(&self) -> bool {
        false
    }
}

/// Adds to `next` the worlds that come of `world`, each by a change that has a name.
#[expect(clippy::type_complexity, reason = "the type of a closure cannot be named")]
pub fn changes<'a, W: World>(
    world: &'a W,
    next: &'a mut Vec<(Event, W)>,
) -> impl FnMut(&'static str, usize, &dyn Fn(&mut W)) + use<'a, W> {
    move |what, at, change| {
        let mut world = world.clone();
        change(&mut world);
        next.push(((what, at), world));
    }
}

/// What was searched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explored {
    /// How many worlds there are.
    pub worlds: usize,
    /// In how many of them the goal was reached.
    pub goals: usize,
}

/// Searches everything that can come of `start`.
///
/// # Errors
/// What goes wrong, and the shortest way to it.
pub fn search<W: World>(start: W) -> Result<Explored, String> {
    let mut seen = HashSet::from([start.key()]);
    let (mut open, mut next, mut explored) = (vec![start.clone()], Vec::new(), Explored::default());
    while let Some(world) = open.pop() {
        explored.worlds += 1;
        explored.goals += usize::from(world.is_goal());
        if world.steps(&mut next).is_err() {
            return Err(shortest(start));
        }
        open.extend(next.drain(..).map(|(_, world)| world).filter(|world| seen.insert(world.key())));
    }
    Ok(explored)
}

/// The shortest way to what goes wrong.
fn shortest<W: World>(start: W) -> String {
    let mut seen = HashSet::from([start.key()]);
    let mut all: Vec<(W, usize, Event)> = vec![(start, 0, ("", 0))];
    let (mut at, mut next) = (0, Vec::new());
    while at < all.len() {
        if let Err(wrong) = all[at].0.steps(&mut next) {
            return told(&wrong, &all, at);
        }
        for (event, world) in next.drain(..) {
            if seen.insert(world.key()) {
                all.push((world, at, event));
            }
        }
        at += 1;
    }
    "nothing goes wrong".to_owned()
}

fn told<W>(wrong: &str, all: &[(W, usize, Event)], mut at: usize) -> String {
    let mut events = Vec::new();
    while at != 0 {
        events.push(all[at].2);
        at = all[at].1;
    }
    let mut text = format!("{wrong}, after {} steps:", events.len());
    for (what, who) in events.iter().rev() {
        // Writing to a string does not fail.
        let _ = write!(text, " {what} {who};");
    }
    text
}
