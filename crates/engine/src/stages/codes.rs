//! Encodes every row, part by part in the order of rows, and then sorts the codes by id. Where blocks
//! carry the codes, as many are sorted at a time as the memory allows.

use std::io::Read;
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};
use stratann_kernel::Metric;
use stratann_kernel::bits::BitCoder;
use stratann_kernel::distance::l2_f32;
use stratann_storage::output::AtomicFile;
use stratann_storage::{Error, Result, input};

use super::space::Space;
use super::tables::{read_table, write_table};
use crate::codebook::{self, bits};
use crate::dataset::Scan;
use crate::files;
use crate::stages::build::{self, Build, IDS};

/// Reciprocal of the share of rows whose code error is measured.
const LOOKED_AT: usize = 16;
/// Bytes of codes per read.
const READ_BYTES: usize = 1 << 20;

/// Squared errors of the measured codes of a part.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CodeErrors {
    sum: f64,
    count: u32,
}

impl CodeErrors {
    /// Computes the mean over all parts, summed in their order, because sums of floats depend on it.
    pub(crate) fn mean(parts: impl IntoIterator<Item = CodeErrors>) -> f32 {
        let (mut sum, mut count) = (0.0, 0u32);
        for part in parts {
            sum += part.sum;
            count += part.count;
        }
        (sum / f64::from(count.max(1))) as f32
    }
}

/// Makes the coder of codes of at most this many bytes, and writes it. Returns the bytes of a code.
///
/// # Errors
/// Rows that cannot be read, an interruption.
pub(crate) fn make_coder(build: &Build<'_>, code_bytes: usize, space: &Space, scan: &Scan) -> Result<usize> {
    let (dim, seed) = (build.base.shape().dim, build.options.seed);
    let ip = build.options.metric == Metric::Ip;
    build.progress.stage("preparing codes", 100, "%");
    let wanted = build.plan.codebook_sample.min(bits::SAMPLE_ROWS);
    let sample = space.code_sample(build.base, scan, wanted, seed)?;
    let coder = bits::bit_coder(sample, dim, ip, (code_bytes, seed), build.progress)?;
    write_table(&build.file(files::CODEBOOK), &files::encode_bit_coder(&coder))?;
    Ok(coder.layout().code_bytes())
}

/// Encodes all rows and writes their codes by id to `target`. Returns the mean squared error.
pub(crate) fn run(
    build: &Build<'_>,
    target: &Path,
    space: &Space,
    scan: &Scan,
    id_of_row: &[u32],
) -> Result<f32> {
    let coder = build::read_coder(&build.file(files::CODEBOOK))?;
    build.progress.stage("encoding", build.base.shape().rows, "rows");
    let mut errors = Vec::new();
    let size = coder.layout().code_bytes();
    if held_at_a_time(build, scan, size) < scan.rows {
        for part in 0..build.parts().count() {
            errors.push(encode_part(build, space, scan, part)?);
        }
        join_parts(build, target, scan, id_of_row, size)?;
        remove_parts(build);
        return Ok(CodeErrors::mean(errors));
    }
    let mut by_id = ById::new(size, 0..scan.rows, id_of_row);
    for part in 0..build.parts().count() {
        let mut take = |first, codes: &[u8]| {
            by_id.put(first, codes);
            Ok(())
        };
        errors.push(encode(build, space, scan, &coder, part, &mut take)?);
    }
    write_table(target, &by_id.codes)?;
    Ok(CodeErrors::mean(errors))
}

/// Nodes whose codes are in memory at a time.
fn held_at_a_time(build: &Build<'_>, scan: &Scan, code_bytes: usize) -> u64 {
    (build.plan.code_memory_bytes / code_bytes as u64).clamp(1, scan.rows)
}

fn part_name(part: usize) -> String {
    format!("codes-{part}.tmp")
}

/// Encodes a part and writes its codes by row.
pub(crate) fn encode_part(build: &Build<'_>, space: &Space, scan: &Scan, part: usize) -> Result<CodeErrors> {
    let coder = build::read_coder(&build.file(files::CODEBOOK))?;
    let mut out = AtomicFile::create(&build.partial.path(&part_name(part)))?;
    let errors = encode(build, space, scan, &coder, part, &mut |_, codes| out.write(codes))?;
    out.commit()?;
    Ok(errors)
}

/// Writes all codes by id to `target`, after every part was written by row.
pub(crate) fn join(build: &Build<'_>, target: &Path, scan: &Scan) -> Result<()> {
    let size = build::read_coder(&build.file(files::CODEBOOK))?.layout().code_bytes();
    let id_of_row: Vec<u32> = read_table(&build.partial.path(IDS))?;
    join_parts(build, target, scan, &id_of_row, size)
}

/// Reads the parts once for each stretch of ids that fits in the memory.
fn join_parts(build: &Build<'_>, target: &Path, scan: &Scan, id_of_row: &[u32], size: usize) -> Result<()> {
    let held = held_at_a_time(build, scan, size);
    let mut out = AtomicFile::create(target)?;
    for first in (0..scan.rows).step_by(held as usize) {
        let mut by_id = ById::new(size, first..(first + held).min(scan.rows), id_of_row);
        read_parts(build, size, &mut by_id)?;
        out.write(&by_id.codes)?;
    }
    out.commit()
}

fn remove_parts(build: &Build<'_>) {
    for part in 0..build.parts().count() {
        // A remainder is deleted with the folder.
        let _ = std::fs::remove_file(build.partial.path(&part_name(part)));
    }
}

fn read_parts(build: &Build<'_>, size: usize, by_id: &mut ById<'_>) -> Result<()> {
    let mut codes = vec![0u8; READ_BYTES / size * size];
    for part in 0..build.parts().count() {
        build.progress.check_interrupted()?;
        let path = build.partial.path(&part_name(part));
        let failed = |e: std::io::Error| Error::io("reading", &path, &e);
        let mut file = input::open(&path)?;
        let mut rows = build.parts().rows_of(part);
        while !rows.is_empty() {
            let count = (codes.len() / size).min((rows.end - rows.start) as usize);
            file.read_exact(&mut codes[..count * size]).map_err(failed)?;
            by_id.put(rows.start, &codes[..count * size]);
            rows.start += count as u64;
        }
    }
    Ok(())
}

/// Codes of a stretch of nodes, at the positions of their ids.
struct ById<'a> {
    size: usize,
    ids: Range<u64>,
    codes: Vec<u8>,
    id_of_row: &'a [u32],
}

impl ById<'_> {
    fn new(size: usize, ids: Range<u64>, id_of_row: &[u32]) -> ById<'_> {
        let codes = vec![0u8; (ids.end - ids.start) as usize * size];
        ById { size, ids, codes, id_of_row }
    }

    /// Inserts the codes of the rows from `first` on.
    fn put(&mut self, first: u64, codes: &[u8]) {
        for (code, &id) in codes.chunks_exact(self.size).zip(&self.id_of_row[first as usize..]) {
            // Rows that were left out have an id beyond all others.
            if self.ids.contains(&u64::from(id)) {
                let at = (u64::from(id) - self.ids.start) as usize * self.size;
                self.codes[at..at + self.size].copy_from_slice(code);
            }
        }
    }
}

/// Encodes a part of the rows, and passes the codes of each stretch with its first row.
fn encode(
    build: &Build<'_>,
    space: &Space,
    scan: &Scan,
    coder: &BitCoder,
    part: usize,
    take: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<CodeErrors> {
    let shape = build.base.shape();
    let size = coder.layout().code_bytes();
    let chunk = ((1 << 20) / (shape.dim * 4)).clamp(1, 4096);
    let (mut bytes, mut wide, mut made) = (Vec::new(), Vec::new(), Vec::new());
    let mut look = Look::new(coder);
    let rows = build.parts().rows_of(part);
    for first in rows.clone().step_by(chunk) {
        build.progress.check_interrupted()?;
        let count = (chunk as u64).min(rows.end - first) as usize;
        build.base.read_rows(first, count, &mut bytes)?;
        wide.resize(count * shape.dim, 0f32);
        made.resize(count * size, 0u8);
        let each = bytes.chunks_exact(shape.row_bytes()).zip(wide.chunks_exact_mut(shape.dim));
        each.for_each(|(row, out)| space.code_floats(row, out));
        codebook::encode_rows(coder, &wide, &mut made);
        let live = build.live(scan, first..first + count as u64);
        for row in live.step_by(LOOKED_AT) {
            let at = (row - first) as usize;
            look.at(&wide[at * shape.dim..(at + 1) * shape.dim], &made[at * size..(at + 1) * size]);
        }
        take(first, &made)?;
        build.progress.advance(count as u64);
    }
    Ok(look.errors)
}

/// Compares vectors with their codes.
struct Look<'a> {
    coder: &'a BitCoder,
    rotated: Vec<f32>,
    decoded: Vec<f32>,
    errors: CodeErrors,
}

impl Look<'_> {
    fn new(coder: &BitCoder) -> Look<'_> {
        let zeros = vec![0.0; coder.layout().dim()];
        Look { coder, rotated: zeros.clone(), decoded: zeros, errors: CodeErrors::default() }
    }

    fn at(&mut self, row: &[f32], code: &[u8]) {
        self.rotated.copy_from_slice(row);
        self.coder.rotate(&mut self.rotated);
        self.coder.decode(code, &mut self.decoded);
        self.decoded.iter_mut().zip(self.coder.centre()).for_each(|(x, c)| *x += c);
        self.errors.sum += f64::from(l2_f32(&self.rotated, bytemuck::cast_slice(&self.decoded)));
        self.errors.count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Codes are in the order of ids, however many are held at a time.
        #[test]
        fn stretches_together_are_the_whole(rows in 1u64..200, left_out in 0u64..20, held in 1u64..70) {
            // Row r has id 7 r modulo a larger prime, without the rows that were left out.
            let mut order: Vec<u64> = (0..rows).collect();
            order.sort_by_key(|r| r * 7 % 211);
            let mut id_of_row = vec![u32::MAX; rows as usize];
            let nodes = rows.saturating_sub(left_out).max(1);
            order.iter().take(nodes as usize).zip(0..).for_each(|(&row, id)| id_of_row[row as usize] = id);
            let codes: Vec<u8> = (0..rows as u8).flat_map(|row| [row, 255 - row]).collect();
            let mut all = Vec::new();
            for first in (0..nodes).step_by(held as usize) {
                let mut by_id = ById::new(2, first..(first + held).min(nodes), &id_of_row);
                for row in (0..rows).step_by(16) {
                    by_id.put(row, &codes[2 * row as usize..(2 * (row + 16).min(rows)) as usize]);
                }
                all.extend(by_id.codes);
            }
            prop_assert_eq!(all.len() as u64, 2 * nodes);
            for (row, &id) in id_of_row.iter().enumerate().filter(|(_, id)| **id != u32::MAX) {
                prop_assert_eq!(&all[2 * id as usize..][..2], &codes[2 * row..][..2]);
            }
        }
    }
}
