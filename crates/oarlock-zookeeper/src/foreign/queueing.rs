//! Mutexes, readers and writers, leaders: one queue of ephemeral sequential nodes in one folder.

use oarlock_core::clock::{BootClock, Clock};
use oarlock_core::driver::{Attempt, Grant};
use oarlock_core::{Applied, Claim, Error, ErrorKind, Result};
use zookeeper_client as zk;

use super::line::Line;
use super::names::{Dialect, Entry, Tag};
use super::{changed_meanwhile, from_zk, intruder, node_of, pending};
use crate::attempt::{fence_of, placed};
use crate::driver::ZooKeeper;
use crate::link::{Known, Place, Session};
use crate::record::{ClaimRecord, write};

impl ZooKeeper {
    pub(super) async fn queue_up(&self, dialect: Dialect, tag: Tag, claim: &Claim) -> Result<Attempt> {
        let session = self.link.session().await?;
        let folder = session.base(dialect, &claim.resource)?;
        let known = self.link.known(claim.id);
        let mut found = None;
        let sole = matches!(known, Known::Nothing);
        if !sole {
            let line = if session.is_proven(&known) {
                session.line_at_hand(dialect, &folder).await?
            } else {
                session.line(dialect, &folder).await?
            };
            found = session.own(&line, &folder, claim.id, &known).await?.map(|place| (place, line));
        }
        let new = found.is_none();
        let (place, line) = match found {
            Some(found) => found,
            None => self.join(&session, dialect, &folder, tag, claim, sole).await?,
        };
        let mut judged = self.judge_abroad(&session, dialect, (&folder, tag), claim, place, &line).await;
        if let (Ok(Attempt::Granted(grant)), false) = (&mut judged, new) {
            grant.lease = session.lease_since_proof(claim.ttl).map_err(Error::applied_unknown)?;
        }
        judged.map_err(|error| match error.kind() {
            // Its hold is as it was, or its node is gone.
            ErrorKind::Upgrade | ErrorKind::Foreign => error,
            // It has a node, and may hold by it.
            _ => error.applied_unknown(),
        })
    }

    /// Makes a node, and lists it with all others in the same breath; the `sole` one of its claim, if it is certain to be that.
    pub(super) async fn join(
        &self,
        session: &Session,
        dialect: Dialect,
        folder: &str,
        tag: Tag,
        claim: &Claim,
        sole: bool,
    ) -> Result<(Place, Line)> {
        let path = format!("{folder}/{}", dialect.prefix(claim.id, tag));
        let data = session.data_of(dialect, claim)?;
        let ephemeral = session.options(zk::CreateMode::EphemeralSequential);
        let create = || (session.client.create(&path, &data, &ephemeral), session.client.list_children(folder));
        self.link.note(claim.id, Known::Doubt);
        let sent = BootClock.now();
        let (made, listed) = create();
        let (mut made, mut listed) = (made.await, listed.await);
        // It was certainly not made, so this is the second step of making it and not a second try.
        if made == Err(zk::Error::NoNode) {
            session.make_folder(dialect, folder).await.inspect_err(|_| self.link.forget(claim.id))?;
            let second = create();
            (made, listed) = (second.0.await, second.1.await);
        }
        let (stat, sequence) = made.map_err(from_zk).inspect_err(|error| {
            if error.applied() == Applied::No {
                self.link.forget(claim.id);
            }
        })?;
        let made = placed(session, format!("{path}{sequence}"), &stat).map_err(Error::applied_unknown)?;
        let place = Place { sole, ..made };
        session.prove(sent);
        self.link.note(claim.id, Known::At(place.clone()));
        let listed = listed.map_err(|error| from_zk(error).applied_unknown())?;
        Ok((place, Line::read(dialect, &listed)))
    }

    async fn judge_abroad(
        &self,
        session: &Session,
        dialect: Dialect,
        (folder, tag): (&str, Tag),
        claim: &Claim,
        mut place: Place,
        line: &Line,
    ) -> Result<Attempt> {
        let at = line.position(node_of(&place.node)).ok_or_else(changed_meanwhile)?;
        let Some(mine) = line.entries.get(at) else { return Err(changed_meanwhile()) };
        if place.fence.is_none()
            && let Some(stranger) = line.stranger(dialect, mine.tag)
        {
            self.leave_abroad(dialect, &claim.resource, claim.id).await?;
            return Err(intruder(folder, stranger));
        }
        if let Some(obstacle) = line.obstacle(at).filter(|_| place.fence.is_none()) {
            if !claim.wait {
                self.leave_abroad(dialect, &claim.resource, claim.id).await?;
            }
            return Ok(pending(at, format!("={folder}/{}", obstacle.node)));
        }
        if mine.tag == Tag::Read && tag != Tag::Read {
            return Err(Error::new(ErrorKind::Upgrade, "a held claim cannot become heavier"));
        }
        let fence = match place.fence {
            Some(fence) => fence,
            None => fence_of(place.made)?,
        };
        place.fence = Some(fence);
        self.link.note(claim.id, Known::At(place.clone()));
        if tag == Tag::Read && mine.tag != Tag::Read {
            place = session.lighten(dialect, folder, claim, place, mine).await?;
            self.link.note(claim.id, Known::At(place));
        }
        Ok(Attempt::Granted(Grant::new(fence, session.lease(claim.ttl)?)))
    }
}

impl Session {
    /// A writer becomes a reader in one step, by a node that has its own sequence: nobody who waits behind it gets in between.
    async fn lighten(
        &self,
        dialect: Dialect,
        folder: &str,
        claim: &Claim,
        place: Place,
        mine: &Entry,
    ) -> Result<Place> {
        let mut record = ClaimRecord::of(claim, self.lease_ttl(claim.ttl));
        (record.granted, record.fence) = (true, place.fence);
        let path = format!("{folder}/{}{}", dialect.prefix(claim.id, Tag::Read), mine.sequence);
        let mut lighter = self.client.new_multi_writer();
        let ephemeral = self.options(zk::CreateMode::Ephemeral);
        lighter.add_create(&path, &write(&record)?, &ephemeral).map_err(from_zk)?;
        lighter.add_delete(&place.node, None).map_err(from_zk)?;
        lighter.commit().await.map_err(|error| from_zk(error.into()))?;
        Ok(Place { node: path, ..place })
    }
}
