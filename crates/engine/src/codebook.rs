//! Training of codebooks, and encoding of many rows.

pub mod bits;
pub(crate) mod rotation;

use stratann_kernel::coder::Coder;
use stratann_kernel::codes::{CENTROIDS, Codebook, nearest};
use stratann_kernel::distance::block_dot_f32;
use stratann_params::choices::CodeKind;
use stratann_storage::{Error, Progress, Result};

use crate::clusterings::kmeans::{Members, assign_until, kmeans, mean, spread};
use crate::parallel;

/// Training options of a codebook.
#[derive(Clone, Copy, Debug)]
pub struct CodebookOptions {
    /// Bytes of a code; more than the kind can use are not used.
    pub code_bytes: usize,
    /// Kind of compression.
    pub kind: CodeKind,
    /// Rounds of training: each improves the rotation and the centroids once.
    pub iterations: usize,
    /// Seed of the first centroids.
    pub seed: u64,
}

/// Checks the bytes of a code that a user gave for vectors of `dim` components.
///
/// # Errors
/// A number out of range.
pub(crate) fn check_code_bytes(given: Option<usize>, dim: usize, kind: CodeKind) -> Result<()> {
    let (least, most) = match kind {
        CodeKind::Bits => bits::code_bytes(dim),
        _ => (1, dim),
    };
    match given {
        Some(bytes) if bytes < least || bytes > most => Err(Error::bad_input(format!(
            "--code-bytes is {bytes}; use {least} to {most} for {dim} dimensions"
        ))),
        _ => Ok(()),
    }
}

/// Rows that are rotated, encoded or decoded at once, and their bytes as f32.
const TILE: usize = 256;
const TILE_BYTES: usize = 512 << 10;
/// Largest dimension at which the rotation is refined after PCA; beyond it a round would cost minutes.
const REFINED_DIM_MAX: usize = 1024;
/// Rounds of k-means for the coarse centroids.
const COARSE_ROUNDS: usize = 15;
/// Sampled rows per coarse centroid; with fewer rows there are fewer centroids and one stage.
const ROWS_PER_COARSE: usize = 24;
/// Coarse stages. More of them fit clustered data better, but each costs 256 distances to encode and to prepare a
/// query.
const STAGES: usize = 4;
/// Rounds of k-means after the last change of the rotation.
const FINAL_ROUNDS: usize = 8;
/// Most rows to which the range of the corrections is fitted, and the reciprocal of their share of the sample.
const CORRECTION_ROWS: usize = 8192;
const CORRECTION_PART: usize = 4;

/// Nanoseconds on a current processor: of a multiplication within a product of matrices, of a pair of vectors beside
/// its multiplications, of comparing a part of a row with a centroid, and of a decomposition, by the cube of its
/// components, on one thread.
pub(crate) const MULTIPLY_NS: f64 = 0.027;
pub(crate) const PAIR_NS: f64 = 2.8;
const CODE_BYTE_NS: f64 = 0.33;
const DECOMPOSITION_NS: f64 = 3.5;

/// Bytes of training per row of its sample: the row, the part of it kept for the corrections, codes and numbers.
pub(crate) const fn training_bytes(dim: usize) -> u64 {
    (dim * 4 + dim * 4 / CORRECTION_PART + dim / 4 + 96) as u64
}

/// Bytes of each row of the sample that codes of a kind are prepared with.
pub(crate) fn row_bytes(dim: usize, kind: CodeKind) -> u64 {
    if kind == CodeKind::Bits { bits::row_bytes(dim) } else { training_bytes(dim) }
}

/// Bytes of training independent of the sample: the matrices of the rotation with the packed parts of a product, and
/// centroids.
pub(crate) fn training_fixed_bytes(dim: usize, kind: CodeKind) -> u64 {
    if kind == CodeKind::Bits {
        return bits::fixed_bytes(dim);
    }
    let (rotates, refines) = rotation_of(kind, dim);
    // The rotation is f32, all else f64: three matrices while it is refined (`rotation::refine`), two in a
    // decomposition.
    let matrices = if refines { 4 + 3 * 8 } else { 4 + 2 * 8 } * dim * dim;
    let packed = (dim.min(1024) + 64) * 256 * 8;
    let centroids = (STAGES + 1) * CENTROIDS * dim * 4;
    (if rotates { matrices + packed } else { 0 } + centroids) as u64
}

/// Expected time of training on a current machine, in seconds: work that threads share, and work of one thread.
struct Work {
    coarse_s: f64,
    codes_s: f64,
    decompositions_s: f64,
}

impl Work {
    fn of(rows: f64, dim: f64, options: &CodebookOptions) -> Work {
        let (rotates, _) = rotation_of(options.kind, dim as usize);
        let work = rotation::RotationWork::of(rows as usize, dim as usize);
        let (rounds, refined) = rounds_of(options, dim as usize, work.rounds);
        let has_stages =
            options.kind == CodeKind::ResidualOpq && rows >= (CENTROIDS * ROWS_PER_COARSE) as f64;
        let coarse_rounds = if has_stages { STAGES * COARSE_ROUNDS } else { 0 } as f64;
        let pairs = rows * CENTROIDS as f64 * 1e-9;
        let group = (work.group as f64).min(dim);
        let pca = if rotates { dim / group * group.powi(3) } else { 0.0 };
        Work {
            coarse_s: coarse_rounds * pairs * (PAIR_NS + dim * MULTIPLY_NS),
            codes_s: rounds as f64 * pairs * (options.code_bytes as f64 * CODE_BYTE_NS + dim * MULTIPLY_NS)
                + 2.0 * refined as f64 * rows * dim * dim * MULTIPLY_NS * 1e-9,
            decompositions_s: (pca + refined as f64 * dim.powi(3)) * DECOMPOSITION_NS * 1e-9,
        }
    }

    fn coarse_share(&self) -> f64 {
        let all_s = self.coarse_s + self.codes_s + self.decompositions_s;
        if all_s > 0.0 { self.coarse_s / all_s } else { 0.0 }
    }
}

/// Seconds of training on `rows` of `dim` components with so many threads, on a current machine.
pub(crate) fn training_seconds(rows: f64, dim: f64, options: &CodebookOptions, threads: f64) -> f64 {
    if options.kind == CodeKind::Bits {
        return bits::seconds(rows, dim, threads);
    }
    let work = Work::of(rows, dim, options);
    (work.coarse_s + work.codes_s) / threads + work.decompositions_s
}

/// Rounds of training, and in how many of them the rotation is refined, of at most `worth`.
fn rounds_of(options: &CodebookOptions, dim: usize, worth: usize) -> (usize, usize) {
    match rotation_of(options.kind, dim) {
        (_, true) => (options.iterations + FINAL_ROUNDS, options.iterations.min(worth)),
        (_, false) => (options.iterations, 0),
    }
}

/// Whether there is a rotation, and whether it is refined.
fn rotation_of(kind: CodeKind, dim: usize) -> (bool, bool) {
    let rotates = matches!(kind, CodeKind::Opq | CodeKind::ResidualOpq);
    (rotates, rotates && dim <= REFINED_DIM_MAX)
}

fn tile(dim: usize) -> usize {
    (TILE_BYTES / (dim * 4)).clamp(1, TILE)
}

/// Trains a codebook on the rows of `sample` (n × `dim`, row-major, f32).
///
/// OPQ starts from PCA with eigenvalues allocated so that subspaces get the same product of variances, then alternates
/// between encoding and the rotation that brings the sample nearest to what was encoded (Ge et al., "Optimized Product
/// Quantization", §3). Beyond 1024 dimensions the rotation stays as PCA made it.
///
/// A small sample has a cheaper rotation, in proportion to its rows. An empty one gives a codebook of zeros. The sample
/// is modified in place, so that a small budget holds many rows. The result depends on the sample and the options,
/// neither on the number of threads nor on the machine's instruction set.
///
/// `progress` advances by 100 in all.
///
/// # Errors
/// An interruption.
pub fn train(
    sample: Vec<f32>,
    dim: usize,
    ip: bool,
    options: &CodebookOptions,
    progress: &dyn Progress,
) -> Result<Codebook> {
    let work = Work::of((sample.len() / dim.max(1)) as f64, dim as f64, options);
    let mut percent = Percent { progress, done: 0, coarse_share: work.coarse_share() };
    percent.reach(0.0)?;
    let for_correction = even_part(&sample, dim);
    let mut rows = sample;
    let coarse = coarse_stages(&mut rows, dim, options, &mut percent)?;
    let prefix = if coarse.len() > dim { coarse.len().div_ceil(CENTROIDS * dim) + 1 } else { 0 };
    let m = options.code_bytes.saturating_sub(prefix).clamp(1, dim);
    let mut book = Codebook {
        dim,
        ip,
        starts: (0..=m).map(|j| (j * dim / m) as u32).collect(),
        coarse: vec![0.0; dim],
        centroids: vec![0.0; CENTROIDS * dim],
        ..Codebook::default()
    };
    fit(&mut book, &mut rows, options, &mut percent)?;
    drop(rows);
    let mut rotated = vec![0f32; coarse.len()];
    rotate_rows(&book, &coarse, &mut rotated);
    book.coarse = rotated;
    if prefix > 0 && !ip {
        fit_correction(&mut book, &for_correction);
    }
    percent.reach(1.0)?;
    Ok(book)
}

/// Progress of the training, of 100.
struct Percent<'a> {
    progress: &'a dyn Progress,
    done: u64,
    // What part of the work the coarse stages are.
    coarse_share: f64,
}

impl Percent<'_> {
    /// Reports the share done, 0 to 1.
    ///
    /// # Errors
    /// An interruption.
    fn reach(&mut self, share: f64) -> Result<()> {
        let now = ((share * 100.0) as u64).max(self.done);
        self.progress.advance(now - self.done);
        self.done = now;
        self.progress.check_interrupted()
    }

    /// Notes the share of the coarse stages that is done.
    fn reach_coarse(&mut self, share: f64) -> Result<()> {
        self.reach(share * self.coarse_share)
    }

    /// Notes the share of the later stages that is done.
    fn reach_fine(&mut self, share: f64) -> Result<()> {
        self.reach(self.coarse_share + share * (1.0 - self.coarse_share))
    }
}

/// Takes every n-th row.
fn even_part(sample: &[f32], dim: usize) -> Vec<f32> {
    let rows = sample.len() / dim;
    let step = rows.div_ceil(CORRECTION_ROWS).max(CORRECTION_PART);
    let mut out = Vec::with_capacity(rows.div_ceil(step) * dim);
    sample.chunks_exact(dim).step_by(step).for_each(|row| out.extend_from_slice(row));
    out
}

/// Trains the centroids of all coarse stages, or the mean only; `rows` become the residuals.
fn coarse_stages(
    rows: &mut [f32],
    dim: usize,
    options: &CodebookOptions,
    percent: &mut Percent<'_>,
) -> Result<Vec<f32>> {
    let progress = percent.progress;
    let mut centre = vec![0f32; dim];
    mean(rows.chunks_exact(dim), &mut centre);
    let k = CENTROIDS.min(rows.len() / dim / ROWS_PER_COARSE);
    // At most a third of the code, because the subspaces need a part.
    let stages = if k < CENTROIDS { 1 } else { STAGES.min((options.code_bytes / 3).saturating_sub(1)) };
    if options.kind != CodeKind::ResidualOpq || stages == 0 || k < 2 || options.code_bytes < 3 {
        subtract_nearest(rows, dim, &centre, progress)?;
        return Ok(centre);
    }
    let mut coarse = Vec::new();
    for stage in 0..stages as u64 {
        let seed = options.seed.wrapping_add(stage);
        let mut centroids = kmeans(rows, dim, k, COARSE_ROUNDS, seed, progress)?;
        if stage == 0 {
            // The first centroid is the origin of the codes: the most central one.
            let first = nearest(&centre, &centroids, dim).0 * dim;
            (0..dim).for_each(|i| centroids.swap(i, first + i));
        }
        subtract_nearest(rows, dim, &centroids, progress)?;
        coarse.extend(centroids);
        percent.reach_coarse((stage + 1) as f64 / stages as f64)?;
    }
    Ok(coarse)
}

fn subtract_nearest(rows: &mut [f32], dim: usize, centroids: &[f32], progress: &dyn Progress) -> Result<()> {
    let numbers = assign_until(rows, dim, centroids, progress)?;
    let tile = tile(dim);
    parallel::for_each(rows.chunks_mut(tile * dim).zip(numbers.chunks(tile)), |(rows, numbers)| {
        for (row, &c) in rows.chunks_exact_mut(dim).zip(numbers) {
            row.iter_mut().zip(&centroids[c as usize * dim..]).for_each(|(x, c)| *x -= c);
        }
    });
    Ok(())
}

/// Trains rotation and centroids on `rows`, centred at `book`'s single coarse centroid, zero. `rows` end up rotated.
fn fit(
    book: &mut Codebook,
    rows: &mut [f32],
    options: &CodebookOptions,
    percent: &mut Percent<'_>,
) -> Result<()> {
    let dim = book.dim;
    let (rotates, _) = rotation_of(options.kind, dim);
    let work = rotation::RotationWork::of(rows.len() / dim, dim);
    let (rounds, refined) = rounds_of(options, dim, work.rounds);
    if rotates {
        book.rotation = rotation::pca(rows, dim, &book.starts, work.group, percent.progress)?;
        rotate_in_place(&book.rotation, dim, rows);
    }
    first_centroids(book, rows, options.seed);
    for round in 0..rounds {
        percent.reach_fine((round + 1) as f64 / (rounds + 2) as f64)?;
        let codes = encode_rotated_rows(book, rows, percent.progress)?;
        update_centroids(book, rows, &codes, options.seed.wrapping_add(round as u64));
        if round < refined
            && let Some(turn) = rotation::refine(book, rows, &codes, percent.progress)?
        {
            rotate_in_place(&turn, dim, rows);
        }
    }
    Ok(())
}

/// `rows = rows · Rᵀ`.
fn rotate_in_place(rotation: &[f32], dim: usize, rows: &mut [f32]) {
    parallel::for_each(rows.chunks_mut(tile(dim) * dim), |rows| {
        let before = rows.to_vec();
        block_dot_f32(&before, rotation, dim, rows);
    });
}

/// `out = rows · Rᵀ`.
fn rotate_rows(book: &Codebook, rows: &[f32], out: &mut [f32]) {
    let tile = tile(book.dim);
    let tiles = out.chunks_mut(tile * book.dim).zip(rows.chunks(tile * book.dim));
    parallel::for_each(tiles, |(out, rows)| rotate_tile(book, rows, out));
}

fn rotate_tile(book: &Codebook, rows: &[f32], out: &mut [f32]) {
    if book.rotation.is_empty() {
        out.copy_from_slice(rows);
    } else {
        block_dot_f32(rows, &book.rotation, book.dim, out);
    }
}

fn encode_rotated_rows(book: &Codebook, rotated: &[f32], progress: &dyn Progress) -> Result<Vec<u8>> {
    let (dim, size) = (book.dim, book.code_bytes());
    let mut codes = vec![0u8; rotated.len() / dim * size];
    let tiles = codes.chunks_mut(tile(dim) * size).zip(rotated.chunks(tile(dim) * dim));
    parallel::for_each(tiles, |(codes, rows)| {
        if !progress.interrupted() {
            book.encode_rotated_rows(&mut rows.to_vec(), codes, &mut Vec::new());
        }
    });
    progress.check_interrupted().map(|()| codes)
}

/// Encodes `rows` (n × `dim`, row-major, f32, not rotated) into `out` (n × `code_bytes`), in parallel.
///
/// The code of a row depends neither on other rows nor on the machine. Surplus rows or codes are not changed.
pub fn encode_rows(coder: &Coder, rows: &[f32], out: &mut [u8]) {
    let (dim, size) = (coder.dim(), coder.code_bytes());
    if dim == 0 || size == 0 {
        return;
    }
    let tiles = out.chunks_mut(tile(dim) * size).zip(rows.chunks(tile(dim) * dim));
    parallel::for_each(tiles, |(codes, rows)| match coder {
        Coder::Bits(coder) => {
            let mut placed = rows.to_vec();
            coder.place(&mut placed);
            for (placed, code) in placed.chunks_exact_mut(dim).zip(codes.chunks_exact_mut(size)) {
                coder.encode(placed, code);
            }
        }
        Coder::Learned(codebook) => {
            let mut rotated = vec![0f32; rows.len()];
            rotate_tile(codebook, rows, &mut rotated);
            codebook.encode_rotated_rows(&mut rotated, codes, &mut Vec::new());
        }
    });
}

/// Makes sampled rows the centroids.
fn first_centroids(book: &mut Codebook, rotated: &[f32], seed: u64) {
    let dim = book.dim;
    let n = rotated.len() / dim;
    if n == 0 {
        return;
    }
    for (k, row) in spread(n, CENTROIDS, seed).into_iter().enumerate() {
        let row = &rotated[row as usize * dim..(row as usize + 1) * dim];
        book.centroids.chunks_exact_mut(CENTROIDS).zip(row).for_each(|(component, &x)| component[k] = x);
    }
}

/// Moves every centroid to the mean of its rows, and those without rows to a row of the worst cell.
fn update_centroids(book: &mut Codebook, rotated: &[f32], codes: &[u8], seed: u64) {
    let (dim, m) = (book.dim, book.subspaces());
    let mut blocks = Vec::with_capacity(m);
    let mut rest = book.centroids.as_mut_slice();
    for border in book.starts.windows(2) {
        let (block, tail) = rest.split_at_mut((border[1] - border[0]) as usize * CENTROIDS);
        blocks.push((border[0] as usize..border[1] as usize, block));
        rest = tail;
    }
    parallel::map(blocks.into_iter().enumerate(), |(j, (range, block))| {
        let part = |i: u32| &rotated[i as usize * dim..(i as usize + 1) * dim][range.clone()];
        let members = Members::new(codes.iter().skip(j).step_by(m).map(|&c| u32::from(c)), CENTROIDS);
        let mut centroid = vec![0f32; range.len()];
        let mut errors = vec![0f64; CENTROIDS];
        for k in 0..CENTROIDS {
            let rows = members.of(k);
            if rows.is_empty() {
                continue;
            }
            mean(rows.iter().map(|&i| part(i)), &mut centroid);
            errors[k] = rows.iter().map(|&i| squared(part(i), &centroid)).sum();
            block.chunks_exact_mut(CENTROIDS).zip(&centroid).for_each(|(component, &x)| component[k] = x);
        }
        for (k, from) in members.refill(errors, seed ^ (j as u64) << 32) {
            block.chunks_exact_mut(CENTROIDS).zip(part(from)).for_each(|(component, &x)| component[k] = x);
        }
    });
}

fn squared(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(a - b) * f64::from(a - b)).sum()
}

/// Chooses the range of the corrections: among the ranges without some outermost values at either end, the one with the
/// least mean error over the sample. (The squared error would favour a few outliers at the cost of precision.)
fn fit_correction(book: &mut Codebook, sample: &[f32]) {
    let dim = book.dim;
    let tiles = parallel::map(sample.chunks(tile(dim) * dim), |rows| {
        let (mut rotated, mut values) = (vec![0f32; rows.len()], Vec::new());
        rotate_tile(book, rows, &mut rotated);
        book.encode_rotated_rows(
            &mut rotated,
            &mut vec![0u8; rows.len() / dim * book.code_bytes()],
            &mut values,
        );
        values
    });
    let mut values: Vec<f32> = tiles.concat();
    values.sort_unstable_by(f32::total_cmp);
    let Some(last) = values.len().checked_sub(1) else { return };
    let range = |cut: usize| (values[last / cut], (values[last - last / cut] - values[last / cut]) / 255.0);
    let error = |(low, step): (f32, f32)| -> f64 {
        let rounded =
            |v: f32| low + ((v - low) / step.max(f32::MIN_POSITIVE)).round().clamp(0.0, 255.0) * step;
        values.iter().map(|&v| f64::from(v - rounded(v)).abs()).sum()
    };
    let ranges = [usize::MAX, 10_000, 3000, 1000, 300, 100].map(range);
    let best = ranges.into_iter().min_by(|&a, &b| error(a).total_cmp(&error(b)));
    (book.correction_low, book.correction_step) = best.unwrap_or_default();
}

/// The root mean square length of vectors with these codes.
pub(crate) fn root_mean_square_norm<'a>(coder: &Coder, codes: impl Iterator<Item = &'a [u8]>) -> f32 {
    let mut decoded = vec![0f32; coder.dim()];
    let (mut sum, mut count) = (0f64, 0u32);
    for code in codes {
        coder.decode_rotated(code, &mut decoded);
        sum += decoded.iter().map(|x| f64::from(x * x)).sum::<f64>();
        count += 1;
    }
    (sum / f64::from(count.max(1))).sqrt() as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use stratann_storage::Quiet;

    use stratann_core::build::hash;
    use stratann_kernel::codes::Table;
    use stratann_kernel::distance::l2_f32;

    /// Rows of 30 flat, tilted clusters of vectors: components are correlated, so that a rotation helps.
    fn rows(n: usize, dim: usize, seed: u64) -> Vec<f32> {
        let noise =
            |stream: u64, i: usize| (hash(seed, stream, i as u64) >> 40) as f32 / (1 << 24) as f32 - 0.5;
        let row = |i: usize| {
            let cluster = i % 30;
            (0..dim).map(move |j| {
                let shared: f32 =
                    (0..4).map(|t| noise(1, i * 4 + t) * noise(2, (cluster * 4 + t) * dim + j)).sum();
                let own = noise(3, i * dim + j) * 0.3 / (1 + j) as f32;
                100.0 + 4.0 * noise(4, cluster * dim + j) + 2.0 * shared + own
            })
        };
        (0..n).flat_map(row).collect()
    }

    fn options(kind: CodeKind, code_bytes: usize) -> CodebookOptions {
        CodebookOptions { code_bytes, kind, iterations: 4, seed: 3 }
    }

    fn trained(sample: &[f32], dim: usize, options: &CodebookOptions) -> Codebook {
        let book = train(sample.to_vec(), dim, false, options, &Quiet).unwrap();
        assert!(book.is_consistent());
        book
    }

    fn mean_error(book: &Codebook, rows: &[f32]) -> f64 {
        let (dim, size) = (book.dim, book.code_bytes());
        let mut codes = vec![0u8; rows.len() / dim * size];
        encode_rows(&Coder::Learned(book.clone()), rows, &mut codes);
        let (mut rotated, mut decoded) = (vec![0f32; dim], vec![0f32; dim]);
        let error = |(row, code): (&[f32], &[u8])| {
            book.rotate(row, &mut rotated);
            book.decode_rotated(code, &mut decoded);
            f64::from(l2_f32(&rotated, bytemuck::cast_slice(&decoded)))
        };
        rows.chunks(dim).zip(codes.chunks(size)).map(error).sum::<f64>() / (rows.len() / dim) as f64
    }

    #[test]
    fn rotation_and_stages_each_lower_the_error() {
        let dim = 24;
        let all = rows(12_600, dim, 1);
        let (sample, others) = all.split_at(12_000 * dim);
        let kinds = [CodeKind::Pq, CodeKind::Opq, CodeKind::ResidualOpq];
        let errors = kinds.map(|kind| mean_error(&trained(sample, dim, &options(kind, 8)), others));
        assert!(errors[1] < 0.95 * errors[0] && errors[2] < 0.95 * errors[1], "{errors:?}");
    }

    #[test]
    fn rotations_are_orthonormal_and_subspaces_even() {
        // Fewer rows than components, one component constant, a dimension that 7 does not divide.
        for (n, dim) in [(12, 23), (900, 23)] {
            let mut sample = rows(n, dim, 2);
            sample.iter_mut().step_by(dim).for_each(|x| *x = 5.0);
            let book = trained(&sample, dim, &options(CodeKind::Opq, 7));
            for a in 0..dim {
                for b in 0..dim {
                    let [a_row, b_row] = [a, b].map(|i| &book.rotation[i * dim..(i + 1) * dim]);
                    let dot: f32 = a_row.iter().zip(b_row).map(|(x, y)| x * y).sum();
                    assert!((dot - f32::from(u8::from(a == b))).abs() < 1e-4, "{a} {b} {dot}");
                }
            }
            let widths: Vec<u32> = book.starts.windows(2).map(|w| w[1] - w[0]).collect();
            assert!(widths.len() == 7 && widths.iter().all(|w| (3..=4).contains(w)), "{widths:?}");
        }
    }

    #[test]
    fn table_distances_follow_true_distances() {
        let dim = 16;
        let sample = rows(11_000, dim, 4);
        for kind in [CodeKind::Pq, CodeKind::Opq, CodeKind::ResidualOpq] {
            let book = trained(&sample, dim, &options(kind, 12));
            let rows = &sample[..300 * dim];
            let mut codes = vec![0u8; 300 * book.code_bytes()];
            encode_rows(&Coder::Learned(book.clone()), rows, &mut codes);
            let (mut table, mut out) = (Table::default(), Vec::new());
            let query = &sample[5000 * dim..5001 * dim];
            table.set(&book, query, &mut Vec::new());
            table.distances(&codes, &(0..300).collect::<Vec<u32>>(), &mut out);
            let lost = mean_error(&book, rows);
            let far = rows.chunks(dim).zip(&out).filter(|(row, got)| {
                let exact = f64::from(l2_f32(query, bytemuck::cast_slice(row)));
                // |(a + e)² − a²| with e up to four times its root mean square.
                let slack = 8.0 * (exact * lost).sqrt() + 16.0 * lost;
                (f64::from(table.to_float(**got)) - exact).abs() > slack
            });
            // The few rows with a correction outside its range may have larger errors.
            assert!(far.count() <= if kind == CodeKind::ResidualOpq { 3 } else { 0 }, "{kind:?}");
        }
    }

    #[test]
    fn the_number_of_threads_changes_nothing() {
        let dim = 20;
        let sample = rows(10_500, dim, 5);
        let with = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let book = trained(&sample, dim, &options(CodeKind::ResidualOpq, 15));
                let mut codes = vec![0u8; sample.len() / dim * book.code_bytes()];
                encode_rows(&Coder::Learned(book.clone()), &sample, &mut codes);
                (book, codes)
            })
        };
        let one = with(1);
        assert!(one == with(2) && one == with(3));
    }

    #[test]
    fn odd_sizes_work() {
        for kind in [CodeKind::Pq, CodeKind::Opq, CodeKind::ResidualOpq] {
            for (n, dim, code_bytes) in
                [(0, 5, 3), (1, 1, 1), (3, 4, 64), (100, 7, 0), (300, 6, 3), (300, 6, 2)]
            {
                let sample = rows(n, dim, 6);
                let book = trained(&sample, dim, &options(kind, code_bytes));
                assert!(book.code_bytes() <= code_bytes.max(1), "{kind:?} {n} {dim} {code_bytes}");
                let mut codes = vec![0u8; n * book.code_bytes()];
                encode_rows(&Coder::Learned(book.clone()), &sample, &mut codes);
            }
            // Every row has its own centroid.
            let sample = rows(200, 4, 7);
            assert!(mean_error(&trained(&sample, 4, &options(kind, 4)), &sample) < 1e-3);
        }
    }

    /// Interrupts after so many questions whether to.
    struct Impatient {
        asked: AtomicU64,
        patience: u64,
    }

    impl Progress for Impatient {
        fn stage(&self, _: &str, _: u64, _: &str) {}
        fn advance(&self, _: u64) {}
        fn note(&self, _: &str) {}
        fn interrupted(&self) -> bool {
            self.asked.fetch_add(1, Ordering::Relaxed) >= self.patience
        }
    }

    #[test]
    fn training_stops_when_told_to() {
        let sample = rows(500, 8, 8);
        // Wherever it is interrupted, it ends with that error, and soon.
        for patience in 0..20 {
            let progress = Impatient { asked: AtomicU64::new(0), patience };
            let trained = train(sample.clone(), 8, false, &options(CodeKind::Opq, 4), &progress);
            assert_eq!(trained.unwrap_err().kind, stratann_storage::ErrorKind::Interrupted);
            assert!(progress.asked.load(Ordering::Relaxed) < patience + 20);
        }
    }
}
