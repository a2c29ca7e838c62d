//! The query in the axes of an index, and the part of it that a job needs.
//!
//! Turning a query into principal axes takes about as long as scanning a list, so only its origin does that. A job
//! carries the components of the slices that are missing, which become fewer from server to server.
//!
//! | bytes | content |
//! |---|---|
//! | 4 | what the components are multiplied with |
//! | 4 | the norm of the query |
//! | … | count of bytes, and the components of the missing slices, as the index stores components |
//! | … | count, and the query in units of the pilot's codes (4 bytes each), while the first slice is missing |

use alloc::vec::Vec;

use stratann_kernel::DType;
use stratann_kernel::distance::{dot_f32, inverse_norm, l2_f32};
use stratann_kernel::element::widen;

use super::{Axes, Scratch, View};
use crate::codec::{Reader, Refused, Writer, varint_bytes};
use crate::view::Base;
use stratann_kernel::Metric;

/// Most components of a query, and of its pilot.
pub(super) const DIM_MAX: u32 = 1 << 16;

/// The part of a query that a job needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RotatedQuery {
    values: Vec<u8>,
    factor: f32,
    length: f32,
    pilot: Vec<f32>,
    /// The unit of the query is larger than that of the index by so many powers of two.
    pub(super) shift: u8,
}

/// Turns a query into the axes of the index.
pub(super) fn prepare(base: &Base<'_>, view: &View<'_>, query: &[u8], scratch: &mut Scratch) {
    let Scratch { point, query: turned, pilot, coded, values, factor, length, .. } = scratch;
    coded.begin(true);
    point.clear();
    point.resize(base.dim, 0.0);
    widen(base.dtype, query, point);
    *factor = if base.metric == Metric::Cosine { inverse_norm(base.dtype, query) } else { 1.0 };
    if base.metric == Metric::Cosine {
        point.iter_mut().for_each(|x| *x *= *factor);
    }
    turned.clear();
    view.axes.turn(point, turned);
    values.clear();
    match view.axes {
        Axes::Rotated { .. } => {
            *factor = 1.0;
            values.extend(turned.iter().flat_map(|x| x.to_le_bytes()));
        }
        Axes::Ordered(order) => {
            let size = base.dtype.size();
            let component = |&c: &u32| query.get(c as usize * size..).and_then(|from| from.get(..size));
            values.extend(order.iter().filter_map(component).flatten());
        }
    }
    pilot.clear();
    if let Some(of) = &view.pilot {
        of.turn(point, pilot);
    }
    let square = dot_f32(point, bytemuck::cast_slice(point));
    *length = stratann_kernel::sqrt(square);
    let reach = match (base.metric, view.centroids.get(..base.dim)) {
        (Metric::L2 | Metric::Cosine, Some(centroid)) => l2_f32(point, bytemuck::cast_slice(centroid)),
        _ => square,
    };
    let shift = shift_of(reach, view.scale);
    scale(view, shift, scratch);
    norms(view, scratch);
}

/// Powers of two by which the unit of a query must be larger, so that sums to vectors this far away stay exact: far
/// from all vectors, their sums differ little.
fn shift_of(reach: f32, scale: f32) -> u8 {
    const BITS_MAX: u64 = 50;
    let units = f64::from(reach.min(f32::MAX)) * f64::from(scale);
    let exponent = (units.to_bits() >> 52).saturating_sub(1023);
    exponent.saturating_sub(BITS_MAX) as u8
}

fn scale(view: &View<'_>, shift: u8, scratch: &mut Scratch) {
    let factor = f64::from_bits((1023 - u64::from(shift)) << 52);
    (scratch.shift, scratch.scale) = (shift, (f64::from(view.scale) * factor) as f32);
}

/// The norm of the query in each group.
fn norms(view: &View<'_>, scratch: &mut Scratch) {
    let Scratch { query, norms, .. } = scratch;
    norms.clear();
    let groups = view.layout.edges.windows(2).map(|w| &query[w[0] as usize..w[1] as usize]);
    norms.extend(groups.map(|part| stratann_kernel::sqrt(dot_f32(part, bytemuck::cast_slice(part)))));
}

/// The type of the components of a query.
fn dtype(base: &Base<'_>, view: &View<'_>) -> DType {
    if matches!(view.axes, Axes::Rotated { .. }) { DType::F32 } else { base.dtype }
}

/// The components of each slice.
fn components<'v>(view: &'v View<'_>) -> impl Iterator<Item = core::ops::Range<usize>> + 'v {
    let edge = |group: u32| view.layout.edges[group as usize] as usize;
    view.slices.windows(2).map(move |w| edge(w[0])..edge(w[1]))
}

impl RotatedQuery {
    /// The part of a prepared query that is needed while `done` slices are added; none of its memory is kept.
    pub(super) fn of(base: &Base<'_>, view: &View<'_>, scratch: &Scratch, done: u64) -> RotatedQuery {
        let size = dtype(base, view).size();
        let missing = (0..).zip(components(view)).filter(|(slice, _)| done >> slice & 1 == 0);
        let mut values = Vec::new();
        for (_, range) in missing {
            values.extend_from_slice(scratch.values.get(range.start * size..range.end * size).unwrap_or(&[]));
        }
        let pilot = if done & 1 == 0 { scratch.pilot.clone() } else { Vec::new() };
        RotatedQuery { values, factor: scratch.factor, length: scratch.length, pilot, shift: scratch.shift }
    }

    /// Prepares a query of which `done` slices are added: their components are 0. `None` where it does not fit: a job
    /// from another server may carry anything.
    pub(super) fn load(
        &self,
        base: &Base<'_>,
        view: &View<'_>,
        done: u64,
        scratch: &mut Scratch,
    ) -> Option<()> {
        let dtype = dtype(base, view);
        let size = dtype.size();
        let expected = view.pilot.filter(|_| done & 1 == 0).map_or(0, |pilot| pilot.offsets.len());
        if self.pilot.len() != expected {
            return None;
        }
        let Scratch { query, values, factor, length, pilot, coded, .. } = scratch;
        // Codes are of all components, which travel while no slice is done.
        coded.begin(done == 0);
        (*factor, *length) = (self.factor, self.length);
        pilot.clone_from(&self.pilot);
        values.clear();
        values.resize(view.layout.dim() * size, 0);
        let mut rest = &self.values[..];
        for (slice, range) in (0..).zip(components(view)) {
            if done >> slice & 1 == 0 {
                let (own, left) = rest.split_at_checked(range.len() * size)?;
                values[range.start * size..range.end * size].copy_from_slice(own);
                rest = left;
            }
        }
        query.clear();
        query.resize(view.layout.dim(), 0.0);
        widen(dtype, values, query);
        if *factor != 1.0 {
            query.iter_mut().for_each(|x| *x *= *factor);
        }
        scale(view, self.shift, scratch);
        norms(view, scratch);
        rest.is_empty().then_some(())
    }

    /// Bytes that [`RotatedQuery::encode`] appends.
    pub(super) fn bytes(&self) -> u64 {
        let (values, pilot) = (self.values.len() as u64, self.pilot.len() as u64);
        8 + varint_bytes(values) + values + varint_bytes(pilot) + 4 * pilot
    }

    pub(super) fn encode(&self, w: &mut Writer<'_>) {
        w.u32(self.factor.to_bits());
        w.u32(self.length.to_bits());
        w.varint(self.values.len() as u64);
        w.0.extend_from_slice(&self.values);
        w.varint(self.pilot.len() as u64);
        self.pilot.iter().for_each(|x| w.u32(x.to_bits()));
    }

    pub(super) fn decode(&mut self, r: &mut Reader<'_>) -> Result<(), Refused> {
        let number = |bits: u32| Some(f32::from_bits(bits)).filter(|x| x.is_finite()).ok_or(Refused::Content);
        (self.factor, self.length) = (number(r.u32()?)?, number(r.u32()?)?);
        let bytes = r.count(4 * DIM_MAX)? as usize;
        self.values = r.slice(bytes)?.to_vec();
        for _ in 0..r.count(DIM_MAX)? {
            self.pilot.push(number(r.u32()?)?);
        }
        Ok(())
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.values.capacity() + 4 * self.pilot.capacity()
    }
}
