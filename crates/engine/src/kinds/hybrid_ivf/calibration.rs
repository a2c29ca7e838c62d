//! The settings of a `hybrid-ivf` that calibration measures: numbers of clusters, slacks of bounds, early stops.

use stratann_core::query::{Order, Params, Probe};

use crate::recall::curve::{Grid, Point, StopRule};

/// Clusters that are tried.
const NPROBES: [u32; 12] = [2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 512, 1024];
/// Slack of bounds, and the share of fruitless clusters that ends the visits.
const STOP_RULES: [StopRule; 5] = [
    StopRule { slack: None, share: 0.0 },
    StopRule { slack: Some(1.5), share: 0.5 },
    StopRule { slack: Some(1.5), share: 0.15 },
    StopRule { slack: Some(1.0), share: 0.15 },
    StopRule { slack: Some(1.0), share: 0.05 },
];

/// The orders of clusters that are compared, and the point that they are compared at.
pub(crate) const VARIANTS: (&[&str], Point) = (
    &[Order::Evidence.name(), Order::Expected.name()],
    Point { effort: 16, stop: StopRule { slack: Some(1.0), share: 0.0 }, recall: 0.0, reads: 0.0 },
);

/// What is measured on an index of so many clusters.
pub(crate) fn grid(clusters: u32) -> Grid {
    let mut efforts: Vec<u32> = NPROBES.iter().map(|&n| n.min(clusters)).collect();
    efforts.dedup();
    Grid { efforts, rules: &STOP_RULES, is_needless }
}

/// Under exact bounds every vector that might count is read, which many clusters make very many: a rule for few.
fn is_needless(nprobe: u32, rule: &StopRule) -> bool {
    const EXACT_BOUNDS_MAX: u32 = 64;
    rule.slack.is_none() && nprobe > EXACT_BOUNDS_MAX
}

/// The parameters of a point: its effort is the number of clusters, its share that of fruitless clusters that end the visits.
pub(crate) fn params(k: u32, point: &Point, variant: Option<&str>) -> Params {
    let early_stop = Some(point.stop.share).filter(|&share| share > 0.0);
    let mut params = nprobe_params(k, point.effort, point.stop.slack, early_stop);
    params.probe.order = variant.and_then(Order::from_name).unwrap_or_default();
    params
}

/// Parameters that visit so many clusters.
pub(crate) fn nprobe_params(k: u32, nprobe: u32, slack: Option<f32>, early_stop: Option<f32>) -> Params {
    let probe = Probe { early_stop: early_stop.unwrap_or(f32::INFINITY), ..Probe::new(nprobe) };
    Params { stop_slack: slack.unwrap_or(f32::INFINITY), probe, ..Params::new(k, k) }
}
