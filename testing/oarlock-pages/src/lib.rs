//! The Rust programs of the pages, as doctests: `cargo test -p oarlock-pages --doc`.
//!
//! The build script finds the pages: the READMEs, and those in `docs`. A new page needs no line here.

#![allow(non_camel_case_types, reason = "the items are named after the files of the pages")]

include!(concat!(env!("OUT_DIR"), "/pages.rs"));
