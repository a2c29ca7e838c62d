//! The stages of a `disk-graph`, and the time that each is expected to take.

use super::{GRAPH, HEAD, head};
use crate::dataset::Shape;
use crate::stages::forecast::Size;
use crate::stages::options::BuildOptions;
use crate::stages::stage::{CALIBRATE, CODEBOOK, CODES, LAYOUT, PlannedStage, SCAN};
use stratann_params::build::GraphOptions;
use stratann_params::choices::CodePlace;

/// Nanoseconds of a pair of points while a graph is built, and of a byte of them; of a node in the layout; of a code
/// comparison of the calibration with all that follows it, and of a byte of a code.
const PAIR_NS: f64 = 58.0;
const POINT_BYTE_NS: f64 = 0.13;
const NODE_NS: f64 = 45_000.0;
const COMPARISON_NS: f64 = 60.0;
const CODE_BYTE_NS: f64 = 1.0;
/// Rows up to which these hold. With every doubling a search visits more points, and more of them are not in a cache.
const SMALL_ROWS: f64 = 20_000.0;
const DOUBLING: f64 = 0.26;
/// Code comparisons of a calibration query in all settings, for all k.
const COMPARISONS: f64 = 50_000.0;

/// The stages; the plan of blocks knows their memory.
pub(crate) fn stages<'a>(
    shape: &Shape,
    options: &'a BuildOptions,
    own: &'a GraphOptions,
) -> Vec<PlannedStage<'a>> {
    let code_bytes = own.code_bytes(shape.dim);
    let growth = |rows: f64| 1.0 + DOUBLING * (rows / SMALL_ROWS).log2().max(0.0);
    let graph = move |size: &Size, rows: f64, list: f64, degree: f64| {
        let component_bytes = if own.exact_points { 4.0 } else { 1.0 };
        let pair = PAIR_NS + POINT_BYTE_NS * size.dim * component_bytes;
        size.shared_s(rows * list * degree * 0.5 * pair * growth(rows))
    };
    let graph_s = move |size: &Size| {
        // Points on the borders of cells are in several.
        let copies = if size.is_one_cell { 1.0 } else { 2.0 };
        copies * own.passes.max(1) as f64 * graph(size, size.rows, own.build_list as f64, own.degree as f64)
    };
    let head_rows = head::head_count(shape.rows as usize, own.head_share) as f64;
    let layout = LAYOUT.takes(move |size| size.shared_s(size.rows * NODE_NS * growth(size.rows)));
    let codes = CODES.takes(Size::encoding_s);
    let mut stages = vec![SCAN.takes(Size::scan_s), CODEBOOK.takes(Size::codebook_s), GRAPH.takes(graph_s)];
    match own.codes {
        CodePlace::Ram => stages.extend([layout, codes]),
        CodePlace::Disk => stages.extend([codes, layout]),
    }
    let comparison = COMPARISON_NS + CODE_BYTE_NS * code_bytes as f64;
    stages.push(
        HEAD.takes(move |size| graph(size, head_rows, head::HEAD_LIST as f64, head::HEAD_DEGREE as f64)),
    );
    stages.push(CALIBRATE.takes(move |size| {
        let compared = options.calibration_rows(size.rows as usize) as f64 * COMPARISONS * comparison;
        size.truth_s(options) + size.shared_s(compared)
    }));
    stages
}
