//! The verb `release`.

use std::sync::Arc;

use oarlock_core::driver::{End, Release, Released};
use oarlock_core::model::{Notified, Now, Resource};
use oarlock_core::{ClaimId, ResourceName, Result};

use crate::store::{Needs, Store};

impl Store {
    /// Ends a claim. The step that frees the name also grants it to the next waiter.
    pub(crate) async fn release(self: &Arc<Self>, name: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        let needs = if matches!(end, End::Done { memo: Some(_) }) { Needs::Disk } else { Needs::Nothing };
        // A claim that is broken may still wait, in this process or in another one.
        if matches!(end, End::Broken { .. }) {
            self.hub.waiters.unexpect(id);
        } else {
            self.hub.waiters.forget(id);
        }
        let end = end.clone();
        let run =
            move |resource: &mut Resource, now: Now, notified: &mut Notified| resource.release(id, &end, now, notified);
        let release = self.clone().step(name.clone(), needs, run).await?;
        if release.outcome != Released::Asked {
            self.session.remove(id);
        }
        Ok(release)
    }
}
