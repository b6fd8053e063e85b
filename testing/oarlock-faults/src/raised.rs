//! A run in which the format of the tables is raised: what must come of its two builds.

use std::path::Path;
use std::process::Command;

use oarlock_torture::record::{Event, Record, What};
use oarlock_torture::worker::PREFIX;

use crate::runs::Done;

/// What the reason of a claim begins with that the store refused because of a holder.
const BUSY: &str = "Busy";

/// The exit code of `oarlock` for a configuration that cannot be used, such as tables of a newer format.
const CONFIG: i32 = 78;

/// What a build answered that was to take a lock that is free.
#[derive(Debug)]
pub(crate) struct Answer {
    code: Option<i32>,
    words: String,
}

impl Answer {
    pub(crate) fn of(build: &Path, url: &str) -> anyhow::Result<Self> {
        let lock = format!("{PREFIX}free");
        let mut command = Command::new(build);
        let done = command.args(["run", "-n", "-u", url, &lock, "--", "true"]).env_remove("OARLOCK_URL").output()?;
        Ok(Self { code: done.status.code(), words: String::from_utf8_lossy(&done.stderr).trim().to_owned() })
    }

    /// Whether it was refused because the tables have a newer format than it knows, and for no other reason.
    fn is_refusal(&self) -> bool {
        let number = |before: &str| {
            let rest = self.words.split_once(before)?.1;
            rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok()
        };
        let formats = number("the tables have format ").zip(number("this version knows "));
        self.code == Some(CONFIG) && formats.is_some_and(|(found, known)| found > known)
    }
}

/// Once the format is raised, an older build that connects must be refused, and workers of the newer one go on. Those of
/// the older one that were connected before may be refused or go on: their steps are those of the newer format then, and
/// the judge finds two holders. `answer` is that of the older build after the run, and `left` are the locks that the store
/// has then: the older build could not look.
pub(crate) fn judge(record: &Record, answer: &Answer, left: &str, done: &mut Done) {
    // Workers are started in turns: the first one is of the build that runs, the next one of the other.
    let is_older = |w: u32| w.is_multiple_of(2);
    let is_raised = |event: &&Event| matches!(event.what, What::FaultEnded { effect: Some(0), .. });
    let Some(raised) = record.events.iter().find(is_raised).map(|event| event.at) else {
        done.untried.push("Untried: the format was not raised".to_owned());
        return;
    };
    let (mut before, mut after) = (0, 0);
    // That older workers were refused is what they are to be.
    done.stuck.clear();
    for event in &record.events {
        match &event.what {
            What::Granted { w, .. } if is_older(*w) => before += u64::from(event.at <= raised),
            What::Granted { .. } => after += u64::from(event.at > raised),
            What::Drained { w, failed: Some(why) } if !is_older(*w) || why.starts_with(BUSY) => {
                done.stuck.push(format!("Stuck: worker {w}: {why}"));
            }
            _ => {}
        }
    }
    if before == 0 || after == 0 {
        done.untried.push(format!(
            "Untried: {before} grants of the older build before, {after} of the newer one after the format was raised"
        ));
    }
    if !answer.is_refusal() {
        done.violations.push(format!(
            "Format: the older build was not refused because of the newer format: exit code {:?}, {:?}",
            answer.code, answer.words
        ));
    }
    if left.contains(PREFIX) {
        done.violations.push(format!("Leaked: {}", left.trim()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::Case;

    fn refused(code: i32, found: u64) -> Answer {
        let words = format!(
            "oarlock: postgres://127.0.0.1: the tables have format {found}, this version knows 3: update this program. \
             Upgrade this program."
        );
        Answer { code: Some(code), words }
    }

    /// A run in which worker 0 is of the older build and worker 1 of the newer one. After two seconds the format is
    /// raised.
    fn raised_with(change: impl Fn(&mut What), answer: &Answer, left: &str) -> Done {
        let text = include_str!("../tests/raised.jsonl");
        let mut record = Record::read(text.as_bytes()).expect("a history");
        record.events.iter_mut().for_each(|event| change(&mut event.what));
        let case = Case::named("postgres", "older format", "format-raised").expect("a case");
        let mut done = Done { stuck: vec!["Stuck: worker 0".to_owned()], ..Done::of(&case, 1, 15) };
        judge(&record, answer, left, &mut done);
        done
    }

    #[test]
    fn an_older_build_is_refused_once_the_format_is_raised_and_the_newer_one_goes_on() {
        let newer = refused(78, 4);
        let good = raised_with(|_| {}, &newer, "");
        assert!(good.complaint().is_none() && good.is_conclusive(), "{good:?}");
        assert!(!raised_with(|_| {}, &newer, "oarlock-torture/1-2/a\n").violations.is_empty(), "left");
        let failed = |worker: u32, why: &'static str| {
            move |what: &mut What| match what {
                What::Drained { w, failed } if *w == worker => *failed = Some(why.to_owned()),
                _ => {}
            }
        };
        assert!(raised_with(failed(0, "NewerFormat: update this program"), &newer, "").stuck.is_empty());
        assert!(!raised_with(failed(0, "Busy: held"), &newer, "").stuck.is_empty(), "its lock was not free");
        assert!(!raised_with(failed(1, "Unreachable: no"), &newer, "").stuck.is_empty(), "the newer one got no lock");
        let never = |what: &mut What| {
            if let What::FaultEnded { effect, .. } = what {
                *effect = Some(1);
            }
        };
        assert!(!raised_with(never, &newer, "").untried.is_empty());
        let nothing = |what: &mut What| {
            if let What::Granted { w: w @ 1, .. } = what {
                *w = 0;
            }
        };
        assert!(!raised_with(nothing, &newer, "").untried.is_empty(), "the newer build was granted nothing");
    }

    #[test]
    fn an_older_build_that_fails_for_another_reason_was_not_refused_for_the_format() {
        let said = |code: Option<i32>, words: &str| Answer { code, words: words.to_owned() };
        let others = [
            said(Some(0), ""),
            said(Some(69), "oarlock: postgres://127.0.0.1: connection refused"),
            said(Some(75), "oarlock: a is held"),
            said(Some(78), "oarlock: bad URL"),
            said(None, ""),
            // The words without the code, and a format that is not newer.
            refused(70, 4),
            refused(78, 3),
        ];
        for answer in others {
            let violations = raised_with(|_| {}, &answer, "").violations;
            assert!(violations.len() == 1 && violations[0].starts_with("Format: "), "{answer:?}: {violations:?}");
        }
    }
}
