//! Makes the coder of residuals to centroids.

use stratann_core::build::hash;
use stratann_params::build::ListOptions;
use stratann_storage::Result;

use super::{clusters, read_centroids};
use crate::codebook::bits;
use crate::dataset::Scan;
use crate::files;
use crate::kinds::hybrid_ivf::options::even_layout;
use crate::kinds::hybrid_ivf::residual::subtract;
use crate::stages::build::Build;
use crate::stages::space::Space;
use crate::stages::tables::write_table;

/// Makes the coder of the lists of a sample of residuals, and writes it. Returns the bytes of a code.
///
/// # Errors
/// Rows that cannot be read, an interruption.
pub(crate) fn make_coder(build: &Build<'_>, own: &ListOptions, space: &Space, scan: &Scan) -> Result<usize> {
    let (shape, seed) = (build.base.shape(), build.options.seed);
    build.progress.stage("preparing codes", 100, "%");
    build.progress.check_interrupted()?;
    let sample = sampled(build, space, scan)?;
    let coder = bits::residual_coder(&sample, even_layout(own, &shape)?, seed, build.progress)?;
    write_table(&build.file(files::CODEBOOK), &files::encode_bit_coder(&coder))?;
    Ok(coder.layout().code_bytes())
}

/// The residuals of a sample of the rows to the centroids of their cells, as floats.
fn sampled(build: &Build<'_>, space: &Space, scan: &Scan) -> Result<Vec<f32>> {
    let dim = build.base.shape().dim;
    let (_, centroids) = read_centroids(build, dim)?;
    let cluster_of = clusters::read(build)?;
    let live = build.live_rows(scan);
    let count = build.plan.codebook_sample.min(live.len()).max(1);
    // One row per stretch: an even sample, read in order.
    let stretch = live.len() as f64 / count as f64;
    let rows: Vec<u32> = (0..count)
        .map(|i| {
            let (from, to) = ((i as f64 * stretch) as usize, ((i + 1) as f64 * stretch) as usize);
            let pick = from + (hash(build.options.seed, 5, i as u64) % (to - from).max(1) as u64) as usize;
            live[pick.min(live.len() - 1)]
        })
        .collect();
    let mut sample = vec![0f32; count * dim];
    let mut out = sample.chunks_exact_mut(dim).zip(&rows);
    build.base.for_each(&rows, |bytes| {
        if let Some((out, &row)) = out.next() {
            space.code_floats(bytes, out);
            subtract(out, &centroids[cluster_of[row as usize] as usize * dim..]);
        }
    })?;
    Ok(sample)
}
