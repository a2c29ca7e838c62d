//! Writes the lists of the new version, cluster by cluster: what stays is copied, what changes is made from its own
//! records.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use stratann_core::PAGE;
use stratann_core::build::costs::VisitCostModel;
use stratann_core::build::hash;
use stratann_core::format::checksum;
use stratann_core::format::directory::{Directory, LocalKind};
use stratann_core::format::edges::{self, Edges};
use stratann_core::format::inverted_list::{self, ListCodes, ListLayout, Record, reseal_record};
use stratann_core::kinds::hybrid_ivf::SubLists;
use stratann_kernel::element::widen;
use stratann_kernel::{DType, Metric};
use stratann_storage::data_file::open_file;
use stratann_storage::{Error, Progress, Result};

use super::Old;
use super::moved::Moved;
use super::scratch::Scratch;
use crate::clusterings::divide::{Divided, by_centroids, in_order};
use crate::files;
use crate::kinds::hybrid_ivf::build::graphs::Graphs;
use crate::kinds::hybrid_ivf::build::lists::{ListFrame, WrittenList, end, layout, rounded};
use crate::kinds::hybrid_ivf::build::local_costs::DEGREE;
use crate::kinds::hybrid_ivf::residual::Encoder;
use crate::manifest::BlockShape;
use crate::parallel;
use crate::stages::plan::check_disk;
use crate::stages::space::{Space, code_floats};
use crate::stages::vamana;

/// File that waits between dividing a cluster and writing its lists.
const DIVIDED: &str = "divided.tmp";

/// Report of the rewritten files.
pub(super) struct Written {
    pub(super) directory: Directory,
    pub(super) sublists: SubLists,
    pub(super) blocks: BlockShape,
    /// Bytes of lists and edges that are those of the old version.
    pub(super) copied_bytes: u64,
}

/// See the module.
pub(super) struct Rewrite<'a> {
    old: &'a Old,
    kinds: &'a [LocalKind],
    scratch: &'a Scratch,
    progress: &'a dyn Progress,
    /// The lists of the old version.
    source: File,
    source_path: PathBuf,
}

/// The members of a cluster, in the order of their ids.
struct Members {
    vectors: Vec<u8>,
    external: Vec<u64>,
}

/// New division of the clusters.
#[derive(Default)]
struct Division {
    /// The first list of each cluster, and the end of the last.
    lists: Vec<u32>,
    /// The first id of each list, and the end of the last.
    ids: Vec<u32>,
    sublists: SubLists,
    /// Start of the lists of each cluster's members in the file of waiting ones, and after them the lists' centroids.
    waiting: Vec<u64>,
}

/// Memory that rebuilding the largest of the clusters takes whose kind changes.
pub(super) fn memory_bytes(old: &Old, kinds: &[LocalKind]) -> u64 {
    let (shape, directory) = (&old.tables.shape, &old.tables.directory);
    let floats = 4 * (shape.dim + 1);
    let of = |cluster: usize| {
        let members = directory.members_of(cluster as u32).len();
        let own = shape.vector_bytes + 16 + 2 * (shape.record_bytes() + shape.member_bytes()) + floats;
        let graph = vamana::Graph::bytes(members, DEGREE) + (members * edges::edge_bytes(DEGREE)) as u64;
        (members * own) as u64 + if kinds[cluster] == LocalKind::Graph { graph } else { 0 }
    };
    let changed = (0..kinds.len()).filter(|&c| kinds[c] != directory.kinds[c]);
    changed.map(of).max().unwrap_or(0)
}

impl<'a> Rewrite<'a> {
    pub(super) fn new(
        old: &'a Old,
        kinds: &'a [LocalKind],
        scratch: &'a Scratch,
        progress: &'a dyn Progress,
    ) -> Result<Rewrite<'a>> {
        let (name, entry) = old.manifest.file(files::LISTS)?;
        let source_path = old.folder.join(name);
        let source = open_file(&source_path, entry)?;
        Ok(Rewrite { old, kinds, scratch, progress, source, source_path })
    }

    /// Writes all lists; `moved` learns where members went.
    pub(super) fn run(&self, moved: &mut Moved) -> Result<Written> {
        let waiting = self.scratch.open(DIVIDED)?;
        let division = self.divide(&waiting)?;
        let shape = &self.old.tables.shape;
        let Division { lists, ids, sublists, waiting: places } = division;
        let directory = layout(shape, self.old.facts.gap_max, self.kinds.to_vec(), lists, ids);
        let shape = ListLayout { checksum_seed: self.checksum_seed(&directory), ..*shape };
        let bytes = end(&shape, &directory).next_multiple_of(PAGE as u64);
        check_disk(&self.old.folder, bytes)?;
        let path = self.scratch.path(files::LISTS);
        let out = self.scratch.open(files::LISTS)?;
        out.set_len(bytes).map_err(|e| Error::io("writing", &path, &e))?;
        let mut target =
            Target { rewrite: self, shape, directory, out, path, waiting, places, copied_bytes: 0 };
        target.all(moved)?;
        let Target { directory, out, path, copied_bytes, .. } = target;
        out.sync_all().map_err(|e| Error::io("writing", &path, &e))?;
        let blocks = BlockShape::of_pages(bytes, shape.id_bytes, shape.checksum_seed);
        Ok(Written { directory, sublists, blocks, copied_bytes })
    }

    /// The seed of the checksums of the new version's lists.
    fn checksum_seed(&self, directory: &Directory) -> u64 {
        let layout = checksum(&files::encode_directory(directory));
        hash(self.old.tables.shape.checksum_seed, self.old.next, layout).max(1)
    }

    /// Whether a cluster's lists are to be others. A graph has those of a flat cluster.
    fn is_redivided(&self, cluster: u32) -> bool {
        let is_divided = |kind| kind == LocalKind::Ivf;
        let at = cluster as usize;
        is_divided(self.kinds[at]) != is_divided(self.old.tables.directory.kinds[at])
    }

    /// Whether a cluster gets a graph that it does not have.
    fn gets_graph(&self, cluster: u32) -> bool {
        let directory = &self.old.tables.directory;
        let has_it = directory.has_edges(cluster) && directory.degree == DEGREE as u32;
        self.kinds[cluster as usize] == LocalKind::Graph && !has_it
    }

    fn members_where(&self, wanted: impl Fn(u32) -> bool) -> u64 {
        let directory = &self.old.tables.directory;
        (0..directory.clusters()).filter(|&c| wanted(c)).map(|c| directory.members_of(c).len() as u64).sum()
    }

    fn divide(&self, waiting: &File) -> Result<Division> {
        let directory = &self.old.tables.directory;
        let total = self.members_where(|c| self.is_redivided(c));
        self.progress.stage("dividing clusters again", total, "vectors");
        let mut division = Division { lists: vec![0], ids: vec![0], ..Division::default() };
        let mut encoder = Encoder::new(&self.old.tables.coder, self.old.metric);
        let mut at = 0u64;
        for cluster in 0..directory.clusters() {
            self.progress.check_interrupted()?;
            division.sublists.first.push(division.sublists.terms.len() as u32);
            division.waiting.push(at);
            if self.is_redivided(cluster) {
                at += self.divide_one(cluster, &mut division, &mut encoder, (waiting, at))?;
                self.progress.advance(directory.members_of(cluster).len() as u64);
            } else {
                self.keep(cluster, &mut division);
            }
        }
        Ok(division)
    }

    /// A cluster whose lists stay.
    fn keep(&self, cluster: u32, division: &mut Division) {
        let tables = &self.old.tables;
        let lists = tables.directory.lists_of(cluster);
        division.ids.extend(lists.clone().map(|l| tables.directory.ids[l as usize + 1]));
        division.lists.push(division.ids.len() as u32 - 1);
        if self.kinds[cluster as usize] == LocalKind::Ivf {
            let first = tables.sublists.first[cluster as usize] as usize;
            let (entries, size) = (first..first + lists.len(), tables.shape.code_bytes);
            division.sublists.terms.extend_from_slice(&tables.sublists.terms[entries.clone()]);
            division
                .sublists
                .codes
                .extend_from_slice(&tables.sublists.codes[entries.start * size..entries.end * size]);
        }
    }

    /// Divides one cluster; what its lists are to be waits from `at` on in the file. Returns how many bytes of it.
    fn divide_one(
        &self,
        cluster: u32,
        division: &mut Division,
        encoder: &mut Encoder<'_>,
        (waiting, at): (&File, u64),
    ) -> Result<u64> {
        let divided = self.divided(cluster)?;
        let mut sizes = vec![0u32; divided.lists as usize];
        divided.rows.iter().for_each(|row| sizes[row.1 as usize] += 1);
        for size in sizes {
            let end = division.ids.last().map_or(0, |&end| end + size);
            division.ids.push(end);
        }
        division.lists.push(division.ids.len() as u32 - 1);
        let mut bytes: Vec<u8> = divided.rows.iter().flat_map(|row| row.1.to_le_bytes()).collect();
        if !divided.centroids.is_empty() {
            let (dim, code_bytes) = (self.old.tables.shape.dim, self.old.tables.shape.code_bytes);
            let centroid = self.centroid(cluster);
            encoder.set_centroid(&centroid);
            let mut code = vec![0u8; code_bytes];
            // Of an inner product's space the last component is not one of the vectors'.
            for point in divided.centroids.chunks_exact(divided.centroids.len() / divided.lists as usize) {
                let member = encoder.encode(&point[..dim], &centroid, &mut code);
                division.sublists.terms.push(member.term);
                division.sublists.codes.extend_from_slice(&code);
                bytes.extend(rounded(&point[..dim]).0);
            }
        }
        let path = self.scratch.path(DIVIDED);
        waiting.write_all_at(&bytes, at).map_err(|e| Error::io("writing", &path, &e))?;
        Ok(bytes.len() as u64)
    }

    fn divided(&self, cluster: u32) -> Result<Divided> {
        let shape = &self.old.tables.shape;
        let capacity = shape.members_in(self.old.facts.read_max as usize);
        let count = self.old.tables.directory.members_of(cluster).len() as u32;
        let rows: Vec<u32> = (0..count).collect();
        if self.kinds[cluster as usize] != LocalKind::Ivf {
            return Ok(in_order(&rows, capacity));
        }
        let members = self.members(cluster)?;
        let space = self.space(&members);
        let dim = space.point_dim();
        let seed = self.old.seed().wrapping_add(u64::from(cluster));
        let lists = VisitCostModel::lists_in(rows.len() as u64) as usize;
        by_centroids(dim, &rows, lists, (capacity, usize::MAX), (seed, self.progress), |rows, out| {
            self.progress.check_interrupted()?;
            for (&row, point) in rows.iter().zip(out.chunks_exact_mut(dim)) {
                space.floats(
                    &members.vectors[row as usize * shape.vector_bytes..][..shape.vector_bytes],
                    point,
                );
            }
            Ok(())
        })
    }

    /// Points of the members of one cluster: under an inner product all as long as the longest of them.
    fn space(&self, members: &Members) -> Space {
        let (metric, dtype, shape) = (self.old.metric, self.old.dtype, &self.old.tables.shape);
        let mut floats = vec![0f32; shape.dim];
        let mut most = 0f64;
        if metric == Metric::Ip {
            for vector in members.vectors.chunks_exact(shape.vector_bytes) {
                widen(dtype, vector, &mut floats);
                most = floats.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().max(most);
            }
        }
        Space::of_floats(metric, dtype, shape.dim, most)
    }

    fn centroid(&self, cluster: u32) -> Vec<f32> {
        let mut floats = vec![0f32; self.old.tables.shape.dim];
        widen(DType::F16, self.old.tables.centroid(cluster), &mut floats);
        floats
    }

    fn members(&self, cluster: u32) -> Result<Members> {
        let mut members = Members { vectors: Vec::new(), external: Vec::new() };
        for list in self.old.tables.directory.lists_of(cluster) {
            self.progress.check_interrupted()?;
            self.records(list, |record| {
                members.vectors.extend_from_slice(record.vector());
                members.external.push(record.external_id());
            })?;
        }
        Ok(members)
    }

    /// Reads the records of a list of the old version, and shows each.
    fn records(&self, list: u32, mut see: impl FnMut(Record<'_>)) -> Result<Vec<u8>> {
        let (directory, shape) = (&self.old.tables.directory, &self.old.tables.shape);
        let at = directory.records[list as usize];
        let bytes = self.read(at, directory.members(list) as usize * shape.record_bytes())?;
        let records = bytes.chunks_exact(shape.record_bytes());
        for ((id, bytes), number) in (directory.ids[list as usize]..).zip(records).zip(0u64..) {
            let place = at + number * shape.record_bytes() as u64;
            let record = Record::verify(shape, id, bytes);
            see(record.ok_or_else(|| self.damaged(&format!("the record of vector {id}"), place))?);
        }
        Ok(bytes)
    }

    fn read(&self, at: u64, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0u8; length];
        self.source.read_exact_at(&mut bytes, at).map_err(|e| Error::io("reading", &self.source_path, &e))?;
        Ok(bytes)
    }

    fn damaged(&self, what: &str, at: u64) -> Error {
        Error::corrupt(format!(
            "{what} at offset {at} of {} is damaged; run `stratann verify`, then restore the file or build the \
             index again",
            self.source_path.display()
        ))
    }
}

/// The file of the new version's lists.
struct Target<'a> {
    rewrite: &'a Rewrite<'a>,
    /// Layout of the new lists.
    shape: ListLayout,
    directory: Directory,
    out: File,
    path: PathBuf,
    waiting: File,
    places: Vec<u64>,
    copied_bytes: u64,
}

impl Target<'_> {
    fn all(&mut self, moved: &mut Moved) -> Result<()> {
        let rewrite = self.rewrite;
        let total = rewrite.members_where(|_| true) + rewrite.members_where(|c| rewrite.gets_graph(c));
        rewrite.progress.stage("writing lists", total, "vectors");
        for cluster in 0..self.directory.clusters() {
            let first = self.directory.members_of(cluster).start;
            if rewrite.is_redivided(cluster) {
                moved.take_in(first, &self.write_redivided(cluster)?);
            } else {
                self.copy(cluster)?;
            }
            if rewrite.gets_graph(cluster) {
                self.directory.entries[cluster as usize] = self.graph(cluster)?;
            } else if self.directory.has_edges(cluster) {
                self.copy_edges(cluster)?;
                self.directory.entries[cluster as usize] =
                    rewrite.old.tables.directory.entries[cluster as usize];
            }
        }
        Ok(())
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<()> {
        self.out.write_all_at(bytes, at).map_err(|e| Error::io("writing", &self.path, &e))
    }

    /// Copies lists: nothing in them changes but their numbers and checksums.
    fn copy(&mut self, cluster: u32) -> Result<()> {
        let rewrite = self.rewrite;
        let (from, shape) = (&rewrite.old.tables.directory, &rewrite.old.tables.shape);
        for (list, new) in from.lists_of(cluster).zip(self.directory.lists_of(cluster)) {
            rewrite.progress.check_interrupted()?;
            let members = from.members(list) as usize;
            let at = from.codes[list as usize];
            let mut head = rewrite.read(at, shape.list_codes_bytes(members))?;
            if ListCodes::verify(shape, list, &head).is_none() {
                return Err(rewrite.damaged(&format!("inverted list {list}"), at));
            }
            inverted_list::reseal_list_codes(&self.shape, new, &mut head);
            self.write(&head, self.directory.codes[new as usize])?;
            let mut records = rewrite.records(list, |_| {})?;
            let each = records.chunks_exact_mut(shape.record_bytes());
            each.zip(from.ids[list as usize]..).for_each(|(bytes, id)| reseal_record(&self.shape, id, bytes));
            self.write(&records, self.directory.records[new as usize])?;
            self.copied_bytes += (head.len() + records.len()) as u64;
            rewrite.progress.advance(members as u64);
        }
        Ok(())
    }

    /// Copies edges: nothing in them changes but their checksums.
    fn copy_edges(&mut self, cluster: u32) -> Result<()> {
        let rewrite = self.rewrite;
        let from = &rewrite.old.tables.directory;
        let (ids, size) = (from.members_of(cluster), edges::edge_bytes(from.degree as usize));
        if ids.is_empty() {
            return Ok(());
        }
        rewrite.progress.check_interrupted()?;
        let place = |directory: &Directory, number: u32| {
            let at = directory.edges_at(cluster, number);
            u64::from(at.first) * PAGE as u64 + u64::from(at.skip)
        };
        let last = ids.len() as u32 - 1;
        let (first_from, first_to) = (place(from, 0), place(&self.directory, 0));
        let old = rewrite.read(first_from, (place(from, last) - first_from) as usize + size)?;
        let mut new = vec![0u8; (place(&self.directory, last) - first_to) as usize + size];
        for (number, id) in (0..).zip(ids) {
            let (at, to) = (place(from, number), (place(&self.directory, number) - first_to) as usize);
            let own = &old[(at - first_from) as usize..][..size];
            let seed = rewrite.old.tables.shape.checksum_seed;
            if Edges::verify(from.degree as usize, seed, id, own).is_none() {
                return Err(rewrite.damaged(&format!("the edges of vector {id}"), at));
            }
            new[to..to + size].copy_from_slice(own);
            edges::reseal_edges(self.shape.checksum_seed, id, &mut new[to..to + size]);
            self.copied_bytes += size as u64;
        }
        self.write(&new, first_to)
    }

    fn graph(&self, cluster: u32) -> Result<u32> {
        let rewrite = self.rewrite;
        let old = rewrite.old;
        let members = match old.metric {
            Metric::Ip => rewrite.members(cluster)?,
            Metric::L2 | Metric::Cosine => Members { vectors: Vec::new(), external: Vec::new() },
        };
        let space = rewrite.space(&members);
        drop(members);
        let graphs = Graphs {
            space: &space,
            shape: &self.shape,
            directory: &self.directory,
            file: &self.out,
            path: &self.path,
            seed: old.seed(),
            progress: rewrite.progress,
        };
        graphs.graph(cluster)
    }

    /// Writes the lists that a cluster was divided into. Returns the new ids of its members, in the order of their
    /// old ones.
    fn write_redivided(&self, cluster: u32) -> Result<Vec<u32>> {
        let rewrite = self.rewrite;
        let tables = &rewrite.old.tables;
        let members = rewrite.members(cluster)?;
        let lists = self.directory.lists_of(cluster);
        let (list_of, halves) = self.read_waiting(cluster, members.external.len(), lists.len())?;
        let mut rows_of: Vec<Vec<u32>> = vec![Vec::new(); lists.len()];
        for (&list, row) in list_of.iter().zip(0u32..) {
            rows_of[list as usize].push(row);
        }
        let size = 2 * tables.shape.dim;
        let orders = parallel::try_map_with(
            lists.clone().zip(&rows_of),
            || Encoder::new(&tables.coder, rewrite.old.metric),
            |encoder, (list, rows)| {
                rewrite.progress.check_interrupted()?;
                let number = (list - lists.start) as usize;
                let own = halves.get(number * size..(number + 1) * size);
                let halves = own.unwrap_or(tables.centroid(cluster));
                self.list(encoder, list, halves, &members, rows)
            },
        )?;
        let mut now = vec![0u32; members.external.len()];
        let ids = self.directory.members_of(cluster);
        orders.iter().flatten().zip(ids).for_each(|(&row, id)| now[row as usize] = id);
        Ok(now)
    }

    /// Writes one list of these members. Returns them in the order of their ids.
    fn list(
        &self,
        encoder: &mut Encoder<'_>,
        list: u32,
        halves: &[u8],
        members: &Members,
        rows: &[u32],
    ) -> Result<Vec<u32>> {
        let old = self.rewrite.old;
        let shape = &old.tables.shape;
        let size = shape.vector_bytes;
        let mut vectors = Vec::with_capacity(rows.len() * size);
        let mut floats = vec![0f32; rows.len() * shape.dim];
        for (&row, out) in rows.iter().zip(floats.chunks_exact_mut(shape.dim)) {
            let vector = &members.vectors[row as usize * size..(row as usize + 1) * size];
            vectors.extend_from_slice(vector);
            code_floats(old.metric, old.dtype, vector, out);
        }
        let mut centroid = vec![0f32; shape.dim];
        widen(DType::F16, halves, &mut centroid);
        let first = self.directory.ids[list as usize];
        let external = |i: u32| members.external[rows[i as usize] as usize];
        let frame = ListFrame { shape: &self.shape, dtype: old.dtype, list, halves };
        let WrittenList { head, records, order } =
            frame.write(encoder, &centroid, first, &vectors, &floats, external);
        self.write(&head, self.directory.codes[list as usize])?;
        self.write(&records, self.directory.records[list as usize])?;
        self.rewrite.progress.advance(rows.len() as u64);
        Ok(order.iter().map(|&i| rows[i as usize]).collect())
    }

    /// The list of each member of a cluster, numbered within it, and the centroids of its lists where it is divided.
    fn read_waiting(&self, cluster: u32, members: usize, lists: usize) -> Result<(Vec<u32>, Vec<u8>)> {
        let rewrite = self.rewrite;
        let is_divided = self.directory.kinds[cluster as usize] == LocalKind::Ivf;
        let centroids = if is_divided { lists * 2 * rewrite.old.tables.shape.dim } else { 0 };
        let mut bytes = vec![0u8; 4 * members + centroids];
        let path = rewrite.scratch.path(DIVIDED);
        self.waiting
            .read_exact_at(&mut bytes, self.places[cluster as usize])
            .map_err(|e| Error::io("reading", &path, &e))?;
        let halves = bytes.split_off(4 * members);
        let list_of: Vec<u32> =
            bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        if list_of.iter().any(|&list| list as usize >= lists) {
            return Err(Error::corrupt(format!(
                "{} is not as it was written; run the command again",
                path.display()
            )));
        }
        Ok((list_of, halves))
    }
}
