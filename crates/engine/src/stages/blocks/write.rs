//! Writes blocks: from rows, adjacency lists and codes to bytes.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use stratann_core::format::adjacency;
use stratann_core::format::block::{self, BlockLayout, CodedNodes, Node};
use stratann_kernel::distance::inverse_norm;
use stratann_kernel::{DType, Metric};
use stratann_storage::output::AtomicFile;
use stratann_storage::{Error, Progress, Result};

use super::code_file::{CodeFile, CodeTable};
use super::coded;
use super::graph_file::{Cell, GraphReader, Records};
use super::placement::Placement;
use crate::dataset::Reader;
use crate::parallel;
use crate::stages::regions::Regions;
use crate::stages::tables::read_entries;

/// Inputs of writing the blocks.
pub(crate) struct BlockJob<'a> {
    pub(crate) reader: &'a Reader,
    pub(crate) metric: Metric,
    pub(crate) shape: BlockLayout,
    pub(crate) placement: &'a Placement,
    /// Row at each position, cell by cell: a table in a file.
    pub(crate) order: &'a Path,
    pub(crate) cells: &'a [Cell],
    /// Absent for flat blocks.
    pub(crate) graph: Option<&'a GraphReader>,
    /// Codes for the blocks; absent when blocks carry none.
    pub(crate) codes: Option<&'a CodeFile>,
    /// External id by row; the row number itself when absent.
    pub(crate) external: Option<&'a [u64]>,
    /// Bytes of RAM for vectors.
    pub(crate) memory_bytes: u64,
    /// Folder for vectors that are sorted first, in one pass over all rows; without one, each vector is read at its
    /// place.
    pub(crate) spill: Option<&'a Path>,
}

/// Counts of the written blocks.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Written {
    /// Edges in all lists.
    pub(crate) edges: u64,
    /// Edges that were cut because their block was full.
    pub(crate) cut: u64,
    /// Bytes of all lists.
    pub(crate) list_bytes: u64,
}

impl Written {
    pub(crate) fn add(&mut self, other: &Written) {
        self.edges += other.edges;
        self.cut += other.cut;
        self.list_bytes += other.list_bytes;
    }
}

/// Position of a node in its cell, and its row.
type PlaceAndRow = (u32, u32);

/// A run of whole blocks within one cell, small enough for the memory.
struct Bucket {
    cell: usize,
    first_block: u32,
    blocks: u32,
    first_id: u32,
    nodes: u32,
}

/// A block that is being built.
struct OnItsWay {
    number: u32,
    first_id: u32,
    /// Nodes of the block, counted from the first of the bucket.
    slots: Range<usize>,
}

impl OnItsWay {
    fn coded(&self, lists: &[Vec<u32>]) -> CodedNodes {
        CodedNodes::new(self.first_id, lists.len(), lists.iter().map(Vec::as_slice))
    }
}

/// Returns the nodes whose codes go into some blocks, with duplicates between blocks.
fn coded_ids(batch: &[OnItsWay], listed: &[(Vec<Vec<u32>>, Written)]) -> Vec<u32> {
    let blocks = batch.iter().zip(listed);
    blocks.flat_map(|(at, (lists, _))| at.coded(lists).ids().to_vec()).collect()
}

impl BlockJob<'_> {
    /// Writes the blocks of these cells to a file, which appears atomically.
    pub(crate) fn write(&self, cells: Range<usize>, path: &Path, progress: &dyn Progress) -> Result<Written> {
        let buckets: Vec<Bucket> = self.buckets().into_iter().filter(|b| cells.contains(&b.cell)).collect();
        let spill = self.spill.filter(|_| buckets.len() > 1);
        let spilled = spill.map(|folder| self.spill_vectors(&buckets, folder, progress)).transpose()?;
        let mut out = AtomicFile::create(path)?;
        let mut total = Written::default();
        for bucket in &buckets {
            progress.check_interrupted()?;
            let (positions, rows) = self.positions(bucket)?;
            let vectors = match &spilled {
                Some(file) => self.unspill(file, bucket, path)?,
                None => self.gather(bucket, &rows)?,
            };
            drop(rows);
            self.write_bucket(bucket, &positions, &vectors, &mut out, &mut total)?;
            progress.advance(u64::from(bucket.nodes));
        }
        out.commit()?;
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

    /// Returns each node of a bucket, and the rows, ascending.
    fn positions(&self, bucket: &Bucket) -> Result<(Vec<PlaceAndRow>, Vec<u32>)> {
        let cell = &self.cells[bucket.cell];
        let members: Vec<u32> = read_entries(self.order, cell.start.into(), cell.end.into())?;
        let mut positions = vec![(0u32, 0u32); bucket.nodes as usize];
        let mut rows = Vec::with_capacity(positions.len());
        for (place, &row) in members.iter().enumerate() {
            let id = self.placement.id_of_row[row as usize];
            if id >= bucket.first_id && id - bucket.first_id < bucket.nodes {
                positions[(id - bucket.first_id) as usize] = (place as u32, row);
                rows.push(row);
            }
        }
        Ok((positions, rows))
    }

    /// Reads the vectors of a bucket at their rows.
    fn gather(&self, bucket: &Bucket, rows: &[u32]) -> Result<Vec<u8>> {
        let size = self.shape.vector_bytes;
        let mut out = vec![0u8; bucket.nodes as usize * size];
        let mut ids = rows.iter().map(|&row| self.placement.id_of_row[row as usize]);
        self.reader.for_each(rows, |vector| {
            if let Some(id) = ids.next() {
                let slot = (id - bucket.first_id) as usize;
                out[slot * size..(slot + 1) * size].copy_from_slice(vector);
            }
        })?;
        Ok(out)
    }

    /// Reads the rows in their order and passes each with its new id.
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

    /// Sorts all rows by bucket into a file in one pass: id and vector, each bucket in its own region.
    fn spill_vectors(&self, buckets: &[Bucket], folder: &Path, progress: &dyn Progress) -> Result<File> {
        let path = folder.join("vectors.spill");
        let file = File::options().create(true).truncate(true).read(true).write(true).open(&path);
        let file = file.map_err(|e| Error::io("writing", &path, &e))?;
        let record = self.shape.vector_bytes + 4;
        let starts = buckets.iter().map(|b| u64::from(b.first_id) * record as u64).collect();
        let mut regions = Regions::new(&file, &path, starts, record, self.memory_bytes);
        let mut rows = 0u64;
        self.for_each_row(|id, vector| {
            let bucket = buckets.partition_point(|b| b.first_id <= id) - 1;
            regions.put(bucket, &id.to_le_bytes())?;
            regions.put(bucket, vector)?;
            rows += 1;
            if rows.is_multiple_of(1 << 16) && progress.interrupted() {
                return Err(Error::interrupted());
            }
            Ok(())
        })?;
        regions.finish()?;
        stratann_storage::budget::release_freed();
        // The open handle keeps the bytes; without a name, a killed build leaves nothing.
        let _ = std::fs::remove_file(&path);
        Ok(file)
    }

    fn unspill(&self, file: &File, bucket: &Bucket, path: &Path) -> Result<Vec<u8>> {
        let size = self.shape.vector_bytes;
        let record = size + 4;
        let mut out = vec![0u8; bucket.nodes as usize * size];
        let mut chunk = vec![0u8; record * 256];
        let mut at = u64::from(bucket.first_id) * record as u64;
        let end = at + bucket.nodes as u64 * record as u64;
        while at < end {
            let count = (end - at).min(chunk.len() as u64) as usize;
            file.read_exact_at(&mut chunk[..count], at)
                .map_err(|e| Error::io("sorting the vectors of", path, &e))?;
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
        positions: &[PlaceAndRow],
        vectors: &[u8],
        out: &mut AtomicFile,
        total: &mut Written,
    ) -> Result<()> {
        let records = self.graph.map(|g| g.read(bucket.cell, &self.cells[bucket.cell])).transpose()?;
        for batch in self.on_their_way(bucket).chunks(self.batch()) {
            let lists = |at: &OnItsWay| self.lists(at, positions, records.as_ref());
            let block = |at: &OnItsWay, lists: &[Vec<u32>], codes: Option<&CodeTable>| {
                self.make_block(at, lists, positions, vectors, codes)
            };
            let made: Vec<(Vec<u8>, Written)> = match self.codes {
                None => parallel::map(batch, |at| {
                    let (lists, written) = lists(at);
                    (block(at, &lists, None), written)
                }),
                Some(file) => {
                    let listed = parallel::map(batch, lists);
                    let codes = file.read(coded_ids(batch, &listed))?;
                    parallel::map(batch.iter().zip(listed), |(at, (lists, written))| {
                        (block(at, &lists, Some(&codes)), written)
                    })
                }
            };
            for (bytes, written) in &made {
                out.write(bytes)?;
                total.add(written);
            }
        }
        Ok(())
    }

    /// Blocks that are built at once: enough to keep all threads busy, few enough to stay small. Their codes are in
    /// memory twice.
    fn batch(&self) -> usize {
        const BATCH: usize = 512;
        const BATCH_BYTES: usize = 1 << 20;
        match self.codes {
            Some(_) => (BATCH_BYTES / self.shape.block_bytes).clamp(16, BATCH),
            None => BATCH,
        }
    }

    /// Returns the blocks of a bucket, in order.
    fn on_their_way(&self, bucket: &Bucket) -> Vec<OnItsWay> {
        let numbers = bucket.first_block..bucket.first_block + bucket.blocks;
        let mut first = 0usize;
        let blocks = numbers.map(|number| {
            let slots = first..first + usize::from(self.placement.counts[number as usize]);
            first = slots.end;
            OnItsWay { number, first_id: bucket.first_id + slots.start as u32, slots }
        });
        blocks.collect()
    }

    /// Returns the lists of a block's nodes as they are stored: cut to fit, ascending.
    fn lists(
        &self,
        at: &OnItsWay,
        positions: &[PlaceAndRow],
        records: Option<&Records>,
    ) -> (Vec<Vec<u32>>, Written) {
        let list = |&(place, _): &PlaceAndRow| match records {
            Some(records) => {
                let near = records.list(place as usize).iter();
                near.map(|&row| self.placement.id_of_row[row as usize]).filter(|&id| id != u32::MAX).collect()
            }
            None => Vec::new(),
        };
        let mut lists: Vec<Vec<u32>> = positions[at.slots.clone()].iter().map(list).collect();
        let cut = match (self.shape.adjacency, self.shape.code_bytes) {
            (false, _) => 0,
            (true, 0) => {
                fit(&mut lists, self.shape.payload_bytes() - at.slots.len() * self.shape.node_bytes())
            }
            (true, _) => coded::fit(&mut lists, at.first_id, &self.shape),
        };
        let edges = lists.iter().map(|l| l.len() as u64).sum();
        for l in &mut lists {
            l.sort_unstable();
            l.dedup();
        }
        let each = || lists.iter().map(Vec::as_slice);
        let list_bytes = match self.shape.code_bytes {
            0 => each().map(|l| adjacency::NEIGHBOURS.encoded_len(l)).sum::<usize>(),
            _ => CodedNodes::new(at.first_id, lists.len(), each()).list_bytes(each()),
        };
        let written = Written { edges, cut, list_bytes: list_bytes as u64 };
        (lists, written)
    }

    fn make_block(
        &self,
        at: &OnItsWay,
        lists: &[Vec<u32>],
        positions: &[PlaceAndRow],
        vectors: &[u8],
        codes: Option<&CodeTable>,
    ) -> Vec<u8> {
        let size = self.shape.vector_bytes;
        let dtype = self.reader.shape().dtype;
        let nodes: Vec<Node<'_>> = at
            .slots
            .clone()
            .zip(lists)
            .map(|(slot, neighbours)| {
                let vector = &vectors[slot * size..(slot + 1) * size];
                let row = positions[slot].1;
                Node {
                    vector,
                    inverse_norm: self.norm(dtype, vector),
                    external_id: self.external.map_or(u64::from(row), |ids| ids[row as usize]),
                    neighbours,
                }
            })
            .collect();
        let codes = codes.map_or(Vec::new(), |table| table.of(at.coded(lists).ids()));
        let mut bytes = Vec::with_capacity(self.shape.block_bytes);
        block::write(&self.shape, at.number, at.first_id, &nodes, &codes, &mut bytes);
        bytes
    }

    fn norm(&self, dtype: DType, vector: &[u8]) -> f32 {
        if self.metric == Metric::Cosine { inverse_norm(dtype, vector) } else { 1.0 }
    }
}

/// Cuts lists (closest first) until their encodings together fit in `room`: always the longest, from its far end, since
/// far edges matter least once the head graph has brought a query near. Returns the number of ids cut.
fn fit(lists: &mut [Vec<u32>], room: usize) -> u64 {
    let encoded = |l: &[u32]| {
        let mut sorted = l.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        adjacency::NEIGHBOURS.encoded_len(&sorted)
    };
    lists.iter_mut().for_each(|l| l.truncate(adjacency::MAX_LEN));
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
