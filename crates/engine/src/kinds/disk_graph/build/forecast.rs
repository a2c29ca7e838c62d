//! What the stages of a `disk-graph` are expected to take.

use super::head;
use crate::codebook::CodebookOptions;
use crate::dataset::Shape;
use crate::stages::codes::ITERATIONS;
use crate::stages::forecast::{Forecast, Size};
use crate::stages::options::BuildOptions;
use crate::stages::plan::BuildPlan;
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

pub(crate) fn forecast(
    shape: &Shape,
    options: &BuildOptions,
    own: &GraphOptions,
    plan: &BuildPlan,
) -> Forecast {
    let size = Size::of(shape, plan);
    let code_bytes = own.code_bytes(shape.dim);
    let codebook =
        CodebookOptions { code_bytes, kind: own.code_kind, iterations: ITERATIONS, seed: options.seed };
    let growth = |rows: f64| 1.0 + DOUBLING * (rows / SMALL_ROWS).log2().max(0.0);
    let graph = |rows: f64, list: f64, degree: f64| {
        let component_bytes = if own.exact_points { 4.0 } else { 1.0 };
        let pair = PAIR_NS + POINT_BYTE_NS * size.dim * component_bytes;
        size.shared_s(rows * list * degree * 0.5 * pair * growth(rows))
    };
    // Points on the borders of cells are in several.
    let copies = if plan.in_ram { 1.0 } else { 2.0 };
    let graph_s =
        copies * own.passes.max(1) as f64 * graph(size.rows, own.build_list as f64, own.degree as f64);
    let head_rows = head::head_count(shape.rows as usize, own.head_share) as f64;
    let layout = ("layout", size.shared_s(size.rows * NODE_NS * growth(size.rows)));
    let codes = ("codes", size.encoding_s(own.code_kind));
    let mut stages =
        vec![("scan", size.scan_s()), ("codebook", size.codebook_s(plan, &codebook)), ("graph", graph_s)];
    match own.codes {
        CodePlace::Ram => stages.extend([layout, codes]),
        CodePlace::Disk => stages.extend([codes, layout]),
    }
    let comparison = COMPARISON_NS + CODE_BYTE_NS * code_bytes as f64;
    let settings_s = size.shared_s(options.calibration_queries as f64 * COMPARISONS * comparison);
    stages.push(("head", graph(head_rows, head::HEAD_LIST as f64, head::HEAD_DEGREE as f64)));
    stages.push(("calibrate", size.truth_s(options) + settings_s));
    Forecast::new(stages)
}
