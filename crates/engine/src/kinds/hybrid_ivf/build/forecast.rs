//! What the stages of a `hybrid-ivf` are expected to take.

use super::{clusters, nav, residuals};
use crate::codebook::{CodebookOptions, MULTIPLY_NS, PAIR_NS};
use crate::dataset::Shape;
use crate::stages::cells;
use crate::stages::forecast::{Forecast, Size};
use crate::stages::options::BuildOptions;
use crate::stages::plan::BuildPlan;
use stratann_params::build::ListOptions;
use stratann_params::choices::CodeKind;
use stratann_storage::profile::BUILD_OPTIONS;

/// Nanoseconds of a pair of vectors in a graph, and of a component of them; of a row that is put into its list, and of
/// a byte of it; of a code that the calibration compares, and of a byte of it.
const GRAPH_PAIR_NS: f64 = 55.0;
const GRAPH_COMPONENT_NS: f64 = 0.59;
const ROW_NS: f64 = 1000.0;
const ROW_BYTE_NS: f64 = 2.0;
const CODE_NS: f64 = 5.0;
const CODE_BYTE_NS: f64 = 0.4;
/// Pairs in the graphs from which the costs of local indexes are fitted.
const FITTED_PAIRS: f64 = 2e7;
/// Shares of all codes that a calibration query compares in all settings, for each k, together.
const CODES_SHARE: f64 = 55.0;

pub(crate) fn forecast(
    shape: &Shape,
    options: &BuildOptions,
    own: &ListOptions,
    build: &BuildPlan,
) -> Forecast {
    let size = Size::of(shape, build);
    let code_bytes = own.code_bytes(shape.dim, shape.dtype.is_float());
    let count = own.clusters.unwrap_or_else(|| clusters::count(shape.rows)) as f64;
    let assigned = size.rows.min(count * cells::SAMPLE_PER_CELL as f64) * cells::ROUNDS as f64 + size.rows;
    let pair_ns = PAIR_NS + size.dim * MULTIPLY_NS;
    let profile = if options.profile.is_some() { 0.0 } else { BUILD_OPTIONS.seconds };
    let codebook = CodebookOptions {
        code_bytes,
        kind: CodeKind::Opq,
        iterations: residuals::ITERATIONS,
        seed: options.seed,
    };
    let graph_pair_ns = GRAPH_PAIR_NS + size.dim * GRAPH_COMPONENT_NS;
    let nav_nodes = count * (1.0 + own.nav_samples);
    let nav_pairs = nav_nodes * (nav::LIST * nav::DEGREE) as f64 * 0.5;
    let lists = size.shared_s(size.rows * ROW_NS + size.bytes * ROW_BYTE_NS) + size.encoding_s(CodeKind::Opq);
    let compared = options.calibration_queries as f64 * size.rows * CODES_SHARE;
    let settings_s = size.shared_s(compared * (CODE_NS + CODE_BYTE_NS * code_bytes as f64));
    Forecast::new(vec![
        ("scan", size.scan_s()),
        ("clusters", size.shared_s(assigned * count * pair_ns)),
        ("profile", profile),
        ("plan", size.shared_s(FITTED_PAIRS * graph_pair_ns)),
        ("codebook", size.codebook_s(build, &codebook)),
        ("lists", lists),
        ("navigation", size.shared_s(nav_pairs * graph_pair_ns)),
        ("calibrate", size.truth_s(options) + settings_s),
    ])
}
