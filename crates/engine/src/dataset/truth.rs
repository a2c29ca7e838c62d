//! Ground truth: u32 queries, u32 k, ids, distances (the layout of big-ann-benchmarks), or `.ivecs` with ids only.

use std::path::Path;

use stratann_storage::output::OutputPath;
use stratann_storage::{Error, Result};

use super::source::Source;
use super::{bin, vecs};

/// Suffixes of files that hold vectors or external ids, which are no ground truth.
const VECTOR_SUFFIXES: [&str; 9] =
    ["fbin", "f16bin", "u8bin", "i8bin", "u64bin", "fvecs", "bvecs", "npy", "parquet"];

/// The k nearest rows of every query, closest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroundTruth {
    /// Neighbours per query.
    pub k: usize,
    /// `queries × k` row numbers of the base.
    pub ids: Vec<u32>,
    /// `queries × k` distances, or empty where a file has none.
    pub distances: Vec<f32>,
}

impl GroundTruth {
    /// What fills up the neighbours of a query that has fewer than k, at an infinite distance: no row has this number.
    pub const FILL: u32 = u32::MAX;

    /// Number of queries.
    pub fn queries(&self) -> usize {
        self.ids.len().checked_div(self.k).unwrap_or(0)
    }

    /// The row numbers for query `q`, closest first, and what fills them up to k.
    pub fn ids_of(&self, q: usize) -> &[u32] {
        &self.ids[q * self.k..(q + 1) * self.k]
    }

    /// The row numbers for query `q`, closest first; fewer than k where it has no more.
    pub fn neighbours_of(&self, q: usize) -> &[u32] {
        &self.ids_of(q)[..self.count_of(q)]
    }

    /// Distances of [`GroundTruth::neighbours_of`]; empty where a file has none.
    pub fn distances_of(&self, q: usize) -> &[f32] {
        let first = q * self.k;
        self.distances.get(first..first + self.count_of(q)).unwrap_or(&[])
    }

    /// Number of neighbours of query `q`.
    pub fn count_of(&self, q: usize) -> usize {
        let is_one = |at: usize| {
            self.ids[at] != GroundTruth::FILL || self.distances.get(at).is_some_and(|d| d.is_finite())
        };
        let row = q * self.k..(q + 1) * self.k;
        row.rev().find(|&at| is_one(at)).map_or(0, |last| last + 1 - q * self.k)
    }

    /// Reads `.ivecs`, or (with any other suffix) u32 queries, u32 k, ids and distances if present.
    ///
    /// # Errors
    ///
    /// `BadInput` when the header does not match the length of the file to the byte.
    pub fn read(path: &Path) -> Result<GroundTruth> {
        if VECTOR_SUFFIXES.contains(&super::suffix(path).as_str()) {
            return Err(Error::bad_input(format!(
                "{} is a file of vectors, not of ground truth; give what `stratann groundtruth -o` wrote",
                path.display()
            )));
        }
        let source = Source::open(path)?;
        if super::suffix(path) == "ivecs" {
            return read_ivecs(path, &source);
        }
        let (queries, k) = bin::header(path, &source)?;
        let name = path.display();
        if queries == 0 || k == 0 {
            let message =
                format!("{name} is ground truth of {queries} queries × {k} neighbours; it must have some");
            return Err(Error::bad_input(message));
        }
        let cells = u128::from(queries) * u128::from(k);
        let (ids_only, full) = (u128::from(bin::HEADER) + 4 * cells, u128::from(bin::HEADER) + 8 * cells);
        let actual = u128::from(source.len());
        if actual != ids_only && actual != full {
            let message = format!(
                "{name} has {actual} bytes; ground truth of {queries} queries × {k} takes {full} (ids alone \
                 {ids_only}); \
                 check that it is a ground-truth file and complete"
            );
            return Err(Error::bad_input(message));
        }
        let mut ids = vec![0u32; cells as usize];
        source.read_at(path, bin::HEADER, bytemuck::cast_slice_mut(&mut ids))?;
        let mut distances = vec![0f32; if actual == full { cells as usize } else { 0 }];
        source.read_at(path, ids_only as u64, bytemuck::cast_slice_mut(&mut distances))?;
        Ok(GroundTruth { k: k as usize, ids, distances })
    }

    /// Writes queries, k, ids and distances (if present); the file appears atomically.
    pub fn write(&self, output: &OutputPath) -> Result<()> {
        GroundTruth::check_name(output.path())?;
        let name = output.path().display();
        let whole = self.queries() * self.k == self.ids.len()
            && (self.distances.is_empty() || self.distances.len() == self.ids.len());
        let counts = (u32::try_from(self.queries()), u32::try_from(self.k));
        let (true, (Ok(queries), Ok(k))) = (whole, counts) else {
            let message = format!(
                "{name}: {} ids and {} distances are no ground truth of {} neighbours each",
                self.ids.len(),
                self.distances.len(),
                self.k
            );
            return Err(Error::bad_input(message));
        };
        let mut file = output.create()?;
        file.write(&queries.to_le_bytes())?;
        file.write(&k.to_le_bytes())?;
        file.write(bytemuck::cast_slice(&self.ids))?;
        file.write(bytemuck::cast_slice(&self.distances))?;
        file.commit()
    }

    /// Refuses a file name whose suffix names a layout without distances.
    pub fn check_name(path: &Path) -> Result<()> {
        if super::suffix(path) != "ivecs" {
            return Ok(());
        }
        let name = path.display();
        Err(Error::bad_input(format!("{name}: ground truth is written with distances; name it .ibin")))
    }

    /// Refuses ground truth that cannot belong to `queries` queries over a base of `rows` rows.
    pub fn check(&self, path: &Path, queries: u64, rows: u64) -> Result<()> {
        let name = path.display();
        if self.queries() as u64 != queries {
            let message =
                format!("{name} is for {} queries, {queries} are searched; compute it again", self.queries());
            return Err(Error::bad_input(message));
        }
        let beyond = |q: usize| Some((self.neighbours_of(q).iter().find(|&&id| u64::from(id) >= rows)?, q));
        match (0..self.queries()).find_map(beyond) {
            None => Ok(()),
            Some((id, q)) => {
                let message = format!(
                    "{name}: query {q} has neighbour {id}, but the base has {rows} rows; compute it again"
                );
                Err(Error::bad_input(message))
            }
        }
    }
}

/// Rows of an `.ivecs` file that are read at a time.
const IVECS_ROWS: usize = 1024;

fn read_ivecs(path: &Path, source: &Source) -> Result<GroundTruth> {
    let (rows, k) = vecs::divide(path, source, 4)?;
    // Read a few rows at a time: the memory account counts the file once.
    let stride = 4 * (k as u64 + 1);
    let mut ids = Vec::with_capacity(rows as usize * k);
    let mut bytes = Vec::new();
    for first in (0..rows).step_by(IVECS_ROWS) {
        let count = (rows - first).min(IVECS_ROWS as u64);
        bytes.resize((count * stride) as usize, 0);
        source.read_at(path, first * stride, &mut bytes)?;
        vecs::drop_prefixes(path, k, 4 * k, first, &mut bytes)?;
        ids.extend(bytes.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]])));
    }
    match ids.iter().position(|&id| id > i32::MAX as u32) {
        None => Ok(GroundTruth { k, ids, distances: Vec::new() }),
        Some(i) => {
            let message = format!(
                "{}: row {} has the negative id {}; ids start at 0",
                path.display(),
                i / k,
                ids[i] as i32
            );
            Err(Error::bad_input(message))
        }
    }
}
