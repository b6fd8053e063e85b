//! Which claims can hold together: the arithmetic of the rule, for the [model](crate::model) and for stores that decide
//! from an ordered list of claims.

mod turn_times;

use std::num::NonZeroU32;

pub use turn_times::{EARLY_POLLS, FORGET_TURN_AFTER, LATER, TurnTimes};

use crate::claim::{Capacity, Limit, Weight};
use crate::error::{Error, ErrorKind, Result};

/// The capacity of a resource for which no claim has stated one.
pub const UNSTATED: Limit = Limit::Units(NonZeroU32::MIN);

/// The sum of the weights of several claims.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    claims: u32,
    units: u64,
    all: bool,
}

impl Load {
    /// Adds a claim.
    pub fn add(&mut self, weight: Weight) {
        self.claims += 1;
        match weight {
            Weight::All => self.all = true,
            Weight::Units(units) => self.units += u64::from(units.get()),
        }
    }

    /// Whether a further claim of this weight stays within the limit.
    #[must_use]
    pub fn bears(&self, weight: Weight, limit: Limit) -> bool {
        match weight {
            Weight::All => self.claims == 0,
            Weight::Units(units) => {
                let room = match limit {
                    Limit::Unlimited => true,
                    Limit::Units(most) => self.units + u64::from(units.get()) <= u64::from(most.get()),
                };
                !self.all && room
            }
        }
    }
}

impl FromIterator<Weight> for Load {
    fn from_iter<I: IntoIterator<Item = Weight>>(weights: I) -> Self {
        let mut load = Self::default();
        weights.into_iter().for_each(|weight| load.add(weight));
        load
    }
}

/// Checks a claim against the capacity that the claims of its resource have `stated`, and returns the capacity that
/// applies.
///
/// # Errors
/// [`ErrorKind::SpecMismatch`] if it states another one, [`ErrorKind::TooHeavy`] if it could never be granted.
pub fn admit(capacity: Capacity, weight: Weight, stated: Option<Limit>) -> Result<Limit> {
    let limit = match (capacity, stated) {
        (Capacity::Fixed(asked), Some(stored)) if asked != stored => {
            return Err(Error::spec_mismatch(stored, asked));
        }
        (_, Some(stored)) => stored,
        (Capacity::Fixed(asked) | Capacity::Stored(asked), None) => asked,
        (Capacity::Any, None) => UNSTATED,
    };
    check_weight(weight, limit).map(|()| limit)
}

/// Checks that a claim of this weight can be granted at all.
///
/// # Errors
/// [`ErrorKind::TooHeavy`] if not.
pub fn check_weight(weight: Weight, limit: Limit) -> Result<()> {
    match (weight, limit) {
        (Weight::Units(units), Limit::Units(most)) if units > most => {
            Err(Error::new(ErrorKind::TooHeavy, format!("{units} units were requested, but the capacity is {most}")))
        }
        _ => Ok(()),
    }
}

/// What must change before a waiter can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle<T> {
    /// This claim cannot hold beside it: its end, or its becoming lighter.
    Rival(T),
    /// This one waits before it: its end, or its grant.
    Waiter(T),
    /// Any change among the claims before it.
    Any,
}

impl<T> Obstacle<T> {
    /// The claim to watch; `None` for all of them.
    pub fn claim(self) -> Option<T> {
        match self {
            Self::Rival(claim) | Self::Waiter(claim) => Some(claim),
            Self::Any => None,
        }
    }
}

/// What is in the way of a waiter, by the claims `before` it in order of arrival: the nearest that can never hold
/// together with it.
///
/// If there is none, all of them share, and they are too many. The first waiter (`is_first`) watches all of them. Each
/// later one watches the one before it, which is granted, or ends, no later than it can be granted itself.
pub fn obstacle<T>(before: &[T], is_rival: impl FnMut(&&T) -> bool, is_first: impl FnOnce() -> bool) -> Obstacle<&T> {
    match before.iter().rev().find(is_rival) {
        Some(rival) => Obstacle::Rival(rival),
        None if is_first() => Obstacle::Any,
        None => before.last().map_or(Obstacle::Any, Obstacle::Waiter),
    }
}

/// Whether `one` weighs less than `other`.
#[must_use]
pub fn is_lighter(one: Weight, other: Weight) -> bool {
    match (one, other) {
        (Weight::Units(one), Weight::Units(other)) => one < other,
        (Weight::Units(_), Weight::All) => true,
        (Weight::All, _) => false,
    }
}

/// Checks that a held claim asks for no more than it holds.
///
/// # Errors
/// [`ErrorKind::Upgrade`] if it does.
pub fn check_held(held: Weight, asked: Weight) -> Result<()> {
    if is_lighter(held, asked) {
        return Err(Error::new(ErrorKind::Upgrade, "a held claim cannot become heavier"));
    }
    Ok(())
}
