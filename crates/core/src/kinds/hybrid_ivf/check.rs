//! Invariants of the inverted lists of a finished index and of its tables in RAM. Used by `stratann verify` and by
//! tests.

use alloc::vec;
use alloc::vec::Vec;

use stratann_kernel::distance::{dot_f32, inverse_norm};
use stratann_kernel::element::widen;
use stratann_kernel::{DType, Metric, sqrt};

use super::View;
use crate::format::directory::{LocalKind, NO_EDGES};
use crate::format::edges::{self, Edges};
use crate::format::inverted_list::{ListCodes, Record};
use crate::route::NONE;
use crate::view::Base;

/// A violated invariant of an inverted list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListFault {
    /// The list codes have a wrong checksum, a wrong list number or an invalid layout.
    Codes,
    /// The members differ from the directory.
    Misplaced,
    /// The centroid differs from the centroid of the cluster of vectors.
    Centroid,
    /// A record is damaged or belongs to another member.
    Record(u32),
    /// A vector, or its stored norm, is not finite.
    Vector(u32),
    /// A member is farther from its decoded code than its radius: a search may prune it wrongly.
    Radius(u32),
    /// A member's distance to the centroid is outside of the stored bounds.
    Distance(u32),
    /// The term that is added to a member's code distance does not match its code and centroid.
    Term(u32),
    /// The edges of a member are damaged or belong to another member.
    Edges(u32),
    /// An edge of a member leads to itself, is a duplicate, or leads outside of its graph.
    Edge(u32),
    /// The length of an edge is outside of the stored bounds: a search may prune its end wrongly.
    Length(u32),
    /// A node of the navigation graph has another code, radius or cluster than its member.
    Nav(u32),
}

/// A violated invariant of the tables in RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableFault {
    /// Two ranges of the directory overlap.
    Overlap(u32),
    /// A divided cluster lacks the table entry of one of its sub-lists.
    SubLists(u32),
    /// A cluster with a local graph has no edges.
    Edges(u32),
    /// A node of the navigation graph is a member of another cluster than its own, or its adjacency list contains
    /// itself.
    NavNode(u32),
}

/// Tolerance for rounding, relative to the numbers that were added.
const ROUNDING: f32 = 1e-4;

/// Checks inverted lists in any order. Holds scratch for one thread.
#[derive(Clone, Debug)]
pub struct ListChecker {
    wide: Vec<f32>,
    rotated: Vec<f32>,
    decoded: Vec<f32>,
    // Centroids of the list and of its cluster.
    own: Pivot,
    cluster: Pivot,
}

/// A centroid, plain and rotated.
#[derive(Clone, Debug)]
struct Pivot {
    plain: Vec<f32>,
    rotated: Vec<f32>,
}

impl Pivot {
    fn set(&mut self, clusters: &View<'_>, halves: &[u8]) {
        widen(DType::F16, halves, &mut self.plain);
        clusters.coder.rotate(&self.plain, &mut self.rotated);
    }
}

/// Returns the nodes of the navigation graph that are members as `(id, node)`, by id.
pub fn members_of_nav(clusters: &View<'_>) -> Vec<(u32, u32)> {
    let mut members: Vec<(u32, u32)> =
        clusters.nav.ids.iter().zip(0..).filter(|m| *m.0 != NONE).map(|(&id, node)| (id, node)).collect();
    members.sort_unstable();
    members
}

impl ListChecker {
    /// Creates a checker of an index.
    pub fn new(base: &Base<'_>) -> ListChecker {
        let zeros = vec![0f32; base.dim];
        let pivot = Pivot { plain: zeros.clone(), rotated: zeros.clone() };
        ListChecker {
            wide: zeros.clone(),
            rotated: zeros.clone(),
            decoded: zeros,
            own: pivot.clone(),
            cluster: pivot,
        }
    }

    /// Checks one list: the bytes of its codes and of its records, and its members in the navigation graph, from
    /// [`members_of_nav`]. Appends faults to `found`, and the external ids of valid records to `ids`.
    #[allow(clippy::too_many_arguments)] // Two of them are outputs.
    pub fn list(
        &mut self,
        base: &Base<'_>,
        clusters: &View<'_>,
        list: u32,
        (codes, records): (&[u8], &[u8]),
        in_nav: &[(u32, u32)],
        found: &mut Vec<ListFault>,
        ids: &mut Vec<u64>,
    ) {
        let Some(list_codes) = ListCodes::verify(&clusters.shape, list, codes) else {
            return found.push(ListFault::Codes);
        };
        let (first, count) = (clusters.directory.ids[list as usize], clusters.directory.members(list));
        if list_codes.first_id() != first || list_codes.count() != count as usize {
            return found.push(ListFault::Misplaced);
        }
        let cluster = clusters.directory.cluster_of(list);
        let is_divided = clusters.directory.kinds[cluster as usize] == LocalKind::Ivf;
        if !is_divided && list_codes.centroid() != clusters.centroid(cluster) {
            found.push(ListFault::Centroid);
        }
        self.own.set(clusters, list_codes.centroid());
        self.cluster.set(clusters, clusters.centroid(cluster));
        let mut in_nav = in_nav.iter().skip_while(|m| m.0 < first).peekable();
        let stored = list_codes.terms().zip(list_codes.radii()).zip(list_codes.centroid_distances());
        let codes = list_codes.codes().chunks_exact(clusters.shape.code_bytes);
        let records_of = records.chunks(clusters.shape.record_bytes()).chain(core::iter::repeat(&[][..]));
        for (((stored, code), bytes), id) in stored.zip(codes).zip(records_of).zip(first..) {
            let node = in_nav.next_if(|m| m.0 == id).map(|m| m.1);
            let Some(record) = Record::verify(&clusters.shape, id, bytes) else {
                found.push(ListFault::Record(id));
                continue;
            };
            ids.push(record.external_id());
            if !self.load(base, &record) {
                found.push(ListFault::Vector(id));
                continue;
            }
            self.member(base, clusters, id, code, stored, found);
            if let Some(node) = node.filter(|&n| !self.is_node_valid(base, clusters, n)) {
                found.push(ListFault::Nav(node));
            }
        }
    }

    /// Loads a vector as it is encoded: a unit vector under cosine. Returns false when it is not finite.
    fn load(&mut self, base: &Base<'_>, record: &Record<'_>) -> bool {
        widen(base.dtype, record.vector(), &mut self.wide);
        if base.metric == Metric::Cosine {
            let scale = inverse_norm(base.dtype, record.vector());
            self.wide.iter_mut().for_each(|x| *x *= scale);
        }
        record.inverse_norm().is_finite() && self.wide.iter().all(|x| x.is_finite())
    }

    fn member(
        &mut self,
        base: &Base<'_>,
        clusters: &View<'_>,
        id: u32,
        code: &[u8],
        ((term, radius), (least, most)): ((f32, f32), (f32, f32)),
        found: &mut Vec<ListFault>,
    ) {
        let (error, distance) =
            code_error(clusters, &self.wide, &self.own, code, &mut self.rotated, &mut self.decoded);
        // NaN fails as well.
        let is_within = error <= radius * (1.0 + ROUNDING);
        if !is_within {
            found.push(ListFault::Radius(id));
        }
        let slack = ROUNDING * distance;
        let is_within = least - slack <= distance && distance <= most + slack;
        if !is_within {
            found.push(ListFault::Distance(id));
        }
        if !is_term(base, term, &self.own, &self.decoded) {
            found.push(ListFault::Term(id));
        }
    }

    /// Returns whether a node of the navigation graph matches the loaded vector.
    fn is_node_valid(&mut self, base: &Base<'_>, clusters: &View<'_>, node: u32) -> bool {
        let (nav, size) = (clusters.nav, clusters.shape.code_bytes);
        let at = (node - clusters.directory.clusters()) as usize * size;
        let Some(code) = nav.codes.get(at..at + size) else { return false };
        let (error, _) =
            code_error(clusters, &self.wide, &self.cluster, code, &mut self.rotated, &mut self.decoded);
        error <= nav.radii[node as usize] * (1.0 + ROUNDING)
            && is_term(base, nav.terms[node as usize], &self.cluster, &self.decoded)
    }
}

/// Checks the edges of a local graph. Collects the vectors of its members first.
#[derive(Clone, Debug)]
pub struct GraphChecker {
    cluster: u32,
    dim: usize,
    // Vectors as they are encoded, in the order of ids; NaN for damaged ones.
    rows: Vec<f32>,
}

impl GraphChecker {
    /// Creates a checker of the edges of this cluster.
    pub fn new(base: &Base<'_>, cluster: u32) -> GraphChecker {
        GraphChecker { cluster, dim: base.dim, rows: Vec::new() }
    }

    /// Adds the records of the next list of the cluster.
    pub fn list(&mut self, base: &Base<'_>, clusters: &View<'_>, list: u32, records: &[u8]) {
        let mut checker = ListChecker::new(base);
        let directory = clusters.directory;
        let sizes = records.chunks(clusters.shape.record_bytes()).chain(core::iter::repeat(&[][..]));
        let ids = directory.ids[list as usize]..directory.ids[list as usize + 1];
        for (id, bytes) in ids.zip(sizes) {
            match Record::verify(&clusters.shape, id, bytes) {
                Some(record) if checker.load(base, &record) => self.rows.extend_from_slice(&checker.wide),
                _ => self.rows.resize(self.rows.len() + self.dim, f32::NAN),
            }
        }
    }

    /// Checks the edges of all members. `bytes` are those of the file from the first page with edges on. Appends faults
    /// to `found`. Returns the number of edges.
    pub fn edges(&self, clusters: &View<'_>, bytes: &[u8], found: &mut Vec<ListFault>) -> u64 {
        let (directory, seed) = (clusters.directory, clusters.shape.checksum_seed);
        let members = directory.members_of(self.cluster);
        let (first_page, degree) = (directory.edges_at(self.cluster, 0).first, directory.degree as usize);
        let mut count = 0;
        for (number, id) in (0..).zip(members) {
            let place = directory.edges_at(self.cluster, number);
            let at = (place.first - first_page) as usize * crate::PAGE + place.skip as usize;
            let own = bytes.get(at..).and_then(|bytes| Edges::verify(degree, seed, id, bytes));
            let Some(own) = own else {
                found.push(ListFault::Edges(id));
                continue;
            };
            count += own.count() as u64;
            found.extend(self.member(number, &own).map(|fault| fault(id)));
        }
        count
    }

    fn member(&self, number: u32, own: &Edges<'_>) -> Option<fn(u32) -> ListFault> {
        let row = |n: u32| self.rows.get(n as usize * self.dim..(n as usize + 1) * self.dim);
        let from = row(number)?;
        let mut before = None;
        for (n, (least, most)) in own.neighbours() {
            let is_next = before.is_none_or(|b| b < n) && n != number;
            let Some(to) = row(n).filter(|_| is_next) else { return Some(ListFault::Edge) };
            before = Some(n);
            let length = sqrt(from.iter().zip(to).map(|(a, b)| (a - b) * (a - b)).sum());
            // Unit vectors carry one more rounding.
            let slack = ROUNDING * length + 1e-6 * sqrt(square(from));
            let is_within = least - slack <= length && length <= most + slack;
            // Damaged vectors are reported separately.
            if !is_within && !length.is_nan() {
                return Some(ListFault::Length);
            }
        }
        None
    }
}

/// Computes the distance of a vector to its decoded code, and to the centroid. Leaves the decoded code in `decoded`.
fn code_error(
    clusters: &View<'_>,
    vector: &[f32],
    pivot: &Pivot,
    code: &[u8],
    rotated: &mut [f32],
    decoded: &mut [f32],
) -> (f32, f32) {
    let residual: Vec<f32> = vector.iter().zip(&pivot.plain).map(|(x, c)| x - c).collect();
    clusters.coder.rotate(&residual, rotated);
    clusters.coder.decode_rotated(code, decoded);
    let squared: f32 = rotated.iter().zip(decoded.iter()).map(|(a, b)| (a - b) * (a - b)).sum();
    (sqrt(squared), sqrt(square(&residual)))
}

fn square(x: &[f32]) -> f32 {
    dot_f32(x, bytemuck::cast_slice(x))
}

fn is_term(base: &Base<'_>, term: f32, pivot: &Pivot, decoded: &[f32]) -> bool {
    if base.metric == Metric::Ip {
        return term == 0.0;
    }
    let own = square(decoded);
    let cross = 2.0 * dot_f32(&pivot.rotated, bytemuck::cast_slice(decoded));
    let bound = own + 2.0 * sqrt(own * square(&pivot.rotated));
    (term - (own + cross)).abs() <= ROUNDING * bound + f32::MIN_POSITIVE
}

/// Checks the tables in RAM against each other. Ranges were checked when the tables were opened.
pub fn tables(clusters: &View<'_>, found: &mut Vec<TableFault>) {
    let directory = clusters.directory;
    let mut parts: Vec<(u64, u64, u32)> = Vec::with_capacity(2 * directory.codes.len());
    for list in 0..directory.list_count() {
        let members = directory.members(list) as usize;
        let (codes, records) = (directory.codes[list as usize], directory.records[list as usize]);
        parts.push((codes, codes + clusters.shape.list_codes_bytes(members) as u64, list));
        parts.push((records, records + (members * clusters.shape.record_bytes()) as u64, list));
    }
    for cluster in (0..directory.clusters()).filter(|&c| directory.edges[c as usize] != NO_EDGES) {
        let (start, members) = (directory.edges[cluster as usize], directory.members_of(cluster).len());
        let end = edges::end_of(directory.degree as usize, start, members as u32);
        parts.push((start, end, directory.lists_of(cluster).start));
    }
    parts.retain(|part| part.0 < part.1);
    parts.sort_unstable();
    found.extend(parts.windows(2).filter(|w| w[0].1 > w[1].0).map(|w| TableFault::Overlap(w[1].2)));
    for (cluster, kind) in (0..).zip(&directory.kinds) {
        if *kind == LocalKind::Ivf && !clusters.sublists.has_all(cluster, directory.lists_of(cluster).len()) {
            found.push(TableFault::SubLists(cluster));
        }
        if *kind == LocalKind::Graph && !directory.has_edges(cluster) {
            found.push(TableFault::Edges(cluster));
        }
    }
    for (node, &id) in (0..).zip(&clusters.nav.ids) {
        let own = clusters.nav.cluster_of[node as usize];
        let is_there = id == NONE || directory.cluster_of(directory.list_of(id)) == own;
        if !is_there || clusters.nav.list(node).contains(&node) {
            found.push(TableFault::NavNode(node));
        }
    }
}
