//! Immutable parts of a collection: an index of any kind, the ids of its rows, and how they are made.
//!
//! A segment is a folder. Nothing in it changes once the rows of the collection name it; which of its rows are dead is
//! in these rows.

mod content;
mod copy;
mod fold;
mod ids;
mod layout;
mod made;
mod merge;
mod named;
mod nearest;
mod overlay;
mod payloads;
mod policy;
mod scanned;
mod segment;
mod unfinished;

pub(crate) use copy::{LayoutCopy, Left};
pub(crate) use fold::fold;
pub(crate) use ids::{Entry, IdTable, IdWriter, Place};
pub(crate) use layout::{LARGEST, Layout, SegmentEntry};
pub(crate) use made::{Curves, Making, Point, VectorsMaking, from_points};
pub(crate) use merge::{Merged, Source, merge};
pub(crate) use named::{NamedIndex, missing};
pub(crate) use nearest::{Candidate, KSmallest};
pub(crate) use overlay::{Newer, Overlay};
pub(crate) use payloads::{Indexing, NewPayloads, Payloads, write_files};
pub(crate) use policy::{Level, Sized, next_merge, next_minor_merge};
pub(crate) use scanned::WantedRows;
pub(crate) use segment::{Segment, SegmentMemory, TakenMemory, VectorShapes, folder_of};
pub(crate) use unfinished::Unfinished;
