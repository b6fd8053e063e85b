//! Claims that were seen in the queues of names. A claim that comes looks for one of them first: if it is there, the
//! server need not read the whole queue to find that it is not empty.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use oarlock_core::ResourceName;

use crate::api::Range;

/// So many names are remembered. With one more, all are forgotten.
const MOST: usize = 1024;

/// One key for each name that was crowded. Claims use the keys of earlier claims again, so that a claim is probably
/// still there under the key of the last one that was seen.
#[derive(Debug, Default)]
pub(crate) struct Landmarks(Mutex<HashMap<ResourceName, Range>>);

impl Landmarks {
    fn lock(&self) -> MutexGuard<'_, HashMap<ResourceName, Range>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, name: &ResourceName) -> Option<Range> {
        self.lock().get(name).cloned()
    }

    pub(crate) fn note(&self, name: &ResourceName, key: Range) {
        let mut keys = self.lock();
        if keys.len() == MOST && !keys.contains_key(name) {
            keys.clear();
        }
        keys.insert(name.clone(), key);
    }

    /// The queue of this name is empty.
    pub(crate) fn forget(&self, name: &ResourceName) {
        self.lock().remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_few() {
        let landmarks = Landmarks::default();
        for number in 0..3 * MOST {
            let name = ResourceName::new(number.to_string()).unwrap();
            landmarks.note(&name, Range::key("k"));
            assert!(landmarks.get(&name).is_some() && landmarks.lock().len() <= MOST);
            landmarks.note(&name, Range::key("l"));
            assert_eq!(landmarks.get(&name), Some(Range::key("l")));
        }
    }
}
