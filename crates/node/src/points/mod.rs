//! Points of an index in a folder: ids of any form and payloads beside its vectors, in the files that segments of
//! collections have, by the rows of the index.
//!
//! [`Spool`] reads them in the order of a file, before the index is built. [`Points`] are those of a published index.

mod ids;
mod open;
mod spool;
mod temporary;

pub use open::{Matching, Points, Spend};
pub use spool::{Spool, SpooledPoints, check_kind};
