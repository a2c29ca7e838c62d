//! Writes the inverted lists: heads first, then records, in the order of clusters, then the edges of those that are
//! graphs. Rows come in parts as large as the memory allows.

use std::sync::Mutex;
use stratann_params::build::ListOptions;

use serde::{Deserialize, Serialize};
use stratann_core::PAGE;
use stratann_core::format::directory::{Directory, LocalKind, NO_EDGES};
use stratann_core::format::edges;
use stratann_core::format::inverted_list::{self, ListLayout};
use stratann_core::kinds::hybrid_ivf::SubLists;
use stratann_kernel::DType;
use stratann_kernel::coder::Coder;
use stratann_kernel::distance::{inverse_norm, l2_f32};
use stratann_kernel::element::widen;
use stratann_storage::output::AtomicFile;
use stratann_storage::{Error, Result};

use super::divide::{self, Plan, SUB_CENTROIDS};
use super::local_costs::DEGREE;
use super::{graphs, list_layout, read_centroids};
use crate::clusterings::order::halve;
use crate::dataset::Scan;
use crate::files;
use crate::kinds::hybrid_ivf::facts::SizeStats;
use crate::kinds::hybrid_ivf::residual::Encoder;
use crate::manifest::BlockShape;
use crate::stages::build::{Build, read_coder};
use crate::stages::list_rows::{ListRows, RowsOfList};
use crate::stages::space::Space;
use crate::stages::tables::{read_table, write_table};

/// Facts of the lists.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ListFacts {
    pub(crate) blocks: BlockShape,
    pub(crate) lists: u32,
    pub(crate) kinds: [u32; 3],
    pub(crate) sizes: SizeStats,
}

/// Mean squared distances of the members of each cluster to its centroid, f32.
pub(crate) const SPREADS: &str = "spreads.tmp";
/// Members of a list that stay in any order among themselves.
const ORDER_LEAST: usize = 4;

pub(crate) fn run(build: &Build<'_>, own: &ListOptions, space: &Space, scan: &Scan) -> Result<ListFacts> {
    let shape = sealed_layout(build, own)?;
    let plan: Plan = build
        .partial
        .facts(super::PLAN)
        .ok_or_else(|| Error::corrupt("the build has lost its plan; start it again"))?;
    let list_of_row = divide::read_lists(build)?;
    let directory = directory(&shape, &plan, &list_of_row, scan);
    let sizes: Vec<u64> = (0..directory.clusters())
        .map(|c| directory.lists_of(c).map(|l| u64::from(directory.members(l))).sum())
        .collect();
    let (halves, centroids) = read_centroids(build, shape.dim)?;
    let coder = Coder::Bits(read_coder(&build.file(files::CODEBOOK))?);
    let subs = SubCentroids::read(build, &plan, shape.dim)?;
    let sublists = subs.encode(&coder, build, &plan, &centroids);
    write_table(&build.file(files::SUBLISTS), &files::encode_sublists(&sublists))?;
    let bytes = end(&shape, &directory).next_multiple_of(PAGE as u64);
    let lists = directory.list_count() as usize;
    let out = AtomicFile::create(&build.file(files::LISTS))?;
    out.set_len(bytes)?;
    let writer = Writer {
        build,
        space,
        shape,
        coder,
        directory,
        plan,
        halves,
        centroids,
        subs,
        out: &out,
        squares: Mutex::new(vec![0.0; lists]),
    };
    writer.all(scan, &list_of_row)?;
    write_table(&build.partial.path(SPREADS), &writer.spreads())?;
    let lists = writer.directory.list_count();
    let kinds =
        LocalKind::ALL.map(|kind| writer.directory.kinds.iter().filter(|&&k| k == kind).count() as u32);
    let mut directory = writer.directory;
    graphs::write(build, space, &shape, &mut directory, out.file())?;
    out.commit()?;
    write_table(&build.file(files::DIRECTORY), &files::encode_directory(&directory))?;
    let blocks = BlockShape::of_pages(bytes, shape.id_bytes, shape.checksum_seed);
    Ok(ListFacts { blocks, lists, kinds, sizes: SizeStats::of(&sizes) })
}

/// The layout of the lists that are written, after all rows have clusters.
fn sealed_layout(build: &Build<'_>, own: &ListOptions) -> Result<ListLayout> {
    let made_from =
        [build.file(files::CODEBOOK), build.file(files::CENTROIDS), build.partial.path(divide::LISTS)];
    Ok(ListLayout { checksum_seed: build.checksum_seed(&made_from)?, ..list_layout(build, own)? })
}

fn directory(shape: &ListLayout, plan: &Plan, list_of_row: &[u32], scan: &Scan) -> Directory {
    let lists = plan.lists.last().copied().unwrap_or(0) as usize;
    let mut ids = vec![0u32; lists + 1];
    list_of_row.iter().filter(|&&l| l != u32::MAX).for_each(|&l| ids[l as usize + 1] += 1);
    for list in 0..lists {
        ids[list + 1] += ids[list];
    }
    debug_assert_eq!(u64::from(ids[lists]), scan.rows);
    let kind = |&k: &u8| LocalKind::ALL.get(usize::from(k)).copied().unwrap_or_default();
    layout(shape, plan.reads.gap, plan.kinds.iter().map(kind).collect(), plan.lists.clone(), ids)
}

/// Decides where everything lies, for clusters of these kinds, their lists and the ids of these. Up to `gap_max` unused
/// bytes are read rather than splitting a read in two. Searches of local graphs begin at their first member.
pub(crate) fn layout(
    shape: &ListLayout,
    gap_max: u32,
    kinds: Vec<LocalKind>,
    lists_of: Vec<u32>,
    ids: Vec<u32>,
) -> Directory {
    let lists = ids.len().saturating_sub(1);
    let (mut codes, mut records) = (Vec::with_capacity(lists), vec![u64::MAX; lists]);
    let mut at = 0u64;
    for list in 0..lists {
        let members = (ids[list + 1] - ids[list]) as usize;
        let (own_codes, own_records) = (shape.list_codes_bytes(members), members * shape.record_bytes());
        // Its records come along when that costs less than a second read would.
        let is_whole = own_codes + own_records <= 2 * gap_max as usize;
        let size = (own_codes + if is_whole { own_records } else { 0 }) as u64;
        at = without_straddling(at, size);
        codes.push(at);
        if is_whole {
            records[list] = at + own_codes as u64;
        }
        at += size;
    }
    at = at.next_multiple_of(PAGE as u64);
    for list in 0..lists {
        if records[list] == u64::MAX {
            records[list] = at;
            at += u64::from(ids[list + 1] - ids[list]) * shape.record_bytes() as u64;
        }
    }
    let clusters = kinds.len();
    let mut directory = Directory {
        codes,
        records,
        ids,
        lists: lists_of,
        kinds,
        degree: DEGREE as u32,
        edges: vec![NO_EDGES; clusters],
        entries: vec![0; clusters],
    };
    for cluster in 0..clusters {
        if directory.kinds[cluster] != LocalKind::Graph {
            continue;
        }
        let members = directory.members_of(cluster as u32).len() as u32;
        directory.edges[cluster] = edges::start_after(DEGREE, at);
        at = edges::end_of(DEGREE, directory.edges[cluster], members);
    }
    directory
}

/// Place from `at` on of something of `size` bytes: smaller than a page, it lies in one.
fn without_straddling(at: u64, size: u64) -> u64 {
    let page = PAGE as u64;
    let left = page - at % page;
    if size <= page && size > left { at + left } else { at }
}

/// End of the last list or edge.
pub(crate) fn end(shape: &ListLayout, directory: &Directory) -> u64 {
    let of = |list: u32| {
        let members = directory.members(list) as usize;
        let head = directory.codes[list as usize] + shape.list_codes_bytes(members) as u64;
        head.max(directory.records[list as usize] + (members * shape.record_bytes()) as u64)
    };
    let of_edges = |cluster: u32| {
        let members = directory.members_of(cluster).len() as u32;
        edges::end_of(DEGREE, directory.edges[cluster as usize], members)
    };
    let ends = (0..directory.list_count()).map(of);
    ends.chain((0..directory.clusters()).filter(|&c| directory.has_edges(c)).map(of_edges)).max().unwrap_or(0)
}

/// Rounds to f16 and back: what a head can hold.
pub(crate) fn rounded(centroid: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let halves = super::to_halves(centroid);
    let mut floats = vec![0f32; centroid.len()];
    widen(DType::F16, &halves, &mut floats);
    (halves, floats)
}

/// The centroids of the lists of divided clusters.
struct SubCentroids {
    rows: Vec<f32>,
    dim: usize,
}

impl SubCentroids {
    fn read(build: &Build<'_>, plan: &Plan, dim: usize) -> Result<SubCentroids> {
        let rows: Vec<f32> = read_table(&build.partial.path(SUB_CENTROIDS))?;
        debug_assert_eq!(plan.sub_first.len(), plan.kinds.len());
        Ok(SubCentroids { rows, dim })
    }

    fn of(&self, entry: u32) -> &[f32] {
        &self.rows[entry as usize * self.dim..(entry as usize + 1) * self.dim]
    }

    /// Each as a code of what its cluster's centroid leaves of it.
    fn encode(&self, coder: &Coder, build: &Build<'_>, plan: &Plan, centroids: &[f32]) -> SubLists {
        let mut encoder = Encoder::new(coder, build.options.metric);
        let mut out = SubLists { first: plan.sub_first.clone(), ..SubLists::default() };
        let size = coder.code_bytes();
        for (cluster, lists) in plan.lists.windows(2).enumerate() {
            if plan.kinds[cluster] != LocalKind::Ivf as u8 {
                continue;
            }
            let centroid = &centroids[cluster * self.dim..(cluster + 1) * self.dim];
            encoder.set_centroid(centroid);
            for i in 0..lists[1] - lists[0] {
                let mut code = vec![0u8; size];
                let member = encoder.encode(self.of(plan.sub_first[cluster] + i), centroid, &mut code);
                out.terms.push(member.term);
                out.codes.extend_from_slice(&code);
            }
        }
        out
    }
}

struct Writer<'a> {
    build: &'a Build<'a>,
    space: &'a Space,
    shape: ListLayout,
    coder: Coder,
    directory: Directory,
    plan: Plan,
    halves: Vec<u8>,
    centroids: Vec<f32>,
    subs: SubCentroids,
    out: &'a AtomicFile,
    // For each list the sum of the squared distances of its members to the cluster's centroid.
    squares: Mutex<Vec<f64>>,
}

impl Writer<'_> {
    /// Writes all lists.
    fn all(&self, scan: &Scan, list_of_row: &[u32]) -> Result<()> {
        self.build.progress.stage("writing lists", scan.rows, "rows");
        let (first, vector_bytes) = (&self.directory.ids[..], self.shape.vector_bytes);
        let rows = ListRows { build: self.build, list_of_row, first, vector_bytes };
        let encoder = || Encoder::new(&self.coder, self.build.options.metric);
        rows.write_each(scan, encoder, |encoder, of| self.list(encoder, of))
    }

    /// Spread of each cluster.
    fn spreads(&self) -> Vec<f32> {
        let squares = self.squares.lock().unwrap_or_else(|e| e.into_inner());
        let of = |cluster: u32| {
            let sum: f64 = self.directory.lists_of(cluster).map(|l| squares[l as usize]).sum();
            (sum / self.directory.members_of(cluster).len().max(1) as f64) as f32
        };
        (0..self.directory.clusters()).map(of).collect()
    }

    /// The centroid of a list: its own in a divided cluster, else the cluster's.
    fn centroid(&self, list: u32) -> (Vec<u8>, Vec<f32>) {
        let (cluster, dim) = (self.directory.cluster_of(list) as usize, self.shape.dim);
        if self.directory.kinds[cluster] == LocalKind::Ivf {
            let entry = self.plan.sub_first[cluster] + list - self.plan.lists[cluster];
            return rounded(self.subs.of(entry));
        }
        let at = cluster * dim..(cluster + 1) * dim;
        (self.halves[2 * at.start..2 * at.end].to_vec(), self.centroids[at].to_vec())
    }

    /// Writes one list. Returns its rows in the order of their ids.
    fn list(&self, encoder: &mut Encoder<'_>, of: &RowsOfList<'_>) -> Result<Vec<u32>> {
        let (RowsOfList { list, vectors, rows }, dim) = (*of, self.shape.dim);
        let mut floats = vec![0f32; rows.len() * dim];
        for (vector, out) in vectors.chunks_exact(self.shape.vector_bytes).zip(floats.chunks_exact_mut(dim)) {
            self.space.code_floats(vector, out);
        }
        let own = &self.centroids[self.directory.cluster_of(list) as usize * dim..][..dim];
        let squares: f64 =
            floats.chunks_exact(dim).map(|v| f64::from(l2_f32(v, bytemuck::cast_slice(own)))).sum();
        self.squares.lock().unwrap_or_else(|e| e.into_inner())[list as usize] = squares;
        let (halves, centroid) = self.centroid(list);
        let external = |i: u32| self.build.external_id(rows[i as usize]);
        let frame =
            ListFrame { shape: &self.shape, dtype: self.build.base.shape().dtype, list, halves: &halves };
        let first = self.directory.ids[list as usize];
        let WrittenList { head, records, order } =
            frame.write(encoder, &centroid, first, vectors, &floats, external);
        self.out.write_at(&head, self.directory.codes[list as usize])?;
        self.out.write_at(&records, self.directory.records[list as usize])?;
        self.build.progress.advance(rows.len() as u64);
        Ok(order.iter().map(|&i| rows[i as usize]).collect())
    }
}

/// Parts of a list besides its members.
pub(crate) struct ListFrame<'a> {
    pub(crate) shape: &'a ListLayout,
    pub(crate) dtype: DType,
    /// Number of the list.
    pub(crate) list: u32,
    /// Centroid of the list as f16.
    pub(crate) halves: &'a [u8],
}

/// A list as it lies on disk.
pub(crate) struct WrittenList {
    pub(crate) head: Vec<u8>,
    pub(crate) records: Vec<u8>,
    /// Which of the vectors became which member.
    pub(crate) order: Vec<u32>,
}

impl ListFrame<'_> {
    /// The list of these vectors, whose ids begin at `first`. `floats` are the same as codes see them, `centroid`
    /// that of the frame as floats; `external` gives the external id of each.
    pub(crate) fn write(
        &self,
        encoder: &mut Encoder<'_>,
        centroid: &[f32],
        first: u32,
        vectors: &[u8],
        floats: &[f32],
        external: impl Fn(u32) -> u64,
    ) -> WrittenList {
        let (shape, dim) = (self.shape, self.shape.dim);
        let count = floats.len() / dim;
        let mut order: Vec<u32> = (0..count as u32).collect();
        halve(floats, dim, &mut order, ORDER_LEAST);
        encoder.set_centroid(centroid);
        let (mut members, mut codes) = (Vec::with_capacity(count), vec![0u8; count * shape.code_bytes]);
        let mut records = Vec::with_capacity(count * shape.record_bytes());
        for ((&row, id), code) in order.iter().zip(first..).zip(codes.chunks_exact_mut(shape.code_bytes)) {
            let i = row as usize;
            members.push(encoder.encode(&floats[i * dim..(i + 1) * dim], centroid, code));
            let vector = &vectors[i * shape.vector_bytes..(i + 1) * shape.vector_bytes];
            let norm = if shape.norms { inverse_norm(self.dtype, vector) } else { 1.0 };
            inverted_list::write_record(shape, id, vector, norm, external(row), &mut records);
        }
        let mut head = Vec::with_capacity(shape.list_codes_bytes(count));
        inverted_list::write_list_codes(shape, self.list, first, self.halves, &members, &codes, &mut head);
        WrittenList { head, records, order }
    }
}
