//! The layout of vectors in groups of components: the lists of a `grid-ivf`.
//!
//! The members of a list lie in blocks of 64 vectors, the last one filled up with zeros to a multiple of 8. Components
//! are in the order of the index' axes, in groups of consecutive ones. The first groups of a block are stored component
//! by component (PDX, Kuffo et al., SIGMOD 2025), since nearly all vectors are needed; the others vector by vector,
//! since few are left. A list has these sections, each as long as its members need:
//!
//! | section | content |
//! |---|---|
//! | ids | the user's id of each member, 4 or 8 bytes |
//! | factors | cosine: f32 per place, what makes a stored vector a unit vector; f32 per place, its length |
//! | norms | ip: for each group f32, a norm; then u8 per place, the norm of its components of the group, in 255ths of it |
//! | pilot | f32, the radius of the list; then blocks of codes, component by component |
//! | codes | a reference point, the upper half of a float for each component; 2 bytes per place, a radius; codes of members |
//! | groups | for each group its blocks |
//!
//! A *pilot* is a code of the first principal components, a byte for each, of types whose stored components are not
//! rotated. The radius is the largest distance between those components of a member and its code.
//!
//! *Codes* have some bits of each component, of the difference to the list's reference point after the rotation of a
//! seed. A radius is the distance between a member and the point that its code stands for. A list has codes or a pilot,
//! or neither; both belong to its first slice.
//!
//! A place is a member or what fills up the last block. A list begins at a multiple of 64 bytes.

use alloc::vec::Vec;
use core::ops::Range;

use stratann_kernel::bits;
use stratann_kernel::columns::{GROUP_MAX, LANE_STEP, LANES};
use stratann_kernel::{DType, Metric};

/// A list begins at a multiple of so many bytes.
pub const LIST_ALIGN: usize = 64;

/// Layout of all lists of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GridLayout {
    /// Element type of the stored components.
    pub dtype: DType,
    /// Distance.
    pub metric: Metric,
    /// The first component of each group, and the number of all.
    pub edges: Vec<u32>,
    /// Groups that are stored component by component: the first ones.
    pub columns: usize,
    /// Bytes of an id: 4 or 8.
    pub id_bytes: usize,
    /// Components of a pilot; 0 for none.
    pub pilot: usize,
    /// Bits of the code of a member; `None` without codes.
    pub code: Option<bits::Layout>,
}

/// Components of a group of a pilot.
pub const PILOT_GROUP: usize = 16;

impl GridLayout {
    /// The edges of groups for vectors of `dim` components. The first quarter is in narrow groups: there most vectors
    /// drop out.
    pub fn edges_of(dim: usize) -> Vec<u32> {
        const NARROW: usize = GROUP_MAX / 4;
        let wide = (dim / 12).next_multiple_of(NARROW).clamp(NARROW, GROUP_MAX);
        let (mut edges, mut at) = (Vec::from([0]), 0);
        while at < dim {
            at = (at + if 4 * at < dim { NARROW } else { wide }).min(dim);
            edges.push(at as u32);
        }
        edges
    }

    /// Whether its numbers can be: groups of 1 to [`GROUP_MAX`] components, `dim` in all.
    pub fn is_sane(&self, dim: usize) -> bool {
        let widths = self.edges.windows(2);
        self.edges.first() == Some(&0)
            && self.edges.last().is_some_and(|&end| end as usize == dim)
            && widths.clone().all(|w| w[0] < w[1] && (w[1] - w[0]) as usize <= GROUP_MAX)
            && self.columns <= widths.len()
            && (self.id_bytes == 4 || self.id_bytes == 8)
            && self.pilot <= dim
            && (self.pilot == 0 || self.metric != Metric::Ip)
            && self.code.is_none_or(|code| code.dim() == dim && self.pilot == 0)
    }

    /// Number of groups.
    pub fn groups(&self) -> usize {
        self.edges.len().saturating_sub(1)
    }

    /// The components of a group.
    pub fn components(&self, group: usize) -> Range<usize> {
        self.edges[group] as usize..self.edges[group + 1] as usize
    }

    /// Components of a vector.
    pub fn dim(&self) -> usize {
        self.edges.last().map_or(0, |&end| end as usize)
    }

    /// Whether lists have a section of factors.
    pub fn has_factors(&self) -> bool {
        self.metric == Metric::Cosine
    }

    /// Whether lists have a section of norms.
    pub fn has_norms(&self) -> bool {
        self.metric == Metric::Ip
    }

    /// Places of a list with so many members.
    pub fn places(members: usize) -> usize {
        members.next_multiple_of(LANE_STEP)
    }

    fn factors_at(&self, members: usize) -> usize {
        (members * self.id_bytes).next_multiple_of(4)
    }

    fn norms_at(&self, members: usize) -> usize {
        let places = Self::places(members);
        self.factors_at(members) + if self.has_factors() { 8 * places } else { 0 }
    }

    fn pilot_at(&self, members: usize) -> usize {
        let norms = self.groups() * (4 + Self::places(members));
        self.norms_at(members) + if self.has_norms() { norms } else { 0 }
    }

    fn codes_at(&self, members: usize) -> usize {
        let pilot = 4 + self.pilot * Self::places(members);
        self.pilot_at(members) + if self.pilot > 0 { pilot } else { 0 }
    }

    fn groups_at(&self, members: usize) -> usize {
        let codes = self
            .code
            .map_or(0, |code| 2 * (code.dim() + Self::places(members)) + code.code_bytes() * members);
        self.codes_at(members) + codes.next_multiple_of(4)
    }

    /// Bytes of a list with so many members.
    pub fn list_bytes(&self, members: usize) -> usize {
        let components = Self::places(members) * self.dim() * self.dtype.size();
        (self.groups_at(members) + components).next_multiple_of(LIST_ALIGN)
    }

    /// Offset of a unit of a list with so many members: its head, at 0, or one of its slices, whose first groups are
    /// `slices`. Pilot and codes belong to the first slice.
    pub fn unit_at(&self, members: usize, slices: &[u32], unit: usize) -> usize {
        let columns = |slice: usize| self.edges.get(slices[slice] as usize).map_or(0, |&edge| edge as usize);
        match unit {
            0 => 0,
            1 => self.pilot_at(members),
            _ => self.groups_at(members) + Self::places(members) * self.dtype.size() * columns(unit - 1),
        }
    }

    /// Opens the bytes of a list; `None` when there are fewer than it needs.
    pub fn list<'a>(&'a self, members: usize, bytes: &'a [u8]) -> Option<List<'a>> {
        let (head, rest) = bytes.split_at_checked(self.pilot_at(members))?;
        self.slice(members, head, rest, 0..self.groups())
    }

    /// Opens a slice of a list: its head, and its groups, with pilot and codes before the first one. `None` when there
    /// are fewer bytes than it needs.
    pub fn slice<'a>(
        &'a self,
        members: usize,
        head: &'a [u8],
        bytes: &'a [u8],
        range: Range<usize>,
    ) -> Option<List<'a>> {
        let is_first = range.start == 0;
        let (pilot_at, codes_at) = (self.pilot_at(members), self.codes_at(members));
        let (pilot, bytes) = bytes.split_at_checked(if is_first { codes_at - pilot_at } else { 0 })?;
        let codes = if is_first { self.groups_at(members) - codes_at } else { 0 };
        let (codes, groups) = bytes.split_at_checked(codes)?;
        let columns = *self.edges.get(range.end)? - *self.edges.get(range.start)?;
        let needed = Self::places(members) * self.dtype.size() * columns as usize;
        let is_whole = head.len() >= pilot_at && groups.len() >= needed;
        is_whole.then_some(List { layout: self, members, head, pilot, codes, groups, range })
    }
}

/// The bytes of one list, or of a slice of it.
#[derive(Clone, Debug)]
pub struct List<'a> {
    layout: &'a GridLayout,
    members: usize,
    // Ids, factors, norms.
    head: &'a [u8],
    // Empty but for the first slice.
    pilot: &'a [u8],
    codes: &'a [u8],
    groups: &'a [u8],
    range: Range<usize>,
}

impl<'a> List<'a> {
    /// Members.
    pub fn members(&self) -> usize {
        self.members
    }

    /// The groups of this slice.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// A checksum of its head, its pilot, its codes and its groups.
    pub fn checksum(&self) -> u64 {
        let columns = (self.layout.edges[self.range.end] - self.layout.edges[self.range.start]) as usize;
        let bytes = GridLayout::places(self.members) * self.layout.dtype.size() * columns;
        let head = &self.head[..self.layout.pilot_at(self.members)];
        [head, self.pilot, self.codes, &self.groups[..bytes]]
            .iter()
            .fold(0u64, |sum, part| sum.rotate_left(17) ^ crate::hash::checksum(part))
    }

    /// Blocks.
    pub fn blocks(&self) -> usize {
        self.members.div_ceil(LANES)
    }

    /// Members of a block.
    pub fn members_of(&self, block: usize) -> usize {
        self.members.saturating_sub(block * LANES).min(LANES)
    }

    /// Places of a block.
    pub fn places_of(&self, block: usize) -> usize {
        self.members_of(block).next_multiple_of(LANE_STEP)
    }

    /// The id that the user knows of a member.
    pub fn external_id(&self, member: usize) -> u64 {
        let size = self.layout.id_bytes;
        let mut id = [0; 8];
        id[..size].copy_from_slice(&self.head[member * size..][..size]);
        u64::from_le_bytes(id)
    }

    /// Factors that make the stored vectors of a block unit vectors, for each place; 1 without a section of factors.
    pub fn factors(&self, block: usize, out: &mut [f32; LANES]) {
        out.fill(1.0);
        if self.layout.has_factors() {
            let at = self.layout.factors_at(self.members) + 4 * block * LANES;
            read_floats(&self.head[at..][..4 * self.places_of(block)], out);
        }
    }

    /// The length of a member before it was stored as a unit vector; `None` without a section of factors.
    pub fn length(&self, member: usize) -> Option<f32> {
        self.layout.has_factors().then(|| {
            let places = GridLayout::places(self.members);
            let at = self.layout.factors_at(self.members) + 4 * (places + member);
            let mut out = [0.0];
            read_floats(&self.head[at..][..4], &mut out);
            out[0]
        })
    }

    /// The norms of a group in a block: the largest of the list, and in 255ths of it, rounded up, that of each place.
    pub fn norms(&self, group: usize, block: usize) -> (f32, &'a [u8]) {
        let places = GridLayout::places(self.members);
        let at = self.layout.norms_at(self.members) + group * (4 + places);
        let mut largest = [0.0];
        read_floats(&self.head[at..][..4], &mut largest);
        (largest[0], &self.head[at + 4 + block * LANES..][..self.places_of(block)])
    }

    /// Whether it has a pilot: the first slice of a list may have one.
    pub fn has_pilot(&self) -> bool {
        !self.pilot.is_empty()
    }

    /// The radius of the pilot, and its codes of a block, from component `from` on; nothing without a pilot.
    pub fn pilot(&self, block: usize, from: usize) -> (f32, &'a [u8]) {
        if self.pilot.is_empty() {
            return (0.0, &[]);
        }
        let mut radius = [0.0];
        read_floats(&self.pilot[..4], &mut radius);
        let start = 4 + block * LANES * self.layout.pilot + from * self.places_of(block);
        let length = (self.layout.pilot - from) * self.places_of(block);
        (radius[0], &self.pilot[start..][..length])
    }

    /// Whether it has codes: the first slice of a list may have them.
    pub fn has_codes(&self) -> bool {
        !self.codes.is_empty()
    }

    /// The reference point of the codes; nothing without codes.
    pub fn reference(&self) -> impl Iterator<Item = f32> + 'a {
        let dim = if self.codes.is_empty() { 0 } else { 2 * self.layout.dim() };
        self.codes[..dim].as_chunks::<2>().0.iter().map(|half| upper_half(*half))
    }

    /// The radii of a block, of which each place has one, and its codes; nothing without codes.
    pub fn codes(&self, block: usize) -> (&'a [u8], &'a [u8]) {
        let Some(code) = self.layout.code.filter(|_| self.has_codes()) else { return (&[], &[]) };
        let (dim, size) = (self.layout.dim(), code.code_bytes());
        let (radii, codes) = self.codes[2 * dim..].split_at(2 * GridLayout::places(self.members));
        let first = block * LANES;
        (&radii[2 * first..], &codes[size * first..][..size * self.members_of(block)])
    }

    /// The components of a group in a block.
    #[inline]
    pub fn group(&self, group: usize, block: usize) -> &'a [u8] {
        let layout = self.layout;
        let (places, size) = (GridLayout::places(self.members), layout.dtype.size());
        let columns = layout.components(group);
        let start = places * size * (columns.start - layout.edges[self.range.start] as usize);
        let at = start + block * LANES * size * columns.len();
        &self.groups[at..][..self.places_of(block) * size * columns.len()]
    }

    /// Appends the components of a member in this slice, in the order of the axes, as they are stored.
    pub fn vector(&self, member: usize, out: &mut Vec<u8>) {
        let size = self.layout.dtype.size();
        let (block, lane) = (member / LANES, member % LANES);
        let stride = self.places_of(block);
        for group in self.range() {
            let width = self.layout.components(group).len();
            let bytes = self.group(group, block);
            if group < self.layout.columns {
                let column = |c: usize| &bytes[size * (c * stride + lane)..][..size];
                (0..width).for_each(|c| out.extend_from_slice(column(c)));
            } else {
                out.extend_from_slice(&bytes[size * width * lane..][..size * width]);
            }
        }
    }
}

/// Members of whole lists that are written as one list.
#[derive(Clone, Debug, Default)]
pub struct Copies {
    ids: Vec<u64>,
    vectors: Vec<u8>,
    factors: Vec<f32>,
    lengths: Vec<f32>,
    pilots: Vec<u8>,
    radius: f32,
    reference: Vec<f32>,
    codes: Vec<u8>,
    radii: Vec<f32>,
}

impl Copies {
    /// Takes the first `count` members of a whole list.
    pub fn take(&mut self, list: &List<'_>, count: usize) {
        self.take_members(list, 0..count.min(list.members));
    }

    /// Takes some members of a whole list. The codes of all refer to the last list.
    pub fn take_members(&mut self, list: &List<'_>, members: impl IntoIterator<Item = usize>) {
        for member in members {
            let (block, lane) = (member / LANES, member % LANES);
            let mut factors = [1.0; LANES];
            list.factors(block, &mut factors);
            self.ids.push(list.external_id(member));
            self.factors.push(factors[lane]);
            self.lengths.push(list.length(member).unwrap_or(1.0));
            list.vector(member, &mut self.vectors);
            let (radius, codes) = list.pilot(block, 0);
            self.radius = self.radius.max(radius);
            self.pilots.extend(codes.get(lane..).unwrap_or(&[]).iter().step_by(list.places_of(block)));
            let (radii, codes) = list.codes(block);
            if let Some(code) = list
                .layout
                .code
                .map(|code| code.code_bytes())
                .and_then(|size| codes.get(lane * size..)?.get(..size))
            {
                self.codes.extend_from_slice(code);
                self.radii.push(bits::radius(radii, lane));
            }
        }
        self.reference.clear();
        self.reference.extend(list.reference());
    }

    /// Appends them as a list.
    pub fn write(&self, layout: &GridLayout, out: &mut Vec<u8>) {
        let size = layout.dim() * layout.dtype.size();
        let members: Vec<ListMember<'_>> = (0..self.ids.len())
            .map(|i| ListMember {
                external_id: self.ids[i],
                vector: &self.vectors[i * size..][..size],
                factor: self.factors[i],
                length: self.lengths[i],
                pilot: &self.pilots[i * layout.pilot..][..layout.pilot],
                code: layout
                    .code
                    .map_or(&[], |code| &self.codes[i * code.code_bytes()..][..code.code_bytes()]),
                radius: self.radii.get(i).copied().unwrap_or(0.0),
            })
            .collect();
        write_list(layout, &members, (self.radius, &self.reference), out);
    }
}

fn read_floats(bytes: &[u8], out: &mut [f32]) {
    let floats = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
    out.iter_mut().zip(floats).for_each(|(out, x)| *out = x);
}

/// A member of a list that is written.
#[derive(Clone, Copy, Debug)]
pub struct ListMember<'a> {
    /// The id that the user knows.
    pub external_id: u64,
    /// Components of the member, in the order of the axes, as they are stored.
    pub vector: &'a [u8],
    /// Factor that makes the components a unit vector. Written for cosine alone.
    pub factor: f32,
    /// Length of the vector before. Written for cosine alone.
    pub length: f32,
    /// Code of the first principal components; empty without a pilot.
    pub pilot: &'a [u8],
    /// Code of all components; empty without codes.
    pub code: &'a [u8],
    /// Distance from the point that the code stands for, at most.
    pub radius: f32,
}

/// Appends a list. `radius` is that of the pilot, `reference` the point of the codes, of floats of which the upper half
/// is written.
pub fn write_list(
    layout: &GridLayout,
    members: &[ListMember<'_>],
    (radius, reference): (f32, &[f32]),
    out: &mut Vec<u8>,
) {
    let start = out.len();
    let places = GridLayout::places(members.len());
    for member in members {
        out.extend_from_slice(&member.external_id.to_le_bytes()[..layout.id_bytes]);
    }
    out.resize(start + layout.factors_at(members.len()), 0);
    if layout.has_factors() {
        for value in [|m: &ListMember<'_>| m.factor, |m: &ListMember<'_>| m.length] {
            members.iter().for_each(|m| out.extend_from_slice(&value(m).to_le_bytes()));
            out.resize(out.len() + 4 * (places - members.len()), 0);
        }
    }
    if layout.has_norms() {
        (0..layout.groups()).for_each(|group| write_norms(layout, members, group, out));
    }
    if layout.pilot > 0 {
        out.extend_from_slice(&radius.to_le_bytes());
        for block in members.chunks(LANES) {
            for c in 0..layout.pilot {
                out.extend(block.iter().map(|member| member.pilot[c]));
                out.resize(out.len() + block.len().next_multiple_of(LANE_STEP) - block.len(), 0);
            }
        }
    }
    if let Some(code) = &layout.code {
        write_codes(code, members, reference, out);
    }
    for group in 0..layout.groups() {
        members.chunks(LANES).for_each(|block| write_block(layout, block, group, out));
    }
    out.resize(start + layout.list_bytes(members.len()), 0);
}

fn write_codes(code: &bits::Layout, members: &[ListMember<'_>], reference: &[f32], out: &mut Vec<u8>) {
    let start = out.len();
    reference.iter().for_each(|x| out.extend_from_slice(&x.to_le_bytes()[2..]));
    out.resize(start + 2 * code.dim(), 0);
    members.iter().for_each(|member| bits::write_radius(member.radius, out));
    out.resize(start + 2 * (code.dim() + GridLayout::places(members.len())), 0);
    members.iter().for_each(|member| out.extend_from_slice(member.code));
    out.resize(start + (out.len() - start).next_multiple_of(4), 0);
}

/// The float of which this is the upper half.
fn upper_half(half: [u8; 2]) -> f32 {
    f32::from_le_bytes([0, 0, half[0], half[1]])
}

/// A float without its lower half: as a reference point is stored.
pub fn without_lower_half(x: f32) -> f32 {
    f32::from_bits(x.to_bits() & 0xffff_0000)
}

fn write_norms(layout: &GridLayout, members: &[ListMember<'_>], group: usize, out: &mut Vec<u8>) {
    let mut wide = [0f32; GROUP_MAX];
    let columns = layout.components(group);
    let size = layout.dtype.size();
    let norm_of = |member: &ListMember<'_>| {
        let wide = &mut wide[..columns.len()];
        stratann_kernel::element::widen(layout.dtype, &member.vector[size * columns.start..], wide);
        let square: f64 = wide.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        // Never below the norm.
        stratann_kernel::sqrt((square * (1.0 + 1e-6)) as f32) * (1.0 + 1e-6)
    };
    let norms: Vec<f32> = members.iter().map(norm_of).collect();
    let largest = norms.iter().copied().fold(0f32, f32::max);
    out.extend_from_slice(&largest.to_le_bytes());
    let code = |norm: f32| if largest > 0.0 { up(255.0 * norm / largest) } else { 0 };
    out.extend(norms.iter().map(|&norm| code(norm)));
    out.resize(out.len() + GridLayout::places(members.len()) - members.len(), 0);
}

/// Rounds up, by a little too much rather than too little.
fn up(x: f32) -> u8 {
    let whole = x as u8;
    if x * (1.0 + 1e-6) > f32::from(whole) { whole.saturating_add(1) } else { whole }
}

fn write_block(layout: &GridLayout, block: &[ListMember<'_>], group: usize, out: &mut Vec<u8>) {
    let size = layout.dtype.size();
    let columns = layout.components(group);
    let stride = block.len().next_multiple_of(LANE_STEP);
    let fill = stride - block.len();
    if group < layout.columns {
        for c in columns {
            block.iter().for_each(|m| out.extend_from_slice(&m.vector[size * c..][..size]));
            out.resize(out.len() + fill * size, 0);
        }
    } else {
        let bytes = size * columns.start..size * columns.end;
        block.iter().for_each(|m| out.extend_from_slice(&m.vector[bytes.clone()]));
        out.resize(out.len() + fill * size * columns.len(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn groups_cover_all_components() {
        for dim in [1, 15, 16, 17, 33, 64, 65, 100, 128, 384, 2709] {
            let edges = GridLayout::edges_of(dim);
            let (dtype, metric) = (DType::F32, Metric::L2);
            let layout = GridLayout { dtype, metric, edges, columns: 0, id_bytes: 4, pilot: 0, code: None };
            assert!(layout.is_sane(dim) && !layout.is_sane(dim + 1), "{dim}");
            assert_eq!(layout.dim(), dim);
        }
        assert_eq!(GridLayout::edges_of(40), [0, 16, 32, 40]);
        assert_eq!(GridLayout::edges_of(400), [0, 16, 32, 48, 64, 80, 96, 112, 160, 208, 256, 304, 352, 400]);
    }

    #[test]
    fn lists_hold_what_was_written() {
        for metric in Metric::ALL {
            for (dim, columns) in [(1, 1), (40, 1), (70, 4), (70, 0), (130, 2)] {
                for count in [0, 1, 8, 63, 64, 65, 200] {
                    check(metric, dim, columns, count);
                }
            }
        }
    }

    /// Slices and first members of a list are those of the whole.
    fn check_parts(layout: &GridLayout, (bytes, count): (&[u8], usize)) {
        let whole = layout.list(count, bytes).unwrap();
        let groups = layout.groups() as u32;
        let slices = [0, groups / 2, groups];
        let slices = if groups > 1 { &slices[..] } else { &[0, 1] };
        let at = |unit| layout.unit_at(count, slices, unit);
        let slice = |slice: usize| {
            let range = slices[slice] as usize..slices[slice + 1] as usize;
            layout.slice(count, &bytes[..at(1)], &bytes[at(1 + slice)..], range).unwrap()
        };
        for member in 0..count {
            let (mut all, mut joined) = (vec![], vec![]);
            whole.vector(member, &mut all);
            (0..slices.len() - 1).for_each(|s| slice(s).vector(member, &mut joined));
            assert_eq!(all, joined);
        }
        let (mut copies, mut first) = (Copies::default(), vec![]);
        copies.take(&whole, 70);
        copies.write(layout, &mut first);
        let few = layout.list(count.min(70), &first).unwrap();
        for member in 0..few.members() {
            let (mut a, mut b) = (vec![], vec![]);
            whole.vector(member, &mut a);
            few.vector(member, &mut b);
            assert_eq!((a, few.length(member)), (b, whole.length(member)));
            assert_eq!(few.external_id(member), whole.external_id(member));
        }
        if (1..=70).contains(&count) {
            assert_eq!(first, bytes);
        }
    }

    fn check(metric: Metric, dim: usize, columns: usize, count: usize) {
        let edges = GridLayout::edges_of(dim);
        let columns = columns.min(edges.len() - 1);
        let pilot = if metric == Metric::L2 { dim.min(20) } else { 0 };
        let code = (metric == Metric::Cosine).then(|| bits::Layout::even(dim, 3, 0, false)).flatten();
        let layout = GridLayout { dtype: DType::I8, metric, edges, columns, id_bytes: 8, pilot, code };
        let reference: Vec<f32> = (0..dim).map(|i| without_lower_half(i as f32 * 0.1)).collect();
        let bytes_of = |i: usize| vec![i as u8; code.map_or(0, |code| code.code_bytes())];
        let codes: Vec<Vec<u8>> = (0..count).map(bytes_of).collect();
        let vectors: Vec<u8> = (0..count * dim).map(|i| (i * i % 251) as u8).collect();
        let members: Vec<ListMember<'_>> = (0..count)
            .map(|i| ListMember {
                external_id: 1 << 40 | i as u64,
                vector: &vectors[i * dim..(i + 1) * dim],
                factor: i as f32,
                length: -(i as f32),
                pilot: &vectors[i * dim..i * dim + pilot],
                code: &codes[i],
                radius: i as f32,
            })
            .collect();
        let mut bytes = vec![];
        write_list(&layout, &members, (1.5, &reference), &mut bytes);
        assert_eq!(bytes.len(), layout.list_bytes(count));
        let short = bytes.len().saturating_sub(LIST_ALIGN);
        assert!(layout.list(count, &bytes[..short]).is_none() || count == 0);
        check_parts(&layout, (&bytes, members.len()));
        let list = layout.list(count, &bytes).unwrap();
        for (i, member) in members.iter().enumerate() {
            let mut vector = vec![];
            list.vector(i, &mut vector);
            assert_eq!((list.external_id(i), &vector[..]), (member.external_id, member.vector));
            let mut factors = [0.0; LANES];
            list.factors(i / LANES, &mut factors);
            let is_cosine = metric == Metric::Cosine;
            assert_eq!(factors[i % LANES], if is_cosine { i as f32 } else { 1.0 });
            assert_eq!(list.length(i), is_cosine.then_some(-(i as f32)));
            if code.is_some() {
                let (radii, all) = list.codes(i / LANES);
                let size = codes[i].len();
                assert_eq!(&all[i % LANES * size..][..size], codes[i]);
                assert_eq!(bits::radius(radii, i % LANES), i as f32);
                assert!(list.reference().eq(reference.iter().copied()));
            }
            if pilot > 0 {
                let (radius, codes) = list.pilot(i / LANES, pilot - 1);
                assert_eq!((radius, codes[i % LANES]), (1.5, member.pilot[pilot - 1]));
            }
            if metric == Metric::Ip {
                (0..layout.groups()).for_each(|group| check_norm(&layout, &list, group, i, member.vector));
            }
        }
    }

    fn check_norm(layout: &GridLayout, list: &List<'_>, group: usize, i: usize, vector: &[u8]) {
        let exact: f32 = vector[layout.components(group)].iter().map(|&x| f32::from(x as i8).powi(2)).sum();
        let (largest, codes) = list.norms(group, i / LANES);
        let stored = largest * f32::from(codes[i % LANES]) / 255.0;
        assert!(stored >= exact.sqrt() && stored <= exact.sqrt() + 1.01 * largest / 255.0);
    }
}
