//! One client's way to the cluster: requests, and nothing about locks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::uri::PathAndQuery;
use oarlock_core::clock::{BootClock, Clock, Moment};
use oarlock_core::{Error, ErrorKind, Result};
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

use crate::api::{
    Compare, Done, LeaseGrantRequest, LeaseId, LeaseLife, Nothing, Op, Range, RangeRequest, RangeResponse, TxnRequest,
    TxnResponse, WatchRequest, WatchResponse,
};
use crate::config::Config;
use crate::error::{SCHEME, closed, failed, strange};
use crate::lease::Leased;

/// Servers end connections that ask for a sign of life more often than every 5 s.
const PING_AFTER: Duration = Duration::from_secs(6);
const PONG_WITHIN: Duration = Duration::from_secs(4);

/// A listing of many thousand claims is larger than what is taken for granted.
const LARGEST_ANSWER: usize = 256 << 20;

/// The most keys asked for at once.
const PAGE: i64 = 2000;

/// What is open.
#[derive(Debug)]
pub(crate) struct Link {
    channel: Channel,
    closed: AtomicBool,
}

/// What a transaction found.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) succeeded: bool,
    pub(crate) revision: i64,
    /// One for each key or range that was read.
    pub(crate) reads: Vec<RangeResponse>,
}

impl Link {
    pub(crate) async fn open(config: &Config) -> Result<Self> {
        let wrong =
            |error| Error::new(ErrorKind::Config, "this is not the address of a member").on(SCHEME).because(error);
        let endpoint = |member: &String| {
            let endpoint = Endpoint::from_shared(format!("http://{member}")).map_err(wrong)?;
            Ok(endpoint
                .connect_timeout(config.connect_timeout)
                .http2_keep_alive_interval(PING_AFTER)
                .keep_alive_timeout(PONG_WITHIN))
        };
        let members = config.members.iter().map(endpoint).collect::<Result<Vec<_>>>()?;
        let channel = match &members[..] {
            [] => return Err(Error::new(ErrorKind::Config, "no member is named").on(SCHEME)),
            [only] => only.connect_lazy(),
            several => Channel::balance_list(several.iter().cloned()),
        };
        let link = Self { channel, closed: AtomicBool::new(false) };
        // Nothing is promised before somebody answered.
        link.txn(Vec::new(), vec![Range::key(config.prefix.clone()).get()], Vec::new()).await?;
        Ok(link)
    }

    pub(crate) fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) { Err(closed()) } else { Ok(()) }
    }

    async fn ready(&self) -> Result<Grpc<Channel>> {
        let mut client = Grpc::new(self.channel.clone()).max_decoding_message_size(LARGEST_ANSWER);
        client.ready().await.map_err(|error| Error::unreachable("no connection").on(SCHEME).because(error))?;
        Ok(client)
    }

    async fn ask<Q, A>(&self, path: &'static str, question: Q) -> Result<A>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let codec = ProstCodec::<Q, A>::default();
        let path = PathAndQuery::from_static(path);
        let answer = self.ready().await?.unary(Request::new(question), path, codec).await;
        answer.map(tonic::Response::into_inner).map_err(failed)
    }

    /// One atomic step: `then` if every condition is met, else `otherwise`.
    pub(crate) async fn txn(&self, when: Vec<Compare>, then: Vec<Op>, otherwise: Vec<Op>) -> Result<Outcome> {
        let answer: TxnResponse = self.ask("/etcdserverpb.KV/Txn", transaction(when, then, otherwise)).await?;
        let revision = answer.header.ok_or_else(|| strange("a revision"))?.revision;
        let reads = answer.responses.into_iter().filter_map(|response| response.done);
        let reads = reads.map(|Done::Range(range)| range).collect();
        Ok(Outcome { succeeded: answer.succeeded, revision, reads })
    }

    /// Everything there, as of one revision, and which.
    pub(crate) async fn read(&self, range: &Range) -> Result<(i64, Vec<crate::api::KeyValue>)> {
        let (mut key, mut revision, mut kvs) = (range.key.clone(), 0, Vec::new());
        loop {
            let question = RangeRequest { key, range_end: range.end.clone(), limit: PAGE, revision };
            let page: RangeResponse = self.ask("/etcdserverpb.KV/Range", question).await?;
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

    /// A new lease of at least `seconds`.
    pub(crate) async fn grant(&self, seconds: u64) -> Result<Leased> {
        let from = BootClock.now();
        let question = LeaseGrantRequest { ttl: i64::try_from(seconds).unwrap_or(i64::MAX) };
        let granted: LeaseLife = self.ask("/etcdserverpb.Lease/LeaseGrant", question).await?;
        Ok(Leased { id: granted.id, seconds, ttl: lived(granted.ttl), from })
    }

    /// Ends a lease and everything on it; one that is not there is fine.
    pub(crate) async fn revoke(&self, id: i64) -> Result<()> {
        let _: Nothing = self.ask("/etcdserverpb.Lease/LeaseRevoke", LeaseId { id }).await?;
        Ok(())
    }

    /// How long a lease will live if nobody keeps it alive.
    pub(crate) async fn left(&self, id: i64) -> Result<Duration> {
        let life: LeaseLife = self.ask("/etcdserverpb.Lease/LeaseTimeToLive", LeaseId { id }).await?;
        Ok(lived(life.ttl))
    }

    /// Keeps leases alive, all in one go: since when, and how long each lives from there; zero if it is over.
    pub(crate) async fn keep_alive(&self, leases: Vec<i64>) -> Result<(Moment, HashMap<i64, Duration>)> {
        let from = BootClock.now();
        let mut lives = HashMap::with_capacity(leases.len());
        if leases.is_empty() {
            return Ok((from, lives));
        }
        let questions = tokio_stream::iter(leases.into_iter().map(|id| LeaseId { id }).collect::<Vec<_>>());
        let path = PathAndQuery::from_static("/etcdserverpb.Lease/LeaseKeepAlive");
        let codec = ProstCodec::<LeaseId, LeaseLife>::default();
        let answers = self.ready().await?.streaming(Request::new(questions), path, codec).await;
        let mut answers = answers.map_err(failed)?.into_inner();
        while let Some(life) = answers.message().await.map_err(failed)? {
            lives.insert(life.id, lived(life.ttl));
        }
        Ok((from, lives))
    }

    pub(crate) async fn watch(
        &self,
        questions: impl futures_core::Stream<Item = WatchRequest> + Send + 'static,
    ) -> Result<Streaming<WatchResponse>> {
        let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
        let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
        let mut request = Request::new(questions);
        // A member that has lost its leader hears of no change: it is to end the watch instead of keeping silent.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let answers = self.ready().await?.streaming(request, path, codec).await;
        answers.map(tonic::Response::into_inner).map_err(failed)
    }
}

fn lived(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

pub(crate) fn transaction(when: Vec<Compare>, then: Vec<Op>, otherwise: Vec<Op>) -> TxnRequest {
    let ops = |ops: Vec<Op>| ops.into_iter().map(Into::into).collect();
    TxnRequest { compare: when, success: ops(then), failure: ops(otherwise) }
}
