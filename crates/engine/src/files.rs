//! The data files of an index besides its blocks: names, and small encodings. Their checksums are in the manifest.
//!
//! | file | content |
//! |---|---|
//! | `vN-blocks.bin` | blocks, see `stratann_core::format::block` |
//! | `vN-codes.bin` | one code per node, in the order of ids; absent where blocks carry codes |
//! | `vN-head-codes.bin` | instead of it one code per head node, in the order of `vN-head.bin` |
//! | `vN-codebook.bin` | u32: `u32::MAX`, dim, metric (1: ip, 2 more where codes are of residuals); 0 or 1: codes have numbers, long factors, dimensions stand for those without bits, there is a basis; centroids n; f32: step of the levels; u32: bytes of a code; u32 of each of 8 segments: dimensions, bits, shift; u64: seed; f32: centre (dim), centroids less the centre (n × dim), both rotated, basis (dim × dim). One that was trained: u32: dim, ip, lengths of arrays; f32: correction low, step; four arrays as named below |
//! | `vN-map.bin` | u16 per block: number of its nodes |
//! | `vN-head.bin` | u32: head nodes h, edges e; then ids (h), starts (h + 1), neighbours (e) |
//!
//! A `hybrid-ivf` has its codebook, and instead of the others
//!
//! | file | content |
//! |---|---|
//! | `vN-lists.bin` | list codes, records (see `stratann_core::format::inverted_list`), edges; whole pages |
//! | `vN-directory.bin` | u32: clusters c, lists l, degree of local graphs; then seven arrays, see below |
//! | `vN-centroids.bin` | c × dim f16 |
//! | `vN-sublists.bin` | u32: c, entries e, bytes of a code; first entry by cluster (c); f32: terms (e); codes (e) |
//! | `vN-nav.bin` | u32: nodes n, nodes with codes m, bytes of a code, degree, entry, bootstrap; then six arrays |
//!
//! The arrays of the codebook: rotation, coarse, starts, centroids. The arrays of the directory: offsets of list
//! codes (u64, l), of records (u64, l), of the edges of each cluster or `u64::MAX` (u64, c); first id of each list
//! (u32, l + 1), first list of each cluster (u32, c + 1), entry of each cluster (u32, c); local index of each cluster
//! (u8, c). Those of the navigation graph: clusters (n), members (n), terms (n), radii (n), neighbours (n × degree),
//! codes (m).
//!
//! A `grid-ivf` has
//!
//! | file | content |
//! |---|---|
//! | `vN-grid.bin` | lists, see `stratann_core::format::grid`; whole pages |
//! | `vN-sizes.bin` | u32 for each list: its members |
//! | `vN-centroids.bin` | lists × dim f32 |
//! | `vN-axes.bin` | of f32 vectors a matrix of dim × dim f32, a row for each axis, then a point that is subtracted; else the components in their order, u32 |
//!
//! A `gpu-ivf` has blocks, codes, a codebook, a map and a navigation graph without codes, and
//!
//! | file | content |
//! |---|---|
//! | `vN-centroids.bin` | lists × dim f16 |
//! | `vN-postings.bin` | u32: lists l; then first id of each list (u32, l + 1), start of its replicas (u64, l + 1), replicas |
//! | `vN-list-vectors.bin` | with `--baselines`: lists, see `stratann_core::format::posting_file` |
//! | `vN-list-codes.bin` | the same of codes |
//! | `vN-row-blocks.bin` | the same: blocks in the order of rows |
//! | `vN-places.bin` | the same: u32 for each id, its place in the order of rows |
//!
//! A `remote-hnsw` has
//!
//! | file | content |
//! |---|---|
//! | `vN-region.bin` | what the memory of a memory node holds, see `stratann_core::format::region`; whole pages |
//! | `vN-meta.bin` | the meta-HNSW, as in the region, see `stratann_core::format::hnsw` |
//!
//! An index that is partitioned over the servers of a cluster has instead of `vN-blocks.bin`, `vN-lists.bin` or
//! `vN-grid.bin`
//!
//! | file | content |
//! |---|---|
//! | `vN-placement.bin` | u32: servers n, units; for each unit ⌈n / 8⌉ bytes, little-endian, bit s for server s |
//! | `vN-blocks-SS.bin` | the blocks that server SS (from 00) holds, whole, ascending by number |
//! | `vN-lists-SS.bin` | all bytes of the lists that server SS holds, in the order of `vN-lists.bin`; whole pages |
//! | `vN-grid-SS.bin` | heads and slices that server SS holds, in the order of `vN-grid.bin`; whole pages |
//! | `vN-firsts.bin` | the first members of every list, together as one list |
//! | `vN-row-ids.bin` | u64 for each internal id: the external id of the row; absent of a `grid-ivf` |
//!
//! An index with rows that are deleted has besides
//!
//! | file | content |
//! |---|---|
//! | `vN-deleted.bin` | u64: rows, rows that are deleted; then a bit per row by internal id, in words of 64, set where it is deleted |
//!
//! An index that was built with payloads has besides
//!
//! | file | content |
//! |---|---|
//! | `vN-point-ids.bin` | the external ids in their order, each with its row by internal id; in place of a change's number it has the row of the file that the index was built from |
//! | `vN-payloads.bin` | payloads by internal id, as `stratann-payload` writes them; absent where no row has one |
//! | `vN-payload-index.bin` | the index of these payloads, likewise |
//!
//! A unit is a block, an inverted list, or the head or a slice of a list of a grid. The bytes of an inverted list are
//! its codes, its records, and for the first list of a graph the edges; bytes between two of these ranges belong to the
//! one before them.

mod trained_codes;

use std::path::Path;

use stratann_core::format::block_map::BlockMap;
use stratann_core::format::directory::{Directory, LocalKind};
use stratann_core::format::posting_lists::PostingLists;
use stratann_core::kinds::hybrid_ivf::SubLists;
use stratann_core::place::Placement;
use stratann_core::route::{HeadGraph, NavGraph};
use stratann_kernel::bits::{
    BITS_MAX, BitCoder, CENTROIDS_MAX, CoderParts, Extras, Layout, Scaling, Segment,
};
use stratann_kernel::coder::Coder;
use stratann_storage::Error;
use stratann_storage::names::FileName;

pub(crate) const BLOCKS: &str = "blocks.bin";
pub(crate) const CODES: &str = "codes.bin";
pub(crate) const CODEBOOK: &str = "codebook.bin";
pub(crate) const MAP: &str = "map.bin";
pub(crate) const HEAD: &str = "head.bin";
pub(crate) const HEAD_CODES: &str = "head-codes.bin";
pub(crate) const LISTS: &str = "lists.bin";
pub(crate) const DIRECTORY: &str = "directory.bin";
pub(crate) const CENTROIDS: &str = "centroids.bin";
pub(crate) const SUBLISTS: &str = "sublists.bin";
pub(crate) const NAV: &str = "nav.bin";
pub(crate) const GRID: &str = "grid.bin";
pub(crate) const SIZES: &str = "sizes.bin";
pub(crate) const AXES: &str = "axes.bin";
pub(crate) const POSTINGS: &str = "postings.bin";
pub(crate) const LIST_VECTORS: &str = "list-vectors.bin";
pub(crate) const LIST_CODES: &str = "list-codes.bin";
pub(crate) const ROW_BLOCKS: &str = "row-blocks.bin";
pub(crate) const PLACES: &str = "places.bin";
pub(crate) const REGION: &str = "region.bin";
pub(crate) const META: &str = "meta.bin";
/// The first members of all lists of a partitioned `grid-ivf`.
pub(crate) const FIRSTS: &str = "firsts.bin";
/// File of what a `hybrid-ivf` has learnt from queries; no version of the index names it. [`learnt`] is that of one
/// server.
pub(crate) const LEARNT: &str = "learnt.bin";
pub(crate) const PLACEMENT: &str = "placement.bin";
/// The external ids of all rows of a partition.
pub(crate) const ROW_IDS: &str = "row-ids.bin";
/// The rows that are deleted.
pub(crate) const DELETED: &str = "deleted.bin";
/// External ids of the points of an index.
pub(crate) const POINT_IDS: &str = "point-ids.bin";
/// Payloads of the points of an index.
pub(crate) const PAYLOADS: &str = "payloads.bin";
/// The index of these payloads.
pub(crate) const PAYLOAD_INDEX: &str = "payload-index.bin";
/// Files of points, which other crates write and read.
pub(crate) const OF_POINTS: [&str; 3] = [POINT_IDS, PAYLOADS, PAYLOAD_INDEX];
/// The role that the files of one server share; [`part`] is that of one.
pub(crate) const PARTS: &str = "data-SS.bin";

/// The name of what one server of a partition has learnt; `None` is a server with the whole index.
pub(crate) fn learnt(server: Option<usize>) -> String {
    server.map_or(LEARNT.into(), |server| format!("learnt-{server:02}.bin"))
}

/// Files that builds make.
pub(crate) const BUILT: [&str; 21] = [
    BLOCKS,
    CODES,
    CODEBOOK,
    MAP,
    HEAD,
    HEAD_CODES,
    LISTS,
    DIRECTORY,
    CENTROIDS,
    SUBLISTS,
    NAV,
    GRID,
    SIZES,
    AXES,
    POSTINGS,
    LIST_VECTORS,
    LIST_CODES,
    ROW_BLOCKS,
    PLACES,
    REGION,
    META,
];

/// The role of a server's part of the file with the role `whole`.
pub(crate) fn part(whole: &str, server: usize) -> String {
    format!("{}-{server:02}.bin", whole.trim_end_matches(".bin"))
}

/// The name of a file in version `number` of an index.
pub(crate) fn name(number: u64, role: &str) -> FileName {
    FileName::of(number, role)
}

/// The role that a name says.
pub(crate) fn role(name: &str) -> Option<&'static str> {
    let (_, role) = name.split_once('-')?;
    let of_server = ["blocks-", "lists-", "grid-"].into_iter().find_map(|prefix| role.strip_prefix(prefix));
    let server = of_server.and_then(|r| r.strip_suffix(".bin"));
    if server.is_some_and(|s| s.len() == 2 && s.bytes().all(|b| b.is_ascii_digit())) {
        return Some(PARTS);
    }
    let others = [PLACEMENT, FIRSTS, ROW_IDS, DELETED].into_iter().chain(OF_POINTS);
    BUILT.into_iter().chain(others).find(|r| *r == role)
}

/// Whether a file has ids or payloads of points, which searches in the engine do not read.
pub(crate) fn is_of_points(name: &str) -> bool {
    role(name).is_some_and(|role| OF_POINTS.contains(&role))
}

pub(crate) fn senseless(path: &Path) -> Error {
    Error::corrupt(format!("the content of {} makes no sense; build the index again", path.display()))
}

/// What a file of a coder begins with when it was not trained: no dimension is as large.
const OF_BITS: u32 = u32::MAX;
/// Added to the word of the metric by coders of residuals, which have no centre and no centroids.
const OF_RESIDUALS: u32 = 2;
/// Bytes before the centre.
const OF_BITS_HEAD: usize = 4 * (10 + 3 * BITS_MAX) + 8;

/// Bytes of a coder's file, which are those that it takes in memory.
pub(crate) fn coder_bytes(coder: &Coder) -> u64 {
    match coder {
        // The signs of the rotation are floats.
        Coder::Bits(coder) => {
            (OF_BITS_HEAD + 4 * (4 * coder.centre().len() + coder.centroids().len() + coder.basis().len()))
                as u64
        }
        Coder::Trained(codebook) => trained_codes::bytes(codebook),
    }
}

pub(crate) fn encode_bit_coder(coder: &BitCoder) -> Vec<u8> {
    let (layout, extras) = (coder.layout(), coder.layout().extras());
    let of_residuals = if coder.scaling() == Scaling::Nearest { OF_RESIDUALS } else { 0 };
    let flags = [extras.numbered, extras.long, extras.spread, !coder.basis().is_empty()];
    let mut head = vec![OF_BITS, layout.dim() as u32, u32::from(coder.is_ip()) + of_residuals];
    head.extend(flags.map(u32::from));
    head.push((coder.centroids().len() / layout.dim()) as u32);
    head.extend([coder.step().to_bits(), layout.code_bytes() as u32]);
    let mut segments = layout.segments().to_vec();
    segments.resize(BITS_MAX, Segment::default());
    segments.iter().for_each(|s| head.extend([s.dims as u32, s.bits as u32, s.shift]));
    let mut out: Vec<u8> = bytemuck::cast_slice(&head).to_vec();
    out.extend_from_slice(&coder.seed().to_le_bytes());
    for floats in [coder.centre(), coder.centroids(), coder.basis()] {
        out.extend_from_slice(bytemuck::cast_slice(floats));
    }
    out
}

/// Reads a coder; `None` of a file that holds none.
pub(crate) fn decode_coder(bytes: &[u8]) -> Option<Coder> {
    if bytes.first_chunk().map(|first| u32::from_le_bytes(*first)) != Some(OF_BITS) {
        return trained_codes::decode(bytes).map(Coder::Trained);
    }
    let (head, floats) = bytes.split_at_checked(OF_BITS_HEAD)?;
    let word = |i: usize| head[4 * i..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
    let dim = word(1) as usize;
    let (metric, flags) = (word(2), [3, 4, 5, 6].map(word));
    let [numbered, long, spread, based] = flags.map(|flag| flag == 1);
    let scaling = if metric == 1 + OF_RESIDUALS { Scaling::Nearest } else { Scaling::Unbiased };
    let centroids = word(7) as usize;
    let step = f32::from_bits(word(8));
    let segment = |i: usize| {
        let [dims, bits, shift] = [0, 1, 2].map(|j| word(10 + 3 * i + j));
        Segment { dims: dims as usize, bits: bits as usize, shift }
    };
    let mut segments: Vec<Segment> = (0..BITS_MAX).map(segment).collect();
    while segments.last() == Some(&Segment::default()) {
        segments.pop();
    }
    let layout = Layout::of(dim, &segments, Extras { numbered, long, spread })?;
    let code_bytes = word(9) as usize;
    let layout = layout.padded(code_bytes.min(layout.code_bytes() + dim));
    let most = if numbered { CENTROIDS_MAX } else { 0 };
    let rows = 1 + centroids + if based { dim } else { 0 };
    let mut centre: Vec<f32> = floats.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
    let is_plain = !numbered && centre.iter().take(dim).all(|&x| x == 0.0);
    let is_metric = if scaling == Scaling::Nearest { is_plain } else { metric <= 1 };
    let is_sound = is_metric
        && layout.code_bytes() == code_bytes
        && centroids <= most
        && floats.len() == 4 * dim * rows
        && flags.iter().all(|&flag| flag <= 1)
        && step.is_finite()
        && step > 0.0
        && centre.iter().all(|x| x.is_finite());
    if !is_sound {
        return None;
    }
    let mut centroids_of = centre.split_off(dim);
    let basis = centroids_of.split_off(dim * centroids);
    let seed = u64::from_le_bytes(*head.last_chunk()?);
    let (ip, centroids) = (metric % 2 == 1, centroids_of);
    let parts = CoderParts { layout, step, seed, basis, centre, centroids, ip, scaling };
    Some(Coder::Bits(BitCoder::of_parts(parts)))
}

pub(crate) fn encode_head(head: &HeadGraph) -> Vec<u8> {
    let counts = [head.ids.len() as u32, head.neighbours.len() as u32];
    [&counts[..], &head.ids, &head.starts, &head.neighbours]
        .iter()
        .flat_map(|part| bytemuck::cast_slice::<u32, u8>(part))
        .copied()
        .collect()
}

pub(crate) fn decode_head(bytes: &[u8]) -> Option<HeadGraph> {
    let mut words = Words(bytes);
    let [heads, edges] = words.array()?;
    let head = HeadGraph {
        ids: words.take(heads)?,
        starts: words.take(heads.checked_add(1)?)?,
        neighbours: words.take(edges)?,
    };
    words.0.is_empty().then_some(head)
}

fn put_words(out: &mut Vec<u8>, words: &[u32]) {
    out.extend_from_slice(bytemuck::cast_slice(words));
}

pub(crate) fn encode_directory(d: &Directory) -> Vec<u8> {
    let mut out = Vec::with_capacity(12 + d.bytes());
    put_words(&mut out, &[d.clusters(), d.list_count(), d.degree]);
    out.extend_from_slice(bytemuck::cast_slice(&d.codes));
    out.extend_from_slice(bytemuck::cast_slice(&d.records));
    out.extend_from_slice(bytemuck::cast_slice(&d.edges));
    put_words(&mut out, &d.ids);
    put_words(&mut out, &d.lists);
    put_words(&mut out, &d.entries);
    out.extend(d.kinds.iter().map(|&kind| kind as u8));
    out
}

pub(crate) fn decode_directory(bytes: &[u8]) -> Option<Directory> {
    let mut words = Words(bytes);
    let [clusters, lists, degree] = words.array()?;
    let directory = Directory {
        degree,
        codes: words.longs(lists)?,
        records: words.longs(lists)?,
        edges: words.longs(clusters)?,
        ids: words.take(lists.checked_add(1)?)?,
        lists: words.take(clusters.checked_add(1)?)?,
        entries: words.take(clusters)?,
        kinds: words.0.iter().map(|&k| LocalKind::ALL.get(usize::from(k)).copied()).collect::<Option<_>>()?,
    };
    (directory.clusters() == clusters).then_some(directory)
}

pub(crate) fn encode_sublists(s: &SubLists) -> Vec<u8> {
    let size = s.codes.len().checked_div(s.terms.len()).unwrap_or(0);
    let mut out = Vec::with_capacity(12 + 4 * (s.first.len() + s.terms.len()) + s.codes.len());
    put_words(&mut out, &[s.first.len() as u32, s.terms.len() as u32, size as u32]);
    put_words(&mut out, &s.first);
    out.extend_from_slice(bytemuck::cast_slice(&s.terms));
    out.extend_from_slice(&s.codes);
    out
}

pub(crate) fn decode_sublists(bytes: &[u8]) -> Option<SubLists> {
    let mut words = Words(bytes);
    let [clusters, entries, size] = words.array()?;
    let out =
        SubLists { first: words.take(clusters)?, terms: words.floats(entries)?, codes: words.0.to_vec() };
    (out.codes.len() == (entries as usize).checked_mul(size as usize)?).then_some(out)
}

pub(crate) fn encode_nav(nav: &NavGraph) -> Vec<u8> {
    let with_codes = nav.ids.iter().filter(|&&id| id != stratann_core::route::NONE).count();
    let size = nav.codes.len().checked_div(with_codes).unwrap_or(0);
    let mut out = Vec::with_capacity(24 + nav.bytes());
    put_words(&mut out, &[nav.nodes(), with_codes as u32, size as u32, nav.degree, nav.entry, nav.bootstrap]);
    put_words(&mut out, &nav.cluster_of);
    put_words(&mut out, &nav.ids);
    out.extend_from_slice(bytemuck::cast_slice(&nav.terms));
    out.extend_from_slice(bytemuck::cast_slice(&nav.radii));
    put_words(&mut out, &nav.neighbours);
    out.extend_from_slice(&nav.codes);
    out
}

pub(crate) fn decode_nav(bytes: &[u8]) -> Option<NavGraph> {
    let mut words = Words(bytes);
    let [nodes, with_codes, size, degree, entry, bootstrap] = words.array()?;
    let nav = NavGraph {
        cluster_of: words.take(nodes)?,
        ids: words.take(nodes)?,
        terms: words.floats(nodes)?,
        radii: words.floats(nodes)?,
        neighbours: words.take(nodes.checked_mul(degree)?)?,
        codes: words.0.to_vec(),
        degree,
        entry,
        bootstrap,
        scores: Vec::new(),
    };
    (nav.codes.len() == (with_codes as usize).checked_mul(size as usize)?).then_some(nav)
}

pub(crate) fn encode_postings(lists: &PostingLists) -> Vec<u8> {
    let mut out = Vec::with_capacity(4 + lists.bytes());
    put_words(&mut out, &[lists.count()]);
    put_words(&mut out, &lists.first);
    out.extend_from_slice(bytemuck::cast_slice(&lists.starts));
    out.extend_from_slice(&lists.replicas);
    out
}

/// The caller checks that they are consistent.
pub(crate) fn decode_postings(bytes: &[u8]) -> Option<PostingLists> {
    let mut words = Words(bytes);
    let ends = words.array::<1>()?[0].checked_add(1)?;
    Some(PostingLists { first: words.take(ends)?, starts: words.longs(ends)?, replicas: words.0.to_vec() })
}

pub(crate) fn encode_map(counts: &[u16]) -> Vec<u8> {
    counts.iter().flat_map(|c| c.to_le_bytes()).collect()
}

pub(crate) fn decode_map(bytes: &[u8]) -> Option<BlockMap> {
    if !bytes.len().is_multiple_of(2) {
        return None;
    }
    BlockMap::from_counts(bytes.chunks_exact(2).map(|c| u32::from(u16::from_le_bytes([c[0], c[1]]))))
}

/// Bytes of a placement before its units.
pub(crate) const PLACEMENT_HEADER: usize = 8;

pub(crate) fn encode_placement(placement: &Placement) -> Vec<u8> {
    let width = placement.servers().div_ceil(8);
    let mut out = Vec::with_capacity(PLACEMENT_HEADER + width * placement.all().len());
    out.extend_from_slice(&(placement.servers() as u32).to_le_bytes());
    out.extend_from_slice(&(placement.all().len() as u32).to_le_bytes());
    placement.all().iter().for_each(|homes| out.extend_from_slice(&homes.to_le_bytes()[..width]));
    out
}

pub(crate) fn decode_placement(bytes: &[u8]) -> Option<Placement> {
    let mut words = Words(bytes);
    let [servers, blocks] = words.array()?;
    let width = (servers as usize).div_ceil(8);
    if !(1..=8).contains(&width) || words.0.len() != width.checked_mul(blocks as usize)? {
        return None;
    }
    let homes = words.0.chunks_exact(width).map(|b| {
        let mut word = [0u8; 8];
        word[..width].copy_from_slice(b);
        u64::from_le_bytes(word)
    });
    Placement::new(servers as usize, homes.collect())
}

/// Little-endian words, taken from the front.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u32; N]> {
        self.take(N as u32)?.try_into().ok()
    }

    fn take(&mut self, count: u32) -> Option<Vec<u32>> {
        let (head, rest) = self.0.split_at_checked((count as usize).checked_mul(4)?)?;
        self.0 = rest;
        Some(head.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect())
    }

    fn longs(&mut self, count: u32) -> Option<Vec<u64>> {
        let (head, rest) = self.0.split_at_checked((count as usize).checked_mul(8)?)?;
        self.0 = rest;
        Some(
            head.chunks_exact(8)
                .map(|c| u64::from_le_bytes([c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]]))
                .collect(),
        )
    }

    fn floats(&mut self, count: u32) -> Option<Vec<f32>> {
        let words = self.take(count)?;
        Some(words.into_iter().map(f32::from_bits).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coders_of_bits_are_read_back_and_damaged_ones_refused() {
        let layout = Layout::even(5, 2, 3, true).unwrap();
        let (centre, centroids) = ([1.0, 2.0, -3.0, 0.5, 4.0], [0.5; 10]);
        let coder = BitCoder::new(layout, 1 << 40, &centre, &centroids, true);
        let bytes = encode_bit_coder(&coder);
        assert_eq!(decode_coder(&bytes), Some(Coder::Bits(coder)));
        for cut in 0..bytes.len() {
            assert_eq!(decode_coder(&bytes[..cut]), None);
        }
        let with = |at: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            decode_coder(&bytes)
        };
        // A dimension more, a foreign metric, centroids without numbers, a basis without rows, more centroids, a step
        // that is no number, too short a code, fewer dimensions of a segment, no bits, too large a shift.
        for (at, byte) in
            [(4, 6), (8, 2), (12, 0), (24, 1), (28, 3), (35, 255), (36, 1), (40, 0), (44, 0), (48, 9)]
        {
            assert_eq!(with(at, byte), None, "byte {at}");
        }
        let of_residuals = BitCoder::of_residuals(Layout::even(5, 2, 3, false).unwrap(), 9);
        let plain = encode_bit_coder(&of_residuals);
        assert_eq!(decode_coder(&plain), Some(Coder::Bits(of_residuals)));
        // Without an inner product, or with a centre.
        for (at, byte) in [(8, 2), (OF_BITS_HEAD + 3, 0x40)] {
            let mut other = plain.clone();
            other[at] = byte;
            assert_eq!(decode_coder(&other), None, "byte {at}");
        }
        let mut no_number = bytes.clone();
        no_number[OF_BITS_HEAD..OF_BITS_HEAD + 4].copy_from_slice(&f32::NAN.to_le_bytes());
        assert_eq!(decode_coder(&no_number), None);
    }

    #[test]
    fn small_files_come_back_and_refuse_nonsense() {
        let head = HeadGraph { ids: vec![5, 2], starts: vec![0, 1, 2], neighbours: vec![1, 0] };
        let bytes = encode_head(&head);
        assert_eq!(decode_head(&bytes), Some(head));
        assert_eq!(decode_head(&bytes[..bytes.len() - 1]), None);
        assert_eq!(decode_head(&[255; 12]), None);
        assert_eq!(decode_map(&encode_map(&[3, 1])).map(|m| (m.nodes(), m.blocks())), Some((4, 2)));
        assert!(decode_map(&encode_map(&[3, 0])).is_none());
    }

    #[test]
    fn placements_come_back_and_nonsense_is_refused() {
        for servers in [1, 7, 8, 9, 64] {
            let top = 1u64 << (servers - 1);
            let placement = Placement::new(servers, vec![1, top, 1 | top]).unwrap();
            let bytes = encode_placement(&placement);
            assert_eq!(bytes.len(), 8 + 3 * servers.div_ceil(8));
            assert_eq!(decode_placement(&bytes), Some(placement));
            for cut in 0..bytes.len() {
                assert_eq!(decode_placement(&bytes[..cut]), None);
            }
        }
        assert_eq!(decode_placement(&[0; 8]), None);
        assert_eq!(decode_placement(&[255; 8]), None);
        assert_eq!(decode_placement(&[3, 0, 0, 0, 1, 0, 0, 0, 8]), None);
        assert_eq!((role("v12-blocks-07.bin"), role("v1-lists-63.bin")), (Some(PARTS), Some(PARTS)));
        assert_eq!((part(BLOCKS, 7), part(LISTS, 63)), ("blocks-07.bin".into(), "lists-63.bin".into()));
        assert_eq!((role("v1-blocks-7.bin"), role("v1-blocks-SS.bin")), (None, None));
    }
}
