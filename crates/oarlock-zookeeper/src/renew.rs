//! Renewals: the session keeps a claim alive, so a renewal asks whether it lives, and whether the node is still there.

use oarlock_core::driver::{Fences, Gone, Renewal, Renewed};
use oarlock_core::state::Ending;
use oarlock_core::{Claim, ClaimId, Error, ErrorKind, Result};
use zookeeper_client as zk;

use crate::driver::ZooKeeper;
use crate::error::{SCHEME, from_zk};
use crate::foreign::is_revoked;
use crate::link::{Known, Place, Session, if_there};
use crate::record::{ClaimRecord, ResourceRecord, read, write};

/// What was seen of a claim's own node: the place, its path, and the answer about it.
pub(crate) type Seen = (Place, String, Result<(Vec<u8>, zk::Stat), zk::Error>);

impl ZooKeeper {
    /// One answer for each claim.
    pub(crate) async fn keep_all(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        let session = match self.link.last_session().await {
            Ok(Some(session)) => session,
            Ok(None) => return vec![Ok(Renewed::Gone(Gone::Session)); batch.len()],
            Err(error) => return vec![Err(error.during("renew")); batch.len()],
        };
        let places: Vec<_> = batch
            .iter()
            .map(|renewal| {
                let known = self.link.known(renewal.claim.id);
                let path = match &known {
                    Known::At(place) if place.session == session.id => {
                        Some(place.path(&session, &renewal.claim.resource))
                    }
                    _ => None,
                };
                (known, path)
            })
            .collect();
        let anything = places.iter().find_map(|(_, path)| path.as_deref()).unwrap_or(session.root());
        let agreed = session.agree(anything);
        let looks: Vec<_> =
            places.iter().map(|(_, path)| path.as_ref().map(|path| session.client.get_data(path))).collect();
        let heard = agreed.await;
        let mut answers = Vec::with_capacity(batch.len());
        for (renewal, ((known, path), look)) in batch.iter().zip(places.iter().zip(looks)) {
            let mut seen = match (look, path, known) {
                (Some(look), Some(path), Known::At(place)) => Ok(Some((place.clone(), path.clone(), look.await))),
                _ => self.look_for(&session, &renewal.claim, known.clone()).await,
            };
            if let (Ok(Some((_, _, Err(zk::Error::NoNode)))), Some(_)) = (&seen, session.dialect()) {
                // It may have another by now: a writer that became a reader, a permit instead of a place before the gate.
                seen = self.look_for(&session, &renewal.claim, self.link.known(renewal.claim.id)).await;
            }
            let answer = match (seen, heard.clone()) {
                (_, Err(zk::Error::SessionExpired)) => Ok(Renewed::Gone(Gone::Session)),
                (_, Err(error)) => Err(from_zk(error)),
                (Err(error), _) => Err(error),
                (Ok(seen), Ok(())) => self.keep(&session, renewal, known, seen).await,
            };
            if let (Ok(Renewed::Gone(_)), Known::At(place)) = (&answer, known) {
                self.link.forget_place(renewal.claim.id, place);
            }
            answers.push(answer.map_err(|error| error.during("renew").about(&renewal.claim.resource)));
        }
        answers
    }

    /// A claim whose node is not known by name: found by its id, if it is there.
    async fn look_for(&self, session: &Session, claim: &Claim, known: Known) -> Result<Option<Seen>> {
        let found = match session.dialect() {
            Some(dialect) => session.find_abroad(dialect, claim, &known).await?,
            None => {
                let parent = session.parent(&claim.resource);
                let queue = session.look(&parent).await?;
                self.find(session, &parent, claim.id, known, queue).await?.map(|(place, _)| place)
            }
        };
        let Some(place) = found else { return Ok(None) };
        let path = place.path(session, &claim.resource);
        let look = session.client.get_data(&path).await;
        Ok(Some((place, path, look)))
    }

    /// What a look at a claim's own node means.
    pub(crate) async fn keep(
        &self,
        session: &Session,
        renewal: &Renewal,
        known: &Known,
        seen: Option<Seen>,
    ) -> Result<Renewed> {
        let claim = &renewal.claim;
        let other_session = matches!(known, Known::At(place) if place.session != session.id);
        let parent = session.parent(&claim.resource);
        let (place, path, data, stat) = match seen {
            _ if other_session => return Ok(Renewed::Gone(Gone::Session)),
            Some((_, _, Err(zk::Error::SessionExpired))) => return Ok(Renewed::Gone(Gone::Session)),
            None | Some((_, _, Err(zk::Error::NoNode))) => return session.obituary(&parent, claim.id).await,
            Some((_, _, Err(error))) => return Err(from_zk(error)),
            Some((_, _, Ok((_, stat)))) if stat.ephemeral_owner != session.id => {
                return Ok(Renewed::Gone(Gone::Session));
            }
            Some((place, path, Ok((data, stat)))) => (place, path, data, stat),
        };
        if renewal.fences != Fences::Keep {
            return Err(Error::new(ErrorKind::Unsupported, "fences are ZooKeeper's own here").on(SCHEME));
        }
        if let (Some(_), Some(memo)) = (place.fence, &renewal.memo)
            && !session.write_memo(&parent, &path, memo).await?
        {
            return session.obituary(&parent, claim.id).await;
        }
        let mut lease = session.lease(claim.ttl)?;
        let mut ending = None;
        // Scribbles of others on the node cost nobody a lock.
        if let Ok(mut record) = read::<ClaimRecord>(&path, &data) {
            record.fence = record.mark(&stat);
            if record.update(claim) {
                // Somebody may have written at the same time; whoever publishes a value must not be told that it is there.
                session.client.set_data(&path, &write(&record)?, Some(stat.version)).await.map_err(from_zk)?;
            }
            if let Some((asked, grace)) = record.ending {
                (lease.ttl, ending) = (lease.ttl.min(grace), Some(asked));
            }
        } else if let Some(dialect) = session.dialect() {
            if is_revoked(&data) {
                ending = Some(Ending { by: "another client".into(), why: "revoked".into() });
            } else if claim.value.is_some() {
                let published = session.data_of(dialect, claim)?;
                if published != data {
                    session.client.set_data(&path, &published, Some(stat.version)).await.map_err(from_zk)?;
                }
            }
        }
        Ok(Renewed::Alive { lease, fence: place.fence, ending })
    }
}

impl Session {
    /// Why a claim is not there.
    async fn obituary(&self, parent: &str, id: ClaimId) -> Result<Renewed> {
        let home = if_there(self.client.get_data(parent).await)?;
        let record = home.and_then(|(data, _)| read::<ResourceRecord>(parent, &data).ok());
        let grave = record.and_then(|record| record.grave(id).cloned());
        Ok(Renewed::Gone(grave.map_or(Gone::Unknown, Gone::Broken)))
    }
}
