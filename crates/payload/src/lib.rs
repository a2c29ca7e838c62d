//! Payloads of points, filters over them, and files of a segment that answer filters.
//!
//! | module | content |
//! |---|---|
//! | [`value`] | a payload: a JSON object with limits, and its updates |
//! | [`path`] | `a.b`, `a[].b`, `a[0]`: where in a payload |
//! | [`filter`] | a filter as users write it: JSON in Qdrant's form, or [`mod@where_text`] |
//! | [`predicate`] | a filter compiled: one form for all equal filters, with a key |
//! | [`index`] | rows of a segment that match, from dictionaries and bitmaps on disk |
//! | [`rows`] | payloads of a segment's rows, compressed in blocks |
//!
//! ```
//! use stratann_payload::{Filter, IdValue, Payload, PointFacts};
//!
//! struct Point(u64);
//!
//! impl PointFacts for Point {
//!     fn has_id(&self, id: &IdValue) -> bool {
//!         *id == IdValue::Number(self.0)
//!     }
//!
//!     fn has_vector(&self, name: &str) -> bool {
//!         name == "image"
//!     }
//! }
//!
//! # fn main() -> stratann_storage::Result<()> {
//! let payload = Payload::parse(br#"{"price": 40, "brands": ["x", "y"]}"#)?;
//! let one = Filter::from_where("price < 50 and brands = 'x'")?.compile();
//! let json = br#"{"must": [{"key": "brands", "match": {"any": ["x"]}}, {"key": "price", "range": {"lt": 50.0}}]}"#;
//! let two = Filter::from_json(json)?.compile();
//! assert!(one.matches(&payload, &Point(7)));
//! assert_eq!(one.key(), two.key());
//! # Ok(())
//! # }
//! ```
//!
//! A segment has two files, which never change. [`index::IndexBuilder`] and [`rows::RowsWriter`] write them while its
//! rows come by; a new schema writes another index. To search, compile the filter,
//! [evaluate](index::PayloadIndex::evaluate) it, put newer payloads [over it](index::Evaluated::overlaid),
//! [decide](index::Evaluated::decide) open rows, and make [a sieve](index::sieve_of). Points in memory are asked one by
//! one.
//!
//! A filter is decided in three ways that agree: [`filter::Filter::matches`] is the plain definition,
//! [`predicate::Predicate::matches`] decides one payload quickly, and [`index::PayloadIndex::evaluate`] decides all
//! rows of a segment, apart from some that [`index::Evaluated::decide`] reads.

#![forbid(unsafe_code)]

pub mod date;
pub mod filter;
pub mod id;
pub mod index;
pub mod number;
pub mod path;
pub mod predicate;
pub mod rows;
pub mod scalar;
pub mod schema;
mod stored;
pub mod value;
pub mod where_text;
pub mod words;

pub use filter::{Condition, Filter};
pub use id::IdValue;
pub use path::Path;
pub use predicate::Predicate;
pub use schema::{IndexKind, Schema};
pub use value::Payload;

/// Answers about a point that its payload does not have.
pub trait PointFacts {
    /// Whether the point has this external id.
    fn has_id(&self, id: &IdValue) -> bool;

    /// Whether the point has a vector of this name.
    fn has_vector(&self, name: &str) -> bool;
}
