//! Arithmetic on slices: distances, codes, top-k.
//!
//! Nothing here does I/O, keeps state or starts threads. Each SIMD form has a scalar twin that gives the same bits:
//! floating-point sums run in 16 lanes (element `i` goes to lane `i % 16`), every lane accumulates with a fused
//! multiply-add, and the lanes are folded in one fixed order (8, 4, 2, 1). Batons between machines depend on equal
//! distances.
//!
//! Rows are little-endian bytes, because they are scored inside the page that was read; alignment is never
//! assumed.

#[cfg(not(target_endian = "little"))]
compile_error!("StratANN's files and kernels are little-endian");

pub mod bits;
pub mod centroids;
pub mod coder;
pub mod columns;
pub mod distance;
pub mod element;
pub mod isa;
pub mod nearest;
mod prefetch;
pub mod product;
pub mod topk;
pub mod trained_codes;

pub use element::{DType, Metric};
pub use prefetch::prefetch;

/// Square root, for crates without std.
pub fn sqrt(x: f32) -> f32 {
    x.sqrt()
}
