//! The connection of one client to a cluster: requests, and nothing about locks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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
    LeaseLife, Nothing, Op, Range, RangeRequest, RangeResponse, TxnRequest, TxnResponse, WatchCreate, WatchRequest,
    WatchResponse,
};
use crate::config::Config;
use crate::error::{SCHEME, closed, denied, failed, missing};
use crate::keys::Space;
use crate::lease::{KeepAlive, Leased, Majority};
use crate::login::{Login, Pass, is_stale, is_without_users};
use crate::members::{InFlight, Members};
use crate::turn_stream::{TurnStream, TurnWatch};
use crate::watch::OpenRequests;
use crate::watch_pair::{Requested, open_in_time};

/// A listing of many thousand claims is larger than the default limit.
const LARGEST_ANSWER: usize = 256 << 20;

/// The most keys in one request.
const PAGE: i64 = 2000;

/// The longest election timeout of any server, in seconds.
const LONGEST_ELECTION: i64 = 60;

/// A connection to a cluster.
#[derive(Debug)]
pub(crate) struct Connection {
    members: Arc<Members>,
    login: Option<Login>,
    closed: AtomicBool,
    /// For watches for turns.
    turns: Mutex<Option<Arc<TurnStream>>>,
}

/// A stream of changes.
pub(crate) struct Watching {
    pub(crate) answers: Streaming<WatchResponse>,
    /// Resolves when requests go to another member: this one may have fallen silent.
    pub(crate) left: BoxFuture<()>,
    /// The token that it was opened with.
    pub(crate) pass: Pass,
    /// Dropped, it ends the stream at the server too.
    pub(crate) open: oneshot::Sender<()>,
}

/// The answer to a transaction.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) succeeded: bool,
    /// A transaction within it found its conditions met.
    pub(crate) within: bool,
    pub(crate) revision: i64,
    pub(crate) majority: Majority,
    /// One for each key or range that was read.
    pub(crate) reads: Vec<RangeResponse>,
}

impl Connection {
    /// A connection of which it is not known yet whether a member answers.
    pub(crate) fn unasked(config: &Config) -> Result<Self> {
        let login = match (&config.user, &config.password) {
            (Some(user), password) => {
                let file = config.password_file.clone();
                Some(Login::new(user, password.as_deref().unwrap_or_default(), file))
            }
            (None, Some(_)) => return Err(Error::new(ErrorKind::Config, "a password without a user").on(SCHEME)),
            (None, None) => None,
        };
        let (members, closed, turns) = (Arc::new(Members::of(config)?), AtomicBool::new(false), Mutex::default());
        Ok(Self { members, login, closed, turns })
    }

    pub(crate) async fn open(config: &Config) -> Result<Self> {
        let connection = Self::unasked(config)?;
        // Open only once a member has answered. Each member is tried once.
        let mut tried = 1;
        loop {
            match connection.txn(Vec::new(), vec![Space::of(config).probe_key().get()], Vec::new()).await {
                Err(error) if error.kind() == ErrorKind::Unreachable && tried < connection.members.len() => tried += 1,
                answer => return answer.map(|_| connection),
            }
        }
    }

    pub(crate) fn close(&self) -> bool {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner).take();
        !self.closed.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) { Err(closed()) } else { Ok(()) }
    }

    /// The token for requests, if a user is configured and the cluster requires one.
    async fn pass(&self) -> Result<Pass> {
        let Some(login) = &self.login else { return Ok(Pass::NotNeeded) };
        let kept = login.pass();
        if kept != Pass::None {
            return Ok(kept);
        }
        let request = AuthenticateRequest { name: login.user.clone(), password: login.password() };
        let path = "/etcdserverpb.Auth/Authenticate";
        let pass = match self.send::<_, AuthenticateResponse>(path, request, &Pass::NotNeeded).await {
            Ok(answer) => Pass::Token(answer.token.parse().map_err(|_| missing("a token"))?),
            Err(status) if is_without_users(&status) => Pass::NotNeeded,
            Err(status) if status.code() == Code::InvalidArgument => return Err(denied(status)),
            Err(status) => return Err(failed(status)),
        };
        login.keep(pass.clone());
        Ok(pass)
    }

    /// A new token, if this one was refused and there is a user.
    pub(crate) async fn another_pass(&self, refused: &Pass) -> Result<Option<Pass>> {
        let Some(login) = &self.login else { return Ok(None) };
        login.refused(refused);
        self.pass().await.map(Some)
    }

    async fn send<Q, A>(&self, path: &'static str, request: Q, pass: &Pass) -> Result<A, Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let codec = ProstCodec::<Q, A>::default();
        let (path, to) = (PathAndQuery::from_static(path), self.members.begin());
        let answer = client(&to).await?.unary(with_token(request, pass), path, codec).await;
        // A connection that failed after a silence says nothing about the latency of the cluster.
        if answer.as_ref().map_or_else(is_said, |_| true) {
            to.answered();
        }
        answer.map(tonic::Response::into_inner).inspect_err(|status| left(&to, status))
    }

    /// One request. It is sent again only if its token was refused, because then it had no effect.
    pub(crate) async fn unary<Q, A>(&self, path: &'static str, request: Q) -> Result<A>
    where
        Q: prost::Message + Clone + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let pass = self.pass().await?;
        let refused = match self.send(path, request.clone(), &pass).await {
            Err(status) if is_stale(&status) => status,
            answer => return answer.map_err(failed),
        };
        match self.another_pass(&pass).await? {
            Some(pass) => self.send(path, request, &pass).await.map_err(failed),
            None => Err(failed(refused)),
        }
    }

    /// One atomic step: `then` if every condition is met, else `otherwise`.
    pub(crate) async fn txn(&self, when: Vec<Compare>, then: Vec<Op>, otherwise: Vec<Op>) -> Result<Outcome> {
        let after = BootClock.now();
        let answer: TxnResponse = self.unary("/etcdserverpb.KV/Txn", transaction(when, then, otherwise)).await?;
        let Header { revision, term } = answer.header.ok_or_else(|| missing("a revision"))?;
        let majority = Majority { after, term };
        let (succeeded, within) = (answer.succeeded, answer.has_succeeded_within());
        Ok(Outcome { succeeded, within, revision, majority, reads: answer.reads() })
    }

    /// One atomic step with a shortcut: `then` if `short` holds, else the whole transaction. The shortcut costs the server
    /// less.
    pub(crate) async fn txn_or(&self, short: Compare, then: Vec<Op>, whole: TxnRequest) -> Result<Outcome> {
        let after = BootClock.now();
        let shortcut = transaction(vec![short], then, vec![Op::Txn(whole)]);
        let answer: TxnResponse = self.unary("/etcdserverpb.KV/Txn", shortcut).await?;
        let Header { revision, term } = answer.header.ok_or_else(|| missing("a revision"))?;
        let (majority, within) = (Majority { after, term }, answer.has_succeeded_within());
        let succeeded = answer.succeeded || within;
        Ok(Outcome { succeeded, within, revision, majority, reads: answer.reads() })
    }

    /// Reads a range at one revision, and says at which.
    pub(crate) async fn read(&self, range: &Range) -> Result<(i64, Vec<KeyValue>)> {
        self.read_at(range, 0).await
    }

    /// Reads a range at this revision; zero = the present one.
    pub(crate) async fn read_at(&self, range: &Range, mut revision: i64) -> Result<(i64, Vec<KeyValue>)> {
        let (mut key, mut kvs) = (range.key.clone(), Vec::new());
        loop {
            let range_end = range.end.clone();
            let page =
                self.range(RangeRequest { key, range_end, limit: PAGE, revision, ..RangeRequest::default() }).await?;
            if revision == 0 {
                revision = page.header.ok_or_else(|| missing("a revision"))?.revision;
            }
            kvs.extend(page.kvs);
            match kvs.last() {
                Some(last) if page.more => key = [&last.key[..], &[0]].concat(),
                _ => return Ok((revision, kvs)),
            }
        }
    }

    pub(crate) async fn range(&self, request: RangeRequest) -> Result<RangeResponse> {
        self.unary("/etcdserverpb.KV/Range", request).await
    }

    /// A new lease of at least `seconds`.
    pub(crate) async fn grant(&self, seconds: u64) -> Result<Leased> {
        let from = BootClock.now();
        let request = LeaseGrantRequest { ttl: i64::try_from(seconds).unwrap_or(i64::MAX) };
        let granted: LeaseLife = self.unary("/etcdserverpb.Lease/LeaseGrant", request).await?;
        Ok(Leased { id: granted.id, seconds, ttl: lived(granted.ttl), from, term: None })
    }

    /// Revokes a lease with everything on it; it need not exist.
    pub(crate) async fn revoke(&self, id: i64) -> Result<()> {
        let _: Nothing = self.unary("/etcdserverpb.Lease/LeaseRevoke", LeaseId { id }).await?;
        Ok(())
    }

    /// How long a lease will live without a keep-alive.
    pub(crate) async fn left(&self, id: i64) -> Result<Duration> {
        counted(&self.life(id).await?)
    }

    /// The TTL of a lease, from its last keep-alive on; zero if it is over.
    pub(crate) async fn whole(&self, id: i64) -> Result<Duration> {
        Ok(lived(self.life(id).await?.granted))
    }

    async fn life(&self, id: i64) -> Result<LeaseLeft> {
        self.unary("/etcdserverpb.Lease/LeaseTimeToLive", LeaseId { id }).await
    }

    /// Keeps leases alive in one request: since when, and the answer for each. The member that answers may have been
    /// deposed as leader without knowing it.
    pub(crate) async fn keep_alive(&self, leases: Vec<i64>) -> Result<(Moment, HashMap<i64, KeepAlive>)> {
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

    async fn extend(&self, leases: &[i64], pass: &Pass) -> Result<HashMap<i64, KeepAlive>, Status> {
        let requests: Vec<_> = leases.iter().map(|id| LeaseId { id: *id }).collect();
        let path = "/etcdserverpb.Lease/LeaseKeepAlive";
        let (mut answers, ..) = stream::<_, LeaseLife>(&self.members, path, tokio_stream::iter(requests), pass).await?;
        let mut lives = HashMap::with_capacity(leases.len());
        while let Some(life) = answers.message().await? {
            let term = life.header.unwrap_or_default().term;
            lives.insert(life.id, KeepAlive { ttl: lived(life.ttl), term });
        }
        Ok(lives)
    }

    pub(crate) async fn watch(&self, watches: Vec<WatchRequest>) -> Result<Watching> {
        let pass = self.pass().await?;
        let (open, until) = oneshot::channel();
        let requests = OpenRequests { requests: watches.into(), until };
        let opened = stream(&self.members, "/etcdserverpb.Watch/Watch", requests, &pass).await;
        let (answers, left, _) = opened.map_err(failed)?;
        Ok(Watching { answers, left, pass, open })
    }

    /// Opens a watch for a turn, and waits for its confirmation. It is hardly ever one of the past
    /// ([`open_in_time`]).
    pub(crate) async fn watch_turn(&self, create: WatchCreate) -> Result<(TurnWatch, WatchResponse)> {
        let pass = self.pass().await?;
        // If its member is silent, the stream is left for another one.
        drop(self.members.begin());
        let stream = self.turn_stream(pass);
        let request = || Ok(Requesting { to: Some(self.members.begin()), watch: stream.watch(create.clone())? });
        let (opened, confirmed) = open_in_time(request).await?;
        Ok((opened.watch, confirmed))
    }

    /// A watch of this key that was kept after an earlier wait, and the revision of the last change that it has
    /// reported.
    pub(crate) async fn resume_turn(&self, key: &[u8]) -> Result<Option<(TurnWatch, i64)>> {
        let pass = self.pass().await?;
        let turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = turns.as_ref().filter(|stream| stream.pass == pass && !stream.has_ended());
        Ok(stream.and_then(|stream| stream.resume(key)))
    }

    /// The stream for turns that is open.
    #[cfg(test)]
    pub(crate) fn open_turns(&self) -> Option<Arc<TurnStream>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The stream for turns: another one if it has ended, or was opened with another token.
    fn turn_stream(&self, pass: Pass) -> Arc<TurnStream> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        match &*turns {
            Some(stream) if stream.pass == pass && !stream.has_ended() => stream.clone(),
            _ => turns.insert(Arc::new(TurnStream::open(self.members.clone(), pass))).clone(),
        }
    }

    /// Reads a key from this member alone, and the revision at which it has it.
    pub(crate) async fn peek(&self, member: &Channel, pass: &Pass, key: &Range) -> Result<RangeResponse, Status> {
        let (key, serializable, keys_only) = (key.key.clone(), true, true);
        let request = RangeRequest { key, serializable, keys_only, ..RangeRequest::default() };
        let mut client = Grpc::new(member.clone());
        client.ready().await.map_err(|error| Status::from_error(error.into()))?;
        let (path, codec) = (PathAndQuery::from_static("/etcdserverpb.KV/Range"), ProstCodec::default());
        let answer: tonic::Response<RangeResponse> = client.unary(with_token(request, pass), path, codec).await?;
        Ok(answer.into_inner())
    }
}

/// A watch for a turn, and its request until it is confirmed: a member that does not confirm it has fallen silent.
struct Requesting<'a> {
    watch: TurnWatch,
    to: Option<InFlight<'a>>,
}

impl Requested for Requesting<'_> {
    async fn confirmed(&mut self) -> Result<WatchResponse> {
        let confirmed = self.watch.confirmed().await?;
        if let Some(to) = self.to.take() {
            to.answered();
        }
        Ok(confirmed)
    }
}

async fn client(to: &InFlight<'_>) -> Result<Grpc<Channel>, Status> {
    let mut client = Grpc::new(to.channel.clone()).max_decoding_message_size(LARGEST_ANSWER);
    let ready = client.ready().await;
    ready.map_err(|error| Status::from_error(error.into())).inspect_err(|_| to.failed())?;
    Ok(client)
}

/// Opens a stream in both directions, with a future that resolves when requests go to another member.
pub(crate) async fn stream<Q, A>(
    members: &Members,
    path: &'static str,
    requests: impl futures_core::Stream<Item = Q> + Send + 'static,
    pass: &Pass,
) -> Result<(Streaming<A>, BoxFuture<()>, Channel), Status>
where
    Q: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    let codec = ProstCodec::<Q, A>::default();
    let (path, to) = (PathAndQuery::from_static(path), members.begin());
    let mut request = with_token(requests, pass);
    // A member without a leader receives no changes: it is to end the watch instead of keeping silent.
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    let gone = to.left();
    let answers = client(&to).await?.streaming(request, path, codec).await;
    Ok((answers.inspect_err(|status| left(&to, status))?.into_inner(), gone, to.channel.clone()))
}

fn with_token<T>(message: T, pass: &Pass) -> Request<T> {
    let mut request = Request::new(message);
    if let Pass::Token(token) = pass {
        request.metadata_mut().insert("token", token.clone());
    }
    request
}

/// Whether the member itself sent this status. A status that the client made of a failed connection has the failure as
/// its source.
fn is_said(status: &Status) -> bool {
    std::error::Error::source(status).is_none()
}

/// Leaves a member that failed a request that another may answer.
fn left(to: &InFlight<'_>, status: &Status) {
    use Code::{Aborted, Cancelled, DeadlineExceeded, FailedPrecondition, Internal, Unavailable, Unknown};
    let elsewhere = match status.code() {
        Aborted | Cancelled | DeadlineExceeded | Internal | Unavailable | Unknown => true,
        // A learner does not vote and serves no requests yet (from 3.6 on; earlier versions answer "unavailable").
        FailedPrecondition => !is_without_users(status),
        _ => false,
    };
    if elsewhere {
        to.failed();
    }
}

/// What is left of a lease. A member that was just elected, or that was deposed and does not know it, does not count
/// leases down: it reports a huge rest (servers before 3.4.32 and 3.5.14). A new leader adds one election timeout at
/// most.
fn counted(life: &LeaseLeft) -> Result<Duration> {
    if life.ttl > life.granted.saturating_add(LONGEST_ELECTION) {
        return Err(Error::unreachable("no leader counts this lease down").on(SCHEME));
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
    fn a_lease_that_no_leader_counts_is_not_believed() {
        let left = |ttl| counted(&LeaseLeft { ttl, granted: 30 });
        assert_eq!(left(12).unwrap(), Duration::from_secs(12));
        // A new leader gives every lease an election timeout more.
        assert_eq!(left(40).unwrap(), Duration::from_secs(40));
        assert_eq!(left(-1).unwrap(), Duration::ZERO);
        assert_eq!(left(i64::MAX / 1_000_000_000).unwrap_err().kind(), ErrorKind::Unreachable);
    }
}
