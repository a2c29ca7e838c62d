//! The settings of a `disk-graph` that calibration measures: beam lengths and stop rules.

use stratann_core::plan::{KindParams, disk_graph};
use stratann_core::query::Params;

use super::options::GraphSwitches;
use crate::Result;
use crate::kinds::Setting;
use crate::recall::curve::{Grid, Point, StopRule, check_slack};

/// Beam lengths that are tried, as multiples of k, on top of [`SPARE`].
const LISTS: [f64; 10] = [0.2, 0.8, 1.5, 2.4, 3.6, 5.5, 8.5, 14.0, 22.0, 36.0];
const SPARE: u32 = 8;
/// Stop rules that are tried with each: standard errors of a code distance beyond the k-th result, and fruitless
/// reads in a row as a share of the beam. What they bring is in `decisions/`.
const STOP_RULES: [StopRule; 3] = [
    StopRule { slack: None, share: 0.0 },
    StopRule { slack: Some(0.5), share: 0.25 },
    StopRule { slack: Some(0.0), share: 0.2 },
];

/// What is measured for k results.
pub(crate) fn grid(k: u32) -> Grid {
    let beam = |multiple: &f64| ((f64::from(k) * multiple).ceil() as u32 + SPARE).max(k);
    Grid { efforts: LISTS.iter().map(beam).collect(), rules: &STOP_RULES, is_needless: |_, _| false }
}

/// The parameters of a point: its effort is the length of the beam, its share that of fruitless reads that end the
/// search.
pub(crate) fn params(k: u32, point: &Point) -> Params {
    let list = point.effort.max(k);
    let mut params = beam_params(k, list, point.stop.slack);
    if let KindParams::DiskGraph(own) = &mut params.kind {
        own.patience = (list as f32 * point.stop.share).ceil() as u32;
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

/// Applies the switches of a search.
///
/// # Errors
/// A slack that is out of range.
pub(crate) fn apply_switches(own: &mut disk_graph::Params, switches: &GraphSwitches) -> Result<()> {
    check_slack(own.stop_slack)?;
    own.head = switches.head;
    own.whole_blocks = switches.whole_blocks;
    if let Some(patience) = switches.patience {
        own.patience = patience;
    }
    Ok(())
}

/// The setting that these parameters are.
pub(crate) fn setting(own: &disk_graph::Params) -> Setting {
    Setting {
        effort: own.search_list,
        search_list: own.search_list,
        slack: Some(own.stop_slack).filter(|s| s.is_finite()),
        patience: own.patience,
        nprobe: None,
        early_stop: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beams_are_never_shorter_than_the_answer() {
        let point = Point { effort: 20, ..Point::default() };
        assert_eq!(
            [10, 300].map(|k| setting(params(k, &point).kind.disk_graph().unwrap()).search_list),
            [20, 300]
        );
    }
}
