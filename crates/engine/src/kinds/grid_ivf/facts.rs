//! Facts of a `grid-ivf` in the manifest besides those of every index.

use crate::files;
use crate::kinds::facts::KindFacts;
use serde::{Deserialize, Serialize};
use stratann_core::format::grid::GridLayout;
use stratann_core::place::SERVERS_MAX;
use stratann_kernel::bits;
use stratann_kernel::{DType, Metric};

/// Constants of the kind.
pub(crate) const FACTS: KindFacts = KindFacts {
    recall_options: "fewer --lists",
    unit_names: ("list", "lists"),
    group_name: "lists",
    is_spreadable: true,
    is_sliced: true,
    scores_remotely: true,
    data_role: files::GRID,
    is_resident: true,
    has_nodes_in_blocks: false,
    ..KindFacts::USUAL
};

pub use crate::clusterings::sizes::SizeStats;

/// The section of a `grid-ivf` in the manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GridSection {
    /// Lists and groups of components.
    #[serde(rename = "grid")]
    pub facts: GridFacts,
}

/// Lists and groups of components of a `grid-ivf`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GridFacts {
    /// Sizes of the lists.
    pub sizes: SizeStats,
    /// Lists of each centroid, one after another, over which its members are dealt.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub stripes: u32,
    /// The first component of each group, and the number of all.
    pub edges: Vec<u32>,
    /// Groups that are stored component by component: the first ones.
    pub columns: usize,
    /// Sums are whole multiples of two to the power of minus this.
    pub scale_exponent: i32,
    /// Principal components of which lists have a code of a byte; 0 for none.
    pub pilot: usize,
    /// The difference between two of these codes that follow each other.
    pub pilot_step: f32,
    /// Bits of each component in the codes of lists; absent (0) without codes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub code_bits: usize,
    /// Whether the build made sure that near vectors keep the digits of their distance where they are rotated.
    #[serde(default, skip_serializing_if = "is_false")]
    pub keeps_digits: bool,
}

fn is_zero(bits: &usize) -> bool {
    *bits == 0
}

fn is_false(flag: &bool) -> bool {
    !flag
}

fn one() -> u32 {
    1
}

fn is_one(stripes: &u32) -> bool {
    *stripes == 1
}

/// Largest exponent of a unit, either way.
const EXPONENT_MAX: i32 = 100;

impl GridFacts {
    /// Inverted lists.
    pub fn lists(&self) -> u32 {
        self.sizes.count as u32
    }

    /// Centroids. Each has one list, or several where lists are striped.
    pub fn centroids(&self) -> u32 {
        self.lists() / self.stripes.max(1)
    }

    /// The layout of all lists; `None` when the numbers cannot be.
    pub(crate) fn layout(
        &self,
        dtype: DType,
        metric: Metric,
        dim: usize,
        id_bytes: usize,
    ) -> Option<GridLayout> {
        let GridFacts { columns, pilot, .. } = *self;
        let code = code_layout(dim, self.code_bits);
        let layout = GridLayout { dtype, metric, edges: self.edges.clone(), columns, id_bytes, pilot, code };
        let is_sane = layout.is_sane(dim)
            && (self.code_bits == 0 || code.is_some())
            && (pilot == 0 || (self.pilot_step > 0.0 && self.pilot_step.is_finite()))
            && (-EXPONENT_MAX..=EXPONENT_MAX).contains(&self.scale_exponent)
            && (1..=u64::from(u32::MAX)).contains(&self.sizes.count)
            && (1..=SERVERS_MAX as u32).contains(&self.stripes)
            && self.lists().is_multiple_of(self.stripes);
        is_sane.then_some(layout)
    }

    /// Units of a sum of 1.
    pub(crate) fn scale(&self) -> f32 {
        2f32.powi(self.scale_exponent)
    }
}

/// Principal components of a pilot: an eighth of the bytes of a vector, and a quarter of its components at most. Floats
/// of 32 bits are usually stored rotated, and have none.
pub(crate) fn pilot_of(dtype: DType, metric: Metric, dim: usize) -> usize {
    let most = (dim * dtype.size() / 8).min(dim / 4);
    if dtype == DType::F32 || metric == Metric::Ip { 0 } else { most / 8 * 8 }
}

/// Seed of the rotation of codes.
pub(crate) const CODE_SEED: u64 = 0x6772_6964;
/// Most bits of a component in a code: more drop hardly more vectors, and take longer.
const CODE_BITS_MAX: usize = 4;
/// Least bits: with fewer a bound is so weak that first components tell more.
const CODE_BITS_MIN: usize = 3;
/// Least components: vectors of fewer are turned to their principal axes in little time, and a few of these components
/// tell as much as codes.
const CODE_DIM_MIN: usize = 256;
/// Share of the memory of vectors and ids that codes may take.
const CODE_SHARE: f64 = 0.15;

/// The codes of this many bits for vectors of `dim` components; `None` for no bits, or what cannot be.
pub(crate) fn code_layout(dim: usize, bits: usize) -> Option<bits::Layout> {
    (bits > 0).then(|| bits::Layout::even(dim, bits, 0, false))?
}

/// Bits of each component in codes: as many as memory allows; 0 for no codes.
pub(crate) fn code_bits(dtype: DType, (dim, id_bytes): (usize, usize), rows: u64, lists: u64) -> usize {
    let room = CODE_SHARE * (dim * dtype.size() + id_bytes) as f64;
    // Each list has a reference point, each member a radius.
    let of_list = (2 * dim) as f64 * lists as f64 / rows.max(1) as f64 + 2.0;
    let fits =
        |&bits: &usize| code_layout(dim, bits).is_some_and(|code| code.code_bytes() as f64 + of_list <= room);
    let bits = (CODE_BITS_MIN..=CODE_BITS_MAX).rev().find(fits);
    bits.filter(|_| dim >= CODE_DIM_MIN).unwrap_or(0)
}

/// Bits that a sum of the size of `spread`, the mean of what is summed, has in units.
const SUM_BITS: i32 = 30;
/// Bits that the largest sum may have: a few more can be told from each other.
const LARGEST_BITS: i32 = 48;
/// Neighbours may be nearer than the mean by such a factor, and have 22 bits.
const NEAR: f64 = 256.0;

/// The exponent of the unit of sums, for vectors of this mean square and squared distance of near ones. Integers are
/// exact in units of 1.
pub(crate) fn scale_exponent(dtype: DType, metric: Metric, spread: f64, near: f64) -> i32 {
    if !dtype.is_float() && metric != Metric::Cosine {
        return 0;
    }
    SUM_BITS - exponent_of(spread.min(NEAR * near))
}

/// The mean square of vectors with this exponent, as builds chose it that did not know of near ones.
pub(crate) fn spread_of(scale_exponent: i32) -> f64 {
    2f64.powi(SUM_BITS - scale_exponent)
}

/// The exponent of a unit, that finest one, unless vectors are so far from each other that sums would not be exact.
pub(crate) fn coarser(scale_exponent: i32, reach: f64) -> i32 {
    scale_exponent.min(LARGEST_BITS - exponent_of(reach)).clamp(-EXPONENT_MAX, EXPONENT_MAX)
}

fn exponent_of(square: f64) -> i32 {
    if square > 0.0 { square.log2().ceil() as i32 } else { 0 }
}

/// Whether vectors of this mean square have five digits of the squared distance of near ones once they are rotated.
///
/// A rotation rounds each component to a float, by some 2⁻²² of a component of mean size altogether.
pub(crate) fn keeps_digits(dim: usize, spread: f64, near: f64) -> bool {
    const RATIO: f64 = 256.0;
    spread <= RATIO * dim as f64 * near
}
