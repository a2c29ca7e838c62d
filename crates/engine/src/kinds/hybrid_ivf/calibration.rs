//! The settings of a `hybrid-ivf` that calibration measures: numbers of clusters, slacks of bounds, early stops.

use stratann_core::kinds::KindParams;
use stratann_core::kinds::hybrid_ivf::{self, MAX_LOCAL_LIST, MAX_PROBES, Order};
use stratann_core::query::Params;
use stratann_params::Key;
use stratann_params::search::{ListSwitches, SearchSettings};
use stratann_storage::{Error, Result};

use super::options::{bounds, order};
use crate::curve::{Grid, Point, StopRule, check_slack};
use crate::kinds::answers::Setting;
use crate::kinds::options::Switches;
use crate::kinds::questions::{SearchParams, grown};
use crate::tiles::TILE;

/// Slacks of bounds, in ascending order. The clusters of a path double from one to the next, so that neither misses
/// much more than the other.
const SLACKS: [f32; 14] = [-0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.25, 2.75, 3.5, 4.5, 6.0];
/// Paths: the clusters at the first slack, and the share of fruitless ones that ends the visits. Without it, which is
/// 0, a path comes to visit all clusters.
const PATHS: [(f32, f32); 4] = [(2.0, 0.25), (8.0, 0.25), (32.0, 0.25), (16.0, 0.0)];
/// The paths for a single result: its estimate alone tells too little to stop as early as others do.
const PATHS_OF_ONE: [(f32, f32); 2] = [PATHS[2], PATHS[3]];

/// The orders of clusters that are compared, and the point that they are compared at.
pub(crate) const VARIANTS: (&[&str], Point) = (
    &[Order::Evidence.name(), Order::Expected.name()],
    Point { effort: 16, stop: StopRule::by_slack(Some(1.0), 0.0), ..Point::EXACT },
);

/// Settings that are measured for k results on an index of so many clusters.
pub(crate) fn grid(k: u32, clusters: u32) -> Grid {
    let path = |&(first, share): &(f32, f32)| {
        (0..)
            .zip(SLACKS)
            .map(|(step, slack)| point(clusters, first * 2f32.powi(step), slack, share))
            .collect()
    };
    let paths = if k == 1 { &PATHS_OF_ONE[..] } else { &PATHS };
    Grid { paths: paths.iter().map(path).collect(), ..Grid::default() }
}

/// A point with this many of all clusters. Where there are fewer, the share grows instead.
fn point(clusters: u32, wanted: f32, slack: f32, share: f32) -> (u32, StopRule) {
    let effort = wanted.min(clusters.clamp(1, MAX_PROBES) as f32);
    (effort as u32, StopRule::by_slack(Some(slack), share * wanted / effort))
}

/// The parameters of a point: its effort is the number of clusters, its share that of fruitless clusters that end the
/// visits.
pub(crate) fn params(k: u32, point: &Point, variant: Option<&str>) -> Params {
    let early_stop = Some(point.stop.share).filter(|&share| share > 0.0);
    let mut params = nprobe_params(k, point.effort, point.stop.slack, early_stop);
    if let KindParams::HybridIvf(own) = &mut params.kind {
        own.exact = point.is_exact();
        own.order = variant.and_then(Order::from_name).unwrap_or_default();
    }
    params
}

/// Parameters that visit `nprobe` clusters. `slack` is that of bounds.
pub(crate) fn nprobe_params(k: u32, nprobe: u32, slack: Option<f32>, early_stop: Option<f32>) -> Params {
    let mut params = Params::hybrid_ivf(k, nprobe);
    if let KindParams::HybridIvf(own) = &mut params.kind {
        own.early_stop = early_stop.unwrap_or(f32::INFINITY);
        own.bound_slack = slack.unwrap_or(f32::INFINITY);
    }
    params
}

impl SearchParams for hybrid_ivf::Params {
    fn setting(&self, k: u32) -> Setting {
        Setting {
            slack: Some(self.bound_slack).filter(|s| s.is_finite()),
            early_stop: Some(self.early_stop).filter(|s| s.is_finite()),
            ..Setting::of_clusters(self.nprobe, k)
        }
    }

    fn reported(&self) -> Vec<(&'static str, serde_json::Value)> {
        let mut all = vec![
            (Key::<SearchSettings>::nprobe, self.nprobe.into()),
            (Key::<ListSwitches>::votes, self.sample_hits.into()),
            (Key::<SearchSettings>::early_stop, Some(self.early_stop).filter(|s| s.is_finite()).into()),
            (Key::<ListSwitches>::order, self.order.name().into()),
            (Key::<ListSwitches>::bounds, self.bounds.name().into()),
            (Key::<ListSwitches>::local_lists, self.local_lists.into()),
            (Key::<ListSwitches>::local_list, self.local_list.into()),
        ];
        if self.exact {
            all.push(("exact", true.into()));
        }
        all
    }

    fn apply_switches(&mut self, _: u32, switches: &Switches, variant: Option<&str>) -> Result<()> {
        let switches: ListSwitches = switches.own();
        check_slack(self.bound_slack)?;
        self.order = switches.order.map(order).or(variant.and_then(Order::from_name)).unwrap_or_default();
        self.weighed = switches.weights;
        self.bounds = bounds(switches.bounds);
        if !switches.stop_early {
            self.early_stop = f32::INFINITY;
        }
        if let Some(lists) = switches.local_lists {
            self.local_lists = lists.max(1);
        }
        if let Some(list) = switches.local_list {
            self.local_list = list;
        }
        if let Some(hits) = switches.votes {
            self.sample_hits = hits;
        }
        if self.is_valid() {
            Ok(())
        } else {
            Err(Error::bad_input(format!(
                "--early-stop is a share above 0, --votes is 1 to {MAX_PROBES}, --local-list is 1 to {MAX_LOCAL_LIST}; \
                 check them"
            )))
        }
    }

    fn state_bytes(&self, k: u64) -> u64 {
        // Ranked clusters, their ranks and their beam; results, scored members, estimates, bounds and reads.
        grown(self.nprobe.into(), 4 + 12 + 24)
            + grown(self.sample_hits.into(), 12 + 4)
            + grown(self.local_list.into(), 12 + 4)
            + grown(k, 24 + 24 + 4 + 4 + 8)
    }

    fn is_exact(&self) -> bool {
        self.exact
    }

    /// Bounds leave one query about a hundredth of the vectors to read, each with its page. All vectors in a row are
    /// sooner read, and compared, once queries share them.
    fn least_scanned(&self) -> Option<usize> {
        (self.exact && self.bound_slack.is_infinite()).then_some(TILE)
    }
}
