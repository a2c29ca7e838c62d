//! Rows by list: their codes, and where the caller has them.
//!
//! Clones share all chunks. A row that is pushed copies the last chunk of its list where another clone has it.

use alloc::sync::Arc;
use alloc::vec::Vec;

use stratann_kernel::bits::{LaneCodes, Layout};

use super::calibration::{Calibration, is_probe};
use super::coarse::{Coarse, Encoding, layout};

/// Most rows of a chunk. Larger ones are scanned no faster, and cost more to copy.
const CHUNK_ROWS: usize = 64;
/// Bytes of a radius and of the name of a row.
const BESIDE_BYTES: u64 = 4 + 8;

/// Memory of a list without its rows.
const LIST_BYTES: u64 = 256;

/// Codes of rows that lie together.
#[derive(Clone, Debug, Default)]
pub(super) struct Chunk {
    pub(super) codes: LaneCodes,
    /// As the caller named them.
    pub(super) rows: Vec<u64>,
}

/// The rows of one centroid.
#[derive(Clone, Debug, Default)]
pub(super) struct List {
    pub(super) chunks: Vec<Arc<Chunk>>,
    /// Rows with a usable code, and the sum of their distances to the centroid.
    coded: u32,
    lengths: f32,
    /// The largest of these distances; infinite where a row has no usable code.
    pub(super) longest: f32,
}

impl List {
    /// The usual distance of its rows to the centroid.
    pub(super) fn usual(&self) -> f32 {
        self.lengths / self.coded.max(1) as f32
    }

    /// Its rows, as the caller named them.
    pub(super) fn rows(&self) -> impl Iterator<Item = u64> {
        self.chunks.iter().flat_map(|chunk| chunk.rows.iter().copied())
    }

    /// Counts the distance of a row to the centroid.
    fn count(&mut self, length: f32) {
        if length.is_finite() {
            self.coded += 1;
            self.lengths += length;
        }
        self.longest = self.longest.max(length);
    }

    /// Adds a row, whose code `push` adds.
    fn push_row(&mut self, row: u64, push: impl FnOnce(&mut LaneCodes)) {
        if self.chunks.last().is_none_or(|last| last.rows.len() >= CHUNK_ROWS) {
            self.chunks.push(Arc::default());
        }
        if let Some(last) = self.chunks.last_mut() {
            let chunk = Arc::make_mut(last);
            push(&mut chunk.codes);
            chunk.rows.push(row);
        }
    }

    /// Has all rows in one chunk.
    fn pack(&mut self, layout: &Layout) {
        let rows = self.chunks.iter().map(|chunk| chunk.rows.len()).sum();
        if rows == 0 {
            return;
        }
        let mut all = Chunk::default();
        all.codes.reserve_exact(layout, rows);
        all.rows.reserve_exact(rows);
        for chunk in &self.chunks {
            (0..chunk.rows.len()).for_each(|at| all.codes.push_from(layout, &chunk.codes, at));
            all.rows.extend_from_slice(&chunk.rows);
        }
        self.chunks = Vec::from([Arc::new(all)]);
    }
}

/// Rows in lists around centroids.
#[derive(Clone, Debug)]
pub struct Lists {
    pub(super) coarse: Arc<Coarse>,
    pub(super) lists: Vec<Arc<List>>,
    rows: u64,
    pub(super) calibration: Arc<Calibration>,
}

/// Buffers for rows that are pushed.
#[derive(Debug, Default)]
pub struct Pushing {
    encoding: Encoding,
}

/// Most memory of a row of so many dimensions in lists. A chunk that grows may have twice the room.
pub fn row_bytes(dim: usize) -> u64 {
    2 * (layout(dim).map_or(0, |layout| layout.code_bytes() as u64) + BESIDE_BYTES)
}

impl Lists {
    /// Lists without rows, which know what probes showed in others around the same centroids.
    pub fn after(earlier: &Lists) -> Lists {
        Lists { calibration: earlier.calibration.clone(), ..Lists::new(earlier.coarse.clone()) }
    }

    /// Lists without rows.
    pub fn new(coarse: Arc<Coarse>) -> Lists {
        let lists = (0..coarse.lists()).map(|_| Arc::default()).collect();
        Lists { coarse, lists, rows: 0, calibration: Arc::default() }
    }

    /// The centroids.
    pub fn coarse(&self) -> &Arc<Coarse> {
        &self.coarse
    }

    /// Rows, dead ones included.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Whether rows have shown yet which lists a recall needs. Until then a query scans nearly all.
    pub fn is_calibrated(&self) -> bool {
        self.calibration.is_known()
    }

    /// Most memory of so many lists of vectors of `dim` components, beside their rows and centroids.
    pub fn bytes(dim: usize, lists: usize) -> u64 {
        // Codes take memory for several rows at once.
        let first = layout(dim).map_or(0, |layout| LaneCodes::bytes(&layout, 1) as u64);
        lists as u64 * (LIST_BYTES + first)
    }

    fn layout(&self) -> &Layout {
        self.coarse.coder.layout()
    }

    /// Files a row, which the caller finds again by `row`. Returns whether it is to be a probe ([`Lists::learn`]).
    pub fn push(&mut self, vector: &[u8], row: u64, pushing: &mut Pushing) -> bool {
        let filed = self.coarse.file(vector, &mut pushing.encoding);
        if let Some(list) = self.lists.get_mut(filed.list) {
            let list = Arc::make_mut(list);
            list.count(filed.length);
            let layout = self.coarse.coder.layout();
            list.push_row(row, |codes| codes.push(layout, &pushing.encoding.code, filed.radius));
            self.rows += 1;
        }
        is_probe(self.rows)
    }

    /// Has the rows of each list lie together, where they are searched faster. For lists that get no more rows.
    pub fn pack(&mut self) {
        let layout = self.coarse.coder.layout();
        self.lists.iter_mut().for_each(|list| Arc::make_mut(list).pack(layout));
    }

    /// The rows that `renamed` gives a name, under it.
    pub fn renamed(&self, renamed: impl Fn(u64) -> Option<u64>) -> Lists {
        let mut all = Lists::after(self);
        for (list, new) in self.lists.iter().zip(&mut all.lists) {
            let new = Arc::make_mut(new);
            for chunk in &list.chunks {
                for (at, &row) in chunk.rows.iter().enumerate() {
                    if let Some(row) = renamed(row) {
                        new.push_row(row, |codes| codes.push_from(self.layout(), &chunk.codes, at));
                        all.rows += 1;
                    }
                }
            }
            // How far each row is was not kept: those that stay are as far as all were.
            new.coded = new.chunks.iter().map(|chunk| chunk.rows.len() as u32).sum();
            (new.lengths, new.longest) = (list.usual() * new.coded as f32, list.longest);
        }
        all
    }
}
