//! Renewals: the session keeps a claim alive, so a renewal asks whether it lives, and whether the node is still there.

use oarlock_core::driver::{Fences, Gone, Renewal, Renewed};
use oarlock_core::state::Ending;
use oarlock_core::{Claim, ClaimId, Error, ErrorKind, Result};
use zookeeper_client as zk;

use crate::ZooKeeper;
use crate::compat::is_revoked;
use crate::error::{SCHEME, from_zk};
use crate::record::{ClaimRecord, ResourceRecord, read, write};
use crate::route::{ClaimNode, Known};
use crate::session::{Session, if_there};

/// What was read of a claim's own node: the node, its path, and the answer.
pub(crate) type Seen = (ClaimNode, String, Result<(Vec<u8>, zk::Stat), zk::Error>);

impl ZooKeeper {
    /// One answer for each claim.
    pub(crate) async fn renew_batch(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        let session = match self.route.last_session().await {
            Ok(Some(session)) => session,
            Ok(None) => return vec![Ok(Renewed::Gone(Gone::Session)); batch.len()],
            Err(error) => return vec![Err(error.during("renew")); batch.len()],
        };
        let nodes: Vec<_> = batch
            .iter()
            .map(|renewal| {
                let known = self.route.known(renewal.claim.id);
                let path = match &known {
                    Known::At(node) if node.session == session.id => Some(node.path(&session, &renewal.claim.resource)),
                    _ => None,
                };
                (known, path)
            })
            .collect();
        let anything = nodes.iter().find_map(|(_, path)| path.as_deref()).unwrap_or(session.root());
        let agreed = session.agree(anything);
        let reads: Vec<_> =
            nodes.iter().map(|(_, path)| path.as_ref().map(|path| session.client.get_data(path))).collect();
        let heard = agreed.await;
        let mut answers = Vec::with_capacity(batch.len());
        for (renewal, ((known, path), answer)) in batch.iter().zip(nodes.iter().zip(reads)) {
            let mut seen = match (answer, path, known) {
                (Some(answer), Some(path), Known::At(node)) => Ok(Some((node.clone(), path.clone(), answer.await))),
                _ => self.find_own(&session, &renewal.claim, known.clone()).await,
            };
            if let (Ok(Some((_, _, Err(zk::Error::NoNode)))), Some(_)) = (&seen, session.dialect()) {
                // It may have another node by now: a writer that became a reader, a permit instead of a node at the
                // gate.
                seen = self.find_own(&session, &renewal.claim, self.route.known(renewal.claim.id)).await;
            }
            let answer = match (seen, heard.clone()) {
                (_, Err(zk::Error::SessionExpired)) => Ok(Renewed::Gone(Gone::Session)),
                (_, Err(error)) => Err(from_zk(error)),
                (Err(error), _) => Err(error),
                (Ok(seen), Ok(())) => self.renew_one(&session, renewal, known, seen).await,
            };
            if let (Ok(Renewed::Gone(_)), Known::At(node)) = (&answer, known) {
                self.route.forget_node(renewal.claim.id, node);
            }
            answers.push(answer.map_err(|error| error.during("renew").about(&renewal.claim.resource)));
        }
        answers
    }

    /// A claim whose node is not known by name: found by its id, if it is there.
    async fn find_own(&self, session: &Session, claim: &Claim, known: Known) -> Result<Option<Seen>> {
        let found = match session.dialect() {
            Some(dialect) => session.find_compat(dialect, claim, &known).await?,
            None => {
                let parent = session.parent(&claim.resource);
                let queue = session.poll(&parent).await?;
                self.find(session, &parent, claim.id, known, queue).await?.map(|(node, _)| node)
            }
        };
        let Some(node) = found else { return Ok(None) };
        let path = node.path(session, &claim.resource);
        let answer = session.client.get_data(&path).await;
        Ok(Some((node, path, answer)))
    }

    /// Evaluates the answer about a claim's own node.
    pub(crate) async fn renew_one(
        &self,
        session: &Session,
        renewal: &Renewal,
        known: &Known,
        seen: Option<Seen>,
    ) -> Result<Renewed> {
        let claim = &renewal.claim;
        let other_session = matches!(known, Known::At(node) if node.session != session.id);
        let parent = session.parent(&claim.resource);
        let (node, path, data, stat) = match seen {
            _ if other_session => return Ok(Renewed::Gone(Gone::Session)),
            Some((_, _, Err(zk::Error::SessionExpired))) => return Ok(Renewed::Gone(Gone::Session)),
            None | Some((_, _, Err(zk::Error::NoNode))) => return session.why_gone(&parent, claim.id).await,
            Some((_, _, Err(error))) => return Err(from_zk(error)),
            Some((_, _, Ok((_, stat)))) if stat.ephemeral_owner != session.id => {
                return Ok(Renewed::Gone(Gone::Session));
            }
            Some((node, path, Ok((data, stat)))) => (node, path, data, stat),
        };
        if renewal.fences != Fences::Keep {
            return Err(Error::new(ErrorKind::Unsupported, "ZooKeeper cannot raise or reserve fences").on(SCHEME));
        }
        if let (Some(_), Some(memo)) = (node.fence, &renewal.memo)
            && !session.write_memo(&parent, &path, memo).await?
        {
            return session.why_gone(&parent, claim.id).await;
        }
        let mut lease = session.lease(claim.ttl)?;
        let mut ending = None;
        // If another program has written into the node, the lock is not lost.
        if let Ok(mut record) = read::<ClaimRecord>(&path, &data) {
            record.fence = record.mark(&stat);
            if record.update(claim) {
                // Another client may have written at the same time; a value that was not published must not be
                // reported as published.
                session.client.set_data(&path, &write(&record)?, Some(stat.version)).await.map_err(from_zk)?;
            }
            if let Some((asked, grace)) = record.ending {
                (lease.ttl, ending) = (lease.ttl.min(grace), Some(asked));
            }
        } else if let Some(dialect) = session.dialect() {
            if is_revoked(&data) {
                ending = Some(Ending::new("another client", "revoked"));
            } else if claim.value.is_some() {
                let published = session.data_of(dialect, claim)?;
                if published != data {
                    session.client.set_data(&path, &published, Some(stat.version)).await.map_err(from_zk)?;
                }
            }
        }
        Ok(Renewed::Alive { lease, fence: node.fence, ending })
    }
}

impl Session {
    /// Why a claim is not there.
    async fn why_gone(&self, parent: &str, id: ClaimId) -> Result<Renewed> {
        let above = if_there(self.client.get_data(parent).await)?;
        let record = above.and_then(|(data, _)| read::<ResourceRecord>(parent, &data).ok());
        let end_of = record.and_then(|record| record.end_of(id).cloned());
        Ok(Renewed::Gone(end_of.map_or(Gone::Unknown, Gone::Broken)))
    }
}
