//! The decisions of queries, without I/O.
//!
//! A query is plain data with one transition, [`query::QueryState::step`]. It asks for bytes ([`query::Want`]),
//! receives them ([`query::Arrival`]), and goes through three rooms:
//!
//! 1. **route** (cheap, in RAM): where to look. [`route`] walks a small graph over a sample of the rows.
//! 2. **access** (costly): what to read next. [`access`] chooses blocks or inverted lists by code distances.
//! 3. **verify** (exact): [`exact`] scores the vectors that were read and keeps the best k.
//!
//! [`kinds`] has the kinds of index and the rooms that each uses. [`format`](mod@format) defines the layout of bytes,
//! [`build`] has the pure steps of a build, [`check`] the conditions that a finished index meets, and [`delta`] the
//! points of a live collection that are in memory.
//! There is no I/O, no clock and no waiting. A read that failed arrives as data, so a step cannot fail.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod access;
pub mod build;
pub mod check;
pub mod codec;
pub mod delta;
pub mod exact;
pub mod format;
pub mod hash;
pub mod kinds;
mod order;
pub mod peer;
pub mod place;
pub mod query;
pub mod remote_protocol;
pub mod route;
pub mod score;
pub mod search;
pub mod sieve;
pub mod view;

/// Bytes of the unit that disks are asked for.
pub const PAGE: usize = 4096;
