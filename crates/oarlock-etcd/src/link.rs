//! One client's way to the cluster: requests, and nothing about locks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::uri::PathAndQuery;
use oarlock_core::clock::{BootClock, Clock, Moment};
use oarlock_core::driver::BoxFuture;
use oarlock_core::{Error, ErrorKind, Result};
use tokio::sync::oneshot;
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::api::{
    AuthenticateRequest, AuthenticateResponse, Compare, Header, KeyValue, LeaseGrantRequest, LeaseId, LeaseLeft,
    LeaseLife, Nothing, Op, Range, RangeRequest, RangeResponse, TxnRequest, TxnResponse, WatchRequest, WatchResponse,
};
use crate::config::Config;
use crate::error::{SCHEME, closed, denied, failed, strange};
use crate::keys::Space;
use crate::lease::{Kept, Leased, Majority};
use crate::login::{Login, Pass, is_stale, is_without_users};
use crate::members::{Members, Question};
use crate::watch::Open;

/// A listing of many thousand claims is larger than what is taken for granted.
const LARGEST_ANSWER: usize = 256 << 20;

/// The most keys asked for at once.
const PAGE: i64 = 2000;

/// No server is set to take more seconds for it.
const LONGEST_ELECTION: i64 = 60;

/// What is open.
#[derive(Debug)]
pub(crate) struct Link {
    members: Members,
    login: Option<Login>,
    closed: AtomicBool,
}

/// A stream of changes.
pub(crate) struct Watching {
    pub(crate) answers: Streaming<WatchResponse>,
    /// Resolves when requests go to another member: this one may have fallen silent.
    pub(crate) left: BoxFuture<()>,
    /// What was shown to open it.
    pub(crate) pass: Pass,
    /// Who answers.
    pub(crate) member: Channel,
    /// Dropped, it ends the stream at the server too.
    pub(crate) open: oneshot::Sender<()>,
}

/// What a transaction found.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) succeeded: bool,
    pub(crate) revision: i64,
    pub(crate) majority: Majority,
    /// One for each key or range that was read.
    pub(crate) reads: Vec<RangeResponse>,
}

impl Link {
    pub(crate) async fn open(config: &Config) -> Result<Self> {
        let login = match (&config.user, &config.password) {
            (Some(user), password) => Some(Login::new(user, password.as_deref().unwrap_or_default())),
            (None, Some(_)) => return Err(Error::new(ErrorKind::Config, "a password without a user").on(SCHEME)),
            (None, None) => None,
        };
        let link = Self { members: Members::of(config)?, login, closed: AtomicBool::new(false) };
        // Nothing is promised before somebody answered. Each member is asked once.
        let mut tried = 1;
        loop {
            match link.txn(Vec::new(), vec![Space::of(config).door().get()], Vec::new()).await {
                Err(error) if error.kind() == ErrorKind::Unreachable && tried < link.members.len() => tried += 1,
                answer => return answer.map(|_| link),
            }
        }
    }

    pub(crate) fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) { Err(closed()) } else { Ok(()) }
    }

    /// What requests show: a token, where a user was named and the cluster asks for one.
    async fn pass(&self) -> Result<Pass> {
        let Some(login) = &self.login else { return Ok(Pass::NotNeeded) };
        let kept = login.pass();
        if kept != Pass::None {
            return Ok(kept);
        }
        let question = AuthenticateRequest { name: login.user.clone(), password: login.password.clone() };
        let path = "/etcdserverpb.Auth/Authenticate";
        let pass = match self.send::<_, AuthenticateResponse>(path, question, &Pass::NotNeeded).await {
            Ok(answer) => Pass::Token(answer.token.parse().map_err(|_| strange("a token"))?),
            Err(status) if is_without_users(&status) => Pass::NotNeeded,
            Err(status) if status.code() == Code::InvalidArgument => return Err(denied(status)),
            Err(status) => return Err(failed(status)),
        };
        login.keep(pass.clone());
        Ok(pass)
    }

    /// Another pass, if this one was refused and there can be another.
    pub(crate) async fn another_pass(&self, refused: &Pass) -> Result<Option<Pass>> {
        let Some(login) = &self.login else { return Ok(None) };
        login.refused(refused);
        self.pass().await.map(Some)
    }

    async fn client(&self, question: &Question<'_>) -> Result<Grpc<Channel>, Status> {
        let mut client = Grpc::new(question.channel.clone()).max_decoding_message_size(LARGEST_ANSWER);
        let ready = client.ready().await;
        ready.map_err(|error| Status::from_error(error.into())).inspect_err(|_| question.failed())?;
        Ok(client)
    }

    async fn send<Q, A>(&self, path: &'static str, question: Q, pass: &Pass) -> Result<A, Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let codec = ProstCodec::<Q, A>::default();
        let (path, to) = (PathAndQuery::from_static(path), self.members.question());
        let answer = self.client(&to).await?.unary(showing(question, pass), path, codec).await;
        // A connection that failed after a silence says nothing of how long answers take.
        if answer.as_ref().map_or_else(is_said, |_| true) {
            to.answered();
        }
        answer.map(tonic::Response::into_inner).inspect_err(|status| left(&to, status))
    }

    /// One question. It is put again only if it was turned away for its token, and so had no effect.
    pub(crate) async fn ask<Q, A>(&self, path: &'static str, question: Q) -> Result<A>
    where
        Q: prost::Message + Clone + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let pass = self.pass().await?;
        let refused = match self.send(path, question.clone(), &pass).await {
            Err(status) if is_stale(&status) => status,
            answer => return answer.map_err(failed),
        };
        match self.another_pass(&pass).await? {
            Some(pass) => self.send(path, question, &pass).await.map_err(failed),
            None => Err(failed(refused)),
        }
    }

    /// Opens a stream of answers to a stream of questions, and says when the member that answers them is left.
    async fn stream<Q, A>(
        &self,
        path: &'static str,
        questions: impl futures_core::Stream<Item = Q> + Send + 'static,
        pass: &Pass,
    ) -> Result<(Streaming<A>, BoxFuture<()>, Channel), Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let codec = ProstCodec::<Q, A>::default();
        let (path, to) = (PathAndQuery::from_static(path), self.members.question());
        let mut request = showing(questions, pass);
        // A member that has lost its leader hears of no change: it is to end a watch instead of keeping silent.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let gone = to.left();
        let answers = self.client(&to).await?.streaming(request, path, codec).await;
        Ok((answers.inspect_err(|status| left(&to, status))?.into_inner(), gone, to.channel.clone()))
    }

    /// One atomic step: `then` if every condition is met, else `otherwise`.
    pub(crate) async fn txn(&self, when: Vec<Compare>, then: Vec<Op>, otherwise: Vec<Op>) -> Result<Outcome> {
        let after = BootClock.now();
        let answer: TxnResponse = self.ask("/etcdserverpb.KV/Txn", transaction(when, then, otherwise)).await?;
        let Header { revision, term } = answer.header.ok_or_else(|| strange("a revision"))?;
        let majority = Majority { after, term };
        Ok(Outcome { succeeded: answer.succeeded, revision, majority, reads: answer.reads() })
    }

    /// Everything there, as of one revision, and which.
    pub(crate) async fn read(&self, range: &Range) -> Result<(i64, Vec<KeyValue>)> {
        self.read_at(range, 0).await
    }

    /// Everything there as of this revision; zero = the present one.
    pub(crate) async fn read_at(&self, range: &Range, mut revision: i64) -> Result<(i64, Vec<KeyValue>)> {
        let (mut key, mut kvs) = (range.key.clone(), Vec::new());
        loop {
            let range_end = range.end.clone();
            let page =
                self.range(RangeRequest { key, range_end, limit: PAGE, revision, ..RangeRequest::default() }).await?;
            if revision == 0 {
                revision = page.header.ok_or_else(|| strange("a revision"))?.revision;
            }
            kvs.extend(page.kvs);
            match kvs.last() {
                Some(last) if page.more => key = [&last.key[..], &[0]].concat(),
                _ => return Ok((revision, kvs)),
            }
        }
    }

    pub(crate) async fn range(&self, question: RangeRequest) -> Result<RangeResponse> {
        self.ask("/etcdserverpb.KV/Range", question).await
    }

    /// A new lease of at least `seconds`.
    pub(crate) async fn grant(&self, seconds: u64) -> Result<Leased> {
        let from = BootClock.now();
        let question = LeaseGrantRequest { ttl: i64::try_from(seconds).unwrap_or(i64::MAX) };
        let granted: LeaseLife = self.ask("/etcdserverpb.Lease/LeaseGrant", question).await?;
        Ok(Leased { id: granted.id, seconds, ttl: lived(granted.ttl), from, term: None })
    }

    /// Ends a lease and everything on it; one that is not there is fine.
    pub(crate) async fn revoke(&self, id: i64) -> Result<()> {
        let _: Nothing = self.ask("/etcdserverpb.Lease/LeaseRevoke", LeaseId { id }).await?;
        Ok(())
    }

    /// How long a lease will live if nobody keeps it alive.
    pub(crate) async fn left(&self, id: i64) -> Result<Duration> {
        counted(&self.life(id).await?)
    }

    /// How long a lease lives from when it is kept alive; zero if it is over.
    pub(crate) async fn whole(&self, id: i64) -> Result<Duration> {
        Ok(lived(self.life(id).await?.granted))
    }

    async fn life(&self, id: i64) -> Result<LeaseLeft> {
        self.ask("/etcdserverpb.Lease/LeaseTimeToLive", LeaseId { id }).await
    }

    /// Keeps leases alive, all in one go: since when, and what was said of each. Whoever answers need not be the leader
    /// any more, whatever it believes.
    pub(crate) async fn keep_alive(&self, leases: Vec<i64>) -> Result<(Moment, HashMap<i64, Kept>)> {
        let from = BootClock.now();
        let mut lives = HashMap::with_capacity(leases.len());
        if leases.is_empty() {
            return Ok((from, lives));
        }
        let pass = self.pass().await?;
        match self.extend(&leases, &pass).await {
            Ok(told) => lives = told,
            Err(status) if is_stale(&status) => {
                let pass = self.another_pass(&pass).await?.ok_or_else(|| failed(status))?;
                lives = self.extend(&leases, &pass).await.map_err(failed)?;
            }
            Err(status) => return Err(failed(status)),
        }
        Ok((from, lives))
    }

    async fn extend(&self, leases: &[i64], pass: &Pass) -> Result<HashMap<i64, Kept>, Status> {
        let questions: Vec<_> = leases.iter().map(|id| LeaseId { id: *id }).collect();
        let path = "/etcdserverpb.Lease/LeaseKeepAlive";
        let (mut answers, ..) = self.stream::<_, LeaseLife>(path, tokio_stream::iter(questions), pass).await?;
        let mut lives = HashMap::with_capacity(leases.len());
        while let Some(life) = answers.message().await? {
            let term = life.header.unwrap_or_default().term;
            lives.insert(life.id, Kept { ttl: lived(life.ttl), term });
        }
        Ok(lives)
    }

    pub(crate) async fn watch(&self, watches: Vec<WatchRequest>) -> Result<Watching> {
        let pass = self.pass().await?;
        let (open, until) = oneshot::channel();
        let questions = Open { questions: watches.into(), until };
        let opened = self.stream("/etcdserverpb.Watch/Watch", questions, &pass).await;
        let (answers, left, member) = opened.map_err(failed)?;
        Ok(Watching { answers, left, pass, member, open })
    }

    /// What this member has of a key, without asking the others, and the revision at which it has it.
    pub(crate) async fn peek(&self, member: &Channel, pass: &Pass, key: &Range) -> Result<RangeResponse, Status> {
        let (key, serializable, keys_only) = (key.key.clone(), true, true);
        let question = RangeRequest { key, serializable, keys_only, ..RangeRequest::default() };
        let mut client = Grpc::new(member.clone());
        client.ready().await.map_err(|error| Status::from_error(error.into()))?;
        let (path, codec) = (PathAndQuery::from_static("/etcdserverpb.KV/Range"), ProstCodec::default());
        let answer: tonic::Response<RangeResponse> = client.unary(showing(question, pass), path, codec).await?;
        Ok(answer.into_inner())
    }
}

fn showing<T>(question: T, pass: &Pass) -> Request<T> {
    let mut request = Request::new(question);
    if let Pass::Token(token) = pass {
        request.metadata_mut().insert("token", token.clone());
    }
    request
}

/// Whether the member itself said so. What the client made of a failed connection has that failure as its cause.
fn is_said(status: &Status) -> bool {
    std::error::Error::source(status).is_none()
}

/// Leaves a member that could not do what it was asked, where another may.
fn left(to: &Question<'_>, status: &Status) {
    use Code::{Aborted, Cancelled, DeadlineExceeded, FailedPrecondition, Internal, Unavailable, Unknown};
    let elsewhere = match status.code() {
        Aborted | Cancelled | DeadlineExceeded | Internal | Unavailable | Unknown => true,
        // A learner, which takes part in nothing yet (from 3.6 on; before it said that it is unavailable).
        FailedPrecondition => !is_without_users(status),
        _ => false,
    };
    if elsewhere {
        to.failed();
    }
}

/// What a lease has left. A member that was just elected, or deposed without having heard of it, counts no lease down yet, or any
/// more: it says that there are ages left (servers before 3.4.32 and 3.5.14). A new leader adds an election timeout at most.
fn counted(life: &LeaseLeft) -> Result<Duration> {
    if life.ttl > life.granted.saturating_add(LONGEST_ELECTION) {
        return Err(Error::unreachable("no leader counts this lease").on(SCHEME));
    }
    Ok(lived(life.ttl))
}

fn lived(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

pub(crate) fn transaction(when: Vec<Compare>, then: Vec<Op>, otherwise: Vec<Op>) -> TxnRequest {
    let ops = |ops: Vec<Op>| ops.into_iter().map(Into::into).collect();
    TxnRequest { compare: when, success: ops(then), failure: ops(otherwise) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_nobody_counts_is_no_reason_to_believe() {
        let left = |ttl| counted(&LeaseLeft { ttl, granted: 30 });
        assert_eq!(left(12).unwrap(), Duration::from_secs(12));
        // A new leader gives every lease an election timeout more.
        assert_eq!(left(40).unwrap(), Duration::from_secs(40));
        assert_eq!(left(-1).unwrap(), Duration::ZERO);
        assert_eq!(left(i64::MAX / 1_000_000_000).unwrap_err().kind(), ErrorKind::Unreachable);
    }
}
