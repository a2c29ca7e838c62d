//! An inverted list: the vectors (members) of a k-means cell, or of a part of one.
//!
//! The codes of a list are stored apart from its records (vectors). A search reads all list codes of the lists it
//! visits, and only the few records that no bound prunes.
//!
//! List codes of a list of n members:
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | checksum of all that follows |
//! | 8 | 4 | number of this list, to detect reads of the wrong list |
//! | 12 | 4 | id of the first member; ids in a list are consecutive |
//! | 16 | 4 | n |
//! | 20 | 4 | f32: quantisation step of the radii |
//! | 24 | 4 | f32: least distance of a member to the centroid |
//! | 28 | 4 | f32: quantisation step of these distances |
//! | 32 | dim × 2, up to a multiple of 4 | centroid as f16; codes are of residuals to it |
//! | … | n × 4 | f32: ‖r̂‖² + 2⟨c, r̂⟩ of the decoded residual r̂ and the centroid c |
//! | … | n | radii ‖v − v̂‖ in steps, rounded up: upper bound of the distance between a vector and its decoded code |
//! | … | n | distances ‖v − c‖ to the centroid in steps above the least, rounded down |
//! | … | n × code bytes | codes |
//!
//! A record:
//!
//! | bytes | content |
//! |---|---|
//! | vector bytes | the vector, in its input format |
//! | 4 | 1 / ‖vector‖ as f32; under cosine alone |
//! | 4 or 8 | external id |
//! | 4 | checksum of the above and of the member's id, with the seed of the build |

use alloc::vec::Vec;

use stratann_kernel::DType;
use stratann_kernel::distance::inverse_norm;

use super::seeded_checksum;

/// Bytes before the centroid.
const HEADER: usize = 32;
const _: () = assert!(HEADER == 8 + 6 * 4);

/// Layout of all inverted lists of one index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListLayout {
    /// Components of a vector.
    pub dim: usize,
    /// Bytes of a vector.
    pub vector_bytes: usize,
    /// Bytes of an external id: 4 or 8.
    pub id_bytes: usize,
    /// Whether inverse norms are stored.
    pub norms: bool,
    /// Bytes of a code.
    pub code_bytes: usize,
    /// Seed of the checksums of list codes, records and edges: that of one build.
    pub checksum_seed: u64,
}

impl ListLayout {
    /// Bytes of a record.
    pub const fn record_bytes(&self) -> usize {
        self.vector_bytes + self.id_bytes + 4 + if self.norms { 4 } else { 0 }
    }

    /// Bytes of a member in the list codes.
    pub const fn member_bytes(&self) -> usize {
        4 + 1 + 1 + self.code_bytes
    }

    const fn members_at(&self) -> usize {
        HEADER + (2 * self.dim).next_multiple_of(4)
    }

    /// Bytes of the list codes of `count` members.
    pub const fn list_codes_bytes(&self, count: usize) -> usize {
        self.members_at() + count * self.member_bytes()
    }

    /// Most members whose list codes fit in `bytes`; at least one.
    pub fn members_in(&self, bytes: usize) -> usize {
        (bytes.saturating_sub(self.members_at()) / self.member_bytes()).max(1)
    }
}

/// Numbers that are stored with the code of a member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Member {
    /// ‖r̂‖² + 2⟨c, r̂⟩.
    pub term: f32,
    /// ‖v − v̂‖, not rounded.
    pub radius: f32,
    /// ‖v − c‖, not rounded.
    pub centroid_distance: f32,
}

/// Appends list codes to `out`. `centroid` is `dim` f16 as bytes; `codes` are the codes of `members`, concatenated.
pub fn write_list_codes(
    shape: &ListLayout,
    list: u32,
    first_id: u32,
    centroid: &[u8],
    members: &[Member],
    codes: &[u8],
    out: &mut Vec<u8>,
) {
    let start = out.len();
    let of = |value: fn(&Member) -> f32| members.iter().map(value);
    let radius_step = step_up(of(|m| m.radius).fold(0.0, f32::max));
    let low = of(|m| m.centroid_distance).fold(f32::INFINITY, f32::min).min(f32::MAX);
    let high = of(|m| m.centroid_distance).fold(0.0, f32::max);
    let step = step_up(high - low);
    out.extend_from_slice(&[0; 8]);
    for word in [list, first_id, members.len() as u32] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    for number in [radius_step, low, step] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(centroid);
    out.resize(start + shape.members_at(), 0);
    members.iter().for_each(|m| out.extend_from_slice(&m.term.to_le_bytes()));
    out.extend(members.iter().map(|m| steps_up(m.radius, radius_step)));
    out.extend(members.iter().map(|m| steps_down(m.centroid_distance - low, step)));
    out.extend_from_slice(codes);
    debug_assert_eq!(out.len() - start, shape.list_codes_bytes(members.len()));
    let sum = seeded_checksum(shape.checksum_seed, &out[start + 8..]);
    out[start..start + 8].copy_from_slice(&sum.to_le_bytes());
}

/// Changes the list number of verified list codes, and their checksum to that of the build with this layout.
pub fn reseal_list_codes(shape: &ListLayout, list: u32, bytes: &mut [u8]) {
    let Some((sum, content)) = bytes.split_at_mut_checked(8) else { return };
    if let Some(number) = content.get_mut(..4) {
        number.copy_from_slice(&list.to_le_bytes());
        sum.copy_from_slice(&seeded_checksum(shape.checksum_seed, content).to_le_bytes());
    }
}

/// Changes the checksum of a verified record of member `id` to that of the build with this layout.
pub fn reseal_record(shape: &ListLayout, id: u32, bytes: &mut [u8]) {
    let at = shape.record_bytes() - 4;
    if let Some((content, sum)) = bytes.get_mut(..shape.record_bytes()).map(|bytes| bytes.split_at_mut(at)) {
        sum.copy_from_slice(&sum_with(shape.checksum_seed, id, content).to_le_bytes());
    }
}

/// Computes the step with which a byte covers `range`.
pub(super) fn step_up(range: f32) -> f32 {
    // Slightly more, so that rounding cannot exclude the largest value.
    (range / 255.0 * 1.000_01).max(f32::MIN_POSITIVE)
}

fn steps_up(value: f32, step: f32) -> u8 {
    let mut steps = (value / step) as u8;
    while f32::from(steps) * step < value && steps < 255 {
        steps += 1;
    }
    steps
}

pub(super) fn steps_down(value: f32, step: f32) -> u8 {
    let mut steps = (value / step) as u8;
    while f32::from(steps) * step > value && steps > 0 {
        steps -= 1;
    }
    steps
}

/// Computes the range of values that were quantised to `steps`, rounded down.
pub(super) fn range(low: f32, step: f32, steps: u8) -> (f32, f32) {
    let least = low + f32::from(steps) * step;
    (least * 0.999_99, (least + step) * 1.000_01)
}

/// Appends a record to `out`.
pub fn write_record(
    shape: &ListLayout,
    id: u32,
    vector: &[u8],
    inverse_norm: f32,
    external_id: u64,
    out: &mut Vec<u8>,
) {
    let start = out.len();
    out.extend_from_slice(vector);
    if shape.norms {
        out.extend_from_slice(&inverse_norm.to_le_bytes());
    }
    out.extend_from_slice(&external_id.to_le_bytes()[..shape.id_bytes]);
    let sum = sum_with(shape.checksum_seed, id, &out[start..]);
    out.extend_from_slice(&sum.to_le_bytes());
    debug_assert_eq!(out.len() - start, shape.record_bytes());
}

/// Computes a checksum of the content and of the id of its owner.
pub(super) fn sum_with(seed: u64, id: u32, content: &[u8]) -> u32 {
    let sum = seeded_checksum(seed, content).wrapping_add(u64::from(id).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    (sum ^ (sum >> 32)) as u32
}

pub(super) fn word(bytes: &[u8], at: usize) -> [u8; 4] {
    bytes.get(at..at + 4).map_or([0; 4], |b| [b[0], b[1], b[2], b[3]])
}

pub(super) fn float(bytes: &[u8], at: usize) -> f32 {
    f32::from_le_bytes(word(bytes, at))
}

/// List codes in memory. Opening checks the layout, so that every access stays within the bytes.
#[derive(Clone, Copy, Debug)]
pub struct ListCodes<'a> {
    shape: ListLayout,
    bytes: &'a [u8],
    count: usize,
}

impl<'a> ListCodes<'a> {
    /// Opens the codes of `list` from bytes that were verified when they were read. `None` when they are invalid.
    pub fn open(shape: &ListLayout, list: u32, bytes: &'a [u8]) -> Option<ListCodes<'a>> {
        let count = u32::from_le_bytes(word(bytes, 16)) as usize;
        let is_valid = u32::from_le_bytes(word(bytes, 8)) == list
            && count <= bytes.len()
            && bytes.len() == shape.list_codes_bytes(count);
        is_valid.then_some(ListCodes { shape: *shape, bytes, count })
    }

    /// Verifies and opens bytes that were just read.
    pub fn verify(shape: &ListLayout, list: u32, bytes: &'a [u8]) -> Option<ListCodes<'a>> {
        let sum: [u8; 8] = bytes.get(..8)?.try_into().ok()?;
        let content = bytes.get(8..)?;
        if u64::from_le_bytes(sum) != seeded_checksum(shape.checksum_seed, content) {
            return None;
        }
        ListCodes::open(shape, list, bytes)
    }

    /// Number of members.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Id of the first member.
    pub fn first_id(&self) -> u32 {
        u32::from_le_bytes(word(self.bytes, 12))
    }

    /// The centroid, `dim` f16 as bytes.
    pub fn centroid(&self) -> &'a [u8] {
        &self.bytes[HEADER..HEADER + 2 * self.shape.dim]
    }

    fn float(&self, at: usize) -> f32 {
        float(self.bytes, at)
    }

    fn part(&self, before: usize, size: usize) -> &'a [u8] {
        let at = self.shape.members_at() + self.count * before;
        &self.bytes[at..at + self.count * size]
    }

    /// ‖r̂‖² + 2⟨c, r̂⟩ of each member.
    pub fn terms(&self) -> impl Iterator<Item = f32> + use<'a> {
        self.part(0, 4).chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    /// Upper bound of the distance between each member and its decoded code.
    pub fn radii(&self) -> impl Iterator<Item = f32> + use<'a> {
        let step = self.float(20);
        self.part(4, 1).iter().map(move |&b| f32::from(b) * step)
    }

    /// By how much radii are rounded up at most.
    pub fn radius_slack(&self) -> f32 {
        // Builds add less than a fifth of this to a radius for roundings: relative to it, to the vector, and to its
        // distance from the centroid.
        const ROUNDING: f32 = 1e-5;
        let inverse = inverse_norm(DType::F16, self.centroid());
        let centroid = if inverse > 0.0 { 1.0 / inverse } else { 0.0 };
        let farthest = range(self.float(24), self.float(28), u8::MAX).1;
        self.float(20) * (1.0 + ROUNDING) + ROUNDING * (centroid + 3.0 * farthest)
    }

    /// Lower and upper bound of each member's distance to the centroid.
    pub fn centroid_distances(&self) -> impl Iterator<Item = (f32, f32)> + use<'a> {
        let (low, step) = (self.float(24), self.float(28));
        self.part(5, 1).iter().map(move |&b| range(low, step, b))
    }

    /// One member's values of [`ListCodes::terms`], [`ListCodes::radii`] and [`ListCodes::centroid_distances`].
    pub fn member(&self, slot: usize) -> Option<MemberBounds> {
        let term = float(self.part(0, 4).get(4 * slot..4 * slot + 4)?, 0);
        let radius = f32::from(*self.part(4, 1).get(slot)?) * self.float(20);
        let from_centroid = range(self.float(24), self.float(28), *self.part(5, 1).get(slot)?);
        Some(MemberBounds { term, radius, from_centroid })
    }

    /// The codes, concatenated.
    pub fn codes(&self) -> &'a [u8] {
        self.part(6, self.shape.code_bytes)
    }
}

/// Values of one member that bound its distance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemberBounds {
    /// The member's value of [`ListCodes::terms`].
    pub term: f32,
    /// The member's value of [`ListCodes::radii`].
    pub radius: f32,
    /// Lower and upper bound of its distance to the centroid.
    pub from_centroid: (f32, f32),
}

/// A record in memory.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    shape: ListLayout,
    bytes: &'a [u8],
}

impl<'a> Record<'a> {
    /// Opens a record from bytes that were verified when they entered memory. `None` when they are too few.
    pub fn open(shape: &ListLayout, bytes: &'a [u8]) -> Option<Record<'a>> {
        bytes.get(..shape.record_bytes()).map(|bytes| Record { shape: *shape, bytes })
    }

    /// Verifies and opens the record of member `id`. `None` when the bytes are too few, damaged or another member's.
    pub fn verify(shape: &ListLayout, id: u32, bytes: &'a [u8]) -> Option<Record<'a>> {
        let bytes = bytes.get(..shape.record_bytes())?;
        let (content, sum) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
        (u32::from_le_bytes(word(sum, 0)) == sum_with(shape.checksum_seed, id, content))
            .then_some(Record { shape: *shape, bytes })
    }

    /// The vector.
    pub fn vector(&self) -> &'a [u8] {
        &self.bytes[..self.shape.vector_bytes]
    }

    /// 1 / ‖vector‖; 1 where norms are not stored.
    pub fn inverse_norm(&self) -> f32 {
        if self.shape.norms { f32::from_le_bytes(word(self.bytes, self.shape.vector_bytes)) } else { 1.0 }
    }

    /// External id, chosen by the user.
    pub fn external_id(&self) -> u64 {
        let at = self.shape.vector_bytes + if self.shape.norms { 4 } else { 0 };
        let low = u64::from(u32::from_le_bytes(word(self.bytes, at)));
        match self.shape.id_bytes {
            8 => low | u64::from(u32::from_le_bytes(word(self.bytes, at + 4))) << 32,
            _ => low,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn shape(dim: usize, norms: bool, id_bytes: usize) -> ListLayout {
        ListLayout { dim, vector_bytes: 4 * dim, id_bytes, norms, code_bytes: 3, checksum_seed: 7 }
    }

    proptest! {
        #[test]
        fn list_codes_round_trip_and_bounds_hold(
            values in prop::collection::vec((-5f32..5.0, 0f32..3.0, 0f32..9.0), 1..40), dim in 1usize..9,
        ) {
            let shape = shape(dim, false, 4);
            let members: Vec<Member> = values
                .iter()
                .map(|&(term, radius, centroid_distance)| Member { term, radius, centroid_distance })
                .collect();
            let codes: Vec<u8> = (0..members.len() * 3).map(|i| i as u8).collect();
            let centroid = vec![7u8; 2 * dim];
            let mut bytes = Vec::new();
            write_list_codes(&shape, 5, 100, &centroid, &members, &codes, &mut bytes);
            let opened = ListCodes::verify(&shape, 5, &bytes).unwrap();
            prop_assert_eq!((opened.count(), opened.first_id()), (members.len(), 100));
            prop_assert_eq!((opened.centroid(), opened.codes()), (&centroid[..], &codes[..]));
            prop_assert!(opened.terms().eq(members.iter().map(|m| m.term)));
            for ((radius, (low, high)), m) in opened.radii().zip(opened.centroid_distances()).zip(&members) {
                prop_assert!(radius >= m.radius && radius <= m.radius + 0.05);
                prop_assert!(low <= m.centroid_distance && m.centroid_distance <= high, "{low} {high} {m:?}");
            }
            for (slot, expected) in opened.terms().zip(opened.radii()).zip(opened.centroid_distances()).enumerate() {
                let ((term, radius), from_centroid) = expected;
                prop_assert_eq!(opened.member(slot), Some(MemberBounds { term, radius, from_centroid }));
            }
            prop_assert_eq!(opened.member(members.len()), None);
            prop_assert!(ListCodes::verify(&shape, 6, &bytes).is_none());
            let at = bytes.len() / 2;
            bytes[at] ^= 1;
            prop_assert!(ListCodes::verify(&shape, 5, &bytes).is_none());
        }

        #[test]
        fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), list in any::<u32>()) {
            prop_assert!(ListCodes::verify(&shape(4, true, 8), list, &bytes).is_none());
            prop_assert!(Record::verify(&shape(4, true, 8), list, &bytes).is_none());
        }
    }

    #[test]
    fn records_round_trip_and_are_bound_to_their_id() {
        for (norms, id_bytes) in [(false, 4), (true, 8)] {
            let shape = shape(2, norms, id_bytes);
            let mut bytes = Vec::new();
            write_record(&shape, 9, &[1, 2, 3, 4, 5, 6, 7, 8], 0.5, 77, &mut bytes);
            let record = Record::verify(&shape, 9, &bytes).unwrap();
            assert_eq!(record.vector(), [1, 2, 3, 4, 5, 6, 7, 8]);
            assert_eq!(record.external_id(), 77);
            assert_eq!(record.inverse_norm(), if norms { 0.5 } else { 1.0 });
            assert!(Record::verify(&shape, 8, &bytes).is_none());
            for at in 0..bytes.len() {
                bytes[at] ^= 0x10;
                assert!(Record::verify(&shape, 9, &bytes).is_none(), "byte {at}");
                bytes[at] ^= 0x10;
            }
        }
    }
}
