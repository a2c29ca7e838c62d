//! Collections of points that change, on the rows of a data folder.
//!
//! A change is one atomic batch of rows, durable before its caller gets the reply, and searchable from then on. Points
//! live in the tail of the rows and, while a collection is open, in its delta in memory.

mod budget;
mod by_filter;
mod catalogue;
mod collection;
mod delta;
mod error;
mod estimate;
mod json;
mod limits;
mod live;
mod node;
mod options;
mod order;
mod ordered;
mod parts;
mod point;
mod salvage;
#[cfg(test)]
mod seeds;
mod sieves;
mod spec;
mod verify;
mod work;

pub use by_filter::{Chosen, Counted, DeletedMatching};
pub use collection::{Collection, Facts, Found, IndexFacts, LIMIT_MAX, Page, SegmentFacts};
pub use delta::{DeltaStats, Hit, Point};
pub use error::{Error, Kind, Result};
pub use estimate::Estimated;
pub use json::{PayloadJson, VectorJson};
pub use limits::MemoryLimits;
pub use live::JobFacts;
pub use node::{Dropped, Info, Node, Options};
pub use options::{SearchOptions, SegmentOptions};
pub use order::OrderBy;
pub use ordered::{OrderStats, OrderedPage};
pub use sieves::FilterStats;
pub use spec::{DIM_MAX, NAME_BYTES_MAX, NamedSpec, Spec, Specs, VECTOR_NAMES_MAX};
pub use verify::Verified;
pub use work::{Condition, Deleted, GivenVectors, PayloadChanged, Upserted, VectorsChanged};
