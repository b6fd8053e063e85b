//! The strategies to do a thing that goes wrong when it is done carelessly, and what came of each.

use std::time::Duration;

use serde_json::{Value, json};

use crate::exit::{Code, Exit, Failure};

/// How those who meet are kept from harming each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strategy {
    /// Nothing: look, then write.
    None,
    /// A transaction each, at REPEATABLE READ.
    Transaction,
    /// A version on each row that is written.
    RowVersion,
    /// A lock of Oarlock.
    Mutex,
    /// A version that each decision must move on.
    Version,
    /// SELECT … FOR UPDATE.
    ForUpdate,
    /// A transaction each, at SERIALIZABLE.
    Serializable,
    /// Units in segments, taken under an id.
    Segments,
}

impl Strategy {
    /// The word for programs.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Transaction => "transaction",
            Self::RowVersion => "row-version",
            Self::Mutex => "mutex",
            Self::Version => "version",
            Self::ForUpdate => "for-update",
            Self::Serializable => "serializable",
            Self::Segments => "segments",
        }
    }

    /// The protection that this word names.
    pub(crate) fn protection(word: &str) -> Option<Self> {
        [Self::Mutex, Self::Version, Self::ForUpdate, Self::Serializable, Self::Segments]
            .into_iter()
            .find(|strategy| strategy.word() == word)
    }

    /// Whether it is there to show what goes wrong.
    pub(crate) fn is_disease(self) -> bool {
        matches!(self, Self::None | Self::Transaction | Self::RowVersion)
    }
}

/// What came of one strategy.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) strategy: Strategy,
    /// What it is called in the table.
    pub(crate) name: String,
    /// Whether all was as it should be.
    pub(crate) is_right: bool,
    /// In a few words.
    pub(crate) verdict: String,
    /// The figures of the table, each with its name for programs.
    pub(crate) figures: Vec<(&'static str, u64)>,
    /// How often a decision had to be made again, where that can be.
    pub(crate) again: Option<u64>,
    pub(crate) took: Duration,
}

impl Outcome {
    pub(crate) fn json(&self) -> Value {
        let mut value = json!({
            "way": self.strategy.word(),
            "disease": self.strategy.is_disease(),
            "right": self.is_right,
            "tried_again": self.again,
            "took_ms": crate::output::millis(self.took),
        });
        for (name, figure) in &self.figures {
            value[*name] = json!(figure);
        }
        value
    }
}

/// Whether the demo showed what it is for: what was done carelessly went wrong, what was done well did not.
pub(crate) fn judge(outcomes: &[Outcome]) -> Result<Exit, Failure> {
    let named = |wrong: Vec<&Outcome>| wrong.iter().map(|outcome| outcome.name.clone()).collect::<Vec<_>>().join(", ");
    let broken: Vec<_> =
        outcomes.iter().filter(|outcome| !outcome.strategy.is_disease() && !outcome.is_right).collect();
    if !broken.is_empty() {
        return Err(Failure::new(
            Code::Internal,
            format!("this should have been right and was not: {}", named(broken)),
        ));
    }
    let hidden: Vec<_> = outcomes.iter().filter(|outcome| outcome.strategy.is_disease() && outcome.is_right).collect();
    if !hidden.is_empty() {
        let message = format!(
            "this should have gone wrong and did not, so nothing was shown: {}. no two of them met this time; run it again",
            named(hidden)
        );
        return Err(Failure::new(Code::Internal, message));
    }
    Ok(Code::Success.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(strategy: Strategy, is_right: bool) -> Outcome {
        let name = strategy.word().to_owned();
        let verdict = String::new();
        Outcome { strategy, name, is_right, verdict, figures: vec![("sold", 3)], again: None, took: Duration::ZERO }
    }

    #[test]
    fn the_careless_way_must_fail_and_the_cure_must_not() {
        let judged = |strategies: &[(Strategy, bool)]| {
            let outcomes: Vec<_> =
                strategies.iter().map(|(strategy, is_right)| outcome(*strategy, *is_right)).collect();
            judge(&outcomes)
        };
        assert_eq!(judged(&[(Strategy::None, false), (Strategy::Mutex, true)]).unwrap(), Exit(0));
        let broken =
            judged(&[(Strategy::None, false), (Strategy::Mutex, false), (Strategy::Segments, true)]).unwrap_err();
        assert_eq!(broken.exit(), Exit(70));
        assert!(broken.message().unwrap().ends_with("was not: mutex"), "{broken:?}");
        let hidden = judged(&[(Strategy::None, true), (Strategy::Mutex, true)]).unwrap_err();
        assert_eq!(hidden.exit(), Exit(70));
        assert!(hidden.message().unwrap().contains("nothing was shown: none"), "{hidden:?}");
    }

    #[test]
    fn figures_are_named_in_json() {
        let value = outcome(Strategy::ForUpdate, true).json();
        assert_eq!(
            (&value["way"], &value["sold"], &value["disease"]),
            (&"for-update".into(), &3.into(), &false.into())
        );
    }
}
