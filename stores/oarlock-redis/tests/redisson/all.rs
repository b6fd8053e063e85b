//! Objects that programs of Redisson use too: what is stored and said is compared with what they store and say.

mod cluster;
mod listener;
mod lock;
mod shares;
