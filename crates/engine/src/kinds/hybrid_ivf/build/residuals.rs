//! Makes the coder of residuals to centroids.

use stratann_core::build::hash;
use stratann_params::build::ListOptions;
use stratann_params::choices::CodeKind;
use stratann_storage::Result;

use super::{clusters, list_layout, read_centroids};
use crate::codebook::{self, CodebookOptions};
use crate::dataset::Scan;
use crate::files;
use crate::kinds::hybrid_ivf::options::bit_coder;
use crate::kinds::hybrid_ivf::residual::subtract;
use crate::stages::build::Build;
use crate::stages::plan::CODEBOOK_SAMPLE;
use crate::stages::space::Space;
use crate::stages::tables::write_table;

pub(crate) const ITERATIONS: usize = 12;

/// Makes the coder of the lists, and writes it. Returns the bytes of a code.
///
/// # Errors
/// Rows that cannot be read, an interruption.
pub(crate) fn make_coder(build: &Build<'_>, own: &ListOptions, space: &Space, scan: &Scan) -> Result<usize> {
    if own.code_kind != CodeKind::Bits {
        return train(build, own, space, scan);
    }
    let coder = bit_coder(own, &build.base.shape(), build.options.seed)?;
    write_table(&build.file(files::CODEBOOK), &files::encode_bit_coder(&coder))?;
    Ok(coder.layout().code_bytes())
}

/// Trains the codebook on the residuals of a sample of the rows to the centroids of their cells.
fn train(build: &Build<'_>, own: &ListOptions, space: &Space, scan: &Scan) -> Result<usize> {
    let shape = build.base.shape();
    let code_bytes = list_layout(build, own)?.code_bytes;
    let (_, centroids) = read_centroids(build, shape.dim)?;
    let cluster_of = clusters::read(build)?;
    let live = build.live_rows(scan);
    let count = build.plan.codebook_sample.min(CODEBOOK_SAMPLE).min(live.len()).max(1);
    build.progress.stage("training the codebook", 100, "%");
    // One row per stretch: an even sample, read in order.
    let stretch = live.len() as f64 / count as f64;
    let rows: Vec<u32> = (0..count)
        .map(|i| {
            let (from, to) = ((i as f64 * stretch) as usize, ((i + 1) as f64 * stretch) as usize);
            let pick = from + (hash(build.options.seed, 5, i as u64) % (to - from).max(1) as u64) as usize;
            live[pick.min(live.len() - 1)]
        })
        .collect();
    let mut sample = vec![0f32; count * shape.dim];
    let mut out = sample.chunks_exact_mut(shape.dim).zip(&rows);
    build.base.for_each(&rows, |bytes| {
        if let Some((out, &row)) = out.next() {
            space.code_floats(bytes, out);
            subtract(out, &centroids[cluster_of[row as usize] as usize * shape.dim..]);
        }
    })?;
    // Training uses all of the memory.
    drop((live, cluster_of, centroids, rows));
    let options =
        CodebookOptions { code_bytes, kind: own.code_kind, iterations: ITERATIONS, seed: build.options.seed };
    // Tables hold −⟨q, r̂⟩ for every metric; the rest of a distance is stored with each member.
    let trained = codebook::train(sample, shape.dim, true, &options, build.progress)?;
    write_table(&build.file(files::CODEBOOK), &files::encode_codebook(&trained))?;
    Ok(trained.code_bytes())
}
