//! Points as people have them: files are read as streams of ids, vectors and payloads.
//!
//! | file | ids, vectors and payloads |
//! |---|---|
//! | `.parquet`; `.arrow`, `.feather`, `.ipc`, `.arrows` (Arrow IPC: file or stream) | columns |
//! | `.jsonl`, `.ndjson` | an object on each line: `{"id": 7, "vector": [0.5, 1], "payload": {"title": "x"}}` |
//! | `.npy` and the other vector files | vectors alone |
//!
//! | module | content |
//! |---|---|
//! | [`lines`] | lines of a text file, one at a time |
//! | [`mod@file`] | which columns are read, and the rows of any file |
//! | [`cast`] | components of vectors become the type of a collection, or are refused |
//! | `columns` | rows of Arrow columns: roles, ids, vectors, payloads |
//! | [`export`] | points as a Parquet file |
//! | [`spool`] | points of a file, for an index that keeps them |
//!
//! Vectors can have names: then there is a column for each name, a line has `{"vectors": {"title": [0.5, 1]}}`, and a
//! row may lack any of them. Files of vectors alone have none.
//!
//! Memory is bounded by one batch, which has limits of rows and of bytes: a row group is read page by page, and of an
//! Arrow file one record batch at a time. What cannot be represented is an error that names file, row and column;
//! nothing is left out silently.

#![forbid(unsafe_code)]

mod arrays;
mod arrow_files;
pub mod cast;
mod columns;
pub mod export;
pub mod file;
mod json_lines;
pub mod lines;
pub mod spool;

pub use file::{Columns, FileRows, PayloadColumns, Rows, Total, VectorColumn, Wanted, open, shapes_of};
