//! The slots of `once`: which one it is now, and until when.

use std::time::Duration;

use croner::Cron;
use croner::errors::CronError;
use croner::parser::{CronParser, Year};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, Zoned};
use oarlock::driver::Fencing;
use oarlock::{Fence, Locks};
use oarlock_core::text;
use serde::Serialize;

use crate::exit::Failure;

/// How long the slot is remembered after its end: more than clocks differ.
const MARGIN: Duration = Duration::from_secs(24 * 3600);

/// How long a slot is remembered whose end is not known: longer than a year.
const TEXT: Duration = Duration::from_secs(400 * 24 * 3600);

/// The longest slot.
const MAX_BYTES: usize = 256;

/// How long before its start a slot is waited for, at most: clocks differ by less.
const EARLY: Duration = Duration::from_secs(60);

/// How far a fence may be ahead of this machine's clock: clocks that are kept in step differ by less.
const MAX_AHEAD: Duration = Duration::from_secs(5 * 60);

/// What `--slot` says.
#[derive(Clone, Debug)]
pub(crate) enum Slots {
    /// A new slot each time that this span has passed since 1970.
    Every(Duration),
    /// A new slot at each time that the expression names.
    Cron(Schedule),
    /// This one.
    Text(String),
}

/// A cron expression in its time zone.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    cron: Box<Cron>,
    zone: TimeZone,
    /// Whether it names hours: then an hour that comes twice, because clocks go back, counts once.
    fixed_hours: bool,
}

impl Schedule {
    /// The last time that it names, up to `now`.
    fn start(&self, now: &Zoned) -> Result<Zoned, CronError> {
        let mut start = self.cron.find_previous_occurrence(now, true)?;
        while self.is_repeated(&start) {
            start = self.cron.find_previous_occurrence(&start, false)?;
        }
        Ok(start)
    }

    /// The next time that it names, after `now`.
    fn end(&self, now: &Zoned) -> Result<Zoned, CronError> {
        let mut end = self.cron.find_next_occurrence(now, false)?;
        while self.is_repeated(&end) {
            end = self.cron.find_next_occurrence(&end, false)?;
        }
        Ok(end)
    }

    /// Whether the clock of the zone has shown this time before, and it counts once.
    fn is_repeated(&self, time: &Zoned) -> bool {
        let offset = self.zone.to_ambiguous_zoned(time.datetime()).offset();
        self.fixed_hours && matches!(offset, AmbiguousOffset::Fold { after, .. } if after == time.offset())
    }
}

/// The slot that it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Current {
    pub(crate) slot: String,
    /// How long it must be remembered, from now on.
    pub(crate) remember: Duration,
    /// How soon the next one starts, if that is so soon that a clock which is a little behind may be the reason why it
    /// is not that one yet.
    pub(crate) next_in: Option<Duration>,
}

/// Whose clock decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Clock {
    Store,
    Client,
}

impl Clock {
    /// The fences of many stores are their time: microseconds since 1970. In a quorum each client proposes them.
    pub(crate) fn of(locks: &Locks) -> Self {
        let info = locks.info();
        let is_its_time = info.capabilities.fencing == Fencing::Clocked && info.scheme != "redlock";
        if is_its_time { Self::Store } else { Self::Client }
    }

    /// The time of a grant with this fence, that was given about `now` by this machine's clock.
    pub(crate) fn at(self, fence: Fence, now: Timestamp) -> Reading {
        let told = i64::try_from(fence.get()).ok().and_then(|micros| Timestamp::from_microsecond(micros).ok());
        let Some(told) = told.filter(|_| self == Self::Store) else { return Reading { now, ahead: None } };
        // Fences never fall. After a grant by a clock that was ahead they stay there until the time has come, and no
        // slot before that would run.
        match ahead(told, now) {
            Some(span) => Reading { now, ahead: Some(span) },
            None => Reading { now: told, ahead: None },
        }
    }
}

/// What the clock that decides shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) now: Timestamp,
    /// How far the fences of the store are ahead of this machine's clock, if that is too far: then the latter decides.
    pub(crate) ahead: Option<Duration>,
}

/// How far `time` is after `now`, if that is more than clocks differ.
fn ahead(time: Timestamp, now: Timestamp) -> Option<Duration> {
    Duration::try_from(time.duration_since(now)).ok().filter(|ahead| *ahead > MAX_AHEAD)
}

impl Slots {
    /// A duration with its unit, a cron expression, or any other text.
    pub(crate) fn parse(expression: &str) -> Result<Self, Failure> {
        // Said now: a slot that cannot be written down would be found done, or run everywhere.
        if !(1..=MAX_BYTES).contains(&expression.len()) {
            return Err(Failure::usage(format!("--slot: a slot is a text of 1 to {MAX_BYTES} bytes")));
        }
        if expression.ends_with(|c: char| c.is_ascii_alphabetic())
            && let Ok(span) = oarlock_core::span::parse(expression)
        {
            if span.as_secs() == 0 || span.subsec_nanos() != 0 {
                return Err(Failure::usage("--slot: a slot lasts whole seconds, at least one"));
            }
            return Ok(Self::Every(span));
        }
        if is_cron(expression) { Self::cron(expression) } else { Ok(Self::Text(expression.to_owned())) }
    }

    /// The fields of cron, and a time zone after them.
    fn cron(expression: &str) -> Result<Self, Failure> {
        let bad = |why: String| Failure::usage(format!("--slot {}: {why}", text::quoted(expression)));
        let fields: Vec<&str> = expression.split_whitespace().collect();
        let last = fields.last().copied().unwrap_or_default();
        let is_zone = fields.len() > 1
            && (last.contains('/') && !last.starts_with('*') || last == "UTC")
            && last.starts_with(|c: char| c.is_ascii_alphabetic());
        let (fields, zone) = if is_zone { (&fields[..fields.len() - 1], last) } else { (&fields[..], "UTC") };
        let zone = TimeZone::get(zone).map_err(|error| bad(error.to_string()))?;
        let parser = CronParser::builder().year(Year::Disallowed).build();
        let cron = parser.parse(&fields.join(" ")).map_err(|error| bad(error.to_string()))?;
        // The hours are the fourth field from the end; a nickname such as @hourly has none.
        let hours = fields.len().checked_sub(4).and_then(|at| fields.get(at));
        let fixed_hours = hours.is_some_and(|hours| !hours.contains('*'));
        Ok(Self::Cron(Schedule { cron: Box::new(cron), zone, fixed_hours }))
    }

    /// Whether this slot, as written down, begins so far after `now` that a wrong clock must have named it.
    pub(crate) fn is_ahead(&self, slot: &str, now: Timestamp) -> bool {
        !matches!(self, Self::Text(_)) && slot.parse().is_ok_and(|start| ahead(start, now).is_some())
    }

    /// How long to remember a slot if the caller asks for `keep`: never shorter than to its end.
    pub(crate) fn remember(&self, current: &Current, keep: Option<Duration>) -> Duration {
        match (self, keep) {
            (Self::Text(_), Some(keep)) => keep,
            (_, keep) => current.remember.max(keep.unwrap_or_default()),
        }
    }

    /// The slot at `now`.
    pub(crate) fn at(&self, now: Timestamp) -> Result<Current, Failure> {
        let (start, end) = match self {
            Self::Text(slot) => return Ok(Current { slot: slot.clone(), remember: TEXT, next_in: None }),
            Self::Every(span) => {
                let span = i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
                let start = now.as_second().div_euclid(span).saturating_mul(span);
                (Timestamp::from_second(start), Timestamp::from_second(start.saturating_add(span)))
            }
            Self::Cron(schedule) => {
                let now = now.to_zoned(schedule.zone.clone());
                let never = |error: CronError| Failure::usage(format!("--slot: {error}"));
                let start = schedule.start(&now).map_err(never)?;
                // An expression that names no more times lasts for ever.
                let end = schedule.end(&now).map(|end| end.timestamp());
                (Ok(start.timestamp()), Ok(end.unwrap_or(Timestamp::MAX)))
            }
        };
        let beyond = |_| Failure::usage("--slot: too long a slot");
        let (start, end) = (start.map_err(beyond)?, end.map_err(beyond)?);
        let left = Duration::try_from(end.duration_since(now)).unwrap_or_default();
        let length = Duration::try_from(end.duration_since(start)).unwrap_or_default();
        let next_in = Some(left).filter(|left| *left <= EARLY.min(length / 10));
        // Of one width, so that they are in order.
        Ok(Current { slot: format!("{start:.0}"), remember: left.saturating_add(MARGIN), next_in })
    }
}

/// Whether it is meant as a cron expression: a nickname, or five or six fields of which the first is none of a date.
fn is_cron(expression: &str) -> bool {
    let mut fields = expression.split_whitespace();
    let first = fields.next().unwrap_or_default();
    let is_field = first.chars().all(|c| c.is_ascii_digit() || "*/,-?".contains(c));
    first.starts_with('@') || (is_field && (4..=6).contains(&fields.count()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(expression: &str, now: &str) -> (String, u64) {
        let current = Slots::parse(expression).unwrap().at(now.parse().unwrap()).unwrap();
        (current.slot, current.remember.as_secs().saturating_sub(24 * 3600))
    }

    #[test]
    fn a_duration_divides_the_time_since_1970() {
        assert_eq!(slot("1h", "2026-11-17T12:34:56Z"), ("2026-11-17T12:00:00Z".into(), 25 * 60 + 4));
        assert_eq!(slot("1d", "2026-11-17T00:00:00Z"), ("2026-11-17T00:00:00Z".into(), 24 * 3600));
        assert_eq!(slot("90s", "1970-01-01T00:01:30Z").0, "1970-01-01T00:01:30Z");
        assert_eq!(slot("90s", "1970-01-01T00:01:29.999Z").0, "1970-01-01T00:00:00Z");
    }

    #[test]
    fn a_cron_expression_is_read_in_its_time_zone() {
        assert_eq!(slot("0 2 * * *", "2026-11-17T01:59:59Z").0, "2026-11-16T02:00:00Z");
        assert_eq!(slot("0 2 * * *", "2026-11-17T02:00:00Z").0, "2026-11-17T02:00:00Z");
        assert_eq!(slot("0 2 * * * Europe/Berlin", "2026-11-17T01:00:00Z").0, "2026-11-17T01:00:00Z");
        assert_eq!(slot("0 2 * * * Europe/Berlin", "2026-07-17T00:00:00Z").0, "2026-07-17T00:00:00Z");
        assert_eq!(slot("@weekly", "2026-11-17T12:00:00Z").0, "2026-11-15T00:00:00Z");
        assert_eq!(slot("*/15 * * * *", "2026-11-17T12:44:00Z"), ("2026-11-17T12:30:00Z".into(), 60));
        // The first of the month, remembered to its end.
        assert_eq!(slot("0 0 1 * * UTC", "2026-11-02T00:00:00Z"), ("2026-11-01T00:00:00Z".into(), 29 * 24 * 3600));
    }

    /// A day with 25 hours is one slot, and each of the two hours with one name is one of its own.
    #[test]
    fn clocks_that_go_back_make_no_slot_twice() {
        let berlin = |now| slot("0 3 * * * Europe/Berlin", now);
        assert_eq!(berlin("2026-10-24T01:00:00Z"), ("2026-10-24T01:00:00Z".into(), 25 * 3600));
        assert_eq!(berlin("2026-10-25T01:59:59Z").0, "2026-10-24T01:00:00Z");
        let hourly = |now| slot("0 * * * * Europe/Berlin", now).0;
        assert_eq!(hourly("2026-10-25T00:30:00Z"), "2026-10-25T00:00:00Z");
        assert_eq!(hourly("2026-10-25T01:30:00Z"), "2026-10-25T01:00:00Z");
    }

    /// A job at a fixed hour runs once on the day that has this hour twice, and on the day that lacks it.
    #[test]
    fn a_fixed_hour_is_one_slot_whatever_the_clocks_do() {
        let job = |now| slot("30 2 * * * Europe/Berlin", now).0;
        assert_eq!(job("2026-10-25T00:45:00Z"), "2026-10-25T00:30:00Z");
        assert_eq!(job("2026-10-25T01:45:00Z"), "2026-10-25T00:30:00Z", "not again an hour later");
        assert_ne!(job("2026-03-29T01:45:00Z"), job("2026-03-28T01:45:00Z"), "it is not left out");
    }

    /// The same for a list of hours: 2 o'clock comes twice in October, and not at all in March.
    #[test]
    fn a_list_of_hours_has_as_many_slots_each_day() {
        for expression in ["0 2,14 * * * Europe/Berlin", "0 2-3 * * * Europe/Berlin", "0,30 2,14 * * * Europe/Berlin"] {
            let slots = Slots::parse(expression).unwrap();
            let day = |from: &str| {
                let begin: Timestamp = from.parse().unwrap();
                let minutes = (0..36 * 60).map(|minute| begin + Duration::from_secs(minute * 60));
                let zone = TimeZone::get("Europe/Berlin").unwrap();
                let date = (begin + Duration::from_secs(12 * 3600)).to_zoned(zone.clone()).date();
                let starts = minutes.map(|now| slots.at(now).unwrap().slot);
                let of_the_day =
                    starts.filter(|slot| slot.parse::<Timestamp>().unwrap().to_zoned(zone.clone()).date() == date);
                of_the_day.collect::<std::collections::BTreeSet<_>>()
            };
            let (usual, back, forward) =
                (day("2026-07-14T20:00:00Z"), day("2026-10-24T20:00:00Z"), day("2026-03-28T20:00:00Z"));
            assert_eq!(back.len(), usual.len(), "{expression}: {back:?}");
            assert!(!forward.is_empty() && forward.len() <= usual.len(), "{expression}: {forward:?}");
        }
    }

    #[test]
    fn a_slot_that_is_about_to_start_is_known() {
        let next_in =
            |expression: &str, now: &str| Slots::parse(expression).unwrap().at(now.parse().unwrap()).unwrap().next_in;
        assert_eq!(next_in("0 2 * * *", "2026-11-17T01:59:58Z"), Some(Duration::from_secs(2)));
        assert_eq!(next_in("0 2 * * *", "2026-11-17T01:58:58Z"), None);
        assert_eq!(next_in("0 2 * * *", "2026-11-17T02:00:00Z"), None);
        assert_eq!(next_in("10s", "2026-11-17T02:00:08Z"), None, "a tenth of it at most");
        assert_eq!(next_in("10s", "2026-11-17T02:00:09Z"), Some(Duration::from_secs(1)));
        assert_eq!(next_in("42", "2026-11-17T02:00:09Z"), None);
    }

    #[test]
    fn a_fence_that_is_far_ahead_is_not_the_time() {
        let now: Timestamp = "2026-11-17T12:00:00Z".parse().unwrap();
        let fence = |seconds: i64| {
            let time = now.as_microsecond() + seconds * 1_000_000;
            Fence::new(u64::try_from(time).unwrap())
        };
        let at = |seconds: i64| Clock::Store.at(fence(seconds), now);
        for near in [-86_400, -1, 0, 1, 300] {
            let told = Timestamp::from_microsecond(now.as_microsecond() + near * 1_000_000).unwrap();
            assert_eq!(at(near), Reading { now: told, ahead: None }, "the store's clock decides: {near}");
        }
        for far in [301, 86_400] {
            assert_eq!(at(far), Reading { now, ahead: Some(Duration::from_secs(far.unsigned_abs())) });
        }
        assert_eq!(Clock::Client.at(fence(86_400), now), Reading { now, ahead: None });
        let hourly = Slots::parse("1h").unwrap();
        assert!(!hourly.is_ahead("2026-11-17T12:05:00Z", now) && hourly.is_ahead("2026-11-17T13:00:00Z", now));
        assert!(!Slots::parse("42").unwrap().is_ahead("2026-11-17T13:00:00Z", now), "a text may be any time");
    }

    #[test]
    fn a_slot_with_an_end_is_remembered_to_it() {
        let (now, day) = ("2026-11-02T00:00:00Z".parse().unwrap(), Duration::from_secs(24 * 3600));
        let kept = |expression: &str, keep| {
            let slots = Slots::parse(expression).unwrap();
            slots.remember(&slots.at(now).unwrap(), keep)
        };
        assert_eq!(kept("0 0 1 * *", Some(day)), 30 * day, "not shorter");
        assert_eq!(kept("0 0 1 * *", Some(90 * day)), 90 * day);
        assert_eq!((kept("42", None), kept("42", Some(day))), (TEXT, day));
    }

    #[test]
    fn anything_else_is_a_text() {
        for text in ["2026-11-17", "42", "release 2.3", "Tue Nov 17 12:00:00 UTC 2026", "2026-W46", "x"] {
            assert_eq!(slot(text, "2026-11-17T12:00:00Z").0, text);
        }
        for bad in
            ["0 2 * *  99", "@never", "61 * * * *", "0 2 * * * Nowhere/Land", "500ms", "0s", "", &"x".repeat(257)]
        {
            assert!(Slots::parse(bad).is_err(), "{bad}");
        }
    }
}
