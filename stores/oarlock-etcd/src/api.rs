//! The part of etcd's v3 API that is used here, by its public field numbers: written by hand, so that building needs no
//! compiler for interface descriptions.

/// The header of every answer.
#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub(crate) struct Header {
    #[prost(int64, tag = "3")]
    pub(crate) revision: i64,
    /// The term of the last change that the member has applied.
    #[prost(uint64, tag = "4")]
    pub(crate) term: u64,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub(crate) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub(crate) create_revision: i64,
    #[prost(int64, tag = "3")]
    pub(crate) mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub(crate) lease: i64,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub(crate) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(crate) limit: i64,
    #[prost(int64, tag = "4")]
    pub(crate) revision: i64,
    #[prost(int32, tag = "5")]
    pub(crate) sort_order: i32,
    #[prost(int32, tag = "6")]
    pub(crate) sort_target: i32,
    /// Answered by the member alone, from what it has applied so far.
    #[prost(bool, tag = "7")]
    pub(crate) serializable: bool,
    #[prost(bool, tag = "8")]
    pub(crate) keys_only: bool,
    #[prost(int64, tag = "13")]
    pub(crate) max_create_revision: i64,
}

/// In what order, and by what.
const ASCENDING: i32 = 1;
pub(crate) const DESCENDING: i32 = 2;
pub(crate) const BY_CREATION: i32 = 2;

#[derive(Clone, PartialEq, ::prost::Message)]
pub(crate) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub(crate) more: bool,
    /// How many keys there are in the range, whatever the limit.
    #[prost(int64, tag = "4")]
    pub(crate) count: i64,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub(crate) struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(crate) lease: i64,
    /// The key stays on the lease it is on.
    #[prost(bool, tag = "6")]
    pub(crate) ignore_lease: bool,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub(crate) struct DeleteRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
}

/// An answer whose content is not needed.
#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub(crate) struct Nothing {}

#[derive(Clone, PartialEq, ::prost::Message)]
pub(crate) struct RequestOp {
    #[prost(oneof = "Op", tags = "1, 2, 3, 4")]
    pub(crate) op: Option<Op>,
}

#[derive(Clone, PartialEq, ::prost::Oneof)]
pub(crate) enum Op {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    Delete(DeleteRequest),
    #[prost(message, tag = "4")]
    Txn(TxnRequest),
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub(crate) struct ResponseOp {
    #[prost(oneof = "Done", tags = "1, 4")]
    pub(crate) done: Option<Done>,
}

#[derive(Clone, PartialEq, ::prost::Oneof)]
pub(crate) enum Done {
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    #[prost(message, tag = "4")]
    Txn(TxnResponse),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ::prost::Enumeration)]
#[repr(i32)]
pub(crate) enum Is {
    Equal = 0,
    Greater = 1,
    Less = 2,
    NotEqual = 3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ::prost::Enumeration)]
#[repr(i32)]
pub(crate) enum Of {
    Version = 0,
    Create = 1,
    Mod = 2,
    Value = 3,
}

/// A condition on a key, or on every key of a range; a key that is not there has revision zero.
#[derive(Clone, PartialEq, ::prost::Message)]
pub(crate) struct Compare {
    #[prost(enumeration = "Is", tag = "1")]
    pub(crate) is: i32,
    #[prost(enumeration = "Of", tag = "2")]
    pub(crate) of: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) key: Vec<u8>,
    #[prost(oneof = "Than", tags = "5, 6, 7")]
    pub(crate) than: Option<Than>,
    #[prost(bytes = "vec", tag = "64")]
    pub(crate) range_end: Vec<u8>,
}

#[derive(Clone, PartialEq, ::prost::Oneof)]
pub(crate) enum Than {
    #[prost(int64, tag = "5")]
    Create(i64),
    #[prost(int64, tag = "6")]
    Mod(i64),
    #[prost(bytes = "vec", tag = "7")]
    Value(Vec<u8>),
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub(crate) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub(crate) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
    #[prost(bool, tag = "2")]
    pub(crate) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(crate) responses: Vec<ResponseOp>,
}

/// A lease by its id: to be revoked, kept alive or asked about.
#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub(crate) struct LeaseId {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub(crate) struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    pub(crate) ttl: i64,
}

/// A lease and its seconds: granted, kept alive, or left.
#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub(crate) struct LeaseLife {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
    #[prost(int64, tag = "2")]
    pub(crate) id: i64,
    #[prost(int64, tag = "3")]
    pub(crate) ttl: i64,
}

/// What is left of a lease, and what it is worth whenever it is kept alive.
#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub(crate) struct LeaseLeft {
    #[prost(int64, tag = "3")]
    pub(crate) ttl: i64,
    #[prost(int64, tag = "4")]
    pub(crate) granted: i64,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub(crate) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) password: String,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub(crate) struct AuthenticateResponse {
    #[prost(string, tag = "2")]
    pub(crate) token: String,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub(crate) struct WatchRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) create: Option<WatchCreate>,
    #[prost(message, optional, tag = "2")]
    pub(crate) cancel: Option<WatchCancel>,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub(crate) struct WatchCancel {
    #[prost(int64, tag = "1")]
    pub(crate) watch_id: i64,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub(crate) struct WatchCreate {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) range_end: Vec<u8>,
    /// The revision to begin with; zero = the next change.
    #[prost(int64, tag = "3")]
    pub(crate) start_revision: i64,
    /// Events that the server leaves out.
    #[prost(int32, repeated, tag = "5")]
    pub(crate) filters: Vec<i32>,
    /// Every event shows the key as it was before, too.
    #[prost(bool, tag = "6")]
    pub(crate) prev_kv: bool,
}

impl WatchCreate {
    /// Every change of these keys from now on.
    pub(crate) fn of(range: &Range) -> Self {
        Self { key: range.key.clone(), range_end: range.end.clone(), ..Self::default() }
    }
}

/// The filter that leaves out writes.
pub(crate) const NO_PUT: i32 = 0;

#[derive(Clone, PartialEq, ::prost::Message)]
pub(crate) struct WatchResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
    /// Its number on this stream.
    #[prost(int64, tag = "2")]
    pub(crate) watch_id: i64,
    #[prost(bool, tag = "3")]
    pub(crate) created: bool,
    #[prost(bool, tag = "4")]
    pub(crate) canceled: bool,
    /// Why it was.
    #[prost(string, tag = "6")]
    pub(crate) reason: String,
    #[prost(message, repeated, tag = "11")]
    pub(crate) events: Vec<Event>,
}

/// The type of an event that is not a write.
pub(crate) const DELETED: i32 = 1;

#[derive(Clone, PartialEq, ::prost::Message)]
pub(crate) struct Event {
    #[prost(int32, tag = "1")]
    pub(crate) what: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) kv: Option<KeyValue>,
    /// The key as it was before; `None` if that was compacted away.
    #[prost(message, optional, tag = "3")]
    pub(crate) prev_kv: Option<KeyValue>,
}

impl TxnResponse {
    /// Whether a transaction right within it found its conditions met.
    pub(crate) fn has_succeeded_within(&self) -> bool {
        self.responses.iter().any(|response| matches!(&response.done, Some(Done::Txn(within)) if within.succeeded))
    }

    /// What was read, by the transactions within it too.
    pub(crate) fn reads(self) -> Vec<RangeResponse> {
        let done = self.responses.into_iter().filter_map(|response| response.done);
        let reads = done.flat_map(|done| match done {
            Done::Range(range) => vec![range],
            Done::Txn(within) => within.reads(),
        });
        reads.collect()
    }
}

impl From<Op> for RequestOp {
    fn from(op: Op) -> Self {
        Self { op: Some(op) }
    }
}

impl Compare {
    fn new(range: &Range, of: Of, is: Is, than: Than) -> Self {
        let (key, range_end) = (range.key.clone(), range.end.clone());
        Self { is: is.into(), of: of.into(), key, than: Some(than), range_end }
    }

    /// Every key there is was created at a revision that `is` to `than`.
    pub(crate) fn created(range: &Range, is: Is, than: i64) -> Self {
        Self::new(range, Of::Create, is, Than::Create(than))
    }

    /// Every key there holds a value that `is` to `than`, byte by byte; one that is not there does not.
    pub(crate) fn holds(range: &Range, is: Is, than: Vec<u8>) -> Self {
        Self::new(range, Of::Value, is, Than::Value(than))
    }

    /// Every key there was last changed at a revision that `is` to `than`.
    pub(crate) fn changed(range: &Range, is: Is, than: i64) -> Self {
        Self::new(range, Of::Mod, is, Than::Mod(than))
    }
}

/// A key, or all keys from `key` up to `end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) key: Vec<u8>,
    pub(crate) end: Vec<u8>,
}

impl Range {
    /// One key.
    pub(crate) fn key(key: impl Into<Vec<u8>>) -> Self {
        Self { key: key.into(), end: Vec::new() }
    }

    /// Everything below `folder`, which ends with a slash.
    pub(crate) fn under(folder: &str) -> Self {
        let mut end = folder.as_bytes().to_vec();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        Self { key: folder.as_bytes().to_vec(), end }
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        if self.end.is_empty() { key == self.key } else { *self.key <= *key && *key < *self.end }
    }

    /// The last few that were created.
    pub(crate) fn newest(&self, limit: i64) -> Op {
        self.sorted(DESCENDING, limit)
    }

    /// The first few that were created.
    pub(crate) fn oldest(&self, limit: i64) -> Op {
        self.sorted(ASCENDING, limit)
    }

    /// The keys that were created before `revision`, without their values.
    pub(crate) fn created_before(&self, revision: i64) -> Op {
        let (key, range_end, max_create_revision) = (self.key.clone(), self.end.clone(), revision - 1);
        Op::Range(RangeRequest { key, range_end, keys_only: true, max_create_revision, ..RangeRequest::default() })
    }

    fn sorted(&self, sort_order: i32, limit: i64) -> Op {
        let (key, range_end, sort_target) = (self.key.clone(), self.end.clone(), BY_CREATION);
        Op::Range(RangeRequest { key, range_end, limit, sort_order, sort_target, ..RangeRequest::default() })
    }

    pub(crate) fn get(&self) -> Op {
        Op::Range(RangeRequest { key: self.key.clone(), range_end: self.end.clone(), ..RangeRequest::default() })
    }
}
