//! Parts that decide what to read next, shared by the kinds.

pub(crate) mod blocks;
mod coded_query;
mod expected;
pub(crate) mod hnsw;

pub(crate) use coded_query::CodedQuery;
pub(crate) use expected::ExpectedDistances;
