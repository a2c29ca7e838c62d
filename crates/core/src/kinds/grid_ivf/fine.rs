//! Sums of few units, group by group as floats.
//!
//! Sums are whole units so that slices may come in any order. A sum of few units has few digits: then the sums of all
//! groups decide, each as a float, added up in the order of the groups wherever they come from.

use alloc::vec::Vec;

use stratann_kernel::Metric;

use crate::codec::{Reader, Refused, Writer, varint_bytes};
use crate::format::grid::GridLayout;

/// Units for each group from which on half a unit for each of them is four millionths of the sum.
const UNITS: f64 = 131_072.0;
/// Norms are rounded up, those of short vectors beside long ones by much.
const PRODUCT_UNITS: f64 = 64.0 * UNITS;

/// Sums below this have too few digits. Under ip, the products of norms below it.
pub(super) fn coarse_below(layout: &GridLayout) -> f64 {
    let units = match layout.metric {
        Metric::Ip => PRODUCT_UNITS,
        Metric::L2 | Metric::Cosine => UNITS,
    };
    let is_exact = !layout.dtype.is_float() && layout.metric != Metric::Cosine;
    if is_exact { 0.0 } else { units * layout.groups() as f64 }
}

/// Amount by which a sum in units may exceed the exact one, where that has too few digits: half a unit for each group,
/// and what floats lose.
pub(super) fn slack(layout: &GridLayout) -> f64 {
    16.0 * layout.groups() as f64
}

/// The sums of the groups of some vectors among those that are left.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Fine {
    // Which ones, ascending.
    at: Vec<u32>,
    // Of each one as many as there are groups; 0 for those that are missing.
    sums: Vec<f32>,
}

impl Fine {
    pub(super) fn is_empty(&self) -> bool {
        self.at.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.at.clear();
        self.sums.clear();
    }

    /// The sums of a vector; `None` where it has none.
    pub(super) fn of(&self, at: usize, groups: usize) -> Option<&[f32]> {
        let found = self.at.binary_search(&(at as u32)).ok()?;
        self.sums.get(found * groups..(found + 1) * groups)
    }

    /// The sum of all groups of a vector, in their order; `None` where it has none.
    pub(super) fn sum_of(&self, at: usize, groups: usize) -> Option<f64> {
        self.of(at, groups).map(|sums| sums.iter().map(|&sum| f64::from(sum)).sum())
    }

    /// Adds a vector behind all others, with sums that are known and those of more groups.
    pub(super) fn push(
        &mut self,
        at: usize,
        groups: usize,
        known: Option<&[f32]>,
        more: impl Iterator<Item = (usize, f32)>,
    ) {
        let start = self.sums.len();
        self.at.push(at as u32);
        match known {
            Some(known) => self.sums.extend_from_slice(known),
            None => self.sums.resize(start + groups, 0.0),
        }
        more.for_each(|(group, sum)| self.sums[start + group] += sum);
    }

    /// Bytes that [`Fine::encode`] appends.
    pub(super) fn bytes(&self) -> u64 {
        let gaps: u64 = self.gaps().map(varint_bytes).sum();
        let counts = varint_bytes(self.at.len() as u64) + varint_bytes(self.sums.len() as u64);
        counts + gaps + 4 * self.sums.len() as u64
    }

    /// Numbers of vectors that are skipped before each one.
    fn gaps(&self) -> impl Iterator<Item = u64> + '_ {
        let mut next = 0;
        self.at.iter().map(move |&at| u64::from(at - core::mem::replace(&mut next, at + 1)))
    }

    pub(super) fn encode(&self, w: &mut Writer<'_>) {
        w.varint(self.at.len() as u64);
        self.gaps().for_each(|gap| w.varint(gap));
        w.varint(self.sums.len() as u64);
        self.sums.iter().for_each(|sum| w.u32(sum.to_bits()));
    }

    /// Reads what [`Fine::encode`] wrote of some of `left` vectors.
    pub(super) fn decode(r: &mut Reader<'_>, left: usize) -> Result<Fine, Refused> {
        let (mut fine, mut next) = (Fine::default(), 0u64);
        for _ in 0..r.count(u32::try_from(left).unwrap_or(u32::MAX))? {
            let at = next.checked_add(r.varint()?).filter(|&at| at < left as u64).ok_or(Refused::Content)?;
            fine.at.push(at as u32);
            next = at + 1;
        }
        let count = r.count(u32::MAX)? as usize;
        if count > r.0.len() / 4 || !count.is_multiple_of(fine.at.len().max(1)) {
            return Err(Refused::Content);
        }
        for _ in 0..count {
            let sum = f32::from_bits(r.u32()?);
            if sum.is_nan() {
                return Err(Refused::Content);
            }
            fine.sums.push(sum);
        }
        Ok(fine)
    }

    /// Memory beside the struct itself, bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        4 * (self.at.capacity() + self.sums.capacity())
    }
}
