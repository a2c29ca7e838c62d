//! The stages of a `hybrid-ivf`, and the time that each is expected to take.

use super::{PLAN, PROFILE, clusters, nav};
use crate::codebook::{MULTIPLY_NS, PAIR_NS};
use crate::dataset::Shape;
use crate::kinds::hybrid_ivf::options::code_bytes;
use crate::stages::cells;
use crate::stages::forecast::Size;
use crate::stages::options::BuildOptions;
use crate::stages::stage::{CALIBRATE, CLUSTERS, CODEBOOK, LISTS, NAVIGATION, PlannedStage, SCAN};
use stratann_params::build::ListOptions;
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
const CODES_SHARE: f64 = 28.0;

/// The stages, without their memory.
pub(super) fn stages<'a>(
    shape: &Shape,
    options: &'a BuildOptions,
    own: &ListOptions,
) -> [PlannedStage<'a>; 8] {
    let code_bytes = code_bytes(own, shape);
    let count = own.clusters.unwrap_or_else(|| clusters::count(shape.rows)) as f64;
    let sampled = count * cells::SAMPLE_PER_CELL as f64;
    let profile = if options.profile.is_some() { 0.0 } else { BUILD_OPTIONS.seconds };
    let graph_pair_ns = |size: &Size| GRAPH_PAIR_NS + size.dim * GRAPH_COMPONENT_NS;
    let nav_nodes = count * (1.0 + own.nav_samples);
    let nav_pairs = nav_nodes * (nav::LIST * nav::DEGREE) as f64 * 0.5;
    [
        SCAN.takes(Size::scan_s),
        CLUSTERS.takes(move |size| {
            let assigned = size.rows.min(sampled) * cells::ROUNDS as f64 + size.rows;
            size.shared_s(assigned * count * (PAIR_NS + size.dim * MULTIPLY_NS))
        }),
        PROFILE.takes(move |_| profile),
        PLAN.takes(move |size| size.shared_s(FITTED_PAIRS * graph_pair_ns(size))),
        CODEBOOK.takes(Size::codebook_s),
        LISTS.takes(move |size| {
            size.shared_s(size.rows * ROW_NS + size.bytes * ROW_BYTE_NS) + size.encoding_s()
        }),
        NAVIGATION.takes(move |size| size.shared_s(nav_pairs * graph_pair_ns(size))),
        CALIBRATE.takes(move |size| {
            let compared = options.calibration_rows(size.rows as usize) as f64 * size.rows * CODES_SHARE;
            size.truth_s(options) + size.shared_s(compared * (CODE_NS + CODE_BYTE_NS * code_bytes as f64))
        }),
    ]
}
