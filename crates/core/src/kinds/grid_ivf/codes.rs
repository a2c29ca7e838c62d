//! Members that can be near enough by their codes, before any of their components is read.
//!
//! A code stands for a point at a known distance, the radius, from its member. The query is rounded to a point of whole
//! numbers for each list, relative to the list's reference point. The triangle inequality over both points bounds the
//! distance of query and member (`stratann_kernel::bits`); an inner product is bounded by Cauchy and Schwarz. What
//! floats lose, here and in the sums of a scan, is added to the bound. So a member is dropped only where its sum would
//! exceed the limit.

use alloc::vec;
use alloc::vec::Vec;

use stratann_kernel::Metric;
use stratann_kernel::bits::{BitCoder, BitQuery, Rotation, radius, within_reach};
use stratann_kernel::columns::LANES;
use stratann_kernel::distance::dot_f32;
use stratann_kernel::sqrt;

use crate::format::grid::{List, without_lower_half};

/// How codes are made.
#[derive(Clone, Copy, Debug)]
pub struct Codes<'a> {
    /// Coder of differences to the reference point of a list.
    pub coder: &'a BitCoder,
    /// The point, in the axes of the index, that is subtracted from vectors before they are rotated.
    pub centre: &'a [f32],
}

impl Codes<'_> {
    /// Rotates a vector that is in the axes of the index. Returns what roundings can have changed of it.
    pub fn place(&self, vector: &mut [f32]) -> f32 {
        vector.iter_mut().zip(self.centre).for_each(|(x, c)| *x -= c);
        let length = sqrt(dot_f32(vector, bytemuck::cast_slice(vector)));
        self.coder.rotate(vector);
        (Rotation::rounding(vector.len()) + 1e-6) * length
    }

    /// The reference point of a list around this point, which is in the axes of the index.
    pub fn reference(&self, mut point: Vec<f32>) -> Vec<f32> {
        self.place(&mut point);
        point.iter_mut().for_each(|x| *x = without_lower_half(*x));
        point
    }

    /// Encodes a vector, which is in the axes of the index, relative to the reference point of its list. Returns its
    /// radius.
    pub fn encode(&self, mut vector: Vec<f32>, reference: &[f32], code: &mut [u8]) -> f32 {
        let rounding = self.place(&mut vector);
        let mut residual: Vec<f32> = vector.iter().zip(reference).map(|(x, c)| x - c).collect();
        self.coder.encode(&mut residual, code);
        self.placed_radius((&vector, rounding), reference, code)
    }

    /// The distance of a vector, which is in the axes of the index, to the point that a code stands for, rounded up.
    pub fn radius(&self, mut vector: Vec<f32>, reference: &[f32], code: &[u8]) -> f32 {
        let rounding = self.place(&mut vector);
        self.placed_radius((&vector, rounding), reference, code)
    }

    fn placed_radius(&self, (placed, rounding): (&[f32], f32), reference: &[f32], code: &[u8]) -> f32 {
        let mut point = vec![0f32; placed.len()];
        self.coder.decode(code, &mut point);
        let parts = placed.iter().zip(reference).zip(&point);
        let off = parts.map(|((&x, &c), &p)| f64::from(x) - f64::from(c) - f64::from(p));
        let lost: f64 = off.map(|off| off * off).sum();
        sqrt(lost as f32) * (1.0 + 1e-6) + rounding + TINY
    }
}

/// Relative roundings of sums over thousands of components stay below this.
const ROUNDING: f32 = 1e-5;
/// Rounding of a distance to a point, relative to the terms that it is the sum of.
const OF_DISTANCE: f32 = 4e-6;
/// Lengths of which the squares are no normal floats are below this.
const TINY: f32 = 1e-16;
/// Squares from here on may overflow when they are added up.
const LARGEST: f32 = 1e36;

/// The query for the codes of one list after another.
#[derive(Clone, Debug, Default)]
pub(super) struct CodedQuery {
    // Whether all components of the query are known.
    is_whole: bool,
    // The rotated query, once it is needed, how far it may be off, and its length.
    rotated: Vec<f32>,
    rounding: f32,
    length: f32,
    // Of the list.
    list: Option<u32>,
    is_usable: bool,
    residual: Vec<f32>,
    reference: f32,
    error: f32,
    query: BitQuery,
    ids: Vec<u32>,
    keys: Vec<u32>,
}

impl CodedQuery {
    /// Begins another query. Codes bound nothing where some of its components are not known.
    pub(super) fn begin(&mut self, is_whole: bool) {
        self.is_whole = is_whole;
        self.rotated.clear();
        self.list = None;
    }

    /// Prepares for a list. `query` is in the axes of the index.
    pub(super) fn begin_list(
        &mut self,
        codes: &Codes<'_>,
        (number, list): (u32, &List<'_>),
        (metric, query): (Metric, &[f32]),
    ) {
        if self.list == Some(number) {
            return;
        }
        self.list = Some(number);
        self.is_usable = false;
        if !self.is_whole {
            return;
        }
        if self.rotated.is_empty() {
            self.rotated.extend_from_slice(query);
            self.rounding = codes.place(&mut self.rotated);
            self.length = length(&self.rotated) * (1.0 + ROUNDING);
        }
        self.residual.clear();
        let mut term = 0.0;
        if metric == Metric::Ip {
            self.residual.extend(list.reference());
            term = -dot_f32(&self.rotated, bytemuck::cast_slice(&self.residual));
            self.reference = length(&self.residual);
            self.residual.copy_from_slice(&self.rotated);
        } else {
            self.residual.extend(self.rotated.iter().zip(list.reference()).map(|(q, c)| q - c));
        }
        self.error = self.query.set_point(codes.coder, &self.residual, term);
        self.is_usable = self.length < LARGEST && self.base().abs() < LARGEST && self.error < LARGEST;
    }

    /// The part of distances that all codes of the list have in common.
    fn base(&self) -> f32 {
        self.query.terms().next().unwrap_or(f32::INFINITY)
    }

    /// Keeps those of `lanes` that may be within `limit`, a squared distance or a negative product that is rounded up.
    /// They come first. Returns how many, and how many codes were compared.
    pub(super) fn keep(
        &mut self,
        codes: &Codes<'_>,
        (list, block): (&List<'_>, usize),
        (metric, limit): (Metric, f32),
        lanes: &mut [u8],
    ) -> (usize, usize) {
        if !self.is_usable {
            return (lanes.len(), 0);
        }
        let (radii, bytes) = list.codes(block);
        let all = list.members_of(block);
        // A code alone costs about as much as two in a row.
        let is_few = 2 * lanes.len() < all;
        if is_few {
            self.ids.clear();
            self.ids.extend(lanes.iter().map(|&lane| u32::from(lane)));
            self.query.distances(bytes, &self.ids, &mut self.keys);
        } else {
            self.query.rows(bytes, &mut self.keys);
        }
        let mut near = [true; LANES];
        match metric {
            Metric::Ip => {
                self.products_within(codes.coder, (radii, bytes), (limit, is_few), (lanes, &mut near))
            }
            Metric::L2 | Metric::Cosine => {
                let mut gathered = [0u8; 2 * LANES];
                let of_lane = |lane: u8| radii.as_chunks::<2>().0.get(usize::from(lane)).copied();
                if is_few {
                    let out = gathered.as_chunks_mut::<2>().0.iter_mut();
                    out.zip(&*lanes).for_each(|(out, &lane)| *out = of_lane(lane).unwrap_or_default());
                }
                let radii = if is_few { &gathered[..] } else { radii };
                let reach = sqrt(limit.max(0.0)) + self.error + self.rounding;
                within_reach(&self.keys, radii, (reach, OF_DISTANCE * self.base()), &mut near);
            }
        }
        let mut kept = 0;
        for at in 0..lanes.len() {
            let lane = lanes[at];
            lanes[kept] = lane;
            kept += usize::from(near[if is_few { at } else { usize::from(lane) }]);
        }
        (kept, self.keys.len())
    }

    /// Upper bounds of the distances of all members of a list; infinite where codes bound nothing.
    pub(super) fn upper_bounds<'u>(
        &'u mut self,
        codes: &'u Codes<'_>,
        list: &'u List<'_>,
        metric: Metric,
    ) -> impl Iterator<Item = f32> + 'u {
        let size = self.query.code_bytes();
        // Norms of 16 bits are rounded down.
        let short = if codes.coder.layout().factor_bytes() == 2 { 0.02 } else { OF_DISTANCE };
        let blocks = if self.is_usable { list.blocks() } else { 0 };
        (0..blocks).flat_map(move |block| {
            let (radii, bytes) = list.codes(block);
            self.query.rows(bytes, &mut self.keys);
            let this = &*self;
            let bounds: Vec<f32> = (0..this.keys.len())
                .map(|lane| {
                    let (distance, radius) = (this.query.to_float(this.keys[lane]), radius(radii, lane));
                    if !distance.is_finite() {
                        return f32::INFINITY;
                    }
                    if metric == Metric::Ip {
                        let length = codes.coder.length(bytes.get(lane * size..).unwrap_or(&[]));
                        return distance + this.width(length, radius);
                    }
                    let distance = distance.max(0.0);
                    let both = sqrt(distance + short * (this.base() + distance));
                    let far = both + this.error + this.rounding + radius;
                    far * far * (1.0 + ROUNDING)
                })
                .collect();
            bounds
        })
    }

    /// How far the negative product of a member may be from that of its point, of this length.
    fn width(&self, length: f32, radius: f32) -> f32 {
        let rounding = 2.0 * ROUNDING * self.length * (self.reference + length + radius);
        self.error * length + self.length * radius + rounding
    }

    /// Sets for each key, of all lanes or of those in `lanes`, whether its negative product may be within the limit.
    fn products_within(
        &self,
        coder: &BitCoder,
        (radii, codes): (&[u8], &[u8]),
        (limit, is_few): (f32, bool),
        (lanes, near): (&[u8], &mut [bool; LANES]),
    ) {
        let size = self.query.code_bytes();
        for (at, (&key, near)) in self.keys.iter().zip(near).enumerate() {
            let lane = if is_few { lanes.get(at).map_or(0, |&lane| usize::from(lane)) } else { at };
            let length = coder.length(codes.get(lane * size..).unwrap_or(&[]));
            let lower = self.query.to_float(key) - self.width(length, radius(radii, lane));
            // What is no number stays.
            let is_beyond = lower > limit;
            *near = !is_beyond;
        }
    }
}

fn length(vector: &[f32]) -> f32 {
    sqrt(dot_f32(vector, bytemuck::cast_slice(vector)))
}
