//! The settings of a `gpu-ivf` that calibration measures: numbers of lists with margins, and for other families numbers
//! of candidates and rules that end re-ranking.

use stratann_core::kinds::KindParams;
use stratann_core::kinds::gpu_ivf::{self, MAX_CANDIDATES, MAX_PROBES, Rule};
use stratann_core::query::{Params, QueryStats};
use stratann_params::search::{GpuSwitches, SearchSettings};
use stratann_params::{Group, Key};
use stratann_storage::{Error, Result};

#[cfg(feature = "lab")]
use super::baseline::{self, Baseline};
use super::options::rule;
#[cfg(not(feature = "lab"))]
use super::rule::set_rule;
use crate::curve::{Grid, Point, StopRule};
use crate::kinds::answers::Setting;
use crate::kinds::options::Switches;
use crate::kinds::questions::{SearchParams, grown};

/// Margins in ascending order, and the lists that a query visits for them.
struct Margins {
    margins: [f32; 12],
    /// Paths: the lists at the first margin, and how many margins follow. Vectors of many dimensions need many lists,
    /// which long margins do not replace.
    paths: [(f32, usize); 5],
}

/// Standard errors. Half of one halves the misses by codes, and so do the lists of a step those by lists: neither of
/// the two then misses much more than the other.
const MARGINS: Margins = Margins {
    margins: [-1.0, 0.0, 0.4, 0.8, 1.2, 1.6, 2.0, 2.4, 2.9, 3.5, 4.5, 6.0],
    paths: [(5.0, 12), (13.0, 12), (32.0, 12), (80.0, 9), (200.0, 9)],
};
/// Shares of the distance, for codes that were trained.
const SHARES: Margins = Margins {
    margins: [-0.25, -0.15, -0.08, -0.03, 0.0, 0.03, 0.07, 0.12, 0.2, 0.3, 0.45, 0.7],
    paths: [(4.0, 12), (10.0, 12), (24.0, 12), (60.0, 9), (150.0, 9)],
};
/// The share of searches without a curve.
pub(super) const SHARE_USUAL: f32 = 0.2;
/// Factor of lists that a step of the margin brings.
const LISTS_STEP: f32 = 1.35;

/// Candidates for each result that a path of a fixed number re-ranks.
const CANDIDATES: [f32; 9] = [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 14.0, 25.0];
/// Paths of algorithm 1: candidates of a mini-batch for each result, ε and β. The first ones stop soonest.
const CHANGES: [(f32, f32, u32); 8] = [
    (0.4, 0.2, 1),
    (0.4, 0.1, 1),
    (0.8, 0.1, 1),
    (0.4, 0.0, 1),
    (0.8, 0.0, 1),
    (0.8, 0.0, 2),
    (1.6, 0.0, 2),
    (1.6, 0.0, 4),
];

/// The families of curves that every index has besides the usual one.
pub(crate) const FAMILIES: [&str; 1] = [Rule::Changes.name()];

/// The paths of algorithm 1 that every index has; the others are to compare it with other systems.
const USUAL_CHANGES: [usize; 4] = [1, 4, 5, 7];

/// Settings that are measured for k results on an index of so many lists. `trained` tells whether its codes are, and
/// `baselines` whether other systems are compared.
pub(crate) fn grid(k: u32, lists: u32, family: Option<&str>, (trained, baselines): (bool, bool)) -> Grid {
    let most = lists.clamp(1, MAX_PROBES);
    let efforts = || probes(most).into_iter().map(|effort| (effort, StopRule::by_slack(None, 0.0)));
    let changes = |path| match (baselines, USUAL_CHANGES.contains(&path)) {
        (true, _) => efforts().collect(),
        (false, true) => efforts().step_by(2).collect(),
        (false, false) => Vec::new(),
    };
    let paths = match family {
        None => if trained { &SHARES } else { &MARGINS }.settings(most),
        Some("static" | "code-lists") => vec![efforts().collect(); paths_within(k, CANDIDATES.len())],
        Some("changes") => (0..CHANGES.len()).map(changes).collect(),
        Some(_) => vec![efforts().collect()],
    };
    Grid { paths, ..Grid::default() }
}

impl Margins {
    /// The settings of each path, with at most so many lists.
    fn settings(&self, most: u32) -> Vec<Vec<(u32, StopRule)>> {
        let lists = |first: f32, step: i32| (first * LISTS_STEP.powi(step)).round().max(1.0) as u32;
        let path = |&(first, count): &(f32, usize)| {
            let steps = (0..).zip(self.margins).take(count);
            let setting = |(step, margin)| (lists(first, step).min(most), StopRule::by_margin(margin, 0.0));
            steps.map(setting).collect()
        };
        self.paths.iter().map(path).collect()
    }
}

/// Numbers of lists, each a half more than the last, up to a thousand.
fn probes(most: u32) -> Vec<u32> {
    let (mut all, mut effort) = (Vec::new(), 2u32);
    while effort < most && effort < 1000 {
        all.push(effort);
        effort += (effort / 2).max(1);
    }
    all.push(effort.min(most));
    all
}

/// Paths whose number of candidates is within the limit.
fn paths_within(k: u32, count: usize) -> usize {
    CANDIDATES[..count].iter().filter(|&&times| times * k as f32 <= MAX_CANDIDATES as f32).count().max(1)
}

/// The parameters of a point: its effort is the number of lists, its path tells the rest of another family.
pub(crate) fn params(k: u32, point: &Point, family: Option<&str>) -> Params {
    let mut params = Params::gpu_ivf(k, point.effort.min(MAX_PROBES));
    let KindParams::GpuIvf(own) = &mut params.kind else { return params };
    own.exact = point.is_exact();
    own.margin = point.stop.margin.unwrap_or(own.margin);
    own.candidates = point.candidates.unwrap_or(own.candidates).clamp(k, MAX_CANDIDATES);
    let Some(family) = family else { return params };
    set_family(family, own);
    let path = point.path.unwrap_or(0) as usize;
    let times = |times: f32| (times * k as f32).ceil() as u32;
    match (family, CANDIDATES.get(path), CHANGES.get(path)) {
        ("static" | "code-lists", Some(&candidates), _) => {
            own.candidates = times(candidates).clamp(k, MAX_CANDIDATES);
        }
        ("changes", _, Some(&(batch, epsilon, beta))) => {
            own.batch = times(batch).clamp(4, gpu_ivf::MAX_BATCH);
            (own.epsilon, own.beta) = (epsilon, beta);
        }
        _ => {}
    }
    params
}

/// Sets what all parameters of a family have in common.
fn set_family(name: &str, own: &mut gpu_ivf::Params) {
    #[cfg(feature = "lab")]
    baseline::family(name, own);
    #[cfg(not(feature = "lab"))]
    set_rule(name, own);
}

/// Refuses numbers of a rule that does not hold, or for candidates where there are none.
fn refuse_without_effect(own: &gpu_ivf::Params, switches: &GpuSwitches) -> Result<()> {
    let bad = |text: &str| Err(Error::bad_input(text));
    if own.rule != Rule::Changes && (switches.beta.is_some() || switches.epsilon_stop.is_some()) {
        return bad("--beta and --epsilon-stop belong to --rule changes; give it, or leave them out");
    }
    if own.rule != Rule::Margin && switches.margin.is_some() {
        return bad("--margin belongs to --rule margin; leave one of the two out");
    }
    #[cfg(feature = "lab")]
    if !baseline::has_candidates(own) && (switches.candidates.is_some() || switches.batch_size.is_some()) {
        return bad(
            "this way to search scores all members of lists; leave --candidates and --batch-size out",
        );
    }
    Ok(())
}

impl SearchParams for gpu_ivf::Params {
    fn setting(&self, k: u32) -> Setting {
        Setting::of_clusters(self.nprobe, k)
    }

    fn reported(&self) -> Vec<(&'static str, serde_json::Value)> {
        let mut all = vec![
            (Key::<SearchSettings>::nprobe, self.nprobe.into()),
            (Key::<GpuSwitches>::candidates, self.candidates.into()),
            (Key::<GpuSwitches>::batch_size, self.batch.into()),
            (Key::<GpuSwitches>::rule, self.rule.name().into()),
            ("merge", self.merge.into()),
            ("reuse", self.reuse.into()),
            (Key::<GpuSwitches>::whole_blocks, self.whole_blocks.into()),
        ];
        match self.rule {
            Rule::Static => {}
            Rule::Changes => all.extend([
                (Key::<GpuSwitches>::epsilon_stop, self.epsilon.into()),
                (Key::<GpuSwitches>::beta, self.beta.into()),
            ]),
            Rule::Margin => all.push((Key::<GpuSwitches>::margin, self.margin.into())),
        }
        if self.exact {
            all.push(("exact", true.into()));
        }
        all
    }

    fn apply_switches(&mut self, k: u32, switches: &Switches, _: Option<&str>) -> Result<()> {
        let switches: GpuSwitches = switches.own();
        switches.check_ranges()?;
        if switches.margin.is_some() {
            // What was enough with the margin of the curve need not be with another one.
            self.candidates = self.candidates.max(gpu_ivf::Params::new(k, self.nprobe).candidates);
        }
        if let Some(name) = switches.rule {
            self.rule = rule(name);
            self.whole_blocks = self.rule == Rule::Margin;
        }
        #[cfg(feature = "lab")]
        if let Some(baseline) = switches.baseline {
            Baseline::from(baseline).apply(self);
        }
        self.whole_blocks &= switches.whole_blocks;
        self.candidates = switches.candidates.unwrap_or(self.candidates).max(k);
        self.batch = switches.batch_size.unwrap_or(self.batch);
        self.epsilon = switches.epsilon_stop.unwrap_or(self.epsilon);
        self.beta = switches.beta.unwrap_or(self.beta);
        self.margin = switches.margin.unwrap_or(self.margin);
        refuse_without_effect(self, &switches)?;
        if self.is_valid(k) {
            Ok(())
        } else {
            Err(Error::bad_input(format!("-k {k} is too many for this search")))
        }
    }

    fn needed_candidates(&self, largest: &QueryStats) -> Option<u32> {
        let batches = u32::try_from(largest.mini_batches).unwrap_or(u32::MAX).saturating_add(1);
        (self.rule != Rule::Static && !self.exact)
            .then(|| batches.saturating_mul(self.batch).min(self.candidates))
    }

    fn with_setting(&self, setting: &Setting) -> Option<KindParams> {
        Some(KindParams::GpuIvf(gpu_ivf::Params { nprobe: setting.effort, ..*self }))
    }

    fn state_bytes(&self, _: u64) -> u64 {
        // Lists, their beam and its nodes; candidates as they come, as keys, and those that are scored; other vectors
        // of the blocks of a mini-batch.
        grown(self.nprobe.into(), 4 + 12 + 4)
            + grown(self.candidates.into(), 8 + 16 + 24 + 4)
            + grown(self.batch.into(), 16 * 40)
    }

    fn is_exact(&self) -> bool {
        self.exact
    }

    fn least_scanned(&self) -> Option<usize> {
        self.exact.then_some(1)
    }

    fn count_scan(&self, stats: &mut QueryStats) {
        stats.record_reads = stats.reads;
    }

    fn fit_to_k(&mut self, k: u32) {
        self.candidates = self.candidates.max(k);
    }

    fn reads_at_once(&self) -> u32 {
        self.batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn families() -> Vec<Option<&'static str>> {
        ["static", "changes", "lists", "code-lists"].map(Some).into_iter().chain([None]).collect()
    }

    #[test]
    fn all_points_of_all_families_are_valid() {
        for k in [1, 10, 100, 16_384] {
            for family in families() {
                let grid = grid(k, 9000, family, (false, true));
                let usual = super::grid(k, 9000, family, (false, false));
                let trained = super::grid(k, 9000, family, (true, false));
                assert_eq!(trained.paths == usual.paths, family.is_some());
                assert!(
                    usual.paths.iter().zip(&grid.paths).all(|(few, all)| few.iter().all(|p| all.contains(p)))
                );
                for (path, settings) in (0..).zip(&grid.paths) {
                    for &(effort, stop) in settings {
                        let point = Point { effort, stop, path: Some(path), ..Point::default() };
                        let params = params(k, &point, family);
                        assert!(params.is_valid(), "{k} {family:?} {params:?}");
                    }
                }
            }
            assert!(params(k, &Point::EXACT, None).is_valid());
        }
        assert_eq!(probes(1), [1]);
        assert!(probes(300).is_sorted() && *probes(300).last().unwrap() <= 300);
    }
}
