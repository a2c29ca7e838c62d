//! Forms of every kernel, one table per instruction set, and the choice among them.

use super::narrow::Group;
use super::scalar;
use crate::isa::{self, Isa};
use std::sync::OnceLock;

/// Repeats the block for `$i` = 0, 1, … below `$n` <= 4, unrolled: with a loop over an array of registers, the compiler
/// keeps the array in registers only sometimes (depending on link-time optimisation).
macro_rules! unroll {
    ($i:ident < $n:expr, $body:block) => {
        const { assert!($n <= 4) };
        unroll!(@ $i 0 $n, $body);
        unroll!(@ $i 1 $n, $body);
        unroll!(@ $i 2 $n, $body);
        unroll!(@ $i 3 $n, $body);
    };
    (@ $i:ident $k:literal $n:expr, $body:block) => {
        if $k < $n {
            let $i = $k;
            $body
        }
    };
}
pub(crate) use unroll;

/// Size of the results of the largest tile.
pub(super) const TILE: usize = 16;

/// Rows that a strip scores against one query.
pub(super) const STRIP: usize = 4;

/// A query and a row; both are truncated to the shorter. Unsafe: the machine must have the table's instruction set.
pub(super) type Pair<Q, T> = unsafe fn(&[Q], &[u8]) -> T;

/// Queries and rows, `dim` components each; the results are row-major from the start of the array.
/// Panics where a slice is too short. Unsafe: the machine must have the table's instruction set.
pub(super) type Tile<Q, T> = unsafe fn(&[Q], &[u8], usize, &mut [T; TILE]);

/// A query and rows; all are truncated to the shortest. Unsafe: the machine must have the table's instruction set.
pub(super) type Gathered = unsafe fn(&[u8], [&[u8]; STRIP]) -> [u32; STRIP];

/// One kernel in all call forms; all give the same bits.
#[derive(Clone, Copy)]
pub(super) struct Forms<Q: 'static, T: 'static> {
    /// One query, one row.
    pub(super) pair: Pair<Q, T>,
    /// One query, [`STRIP`] rows.
    pub(super) strip: Tile<Q, T>,
    /// `shape.0` queries, `shape.1` rows.
    pub(super) tile: Tile<Q, T>,
    /// At most [`TILE`] pairs.
    pub(super) shape: (usize, usize),
}

/// Forms for blocks of few components.
pub(super) struct Narrow {
    pub(super) l2: [Group; 3],
    pub(super) dot: [Group; 3],
}

/// Bytes are compared as their bit patterns; the signed inner product is the bit pattern of an `i32`.
pub(super) struct Kernels {
    pub(super) l2_f32: Forms<f32, f32>,
    pub(super) dot_f32: Forms<f32, f32>,
    pub(super) l2_f16: Forms<f32, f32>,
    pub(super) dot_f16: Forms<f32, f32>,
    pub(super) dot_u8: Forms<u8, u32>,
    pub(super) dot_i8: Forms<u8, u32>,
    pub(super) l2_u8: Pair<u8, u32>,
    pub(super) l2_i8: Pair<u8, u32>,
    /// Unsigned bytes: one query, [`STRIP`] rows that lie anywhere.
    pub(super) l2_u8_strip: Gathered,
    /// Blocks of few components, where there are forms for them.
    pub(super) narrow: Option<Narrow>,
    /// Widens f16 as bytes; components beyond the shorter slice are left unchanged.
    pub(super) widen_f16: unsafe fn(&[u8], &mut [f32]),
}

/// The forms of a scalar function on components of `$size` bytes.
macro_rules! scalar_forms {
    ($size:expr, $pair:expr) => {
        Forms {
            pair: $pair,
            strip: |q, x, dim, out| scalar_strip(q, x, $size * dim, out, $pair),
            tile: |q, x, dim, out| scalar_strip(q, x, $size * dim, out, $pair),
            shape: (1, STRIP),
        }
    };
}

/// Returns the table of `isa`, or `None` where this machine cannot run it.
pub(super) fn of(isa: Isa) -> Option<&'static Kernels> {
    if !isa::is_available(isa) {
        return None;
    }
    match isa {
        Isa::Scalar => Some(&SCALAR),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => Some(&super::avx2::KERNELS),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => Some(&super::avx512::KERNELS),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => Some(&super::neon::KERNELS),
        _ => None,
    }
}

/// The table in use: that of [`isa::current`].
#[inline]
pub(super) fn current() -> &'static Kernels {
    static CURRENT: OnceLock<&Kernels> = OnceLock::new();
    CURRENT.get_or_init(|| of(isa::current()).unwrap_or(&SCALAR))
}

static SCALAR: Kernels = Kernels {
    l2_f32: scalar_forms!(4, scalar::l2_f32),
    dot_f32: scalar_forms!(4, scalar::dot_f32),
    l2_f16: scalar_forms!(2, scalar::l2_f16),
    dot_f16: scalar_forms!(2, scalar::dot_f16),
    dot_u8: scalar_forms!(1, scalar::dot_u8),
    dot_i8: scalar_forms!(1, |q, x| scalar::dot_i8(q, x) as u32),
    l2_u8: scalar::l2_u8,
    l2_i8: scalar::l2_i8,
    l2_u8_strip: |query, rows| rows.map(|row| scalar::l2_u8(query, row)),
    narrow: None,
    widen_f16: scalar::widen_f16,
};

fn scalar_strip<Q, T>(
    query: &[Q],
    rows: &[u8],
    row_bytes: usize,
    out: &mut [T; TILE],
    pair: impl Fn(&[Q], &[u8]) -> T,
) {
    for (i, out) in out.iter_mut().take(STRIP).enumerate() {
        *out = pair(query, &rows[i * row_bytes..][..row_bytes]);
    }
}
