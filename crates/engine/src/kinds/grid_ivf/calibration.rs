//! The settings of a `grid-ivf` that calibration measures: numbers of lists. Nothing else is approximate.

use stratann_core::plan::KindParams;
use stratann_core::plan::grid_ivf;
use stratann_core::query::Params;
use stratann_params::Key;
use stratann_params::search::{GridSwitches, SearchSettings};

use crate::curve::{Grid, Point, StopRule};
use crate::kinds::answers::Setting;

/// What is measured on an index of so many lists: numbers of lists, each about a quarter more than the last.
pub(crate) fn grid(lists: u32) -> Grid {
    let rule = StopRule::by_slack(None, 0.0);
    let (mut path, mut effort) = (Vec::new(), 1u32);
    while effort < lists.min(grid_ivf::MAX_PROBES) {
        path.push((effort, rule));
        effort += (effort / 4).max(1);
    }
    path.push((lists.clamp(1, grid_ivf::MAX_PROBES), rule));
    Grid { paths: vec![path], ..Grid::default() }
}

/// The parameters of a point: its effort is the number of lists.
pub(crate) fn params(k: u32, point: &Point) -> Params {
    let mut params = Params::grid_ivf(k, point.effort);
    if let KindParams::GridIvf(own) = &mut params.kind {
        own.exact = point.is_exact();
    }
    params
}

/// Applies the switches of a search.
pub(crate) fn apply_switches(own: &mut grid_ivf::Params, switches: &GridSwitches) {
    own.prune_dimension = switches.prune_dimension;
    own.prune_vector = switches.prune_vector;
    own.prewarm = switches.prewarm;
    own.fan_out = switches.fan_out.clamp(1, grid_ivf::MAX_FAN_OUT);
    own.busy_last = switches.busy_last && switches.balance;
    own.balance = switches.balance;
    own.pipeline = switches.pipeline;
}

/// The setting that these parameters are. A search without a beam reports k as its length.
pub(crate) fn setting(k: u32, own: &grid_ivf::Params) -> Setting {
    Setting {
        effort: own.nprobe,
        search_list: k,
        slack: None,
        patience: 0,
        nprobe: Some(own.nprobe),
        early_stop: None,
    }
}

/// The parameters that a report shows, by their names in JSON.
pub(crate) fn reported_params(own: &grid_ivf::Params) -> Vec<(&'static str, serde_json::Value)> {
    let mut all = vec![
        (Key::<SearchSettings>::nprobe, own.nprobe.into()),
        (Key::<GridSwitches>::prune_dimension, own.prune_dimension.into()),
        (Key::<GridSwitches>::prune_vector, own.prune_vector.into()),
        (Key::<GridSwitches>::prewarm, own.prewarm.into()),
    ];
    if own.exact {
        all.push(("exact", true.into()));
    }
    all
}
