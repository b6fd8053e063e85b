//! The cases, by topic. A case states what it needs; if the store or the fixture lacks it, the case is skipped with the
//! reason.

mod belief;
mod breaking;
mod busy;
mod cancel;
mod close;
mod cohort;
mod dead_waiters;
mod downgrade;
mod election;
mod exclusion;
mod expiry;
mod fall_back;
mod fencing;
mod gate;
mod hand_over;
mod idempotence;
mod inspect;
mod loss;
mod lost_reply;
mod memo;
mod model_run;
mod multi;
mod names;
mod once;
mod order;
mod owner;
mod pause;
mod reentrant;
mod renewal;
mod restart;
mod silence;
mod spec;
mod spin;
mod takeover;
mod wakeup;
mod weights;

use std::sync::Arc;

use oarlock_core::Capabilities;
use oarlock_core::capabilities::{Fencing, Liveness, Notify, WaiterView};
use oarlock_core::driver::BoxFuture;

use crate::context::TestContext;
use crate::failure::Outcome;
use crate::fixture::{Power, Powers};

/// What a case needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Claims are granted in order of arrival.
    Order,
    Units,
    /// Kinds can be mixed on one name.
    OneRule,
    Fences,
    /// Fences can be raised and reserved.
    Raise,
    /// Each claim has a lease of its own.
    Leases,
    /// Claims can outlive their process.
    OutlivesProcess,
    /// Waiters are shown, each and in order.
    Waiters,
    Push,
    /// Other clients see a claim and can end it.
    Records,
    Listing,
    Memo,
    Kill,
    Cut,
    DropReply,
    Restart,
    Pause,
    FallBack,
}

impl Need {
    fn lacks(self, can: &Capabilities, powers: &Powers) -> Option<&'static str> {
        let power = |power: Power| match power {
            Power::Has => None,
            Power::Lacks(why) => Some(why),
        };
        let unless = |able: bool, why: &'static str| if able { None } else { Some(why) };
        match self {
            Self::Order => unless(can.order, "this store has no queue"),
            Self::Units => unless(can.units, "this store cannot share a resource"),
            Self::OneRule => unless(can.one_rule, "a name of this store belongs to one kind of lock"),
            Self::Fences => unless(can.fencing != Fencing::None, "this store has no fences"),
            Self::Raise => unless(can.raises_fences, "this store chooses its fences: none can be raised or reserved"),
            Self::Leases => unless(can.liveness != Liveness::Session, "claims of this store end with their session"),
            Self::OutlivesProcess => unless(can.outlives_process, "claims of this store end with their process"),
            Self::Waiters => unless(can.waiters == WaiterView::Listed, "this store does not show its waiters"),
            Self::Push => unless(can.notify == Notify::Push, "this store has no notifications"),
            Self::Records => unless(can.records, "this store does not record claims"),
            Self::Listing => unless(can.listing, "this store cannot list names"),
            Self::Memo => unless(can.memo, "this store keeps no memo"),
            Self::Kill => power(powers.kill),
            Self::Cut => power(powers.cut),
            Self::DropReply => power(powers.drop_reply),
            Self::Restart => power(powers.restart),
            Self::Pause => power(powers.pause),
            Self::FallBack => power(powers.fall_back),
        }
    }
}

/// One thing that every driver must do.
pub(crate) struct Case {
    topic: &'static str,
    name: &'static str,
    needs: &'static [Need],
    run: fn(Arc<TestContext>) -> BoxFuture<Outcome>,
}

impl Case {
    pub(crate) fn name(&self) -> String {
        format!("{}::{}", self.topic, self.name)
    }

    /// Whether it disturbs other cases.
    pub(crate) fn runs_alone(&self) -> bool {
        self.needs.iter().any(|need| matches!(need, Need::Restart | Need::Pause | Need::FallBack))
    }

    /// Why it cannot run here.
    pub(crate) fn lacks(&self, can: &Capabilities, powers: &Powers) -> Option<String> {
        self.needs.iter().find_map(|need| need.lacks(can, powers)).map(str::to_owned)
    }

    pub(crate) fn run(&self, context: Arc<TestContext>) -> BoxFuture<Outcome> {
        (self.run)(context)
    }
}

/// Declares the cases of a topic: the functions of its file, each with what it needs.
macro_rules! cases {
    ($topic:literal: $($name:ident $([$($need:ident),+])?),+ $(,)?) => {
        pub(super) fn cases() -> Vec<$crate::cases::Case> {
            vec![$($crate::cases::Case {
                topic: $topic,
                name: stringify!($name),
                needs: &[$($($crate::cases::Need::$need),+)?],
                run: |context| Box::pin($name(context)),
            }),+]
        }
    };
}
use cases;

/// Every case.
pub(crate) fn all() -> Vec<Case> {
    [
        exclusion::cases,
        order::cases,
        weights::cases,
        spec::cases,
        names::cases,
        idempotence::cases,
        lost_reply::cases,
        cancel::cases,
        loss::cases,
        renewal::cases,
        expiry::cases,
        takeover::cases,
        dead_waiters::cases,
        fencing::cases,
        inspect::cases,
        breaking::cases,
        downgrade::cases,
        memo::cases,
        hand_over::cases,
        cohort::cases,
        close::cases,
        busy::cases,
        silence::cases,
        owner::cases,
        reentrant::cases,
        spin::cases,
        multi::cases,
        election::cases,
        once::cases,
        gate::cases,
        wakeup::cases,
        belief::cases,
        pause::cases,
        restart::cases,
        fall_back::cases,
        model_run::cases,
    ]
    .into_iter()
    .flat_map(|topic| topic())
    .collect()
}
