//! What a query does, without doing it.
//!
//! A query is plain data with one transition, [`query::QueryState::step`]. It asks for bytes ([`query::Want`]), is
//! told what arrived ([`query::Arrival`]), and goes through three rooms:
//!
//! 1. **route** (cheap, in RAM): where to look. [`route`] walks a small graph over a sample of the rows.
//! 2. **access** (costly): what to read next. [`access`] picks blocks on the disk graph, or scans all of them.
//! 3. **verify** (exact): [`verify`] scores the full vectors that came with the blocks and keeps the best k.
//!
//! [`plan`] says for each kind of index which rooms it uses. [`format`](mod@format) is the law of the bytes;
//! [`build`] holds the pure steps of making a graph; [`check`] knows what must hold in a finished index.
//! Nothing here reads, waits, or looks at a clock, and nothing here fails: what was lost arrives as data.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod access;
pub mod build;
pub mod check;
pub mod codec;
pub mod format;
pub mod hash;
mod order;
pub mod peer;
pub mod place;
pub mod plan;
pub mod query;
pub mod route;
pub mod search;
pub mod verify;
pub mod view;

/// Bytes of the unit that disks are asked for.
pub const PAGE: usize = 4096;
