//! Calls of the scripts of the native layout: each has one packed argument, because a server needs time for each.

use std::sync::Arc;

use oarlock_core::driver::{End, Fences, Renewal};
use oarlock_core::{Capacity, Claim, ClaimId, Limit, ResourceName, Weight};

use crate::Redis;
use crate::dispatch::{NativeCall, ScriptCall};
use crate::scripts::{Script, micros};

/// Numbers in a script are exact up to 2^53: no lease is this long, also when it is added to the time.
const LONGEST_MICROS: u64 = 1 << 52;

impl Redis {
    pub(crate) fn native_attempt(&self, claim: &Claim, sent: i64) -> ScriptCall {
        let NativeCall { mut call, tag } = self.pool.native_call(&self.scripts.attempt, &claim.resource);
        call.command.arg(self.native_attempt_request(claim, tag, sent));
        call
    }

    /// A release and an attempt in one call.
    pub(crate) fn native_joint(
        &self,
        script: &Arc<Script>,
        id: ClaimId,
        end: &End,
        next: &Claim,
        sent: i64,
    ) -> ScriptCall {
        let NativeCall { mut call, tag } = self.pool.native_call(script, &next.resource);
        call.command.arg(native_release_request(id, end)).arg(self.native_attempt_request(next, tag, sent));
        call
    }

    fn native_attempt_request(&self, claim: &Claim, tag: u8, sent: i64) -> Vec<u8> {
        let (said, limit) = match claim.capacity {
            Capacity::Any => (0, 1),
            Capacity::Fixed(limit) => (1, units(limit)),
            Capacity::Stored(limit) => (2, units(limit)),
        };
        let label = self.label(&claim.label);
        let mut request = Request::with_capacity(160 + label.len());
        request.byte(u8::from(claim.wait)).byte(said).u32(weight(claim.weight)).u32(limit).u32(claim.behind);
        request.span(micros(claim.ttl)).span(micros(claim.waiter_ttl())).i64(sent);
        request.id(claim.id).short(&self.pool.mailbox_of(tag)).tiny(claim.kind.as_str());
        request.optional(claim.value.as_deref().map(str::as_bytes)).long(label.as_bytes());
        request.0
    }

    pub(crate) fn native_renew(&self, renewal: &Renewal, sent: i64) -> ScriptCall {
        let Renewal { claim, fences, memo, keep, held, .. } = renewal;
        let (how, number) = match fences {
            Fences::Keep => (0, 0),
            Fences::AtLeast(fence) => (1, fence.get()),
            Fences::Reserve(count) => (2, u64::from(*count)),
        };
        let mut call = self.pool.native_call(&self.scripts.renew, &claim.resource).call;
        let mut request = Request::with_capacity(64);
        request.id(claim.id).u32(claim.behind).span(micros(claim.ttl)).span(micros(claim.waiter_ttl()));
        request.byte(how).u64(number).byte(u8::from(*held)).i64(sent);
        request.optional(claim.value.as_deref().map(str::as_bytes));
        if let Some(memo) = memo {
            request.span(micros(*keep)).bytes(memo);
        }
        call.command.arg(request.0);
        call
    }

    pub(crate) fn native_release(&self, name: &ResourceName, id: ClaimId, end: &End) -> ScriptCall {
        let mut call = self.pool.native_call(&self.scripts.release, name).call;
        call.command.arg(native_release_request(id, end));
        call
    }
}

fn native_release_request(id: ClaimId, end: &End) -> Vec<u8> {
    let mut request = Request::with_capacity(17);
    match end {
        End::Done { memo } => request.byte(0).id(id).rest(memo.as_deref()),
        End::Withdrawn => request.byte(1).id(id),
        End::Broken { ending, grace } => {
            request.byte(2).id(id).long(ending.by.as_bytes()).long(ending.why.as_bytes()).span(micros(*grace))
        }
    };
    request.0
}

/// The argument of a script, as its header says: numbers begin with their highest byte.
struct Request(Vec<u8>);

impl Request {
    fn with_capacity(size: usize) -> Self {
        Self(Vec::with_capacity(size))
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn byte(&mut self, byte: u8) -> &mut Self {
        self.bytes(&[byte])
    }

    fn u32(&mut self, number: u32) -> &mut Self {
        self.bytes(&number.to_be_bytes())
    }

    fn u64(&mut self, number: u64) -> &mut Self {
        self.bytes(&number.to_be_bytes())
    }

    fn i64(&mut self, number: i64) -> &mut Self {
        self.bytes(&number.to_be_bytes())
    }

    /// A number that the script may add to a time.
    fn span(&mut self, number: u64) -> &mut Self {
        self.u64(number.min(LONGEST_MICROS))
    }

    fn id(&mut self, id: ClaimId) -> &mut Self {
        self.bytes(&id.bits().to_be_bytes())
    }

    /// A text of at most 255 bytes: no kind is longer.
    fn tiny(&mut self, text: &str) -> &mut Self {
        let length = u8::try_from(text.len()).unwrap_or(u8::MAX);
        self.byte(length).bytes(text.as_bytes().get(..usize::from(length)).unwrap_or_default())
    }

    /// A text of at most 65,535 bytes: a longer channel would be another one, so there is none.
    fn short(&mut self, text: &str) -> &mut Self {
        let (length, text) = u16::try_from(text.len()).map_or((0, ""), |length| (length, text));
        self.bytes(&length.to_be_bytes()).bytes(text.as_bytes())
    }

    fn long(&mut self, bytes: &[u8]) -> &mut Self {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.u32(length).bytes(bytes)
    }

    /// Nothing, or `=` and the bytes.
    fn optional(&mut self, bytes: Option<&[u8]>) -> &mut Self {
        match bytes {
            None => self.u32(0),
            Some(bytes) => self.u32(u32::try_from(bytes.len() + 1).unwrap_or(u32::MAX)).byte(b'=').bytes(bytes),
        }
    }

    /// The same at the end, without its length.
    fn rest(&mut self, bytes: Option<&[u8]>) -> &mut Self {
        match bytes {
            None => self,
            Some(bytes) => self.byte(b'=').bytes(bytes),
        }
    }
}

/// A weight, for a script: 0 is everything.
pub(crate) fn weight(weight: Weight) -> u32 {
    match weight {
        Weight::All => 0,
        Weight::Units(units) => units.get(),
    }
}

/// A capacity, for a script: 0 is no limit.
pub(crate) fn units(limit: Limit) -> u32 {
    match limit {
        Limit::Unlimited => 0,
        Limit::Units(units) => units.get(),
    }
}
