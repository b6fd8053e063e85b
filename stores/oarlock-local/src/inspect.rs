//! The verb `inspect`: reads state files without a lock and decides nothing.

use std::collections::HashMap;
use std::sync::Arc;

use oarlock_core::model::Notified;
use oarlock_core::state::{Page, Query, ResourceState, Select};
use oarlock_core::{Error, ErrorKind, Result};

use crate::error::SCHEME;
use crate::paths::Paths;
use crate::state::{Record, StateFile, Unread};
use crate::store::{Store, offload};

/// How often a file is read again when another process writes it at the same time.
const READS: usize = 8;

impl Store {
    /// Shows one name, or all names that are in use.
    pub(crate) async fn inspect(self: &Arc<Self>, query: &Query) -> Result<Page> {
        match &query.select {
            // Reading one small file takes less time than starting a thread.
            Select::Name(_) => self.page(query),
            Select::Live => {
                let (store, query) = (self.clone(), query.clone());
                offload(move || store.page(&query))?.await
            }
        }
    }

    fn page(&self, query: &Query) -> Result<Page> {
        let mut known = HashMap::new();
        let mut resources = Vec::new();
        match &query.select {
            Select::Name(name) => {
                let state = match self.peek(&Paths::of(name))? {
                    Some(record) => self.state(record, &mut known),
                    None => ResourceState::free(name.clone()),
                };
                resources.push(state);
            }
            Select::Live => {
                for shard in 0..=u8::MAX {
                    let Ok(folder) = std::fs::read_dir(self.dir.states(shard)) else { continue };
                    for file in folder.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
                        // A query for its name returns the error of a file that cannot be read.
                        let Ok(Some(record)) = self.peek(&Paths { shard, file }) else { continue };
                        resources.push(self.state(record, &mut known));
                    }
                }
                resources.retain(|state| !state.is_free());
            }
        }
        Ok(Page::cut(resources, query))
    }

    /// The state of a name, without claims that have expired or whose process is dead.
    fn state(&self, record: Record, known: &mut HashMap<u128, bool>) -> ResourceState {
        let now = self.now();
        let name = record.name.clone();
        let mut resource = self.of_this_boot(record, now);
        let is_alive = |session| *known.entry(session).or_insert_with(|| !self.sessions.is_dead(session));
        resource.end_sessions(now, &mut Notified::new(), is_alive);
        resource.state(name, now)
    }

    /// Reads a state file without its lock: for showing, never for deciding. `None` if it is missing or empty.
    pub(crate) fn peek(&self, paths: &Paths) -> Result<Option<Record>> {
        let mut buffer = Vec::new();
        let mut torn = None;
        for _ in 0..READS {
            let Some(mut file) = StateFile::open_to_show(self.dir.state(paths))? else { return Ok(None) };
            match file.read(&mut buffer) {
                Ok(record) => return Ok(record),
                Err(Unread::Unlinked) => {}
                Err(Unread::Damaged(error)) => torn = Some(error),
                Err(Unread::Failed(error)) => return Err(error),
            }
        }
        match torn {
            Some(error) => Err(error),
            None => {
                Err(Error::new(ErrorKind::Os, "another process keeps replacing the state file").on(SCHEME).retry_now())
            }
        }
    }
}
