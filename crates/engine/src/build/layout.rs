//! From a graph and rows to blocks: which nodes share one, in which order, and the bytes.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rayon::prelude::*;
use stratann_core::PAGE;
use stratann_core::build::{Lists, pack};
use stratann_core::format::block::{self, Node, Shape};
use stratann_core::format::list;
use stratann_kernel::distance::inverse_norm;
use stratann_kernel::{DType, Metric};

use super::graph_file::{Cell, GraphReader, Records};
use crate::dataset::Reader;
use crate::{Error, Progress, Result};

/// Where every row went.
pub(crate) struct Placement {
    /// New id by row; `u32::MAX` for rows that were left out.
    pub(crate) id_of_row: Vec<u32>,
    /// Nodes in each block.
    pub(crate) counts: Vec<u16>,
}

/// What decides how many nodes share a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Density {
    /// Nodes in the index.
    pub(crate) nodes: u64,
    /// Mean length of the lists.
    pub(crate) mean_list: f64,
    /// Whether room is reckoned for compressed lists, or for 4 bytes an id.
    pub(crate) compressed: bool,
    /// Share of the lists that must fit; what exceeds a block is cut from the far end of its lists.
    pub(crate) keep: f64,
}

impl Density {
    /// Bytes that the list of a node is expected to take.
    fn list_bytes(&self) -> f64 {
        let kept = self.mean_list * self.keep;
        if !self.compressed {
            return 2.0 + 4.0 * kept;
        }
        let bits = 2.0 + (self.nodes as f64 / kept.max(1.0)).max(1.0).log2();
        (13.0 + 32.0 + bits * (kept - 1.0).max(0.0)) / 8.0
    }

    /// How many nodes fit in a block of this shape; at least one.
    pub(crate) fn nodes_per_block(&self, shape: &Shape) -> usize {
        let each = shape.node_bytes() as f64 + if shape.lists { self.list_bytes() } else { 0.0 };
        ((shape.room() as f64 / each) as usize).clamp(1, usize::from(u16::MAX))
    }

    /// Pages of a block: the fewest that hold one node with its whole list.
    pub(crate) fn pages_per_block(&self, shape: &Shape) -> usize {
        let one = (Density { keep: 1.0, ..*self }).list_bytes()
            + shape.node_bytes() as f64
            + block::HEADER as f64
            + 2.0;
        (one / PAGE as f64).ceil() as usize
    }
}

/// A cell's lists with local numbers; neighbours in other cells are left out.
struct CellLists {
    starts: Vec<u32>,
    ids: Vec<u32>,
}

impl CellLists {
    /// The lists of the records at `places`, renumbered by `local_of_row`.
    fn new(records: &Records, local_of_row: &[u32], places: &[u32]) -> CellLists {
        let mut lists = CellLists { starts: vec![0], ids: Vec::new() };
        for &at in places {
            let local = records
                .list(at as usize)
                .iter()
                .map(|&row| local_of_row[row as usize])
                .filter(|&l| l != u32::MAX);
            lists.ids.extend(local);
            lists.starts.push(lists.ids.len() as u32);
        }
        lists
    }
}

impl Lists for CellLists {
    fn list(&self, node: u32) -> &[u32] {
        &self.ids[self.starts[node as usize] as usize..self.starts[node as usize + 1] as usize]
    }
}

/// How nodes are grouped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packing<'a> {
    /// Nodes of a block, at most.
    pub(crate) nodes_per_block: usize,
    /// Group by the graph; otherwise nodes follow their rows.
    pub(crate) packed: bool,
    /// Rows (ascending) that share blocks with each other only. They will calibrate: among its neighbours a row would find them
    /// all on one page, as no real query does.
    pub(crate) apart: &'a [u32],
}

/// Decides for each cell in turn which nodes share a block.
pub(crate) fn place(
    graph: &GraphReader,
    order: &[u32],
    cells: &[Cell],
    rows: usize,
    packing: Packing<'_>,
    progress: &dyn Progress,
) -> Result<Placement> {
    progress.stage("packing", order.len() as u64, "nodes");
    let mut placement = Placement { id_of_row: vec![u32::MAX; rows], counts: Vec::new() };
    let mut local_of_row = vec![u32::MAX; rows];
    let mut next_id = 0u32;
    for cell in cells {
        if progress.interrupted() {
            return Err(Error::interrupted());
        }
        let members = &order[cell.start as usize..cell.end as usize];
        let groups = group_cell(graph, cell, members, &mut local_of_row, &packing)?;
        for group in &groups {
            placement.counts.push(group.len() as u16);
            for &local in group {
                placement.id_of_row[members[local as usize] as usize] = next_id;
                next_id += 1;
            }
        }
        progress.advance(members.len() as u64);
    }
    Ok(placement)
}

/// The groups of one cell, by place among its members. `local_of_row` is all `u32::MAX` before and after.
fn group_cell(
    graph: &GraphReader,
    cell: &Cell,
    members: &[u32],
    local_of_row: &mut [u32],
    packing: &Packing<'_>,
) -> Result<Vec<Vec<u32>>> {
    let is_apart = |row: &u32| packing.packed && packing.apart.binary_search(row).is_ok();
    let (alone, together): (Vec<u32>, Vec<u32>) =
        (0..members.len() as u32).partition(|&l| is_apart(&members[l as usize]));
    let chunks = |of: &[u32]| of.chunks(packing.nodes_per_block).map(<[u32]>::to_vec).collect::<Vec<_>>();
    let mut groups = if packing.packed {
        together.iter().enumerate().for_each(|(i, &l)| local_of_row[members[l as usize] as usize] = i as u32);
        let records = graph.read(cell.start, cell.end)?;
        let lists = CellLists::new(&records, local_of_row, &together);
        drop(records);
        members.iter().for_each(|&row| local_of_row[row as usize] = u32::MAX);
        let groups = pack::pack(&lists, together.len(), packing.nodes_per_block, EXCHANGE_PASSES);
        groups.into_iter().map(|g| g.into_iter().map(|i| together[i as usize]).collect()).collect()
    } else {
        chunks(&together)
    };
    groups.extend(chunks(&alone));
    Ok(groups)
}

/// Rounds of exchange after the greedy growth; later ones change next to nothing.
const EXCHANGE_PASSES: usize = 4;

/// Everything that writing the blocks needs.
pub(crate) struct BlockJob<'a> {
    pub(crate) reader: &'a Reader,
    pub(crate) metric: Metric,
    pub(crate) shape: Shape,
    pub(crate) placement: &'a Placement,
    /// Row at each position, cell by cell.
    pub(crate) order: &'a [u32],
    pub(crate) cells: &'a [Cell],
    /// Absent for flat blocks.
    pub(crate) graph: Option<&'a GraphReader>,
    /// External id by row; the row number itself when absent.
    pub(crate) external: Option<&'a [u64]>,
    /// Bytes that vectors may take in RAM.
    pub(crate) memory_bytes: u64,
    /// Folder for spilled vectors.
    pub(crate) spill: &'a Path,
}

/// What came of the writing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Written {
    /// Edges in all lists.
    pub(crate) edges: u64,
    /// Edges that were cut because their block was full.
    pub(crate) cut: u64,
    /// Bytes of all lists.
    pub(crate) list_bytes: u64,
}

/// A run of whole blocks within one cell, small enough for the memory.
struct Bucket {
    cell: usize,
    first_block: u32,
    blocks: u32,
    first_id: u32,
    nodes: u32,
}

impl BlockJob<'_> {
    /// Writes the file of blocks, and makes it durable.
    pub(crate) fn write(&self, path: &Path, progress: &dyn Progress) -> Result<Written> {
        progress.stage("writing blocks", self.order.len() as u64, "nodes");
        let buckets = self.buckets();
        let spilled = if buckets.len() > 1 { Some(self.spill_vectors(&buckets, progress)?) } else { None };
        let file = File::create(path).map_err(|e| Error::io("creating", path, &e))?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let mut total = Written::default();
        for bucket in &buckets {
            if progress.interrupted() {
                return Err(Error::interrupted());
            }
            let vectors = match &spilled {
                Some(file) => self.unspill(file, bucket)?,
                None => self.gather(bucket)?,
            };
            self.write_bucket(bucket, &vectors, &mut out, path, &mut total)?;
            progress.advance(u64::from(bucket.nodes));
        }
        let synced = out.into_inner().map_err(|e| e.into_error()).and_then(|f| f.sync_all());
        synced.map_err(|e| Error::io("writing", path, &e))?;
        Ok(total)
    }

    fn buckets(&self) -> Vec<Bucket> {
        let limit =
            (self.memory_bytes / (self.shape.vector_bytes as u64 + 16)).clamp(64, u64::from(u32::MAX)) as u32;
        let mut buckets: Vec<Bucket> = Vec::new();
        let (mut block, mut id) = (0u32, 0u32);
        for (c, cell) in self.cells.iter().enumerate() {
            let end = id + (cell.end - cell.start);
            let mut fresh = true;
            while id < end {
                let count = u32::from(self.placement.counts[block as usize]);
                match buckets.last_mut() {
                    Some(b) if !fresh && b.nodes + count <= limit => {
                        b.blocks += 1;
                        b.nodes += count;
                    }
                    _ => buckets.push(Bucket {
                        cell: c,
                        first_block: block,
                        blocks: 1,
                        first_id: id,
                        nodes: count,
                    }),
                }
                fresh = false;
                block += 1;
                id += count;
            }
        }
        buckets
    }

    /// The only bucket's vectors, straight from the rows.
    fn gather(&self, bucket: &Bucket) -> Result<Vec<u8>> {
        let size = self.shape.vector_bytes;
        let mut out = vec![0u8; bucket.nodes as usize * size];
        self.for_each_row(|row_id, vector| {
            out[row_id as usize * size..(row_id as usize + 1) * size].copy_from_slice(vector);
            Ok(())
        })?;
        Ok(out)
    }

    /// Reads the rows in their order and gives each with its new id.
    fn for_each_row(&self, mut take: impl FnMut(u32, &[u8]) -> Result<()>) -> Result<()> {
        let size = self.shape.vector_bytes;
        let rows = self.reader.shape().rows;
        let chunk = ((1 << 20) / size).max(1) as u64;
        let mut buffer = Vec::new();
        let mut row = 0u64;
        while row < rows {
            let count = chunk.min(rows - row);
            self.reader.read_rows(row, count as usize, &mut buffer)?;
            for (i, vector) in buffer.chunks_exact(size).enumerate() {
                let id = self.placement.id_of_row[row as usize + i];
                if id != u32::MAX {
                    take(id, vector)?;
                }
            }
            row += count;
        }
        Ok(())
    }

    /// One pass over the rows that sorts them by bucket into a file: id and vector, each bucket in a region of its own.
    fn spill_vectors(&self, buckets: &[Bucket], progress: &dyn Progress) -> Result<File> {
        let path = self.spill.join("vectors.spill");
        let failed = |e: &std::io::Error| Error::io("writing", &path, e);
        let file = File::options().create(true).truncate(true).read(true).write(true).open(&path);
        let file = file.map_err(|e| failed(&e))?;
        let record = self.shape.vector_bytes + 4;
        let each = (self.memory_bytes as usize / buckets.len() / 2).clamp(record, 1 << 18) / record * record;
        let mut held: Vec<Vec<u8>> = vec![Vec::new(); buckets.len()];
        let mut next: Vec<u64> = buckets.iter().map(|b| u64::from(b.first_id) * record as u64).collect();
        let mut rows = 0u64;
        self.for_each_row(|id, vector| {
            let b = buckets.partition_point(|b| b.first_id <= id) - 1;
            if held[b].capacity() == 0 {
                held[b].reserve_exact(each);
            }
            held[b].extend_from_slice(&id.to_le_bytes());
            held[b].extend_from_slice(vector);
            if held[b].len() >= each {
                file.write_all_at(&held[b], next[b]).map_err(|e| failed(&e))?;
                next[b] += held[b].len() as u64;
                held[b].clear();
            }
            rows += 1;
            if rows.is_multiple_of(1 << 16) && progress.interrupted() {
                return Err(Error::interrupted());
            }
            Ok(())
        })?;
        for (bytes, at) in held.iter().zip(&next) {
            file.write_all_at(bytes, *at).map_err(|e| failed(&e))?;
        }
        drop(held);
        crate::budget::release_freed();
        // The open handle keeps the bytes; the name is not needed, and a killed build leaves nothing.
        let _ = std::fs::remove_file(&path);
        Ok(file)
    }

    fn unspill(&self, file: &File, bucket: &Bucket) -> Result<Vec<u8>> {
        let size = self.shape.vector_bytes;
        let record = size + 4;
        let mut out = vec![0u8; bucket.nodes as usize * size];
        let mut chunk = vec![0u8; record * 256];
        let mut at = u64::from(bucket.first_id) * record as u64;
        let end = at + bucket.nodes as u64 * record as u64;
        while at < end {
            let count = (end - at).min(chunk.len() as u64) as usize;
            file.read_exact_at(&mut chunk[..count], at).map_err(|e| Error::io("reading", self.spill, &e))?;
            for entry in chunk[..count].chunks_exact(record) {
                let id = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
                let slot = (id - bucket.first_id) as usize;
                out[slot * size..(slot + 1) * size].copy_from_slice(&entry[4..]);
            }
            at += count as u64;
        }
        Ok(out)
    }

    fn write_bucket(
        &self,
        bucket: &Bucket,
        vectors: &[u8],
        out: &mut impl Write,
        path: &Path,
        total: &mut Written,
    ) -> Result<()> {
        // Blocks made at once: enough to keep all threads busy, few enough to stay small.
        const BATCH: usize = 512;
        let cell = self.cells[bucket.cell];
        let members = &self.order[cell.start as usize..cell.end as usize];
        let mut position = vec![(0u32, 0u32); bucket.nodes as usize];
        for (p, &row) in members.iter().enumerate() {
            let id = self.placement.id_of_row[row as usize];
            if id >= bucket.first_id && id - bucket.first_id < bucket.nodes {
                position[(id - bucket.first_id) as usize] = (p as u32, row);
            }
        }
        let records = self.graph.map(|g| g.read(cell.start, cell.end)).transpose()?;
        let counts = &self.placement.counts
            [bucket.first_block as usize..(bucket.first_block + bucket.blocks) as usize];
        let mut first = 0usize;
        let starts: Vec<usize> = counts
            .iter()
            .map(|&c| {
                let s = first;
                first += usize::from(c);
                s
            })
            .collect();
        for (b, batch) in starts.chunks(BATCH).enumerate() {
            let made: Vec<(Vec<u8>, Written)> = batch
                .par_iter()
                .enumerate()
                .map(|(i, &start)| {
                    let at = b * BATCH + i;
                    let nodes = start..start + usize::from(counts[at]);
                    self.make_block(
                        bucket.first_block + at as u32,
                        bucket.first_id,
                        nodes,
                        &position,
                        vectors,
                        records.as_ref(),
                    )
                })
                .collect();
            for (bytes, written) in &made {
                out.write_all(bytes).map_err(|e| Error::io("writing", path, &e))?;
                total.edges += written.edges;
                total.cut += written.cut;
                total.list_bytes += written.list_bytes;
            }
        }
        Ok(())
    }

    fn make_block(
        &self,
        number: u32,
        bucket_first: u32,
        nodes: std::ops::Range<usize>,
        position: &[(u32, u32)],
        vectors: &[u8],
        records: Option<&Records>,
    ) -> (Vec<u8>, Written) {
        let size = self.shape.vector_bytes;
        let mut lists: Vec<Vec<u32>> = nodes
            .clone()
            .map(|slot| match records {
                Some(records) => {
                    let near = records.list(position[slot].0 as usize).iter();
                    near.map(|&row| self.placement.id_of_row[row as usize])
                        .filter(|&id| id != u32::MAX)
                        .collect()
                }
                None => Vec::new(),
            })
            .collect();
        let mut written = Written::default();
        if self.shape.lists {
            let room = self.shape.room() - nodes.len() * self.shape.node_bytes();
            written.cut = fit(&mut lists, room);
        }
        written.edges = lists.iter().map(|l| l.len() as u64).sum();
        for l in &mut lists {
            l.sort_unstable();
            l.dedup();
            written.list_bytes += list::encoded_len(l) as u64;
        }
        let dtype_of = self.reader.shape().dtype;
        let made: Vec<Node<'_>> = nodes
            .clone()
            .zip(&lists)
            .map(|(slot, l)| {
                let vector = &vectors[slot * size..(slot + 1) * size];
                let row = position[slot].1;
                Node {
                    vector,
                    inverse_norm: self.norm(dtype_of, vector),
                    external_id: self.external.map_or(u64::from(row), |ids| ids[row as usize]),
                    neighbours: l,
                }
            })
            .collect();
        let mut bytes = Vec::with_capacity(self.shape.block_bytes);
        block::write(&self.shape, number, bucket_first + nodes.start as u32, &made, &mut bytes);
        (bytes, written)
    }

    fn norm(&self, dtype: DType, vector: &[u8]) -> f32 {
        if self.metric == Metric::Cosine { inverse_norm(dtype, vector) } else { 1.0 }
    }
}

/// Cuts lists (closest first) until their encodings together fit in `room`: always the longest, from its far end, since far edges matter
/// least once the head graph has brought a query near. Returns the number of ids cut.
fn fit(lists: &mut [Vec<u32>], room: usize) -> u64 {
    let encoded = |l: &[u32]| {
        let mut sorted = l.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        list::encoded_len(&sorted)
    };
    lists.iter_mut().for_each(|l| l.truncate(list::MAX_LEN));
    let mut sizes: Vec<usize> = lists.iter().map(|l| encoded(l)).collect();
    let mut cut = 0;
    while sizes.iter().sum::<usize>() > room {
        let Some(longest) =
            (0..lists.len()).max_by_key(|&i| (lists[i].len(), i)).filter(|&i| !lists[i].is_empty())
        else {
            break;
        };
        lists[longest].pop();
        sizes[longest] = encoded(&lists[longest]);
        cut += 1;
    }
    cut
}
