//! Parts that the fuzz targets share.
//!
//! Checksums and lengths guard most content. A target recomputes them over the mutated bytes ([`seal`]), so that the
//! fuzzer tests the decoder behind them. Where a decoder is private, the bytes go to a file of a small index
//! ([`place`]), which is then opened.

pub mod edits;
pub mod payloads;
pub mod place;
pub mod run;
pub mod seal;
