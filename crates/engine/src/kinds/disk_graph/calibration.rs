//! The settings of a `disk-graph` that calibration measures: beam lengths and stop rules.

use crate::curve::{Grid, Point, StopRule, check_slack};
use crate::kinds::answers::Setting;
use crate::kinds::options::Switches;
use crate::kinds::questions::{SearchParams, grown};
use stratann_core::kinds::disk_graph::SEEDS;
use stratann_core::kinds::disk_graph::code_walk::RERANK_READS;
use stratann_core::kinds::{KindParams, disk_graph};
use stratann_core::query::Params;
use stratann_params::search::GraphSwitches;
use stratann_storage::Result;

/// Margins that are tried: the share of the distance to the k-th result by which the best unread candidate must be
/// farther.
const MARGINS: [f32; 13] = [-0.1, -0.04, 0.0, 0.03, 0.06, 0.1, 0.15, 0.22, 0.32, 0.5, 0.8, 1.2, 2.0];
/// Paths: how many times as long as needed a beam is, and the share of reads that must have brought nothing. A longer
/// beam finds more with the same reads and more comparisons. What they bring is in `decisions/`.
const PATHS: [(f32, f32); 3] = [(0.25, 0.25), (1.0, 0.25), (3.0, 0.1)];
/// The path of an index of few rows, whose build would take less time than the measurement of all paths. It has every
/// other margin.
const PATH_OF_FEW: (f32, f32) = (0.5, 0.25);
/// Indexes of fewer rows have one path; those of fewer than the second number have the first two, with every other
/// margin.
const FEW: [u64; 2] = [50_000, 100_000];
/// The longest beam that is tried: about 100 KB a query.
const LIST_MAX: u32 = 4096;
/// A path ends when a query reads this share of all blocks.
const READS_SHARE_MAX: f64 = 0.25;

/// Shares of a beam's candidates beyond k that a walk by codes compares in the end as well: a path each.
const RERANK_SHARES: [f32; 3] = [0.25, 0.5, 1.0];
/// The least and the most candidates of a beam in memory beyond k, and by how much each is longer than the one before.
const MEMORY_LISTS: (f32, f32) = (2.0, 1500.0);
const MEMORY_LIST_GROWTH: f32 = 1.35;

/// The settings of a walk by codes for k results.
pub(crate) fn memory_grid(k: u32) -> Grid {
    let list = |beyond: &f32| k + (beyond * (1.0 + k as f32 / 100.0)) as u32;
    let beyond = |last: &f32| Some(last * MEMORY_LIST_GROWTH).filter(|&next| next <= MEMORY_LISTS.1);
    let lists: Vec<u32> = std::iter::successors(Some(MEMORY_LISTS.0), beyond).map(|x| list(&x)).collect();
    let path = |&share: &f32| {
        lists.iter().map(|&list| (list.min(LIST_MAX), StopRule::by_slack(None, share))).collect()
    };
    Grid { paths: RERANK_SHARES.iter().map(path).collect(), ..Grid::default() }
}

fn reranked(k: u32, list: u32, point: &Point) -> u32 {
    k + ((list - k) as f32 * point.stop.share).ceil() as u32
}

/// The candidates that a search with a point of the curve in memory compares; infinite where it goes through all.
pub(crate) fn candidates(k: u32, point: &Point) -> f64 {
    if point.is_exact() { f64::INFINITY } else { reranked(k, point.effort.max(k), point).into() }
}

/// The parameters of a point of the curve in memory: its effort is the length of the beam, its share that of
/// the candidates beyond k that are compared in the end.
pub(crate) fn memory_params(k: u32, point: &Point) -> Params {
    if point.is_exact() {
        return params(k, point);
    }
    let list = point.effort.max(k);
    let mut params = beam_params(k, list, None);
    if let KindParams::DiskGraph(own) = &mut params.kind {
        own.walk_by_codes(reranked(k, list, point));
    }
    params
}

/// Settings that are measured for k results on an index of so many blocks and rows.
pub(crate) fn grid(k: u32, blocks: u32, rows: u64) -> Grid {
    let (paths, step): (&[(f32, f32)], usize) = match rows {
        rows if rows < FEW[0] => (&[PATH_OF_FEW], 2),
        rows if rows < FEW[1] => (&PATHS[..2], 2),
        _ => (&PATHS, 1),
    };
    let path = |&(length, idle_share): &(f32, f32)| {
        let point = |&margin: &f32| (beam(k, length, margin), StopRule::by_margin(margin, idle_share));
        MARGINS.iter().step_by(step).map(point).collect()
    };
    let reads_max = READS_SHARE_MAX * f64::from(blocks);
    Grid { paths: paths.iter().map(path).collect(), reads_max, ..Grid::default() }
}

/// The beam for a margin: long enough that the margin ends a search, not the beam.
fn beam(k: u32, length: f32, margin: f32) -> u32 {
    let steepness = if margin > 0.0 { 10.0 } else { 4.0 };
    let list = (1.5 * k as f32 + 40.0) * length * (1.0 + steepness * margin);
    (list as u32).min(LIST_MAX).max(k)
}

/// Makes a search by a beam a walk by codes, with as many candidates in the end as are usual where no curve says how
/// many.
pub(crate) fn walk_by_codes(params: &mut Params) {
    if let KindParams::DiskGraph(own) = &mut params.kind {
        own.walk_by_codes(params.k + own.search_list.saturating_sub(params.k).div_ceil(2));
    }
}

/// The parameters of a point: its effort is the length of the beam, its share that of fruitless reads that end the
/// search.
pub(crate) fn params(k: u32, point: &Point) -> Params {
    if point.is_exact() {
        let mut params = beam_params(k, k, None);
        if let KindParams::DiskGraph(own) = &mut params.kind {
            own.scan = true;
        }
        return params;
    }
    let list = point.effort.max(k);
    let mut params = beam_params(k, list, point.stop.slack);
    if let KindParams::DiskGraph(own) = &mut params.kind {
        own.patience = (list as f32 * point.stop.share).ceil() as u32;
        own.stop_margin = point.stop.margin.unwrap_or(f32::INFINITY);
        own.idle_share = point.stop.idle_share;
    }
    params
}

/// Parameters with a beam of `list`. `slack` is that of the stop rule.
pub(crate) fn beam_params(k: u32, list: u32, slack: Option<f32>) -> Params {
    let mut params = Params::disk_graph(k, list);
    if let KindParams::DiskGraph(own) = &mut params.kind {
        own.stop_slack = slack.unwrap_or(f32::INFINITY);
    }
    params
}

/// Parameters with the values of a setting.
pub(crate) fn params_of(k: u32, setting: &Setting) -> Params {
    let mut params = beam_params(k, setting.search_list, setting.slack);
    if let KindParams::DiskGraph(own) = &mut params.kind {
        own.patience = setting.patience;
    }
    params
}

/// Length of the head graph's beam, and the share of reads without a new result, in one of several indexes that are
/// searched as one: their entries together are more than the rest of each search.
const PART_HEAD_LIST: u32 = 8;
const PART_IDLE_SHARE: f32 = 0.1;

impl SearchParams for disk_graph::Params {
    fn search_part(&mut self) {
        self.head_list = self.head_list.min(PART_HEAD_LIST);
        self.idle_share = self.idle_share.min(PART_IDLE_SHARE);
    }

    fn setting(&self, _: u32) -> Setting {
        Setting {
            slack: Some(self.stop_slack).filter(|s| s.is_finite()),
            patience: self.patience,
            ..Setting::of_beam(self.search_list)
        }
    }

    fn reported(&self) -> Vec<(&'static str, serde_json::Value)> {
        let mut all = Vec::new();
        if self.stop_margin < f32::INFINITY {
            all.push(("stop_margin", self.stop_margin.into()));
            all.push(("idle_share", self.idle_share.into()));
        }
        if self.rerank > 0 {
            all.push(("rerank", self.rerank.into()));
        }
        if self.scan {
            all.push(("scan", true.into()));
        }
        all
    }

    fn apply_switches(&mut self, k: u32, switches: &Switches, _: Option<&str>) -> Result<()> {
        let switches: GraphSwitches = switches.own();
        check_slack(self.stop_slack)?;
        self.head = switches.head;
        self.whole_blocks = switches.whole_blocks;
        self.sieving.seeds = if switches.seeds { SEEDS } else { 0 };
        // Rules that stop a search look at exact distances on the way.
        if switches.patience.is_some() || !switches.whole_blocks {
            self.walk_by_codes(0);
        }
        if let Some(rerank) = switches.rerank {
            self.walk_by_codes(if rerank == 0 { 0 } else { rerank.max(k) });
        }
        if let Some(patience) = switches.patience {
            self.patience = patience;
        }
        Ok(())
    }

    fn state_bytes(&self, _: u64) -> u64 {
        let beams = grown(self.search_list.into(), 12) + grown(self.head_list.into(), 12);
        // Candidates that make room for others, and nodes that were compared with their blocks.
        let by_codes = grown(self.search_list.into(), 12) + grown(2 * u64::from(self.search_list), 24);
        let of_sieve = 2 * grown(self.sieving.list.max(self.sieving.seed_list).into(), 12);
        of_sieve + if self.rerank > 0 { beams + by_codes } else { beams }
    }

    fn is_exact(&self) -> bool {
        self.scan
    }

    fn least_scanned(&self) -> Option<usize> {
        self.scan.then_some(1)
    }

    fn fit_to_k(&mut self, k: u32) {
        self.search_list = self.search_list.max(k);
        if self.rerank > 0 {
            self.rerank = self.rerank.max(k);
        }
    }

    /// A walk by codes compares least if it follows one candidate at a time. With whole blocks, 2 read hardly more than
    /// 1 and wait half as often; see `decisions/` for the measurement.
    fn usual_width(&self) -> u32 {
        if self.rerank > 0 { 1 } else { 2 }
    }

    fn reads_at_once(&self) -> u32 {
        if self.rerank > 0 { RERANK_READS as u32 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beams_are_never_shorter_than_the_answer() {
        let point = Point { effort: 20, ..Point::default() };
        assert_eq!(
            [10, 300].map(|k| params(k, &point).kind.disk_graph().unwrap().setting(k).search_list),
            [20, 300]
        );
    }
}
