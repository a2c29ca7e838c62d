//! Live collections: what changes, beside the segments that never do.
//!
//! [`rows`] keeps whatever segments lack, in one storage engine for a data folder. [`collections`] has the newest
//! points of each collection in memory, and searches them. [`points`] are those of an index that does not change.

pub mod collections;
pub mod points;
pub mod rows;
mod segments;
