//! Live collections: what changes, beside the segments that never do.
//!
//! [`rows`] keeps whatever segments lack, in one storage engine for a data folder.

pub mod rows;
