//! `flat`: all vectors, scanned.

pub(crate) mod build;
