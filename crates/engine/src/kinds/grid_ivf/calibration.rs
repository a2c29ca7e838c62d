//! The settings of a `grid-ivf` that calibration measures: numbers of lists. Nothing else is approximate.

use stratann_core::kinds::KindParams;
use stratann_core::kinds::grid_ivf;
use stratann_core::query::Params;
use stratann_params::Key;
use stratann_params::search::{GridSwitches, SearchSettings};
use stratann_storage::Result;

use crate::curve::{Grid, Point, StopRule};
use crate::kinds::answers::Setting;
use crate::kinds::options::Switches;
use crate::kinds::questions::SearchParams;
use crate::tiles::TILE;

/// Settings that are measured on an index of so many lists: numbers of lists, each about a quarter more than the last.
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

impl SearchParams for grid_ivf::Params {
    fn setting(&self, k: u32) -> Setting {
        Setting::of_clusters(self.nprobe, k)
    }

    fn reported(&self) -> Vec<(&'static str, serde_json::Value)> {
        let mut all = vec![
            (Key::<SearchSettings>::nprobe, self.nprobe.into()),
            (Key::<GridSwitches>::prune_dimension, self.prune_dimension.into()),
            (Key::<GridSwitches>::prune_code, self.prune_code.into()),
            (Key::<GridSwitches>::prune_vector, self.prune_vector.into()),
            (Key::<GridSwitches>::prewarm, self.prewarm.into()),
        ];
        if self.exact {
            all.push(("exact", true.into()));
        }
        all
    }

    fn apply_switches(&mut self, _: u32, switches: &Switches, _: Option<&str>) -> Result<()> {
        let switches: GridSwitches = switches.own();
        self.prune_dimension = switches.prune_dimension;
        self.prune_code = switches.prune_code;
        self.prune_vector = switches.prune_vector;
        self.prewarm = switches.prewarm;
        self.fan_out = switches.fan_out.clamp(1, grid_ivf::MAX_FAN_OUT);
        self.busy_last = switches.busy_last && switches.balance;
        self.balance = switches.balance;
        self.pipeline = switches.pipeline;
        self.chain = switches.chain;
        Ok(())
    }

    fn with_setting(&self, setting: &Setting) -> Option<KindParams> {
        Some(KindParams::GridIvf(grid_ivf::Params { nprobe: setting.effort, ..*self }))
    }

    fn is_exact(&self) -> bool {
        self.exact
    }

    /// Pruning leaves one query few components, which are loaded for it alone. All of them cost less once each is
    /// loaded for several queries. A search without one of the techniques goes on to show what that technique saves.
    fn least_scanned(&self) -> Option<usize> {
        let is_usual = self.prune_dimension && self.prune_code && self.prune_vector && self.prewarm;
        (self.exact && is_usual).then_some(TILE)
    }
}
