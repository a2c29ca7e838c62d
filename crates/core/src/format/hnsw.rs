//! The layout of a sub-HNSW: the vectors of one cluster and their graph (d-HNSW §3.2).
//!
//! It is searched where it lies: no byte of it depends on its place in memory, and nothing is decoded first.
//!
//! | bytes | content |
//! |---|---|
//! | 64 | header, see below |
//! | 4 × upper layers | nodes of each upper layer, the lowest first; filled up to a multiple of 8 |
//! | members × (2M + 1) links | for each member: a count, then neighbours on the bottom layer |
//! | for each upper layer, nodes × (M + 3) links | member, slot on the layer below, count, neighbours as slots of this layer |
//! | 4 × members | under cosine: f32, what makes each vector a unit vector; begins at a multiple of 8 |
//! | 4 or 8 × members | the users' ids; begins at a multiple of 8 |
//! | members × vector | components; begins at a multiple of 64 |
//! | up to 7 | zeros up to a multiple of 8 |
//!
//! A link has two bytes where there are at most 65,536 members, otherwise four. The header has
//!
//! | at | bytes | content |
//! |---|---|---|
//! | 0 | 8 | checksum of everything after it |
//! | 8 | 4 | `HNSW` |
//! | 12 | 4 | cluster |
//! | 16 | 4 | version of its group |
//! | 20 | 4 | members |
//! | 24 | 4 | the slot on the uppermost layer where searches begin |
//! | 28 | 2 | M: neighbours on upper layers, half of those on the bottom layer |
//! | 30 | 1 | upper layers |
//! | 31 | 1 | bytes of an id |
//! | 32 | 32 | zeros |

use alloc::vec::Vec;

use super::seeded_checksum;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 64;
/// Vectors begin at a multiple of so many bytes.
pub const VECTOR_ALIGN: usize = 64;
/// Most neighbours of a node on an upper layer.
pub const M_MAX: usize = 256;
/// Most layers above the bottom one.
pub const UPPER_MAX: usize = 15;

const MAGIC: u32 = u32::from_le_bytes(*b"HNSW");

/// Layout of all sub-HNSWs of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HnswLayout {
    /// Bytes of a vector.
    pub vector_bytes: usize,
    /// Whether norms are stored: under cosine.
    pub norms: bool,
}

/// Numbers that the length of a sub-HNSW depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HnswShape<'a> {
    /// Vectors.
    pub members: usize,
    /// Neighbours on upper layers.
    pub m: usize,
    /// Bytes of an id, 4 or 8.
    pub id_bytes: usize,
    /// Nodes of each upper layer, the lowest first.
    pub upper: &'a [u32],
}

/// The seed of the checksum of A (0) or B (1) in a version of a group.
pub fn seed(build: u64, group: u32, version: u32, side: usize) -> u64 {
    crate::hash::hash(super::fresh::seed(build, group, version), 1, side as u64)
}

const fn link_bytes(members: usize) -> usize {
    if members <= 1 << 16 { 2 } else { 4 }
}

/// Offsets of the parts, and the length of all.
#[derive(Clone, Copy, Debug)]
struct Places {
    bottom: usize,
    upper: usize,
    norms: usize,
    ids: usize,
    vectors: usize,
    end: usize,
}

impl Places {
    fn new(
        layout: &HnswLayout,
        members: usize,
        (m, id_bytes): (usize, usize),
        upper: impl ExactSizeIterator<Item = usize>,
    ) -> Places {
        let link = link_bytes(members);
        let bottom = (HEADER_BYTES + 4 * upper.len()).next_multiple_of(8);
        let above = bottom + members * (2 * m + 1) * link;
        let norms = (above + upper.sum::<usize>() * (m + 3) * link).next_multiple_of(8);
        let ids = (norms + if layout.norms { 4 * members } else { 0 }).next_multiple_of(8);
        let vectors = (ids + id_bytes * members).next_multiple_of(VECTOR_ALIGN);
        let end = (vectors + members * layout.vector_bytes).next_multiple_of(8);
        Places { bottom, upper: above, norms, ids, vectors, end }
    }
}

impl HnswLayout {
    /// Bytes of the longest header.
    pub const HEAD_BYTES_MAX: usize = HEADER_BYTES + 4 * UPPER_MAX;

    /// Offset of the ids in a sub-HNSW of so many members and bytes, and the bytes of each, by its header. `None` for a
    /// header that makes no sense.
    pub fn ids(&self, head: &[u8], members: usize, bytes: usize) -> Option<(usize, usize)> {
        let m = usize::from(u16::from_le_bytes(head.get(28..30)?.try_into().ok()?));
        let (layers, id_bytes) = (usize::from(*head.get(30)?), usize::from(*head.get(31)?));
        let is_sane = (1..=M_MAX).contains(&m) && layers <= UPPER_MAX && (id_bytes == 4 || id_bytes == 8);
        let counts = head.get(HEADER_BYTES..HEADER_BYTES + 4 * layers)?.as_chunks::<4>().0;
        let upper = counts.iter().map(|count| u32::from_le_bytes(*count) as usize);
        if !is_sane || upper.clone().any(|count| count > members) {
            return None;
        }
        let places = Places::new(self, members, (m, id_bytes), upper);
        (places.end == bytes).then_some((places.ids, id_bytes))
    }

    /// Bytes of a sub-HNSW of this shape.
    pub fn bytes(&self, shape: &HnswShape<'_>) -> usize {
        let upper = shape.upper.iter().map(|&count| count as usize);
        Places::new(self, shape.members, (shape.m, shape.id_bytes), upper).end
    }
}

/// A graph of several layers, as it is written.
pub trait Layers {
    /// Nodes of the bottom layer: all.
    fn nodes(&self) -> usize;
    /// Most neighbours on an upper layer.
    fn m(&self) -> usize;
    /// The neighbours of a node on a layer; 0 is the bottom. Empty where the node is not on the layer.
    fn list(&self, layer: usize, node: u32) -> &[u32];
    /// The nodes of each upper layer, ascending, the lowest layer first.
    fn upper(&self) -> Vec<Vec<u32>>;
    /// Entry of searches: the place of a node among those of the uppermost layer.
    fn entry_slot(&self) -> u32;
}

/// A vector on its way into a sub-HNSW.
#[derive(Clone, Copy, Debug)]
pub struct HnswMember<'a> {
    /// The user's id.
    pub external_id: u64,
    /// Factor that makes the vector a unit vector; stored under cosine alone.
    pub inverse_norm: f32,
    /// Components.
    pub vector: &'a [u8],
}

/// Cluster of a sub-HNSW, and the seed of its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HnswName {
    /// Number of the cluster.
    pub cluster: u32,
    /// The version of its group.
    pub version: u32,
    /// See [`seed`].
    pub seed: u64,
}

impl HnswName {
    /// The name of the meta-HNSW of a build.
    pub fn meta(build: u64) -> HnswName {
        HnswName { cluster: u32::MAX, version: 0, seed: crate::hash::hash(build, 2, 0) }
    }
}

/// Appends the sub-HNSW of `members`, one or more, whose graph is `graph`.
pub fn write<'m>(
    layout: &HnswLayout,
    name: &HnswName,
    id_bytes: usize,
    graph: &impl Layers,
    members: impl Iterator<Item = HnswMember<'m>> + Clone,
    out: &mut Vec<u8>,
) {
    let (count, m, start) = (graph.nodes(), graph.m(), out.len());
    let upper = graph.upper();
    let places = Places::new(layout, count, (m, id_bytes), upper.iter().map(Vec::len));
    out.resize(start + places.end, 0);
    let bytes = &mut out[start..];
    bytes[8..12].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[12..16].copy_from_slice(&name.cluster.to_le_bytes());
    bytes[16..20].copy_from_slice(&name.version.to_le_bytes());
    bytes[20..24].copy_from_slice(&(count as u32).to_le_bytes());
    bytes[24..28].copy_from_slice(&graph.entry_slot().to_le_bytes());
    bytes[28..30].copy_from_slice(&(m as u16).to_le_bytes());
    bytes[30] = upper.len() as u8;
    bytes[31] = id_bytes as u8;
    for (at, nodes) in upper.iter().enumerate() {
        let count = nodes.len() as u32;
        bytes[HEADER_BYTES + 4 * at..][..4].copy_from_slice(&count.to_le_bytes());
    }
    write_links(graph, &upper, &places, bytes);
    let vector_bytes = layout.vector_bytes;
    for (at, member) in members.take(count).enumerate() {
        if layout.norms {
            bytes[places.norms + 4 * at..][..4].copy_from_slice(&member.inverse_norm.to_le_bytes());
        }
        let id = member.external_id.to_le_bytes();
        bytes[places.ids + id_bytes * at..][..id_bytes].copy_from_slice(&id[..id_bytes]);
        bytes[places.vectors + vector_bytes * at..][..vector_bytes].copy_from_slice(member.vector);
    }
    let sum = seeded_checksum(name.seed, &bytes[8..]);
    bytes[..8].copy_from_slice(&sum.to_le_bytes());
}

fn write_links(graph: &impl Layers, upper: &[Vec<u32>], places: &Places, bytes: &mut [u8]) {
    let (m, link) = (graph.m(), link_bytes(graph.nodes()));
    let mut at = places.bottom;
    let mut put = |bytes: &mut [u8], number: u32| {
        bytes[at..at + link].copy_from_slice(&number.to_le_bytes()[..link]);
        at += link;
    };
    for node in 0..graph.nodes() as u32 {
        let list = graph.list(0, node);
        put(bytes, list.len() as u32);
        (0..2 * m).for_each(|i| put(bytes, list.get(i).copied().unwrap_or(0)));
    }
    for (below, nodes) in upper.iter().enumerate() {
        let slot_in = |nodes: &[u32], node: u32| nodes.binary_search(&node).unwrap_or(0) as u32;
        for &node in nodes {
            put(bytes, node);
            put(bytes, below.checked_sub(1).map_or(node, |below| slot_in(&upper[below], node)));
            let list = graph.list(below + 1, node);
            put(bytes, list.len() as u32);
            (0..m).for_each(|i| put(bytes, list.get(i).map_or(0, |&other| slot_in(nodes, other))));
        }
    }
}

/// A sub-HNSW in its bytes.
#[derive(Clone, Copy, Debug)]
pub struct SubHnsw<'a> {
    /// Cluster of the sub-HNSW.
    pub cluster: u32,
    /// The version of its group.
    pub version: u32,
    members: u32,
    entry: u32,
    m: u32,
    layers: u32,
    link_bytes: u32,
    id_bytes: u32,
    vector_bytes: usize,
    /// All bytes up to the norms.
    head: &'a [u8],
    bottom: usize,
    upper: usize,
    norms: &'a [u8],
    ids: &'a [u8],
    vectors: &'a [u8],
}

impl<'a> SubHnsw<'a> {
    /// Opens bytes that [`SubHnsw::verify`] has accepted before. `None` where the header makes no sense of them; links
    /// are not looked at.
    pub fn open(layout: &HnswLayout, bytes: &'a [u8]) -> Option<SubHnsw<'a>> {
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let (members, entry) = (word(20)?, word(24)?);
        let (m, layers, id_bytes) =
            (word(28)? & 0xFFFF, u32::from(*bytes.get(30)?), u32::from(*bytes.get(31)?));
        let is_sane = word(8)? == MAGIC
            && members > 0
            && (1..=M_MAX as u32).contains(&m)
            && layers <= UPPER_MAX as u32
            && (id_bytes == 4 || id_bytes == 8)
            && u64::from(members) * (layout.vector_bytes as u64).max(1) <= bytes.len() as u64;
        if !is_sane {
            return None;
        }
        let counts = bytes.get(HEADER_BYTES..HEADER_BYTES + 4 * layers as usize)?.as_chunks::<4>().0;
        let count = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes);
        let last = counts.last().map_or(members, count);
        if entry >= last || counts.iter().any(|c| !(1..=members).contains(&count(c))) {
            return None;
        }
        let upper = counts.iter().map(|c| count(c) as usize);
        let places = Places::new(layout, members as usize, (m as usize, id_bytes as usize), upper);
        if bytes.len() != places.end {
            return None;
        }
        let ids_end = places.ids + id_bytes as usize * members as usize;
        Some(SubHnsw {
            cluster: word(12)?,
            version: word(16)?,
            members,
            entry,
            m,
            layers,
            link_bytes: link_bytes(members as usize) as u32,
            id_bytes,
            vector_bytes: layout.vector_bytes,
            head: bytes.get(..places.norms)?,
            bottom: places.bottom,
            upper: places.upper,
            norms: if layout.norms {
                bytes.get(places.norms..places.norms + 4 * members as usize)?
            } else {
                &[]
            },
            ids: bytes.get(places.ids..ids_end)?,
            vectors: bytes.get(places.vectors..places.vectors + members as usize * layout.vector_bytes)?,
        })
    }

    /// Whether these bytes are the sub-HNSW of this name, whole and unchanged.
    pub fn verify(layout: &HnswLayout, name: &HnswName, bytes: &[u8]) -> bool {
        let sum = bytes.first_chunk::<8>().map(|sum| u64::from_le_bytes(*sum));
        sum.is_some_and(|sum| sum == seeded_checksum(name.seed, &bytes[8..]))
            && SubHnsw::open(layout, bytes)
                .is_some_and(|own| own.cluster == name.cluster && own.version == name.version)
    }

    /// Vectors.
    pub fn members(&self) -> u32 {
        self.members
    }

    /// Layers above the bottom one.
    pub fn layers(&self) -> u32 {
        self.layers
    }

    /// Most neighbours on an upper layer.
    pub fn m(&self) -> u32 {
        self.m
    }

    /// Nodes of an upper layer, counted from 1; of the bottom layer all members.
    pub fn nodes_of(&self, layer: u32) -> u32 {
        let Some(at) = layer.checked_sub(1) else { return self.members };
        let bytes = self.head.get(HEADER_BYTES + 4 * at as usize..).and_then(<[u8]>::first_chunk::<4>);
        bytes.filter(|_| layer <= self.layers).map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    /// Entry of searches: a slot of the uppermost layer.
    pub fn entry(&self) -> u32 {
        self.entry
    }

    /// Bytes of a vector.
    pub fn vector_bytes(&self) -> usize {
        self.vector_bytes
    }

    /// The vectors, one after another.
    pub fn vectors(&self) -> &'a [u8] {
        self.vectors
    }

    /// One vector; empty for a member that does not exist.
    #[inline]
    pub fn vector(&self, member: u32) -> &'a [u8] {
        let at = member as usize * self.vector_bytes;
        self.vectors.get(at..at + self.vector_bytes).unwrap_or(&[])
    }

    /// Factor that makes a vector a unit vector; 1 but under cosine.
    #[inline]
    pub fn inverse_norm(&self, member: u32) -> f32 {
        if self.norms.is_empty() {
            return 1.0;
        }
        let bytes = self.norms.get(4 * member as usize..).and_then(<[u8]>::first_chunk::<4>);
        bytes.map_or(0.0, |bytes| f32::from_le_bytes(*bytes))
    }

    /// The user's id of a member; `u64::MAX` for one that does not exist.
    pub fn external_id(&self, member: u32) -> u64 {
        let size = self.id_bytes as usize;
        let Some(own) = self.ids.get(member as usize * size..(member as usize + 1) * size) else {
            return u64::MAX;
        };
        let mut id = [0; 8];
        id[..size].copy_from_slice(own);
        u64::from_le_bytes(id)
    }

    /// Calls `f` with each neighbour of a member on the bottom layer. They may be out of range in bytes that nobody
    /// verified.
    #[inline]
    pub fn each_neighbour(&self, member: u32, f: impl FnMut(u32)) {
        let (stride, link) = (2 * self.m as usize + 1, self.link_bytes as usize);
        let at = self.bottom + member as usize * stride * link;
        self.each(self.head.get(at..at + stride * link).unwrap_or(&[]), f);
    }

    /// The bytes of the neighbours of a member on the bottom layer, to be prefetched.
    #[inline]
    pub fn neighbour_bytes(&self, member: u32) -> &'a [u8] {
        let size = (2 * self.m as usize + 1) * self.link_bytes as usize;
        let at = self.bottom + member as usize * size;
        self.head.get(at..at + size).unwrap_or(&[])
    }

    /// A slot of an upper layer, counted from 1; `None` for one that does not exist.
    pub fn slot(&self, layer: u32, slot: u32) -> Option<UpperSlot<'a>> {
        let link = self.link_bytes as usize;
        let size = (self.m as usize + 3) * link;
        if layer == 0 || slot >= self.nodes_of(layer) {
            return None;
        }
        let before: usize = (1..layer).map(|layer| self.nodes_of(layer) as usize).sum();
        let at = self.upper + (before + slot as usize) * size;
        let (head, links) = self.head.get(at..at + size)?.split_at_checked(2 * link)?;
        let (member, below) = (self.number(head.get(..link)?), self.number(head.get(link..)?));
        Some(UpperSlot { member, below, links })
    }

    /// Calls `f` with each neighbour of a slot, as slots of the same layer.
    pub fn each_slot(&self, slot: &UpperSlot<'a>, f: impl FnMut(u32)) {
        self.each(slot.links, f);
    }

    fn number(&self, bytes: &[u8]) -> u32 {
        match *bytes {
            [a, b] => u32::from(u16::from_le_bytes([a, b])),
            [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
            _ => u32::MAX,
        }
    }

    #[inline(always)]
    fn each(&self, links: &[u8], mut f: impl FnMut(u32)) {
        if self.link_bytes == 2 {
            let Some((count, links)) = links.as_chunks::<2>().0.split_first() else { return };
            let count = usize::from(u16::from_le_bytes(*count));
            links.iter().take(count).for_each(|link| f(u32::from(u16::from_le_bytes(*link))));
        } else {
            let Some((count, links)) = links.as_chunks::<4>().0.split_first() else { return };
            let count = u32::from_le_bytes(*count) as usize;
            links.iter().take(count).for_each(|link| f(u32::from_le_bytes(*link)));
        }
    }
}

/// A node of an upper layer.
#[derive(Clone, Copy, Debug)]
pub struct UpperSlot<'a> {
    /// Member of the node.
    pub member: u32,
    /// Slot of the node on the layer below.
    pub below: u32,
    links: &'a [u8],
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::Points;
    use crate::build::hnsw::{Hnsw, HnswOptions, HnswScratch};
    use proptest::prelude::*;

    struct Line(Vec<u8>);

    impl Points for Line {
        fn len(&self) -> usize {
            self.0.len()
        }
        fn distance(&self, a: u32, b: u32) -> f32 {
            f32::from(self.0[a as usize].abs_diff(self.0[b as usize])).powi(2)
        }
    }

    const NAME: HnswName = HnswName { cluster: 7, version: 3, seed: 11 };

    fn written(layout: &HnswLayout, options: &HnswOptions, id_bytes: usize, set: &[u8]) -> (Hnsw, Vec<u8>) {
        let graph = Hnsw::build(&Line(set.to_vec()), options, &mut HnswScratch::default());
        let members = set.iter().zip(5u64..).map(|(x, external_id)| HnswMember {
            external_id,
            inverse_norm: f32::from(*x),
            vector: core::slice::from_ref(x),
        });
        let mut out = Vec::new();
        write(layout, &NAME, id_bytes, &graph, members, &mut out);
        (graph, out)
    }

    proptest! {
        #[test]
        fn everything_that_was_written_is_read(
            set in prop::collection::vec(any::<u8>(), 1..200), m in 2usize..6, seed: u64, norms: bool, wide: bool,
        ) {
            let layout = HnswLayout { vector_bytes: 1, norms };
            let options = HnswOptions { m, ef_construction: 16, seed, upper_layers: None };
            let id_bytes = if wide { 8 } else { 4 };
            let (graph, bytes) = written(&layout, &options, id_bytes, &set);
            let upper = options.upper_counts(set.len());
            let shape = HnswShape { members: set.len(), m, id_bytes, upper: &upper };
            prop_assert_eq!(bytes.len(), layout.bytes(&shape));
            prop_assert!(SubHnsw::verify(&layout, &NAME, &bytes));
            let by_cluster = HnswName { cluster: 8, ..NAME };
            for other in [by_cluster, HnswName { version: 4, ..NAME }, HnswName { seed: 1, ..NAME }] {
                prop_assert!(!SubHnsw::verify(&layout, &other, &bytes));
            }
            let own = SubHnsw::open(&layout, &bytes).unwrap();
            let numbers = (own.members() as usize, own.layers() as usize, own.m() as usize);
            prop_assert_eq!(numbers, (set.len(), upper.len(), m));
            prop_assert_eq!(own.entry(), graph.entry_slot());
            for (member, &x) in (0..).zip(&set) {
                prop_assert_eq!(own.vector(member), &[x]);
                prop_assert_eq!(own.external_id(member), u64::from(member) + 5);
                prop_assert_eq!(own.inverse_norm(member), if norms { f32::from(x) } else { 1.0 });
                let mut list = Vec::new();
                own.each_neighbour(member, |other| list.push(other));
                prop_assert_eq!(&list[..], graph.list(0, member));
            }
            for (layer, nodes) in (1..).zip(graph.upper()) {
                prop_assert_eq!(own.nodes_of(layer) as usize, nodes.len());
                for (slot, &node) in (0..).zip(&nodes) {
                    let held = own.slot(layer, slot).unwrap();
                    let below = if layer == 1 { held.below } else { own.slot(layer - 1, held.below).unwrap().member };
                    prop_assert_eq!((held.member, below), (node, node));
                    let mut list = Vec::new();
                    own.each_slot(&held, |other| list.push(nodes[other as usize]));
                    prop_assert_eq!(&list[..], graph.list(layer as usize, node));
                }
            }
        }

        #[test]
        fn any_bytes_are_opened_without_a_panic(
            set in prop::collection::vec(any::<u8>(), 1..40), at: usize, to: u8, cut: usize, norms: bool,
        ) {
            let layout = HnswLayout { vector_bytes: 1, norms };
            let options = HnswOptions { m: 2, ef_construction: 8, seed: 1, upper_layers: None };
            let (_, mut bytes) = written(&layout, &options, 4, &set);
            let at = at % bytes.len().min(HEADER_BYTES + 64);
            let is_changed = bytes[at] != to;
            bytes[at] = to;
            prop_assert_eq!(SubHnsw::verify(&layout, &NAME, &bytes), !is_changed);
            for bytes in [&bytes[..], &bytes[..cut % bytes.len()]] {
                let Some(own) = SubHnsw::open(&layout, bytes) else { continue };
                for member in [0, own.members() - 1, own.members(), u32::MAX] {
                    own.each_neighbour(member, |_| {});
                    let _ = (own.vector(member), own.external_id(member), own.inverse_norm(member));
                }
                for layer in [0, 1, own.layers(), u32::MAX] {
                    let _ = own.slot(layer, own.nodes_of(layer).wrapping_sub(1));
                }
            }
        }
    }

    #[test]
    fn more_members_than_two_bytes_count_have_links_of_four() {
        let layout = HnswLayout { vector_bytes: 1, norms: false };
        let bytes = |members| layout.bytes(&HnswShape { members, m: 2, id_bytes: 4, upper: &[] });
        assert_eq!(bytes(65_536), 64 + 65_536 * (2 * 5 + 4 + 1));
        assert_eq!(bytes(65_544), 64 + 65_544 * (4 * 5 + 4 + 1));
    }
}
