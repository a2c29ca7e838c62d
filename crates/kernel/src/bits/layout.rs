//! Bits of a code, and their places.

use super::{BITS_MAX, DIM_MAX};

/// Most segments: each has fewer bits than the one before.
pub(super) const SEGMENTS_MAX: usize = BITS_MAX;
/// Most planes of a code: those of segments of 8, 7, … 1 bits.
const PLANES_MAX: usize = 13;

/// Consecutive dimensions, after the rotation, that have equally many bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Dimensions.
    pub dims: usize,
    /// Bits of each.
    pub bits: usize,
    /// Its whole numbers e are multiples of `1 << shift`.
    pub shift: u32,
}

impl Segment {
    /// An e is twice the level that the bits of its dimension count, shifted, less this.
    pub(super) fn offset(&self) -> i32 {
        ((1 << self.bits) - 1) << self.shift
    }
}

/// What codes have beside their bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// The number of a centroid.
    pub numbered: bool,
    /// Factors of 32 bits instead of 16.
    pub long: bool,
    /// The dimensions that have bits stand for those that have none: all vary alike. Otherwise dimensions without bits
    /// hardly vary, and count in the norm alone.
    pub spread: bool,
}

/// Bits of a code, and their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    dim: usize,
    extras: Extras,
    segments: [Segment; SEGMENTS_MAX],
    segment_count: usize,
    planes: [Plane; PLANES_MAX],
    plane_count: usize,
    // Of a code, with those that nothing uses at its end.
    bytes: usize,
}

/// Bits of equal weight of consecutive dimensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plane {
    /// Bits of each dimension: 1, 2, 4 or 8.
    pub width: u32,
    /// The unit of these bits: they count `1 << shift` each.
    pub shift: u32,
    /// First dimension.
    pub start: usize,
    /// Dimensions.
    pub dims: usize,
    /// First byte within a code.
    pub first: usize,
    /// Bytes.
    pub bytes: usize,
}

impl Plane {
    /// Where the bits of a dimension are: the byte within a code, and the bits of it below them.
    pub(super) fn place(&self, dimension: usize) -> (usize, u32) {
        let at = dimension - self.start;
        (self.first + at % self.bytes, (at / self.bytes) as u32 * self.width)
    }
}

impl Layout {
    /// The layout of these segments, in order from the first of `dim` dimensions on.
    ///
    /// `None` for 0 dimensions or more than [`DIM_MAX`], no segment, empty ones, more dimensions in them than there
    /// are, bits that do not become fewer from segment to segment, or that count more than [`BITS_MAX`] with their
    /// shift.
    pub fn of(dim: usize, segments: &[Segment], extras: Extras) -> Option<Layout> {
        let is_segment = |s: &Segment| {
            s.dims > 0
                && (1..=BITS_MAX).contains(&s.bits)
                && s.shift <= BITS_MAX as u32
                && s.bits + s.shift as usize <= BITS_MAX
        };
        let is_valid = (1..=DIM_MAX).contains(&dim)
            && !segments.is_empty()
            && segments.iter().all(is_segment)
            && segments.windows(2).all(|pair| pair[1].bits < pair[0].bits)
            && segments
                .iter()
                .try_fold(0usize, |sum, s| sum.checked_add(s.dims))
                .is_some_and(|sum| sum <= dim);
        if !is_valid {
            return None;
        }
        let mut layout = Layout { dim, extras, segment_count: segments.len(), ..Layout::LEAST };
        layout.segments[..segments.len()].copy_from_slice(segments);
        layout.plane_count = 0;
        let (mut start, mut first) = (0, layout.factors());
        for segment in segments {
            let mut left = segment.bits as u32;
            for width in [8, 4, 2, 1] {
                if left >= width {
                    left -= width;
                    let bytes = (segment.dims * width as usize).div_ceil(8);
                    layout.planes[layout.plane_count] =
                        Plane { width, shift: left + segment.shift, start, dims: segment.dims, first, bytes };
                    layout.plane_count += 1;
                    first += bytes;
                }
            }
            start += segment.dims;
        }
        layout.bytes = first;
        Some(layout)
    }

    /// The same bits in codes of at least `bytes` bytes: what is left at their end stays zero.
    pub fn padded(self, bytes: usize) -> Layout {
        Layout { bytes: self.bytes.max(bytes), ..self }
    }

    /// The layout of `bits` bits for each of `dim` dimensions, and one bit more for the first `finer` of them.
    ///
    /// `None` as of [`of`](Self::of), or where more dimensions are finer than there are.
    pub fn even(dim: usize, bits: usize, finer: usize, numbered: bool) -> Option<Layout> {
        let extras = Extras { numbered, long: bits > super::SHORT_BITS, spread: true };
        let (rest, shift) = (dim.checked_sub(finer)?, u32::from(finer > 0));
        let segments =
            [Segment { dims: finer, bits: bits + 1, shift: 0 }, Segment { dims: rest, bits, shift }];
        let used = &segments[usize::from(finer == 0)..if rest == 0 { 1 } else { 2 }];
        Layout::of(dim, used, extras)
    }

    /// The layout of one bit for each of the first `coded` of `dim` dimensions, which stand for all.
    ///
    /// `None` for 0 of either, or more than there are.
    pub fn projected(dim: usize, coded: usize, numbered: bool) -> Option<Layout> {
        let extras = Extras { numbered, long: false, spread: true };
        Layout::of(dim, &[Segment { dims: coded, bits: 1, shift: 0 }], extras)
    }

    /// The layout with the most bits, as [`even`](Self::even) as possible, whose codes have at most `bytes` bytes;
    /// `None` where one bit of eight dimensions, or of all where they are fewer, does not fit.
    pub fn within(dim: usize, bytes: usize, numbered: bool) -> Option<Layout> {
        let least = Extras { numbered, ..Extras::default() };
        let room = bytes.checked_sub(factors(least));
        let mut found = room.and_then(|room| Layout::projected(dim, dim.min(8 * room), numbered));
        for bits in 1..=BITS_MAX {
            let whole = Layout::even(dim, bits, 0, numbered).filter(|layout| layout.code_bytes() <= bytes);
            let Some(whole) = whole else { break };
            let spare = 8 * (bytes - whole.code_bytes());
            let finer = if bits < BITS_MAX && spare < dim { spare } else { 0 };
            // Where a segment is no multiple of eight dimensions, its last byte is not full.
            let finer = [finer, finer.saturating_sub(8)];
            let most = finer.into_iter().find_map(|finer| {
                Layout::even(dim, bits, finer, numbered).filter(|layout| layout.code_bytes() <= bytes)
            });
            found = most.or(Some(whole));
        }
        found
    }

    /// The layout of one bit of one dimension, before there is another.
    pub(super) const LEAST: Layout = Layout {
        dim: 1,
        extras: Extras { numbered: false, long: false, spread: true },
        segments: [Segment { dims: 1, bits: 1, shift: 0 }; SEGMENTS_MAX],
        segment_count: 1,
        planes: [Plane { width: 1, shift: 0, start: 0, dims: 1, first: 4, bytes: 1 }; PLANES_MAX],
        plane_count: 1,
        bytes: 5,
    };

    /// Components of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Dimensions that have bits; the others have none.
    pub fn coded(&self) -> usize {
        self.segments().iter().map(|segment| segment.dims).sum()
    }

    /// Segments of dimensions, from the first on.
    pub fn segments(&self) -> &[Segment] {
        &self.segments[..self.segment_count]
    }

    /// What codes have beside their bits.
    pub fn extras(&self) -> Extras {
        self.extras
    }

    /// Whether a code has the number of a centroid.
    pub fn is_numbered(&self) -> bool {
        self.extras.numbered
    }

    /// Bytes of a code, its factors included.
    pub fn code_bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of each of the two factors.
    pub fn factor_bytes(&self) -> usize {
        if self.extras.long { 4 } else { 2 }
    }

    /// Bytes before the bits.
    fn factors(&self) -> usize {
        factors(self.extras)
    }

    /// The planes, of each segment from the most significant bits to the least.
    pub fn planes(&self) -> &[Plane] {
        &self.planes[..self.plane_count]
    }

    /// Planes, and the segments that they are of.
    pub(super) fn planes_of_segments(&self) -> impl Iterator<Item = (&Plane, Segment)> + '_ {
        let of = |plane: &Plane| self.ranges().find(|(_, range)| range.start == plane.start);
        self.planes().iter().filter_map(move |plane| of(plane).map(|(segment, _)| (plane, segment)))
    }

    /// Segments with their dimensions.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (Segment, core::ops::Range<usize>)> + '_ {
        let mut start = 0;
        self.segments().iter().map(move |&segment| {
            let range = start..start + segment.dims;
            start = range.end;
            (segment, range)
        })
    }
}

/// Bytes of the factors and of the number of a centroid.
pub(super) fn factors(extras: Extras) -> usize {
    let each = if extras.long { 4 } else { 2 };
    2 * each + usize::from(extras.numbered)
}
