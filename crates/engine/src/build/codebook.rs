//! Training of codebooks, and encoding of many rows.

mod rotation;

use rayon::prelude::*;

use stratann_kernel::codes::{CENTROIDS, Codebook};
use stratann_kernel::distance::block_dot_f32;

use super::kmeans::{Members, kmeans, mean, spread};

/// How vectors are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CodeKind {
    /// Product quantisation (Jégou et al., PAMI 2011).
    Pq,
    /// Product quantisation after a learned rotation (Ge et al., CVPR 2013).
    Opq,
    /// The same of the residual to the nearest of up to 256 coarse centroids; two bytes go to the centroid and a correction.
    ResidualOpq,
}

/// How a codebook is trained.
#[derive(Clone, Copy, Debug)]
pub struct CodebookOptions {
    /// Bytes of a code; more than the kind can use are not used.
    pub code_bytes: usize,
    /// How vectors are compressed.
    pub kind: CodeKind,
    /// Rounds of training: each improves the rotation and the centroids once.
    pub iterations: usize,
    /// Choice of the first centroids.
    pub seed: u64,
}

/// Rows that are rotated, encoded or decoded at once.
const TILE: usize = 256;
/// Largest dimension at which the rotation is refined after PCA; beyond it a round would cost minutes.
const REFINED_DIM_MAX: usize = 1024;
/// Rounds of k-means for the coarse centroids.
const COARSE_ROUNDS: usize = 15;
/// Rows of the sample a coarse centroid needs, below which there are fewer centroids.
const ROWS_PER_COARSE: usize = 40;
/// Rounds of k-means after the last change of the rotation.
const FINAL_ROUNDS: usize = 8;

/// Trains a codebook on the rows of `sample` (n × `dim`, row-major, f32).
///
/// OPQ starts from PCA with eigenvalues allocated so that subspaces get the same product of variances, then alternates
/// between encoding and the rotation that brings the sample nearest to what was encoded (Ge et al., "Optimized Product
/// Quantization", §3). Beyond 1024 dimensions the rotation stays as PCA made it.
///
/// `progress` gets the share done, 0 to 1; `None` is returned as soon as it answers false. An empty sample gives a codebook
/// of zeros. The result depends on the sample, the options and the machine's instruction set, not on the number of threads.
pub fn train(
    sample: &[f32],
    dim: usize,
    ip: bool,
    options: &CodebookOptions,
    progress: &dyn Fn(f32) -> bool,
) -> Option<Codebook> {
    let n = sample.len() / dim;
    let wanted = if options.kind == CodeKind::ResidualOpq && options.code_bytes > 2 { CENTROIDS } else { 1 };
    let k = wanted.min(n / ROWS_PER_COARSE).max(1);
    let prefix = if k > 1 { 2 } else { 0 };
    let m = options.code_bytes.saturating_sub(prefix).clamp(1, dim);
    if !progress(0.0) {
        return None;
    }
    let coarse = kmeans(sample, dim, k, if k > 1 { COARSE_ROUNDS } else { 1 }, options.seed);
    let coarse = if k > 1 { coarse } else { mean_of(sample, dim) };
    let residuals = residuals(sample, dim, &coarse);
    let mut book = Codebook {
        dim,
        ip,
        starts: (0..=m).map(|j| (j * dim / m) as u32).collect(),
        coarse: vec![0.0; dim],
        centroids: vec![0.0; CENTROIDS * dim],
        ..Codebook::default()
    };
    fit(&mut book, &residuals, options, progress)?;
    drop(residuals);
    let mut rotated = vec![0f32; coarse.len()];
    rotate_rows(&book, &coarse, &mut rotated);
    book.coarse = rotated;
    if prefix > 0 && !ip {
        fit_correction(&mut book, sample);
    }
    progress(1.0).then_some(book)
}

fn mean_of(sample: &[f32], dim: usize) -> Vec<f32> {
    let mut out = vec![0f32; dim];
    mean(sample.chunks_exact(dim), &mut out);
    out
}

fn residuals(sample: &[f32], dim: usize, coarse: &[f32]) -> Vec<f32> {
    let nearest = super::kmeans::assign(sample, dim, coarse);
    let mut out = sample.to_vec();
    out.par_chunks_exact_mut(dim).zip(&nearest).for_each(|(row, &c)| {
        let centre = &coarse[c as usize * dim..(c as usize + 1) * dim];
        row.iter_mut().zip(centre).for_each(|(x, c)| *x -= c);
    });
    out
}

/// Trains rotation and centroids on `rows`, to which `book`'s one coarse centroid, zero, is the centre.
fn fit(book: &mut Codebook, rows: &[f32], options: &CodebookOptions, progress: &dyn Fn(f32) -> bool) -> Option<()> {
    let dim = book.dim;
    let rotates = options.kind != CodeKind::Pq;
    if rotates {
        book.rotation = rotation::pca(rows, dim, &book.starts);
    }
    let refines = rotates && dim <= REFINED_DIM_MAX;
    let rounds = options.iterations + if refines { FINAL_ROUNDS } else { 0 };
    let mut rotated = vec![0f32; rows.len()];
    rotate_rows(book, rows, &mut rotated);
    first_centroids(book, &rotated, options.seed);
    for round in 0..rounds {
        if !progress((round + 1) as f32 / (rounds + 2) as f32) {
            return None;
        }
        let codes = encode_rotated_rows(book, &rotated);
        update_centroids(book, &rotated, &codes, options.seed.wrapping_add(round as u64));
        if refines && round < options.iterations {
            rotation::refine(book, rows, &codes);
            rotate_rows(book, rows, &mut rotated);
        }
    }
    Some(())
}

/// `out = rows · Rᵀ`.
fn rotate_rows(book: &Codebook, rows: &[f32], out: &mut [f32]) {
    let tiles = out.par_chunks_mut(TILE * book.dim).zip(rows.par_chunks(TILE * book.dim));
    tiles.for_each(|(out, rows)| rotate_tile(book, rows, out));
}

fn rotate_tile(book: &Codebook, rows: &[f32], out: &mut [f32]) {
    if book.rotation.is_empty() {
        out.copy_from_slice(rows);
    } else {
        block_dot_f32(rows, &book.rotation, book.dim, out);
    }
}

fn encode_rotated_rows(book: &Codebook, rotated: &[f32]) -> Vec<u8> {
    let (dim, size) = (book.dim, book.code_bytes());
    let mut codes = vec![0u8; rotated.len() / dim * size];
    let tiles = codes.par_chunks_mut(TILE * size).zip(rotated.par_chunks(TILE * dim));
    tiles.for_each(|(codes, rows)| encode_tile(book, rows, &mut vec![0f32; dim], codes));
    codes
}

fn encode_tile(book: &Codebook, rotated: &[f32], residual: &mut [f32], codes: &mut [u8]) {
    for (code, row) in codes.chunks_exact_mut(book.code_bytes()).zip(rotated.chunks_exact(book.dim)) {
        book.encode_rotated(row, residual, code);
    }
}

/// Encodes `rows` (n × `dim`, row-major, f32, not rotated) into `out` (n × `code_bytes`), in parallel.
///
/// A row's code does not depend on the other rows, nor on the machine. Surplus rows or codes are left alone.
pub fn encode_rows(codebook: &Codebook, rows: &[f32], out: &mut [u8]) {
    let (dim, size) = (codebook.dim, codebook.code_bytes());
    if dim == 0 || size == 0 {
        return;
    }
    let tiles = out.par_chunks_mut(TILE * size).zip(rows.par_chunks(TILE * dim));
    tiles.for_each_init(Vec::new, |scratch, (codes, rows)| {
        scratch.resize(rows.len() + dim, 0f32);
        let (rotated, residual) = scratch.split_at_mut(rows.len());
        rotate_tile(codebook, rows, rotated);
        encode_tile(codebook, rotated, residual, codes);
    });
}

/// Sampled rows become the centroids.
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

/// Moves every centroid to the mean of its rows, and those without rows to a row of the worst cluster.
fn update_centroids(book: &mut Codebook, rotated: &[f32], codes: &[u8], seed: u64) {
    let (dim, m) = (book.dim, book.subspaces());
    let mut blocks = Vec::with_capacity(m);
    let mut rest = book.centroids.as_mut_slice();
    for border in book.starts.windows(2) {
        let (block, tail) = rest.split_at_mut((border[1] - border[0]) as usize * CENTROIDS);
        blocks.push((border[0] as usize..border[1] as usize, block));
        rest = tail;
    }
    blocks.into_par_iter().enumerate().for_each(|(j, (range, block))| {
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

/// Chooses the range of the corrections so that it holds all but the outermost 0.1 % at either end.
fn fit_correction(book: &mut Codebook, sample: &[f32]) {
    let dim = book.dim;
    let mut values = vec![0f32; sample.len() / dim];
    values.par_chunks_mut(TILE).zip(sample.par_chunks(TILE * dim)).for_each(|(values, rows)| {
        let mut rotated = vec![0f32; rows.len()];
        let (mut residual, mut code) = (vec![0f32; dim], vec![0u8; book.code_bytes()]);
        rotate_tile(book, rows, &mut rotated);
        for (value, row) in values.iter_mut().zip(rotated.chunks_exact(dim)) {
            *value = book.encode_rotated(row, &mut residual, &mut code);
        }
    });
    values.sort_unstable_by(f32::total_cmp);
    let Some(last) = values.len().checked_sub(1) else { return };
    let (low, high) = (values[last / 1000], values[last - last / 1000]);
    book.correction_low = low;
    book.correction_step = (high - low) / 255.0;
}
