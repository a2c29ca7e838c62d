//! The cheapest setting of each family of ways that reaches a recall, by exact counters.

use std::cell::RefCell;
use std::collections::HashMap;
use stratann_params::search::GpuSwitches;

use serde::Serialize;
use stratann_core::kinds::gpu_ivf::{MAX_BATCH, MAX_CANDIDATES, MAX_PROBES};
use stratann_engine::kinds::gpu_ivf::baseline::Baseline;
use stratann_storage::{Error, Progress, Result};

use super::Bench;
use super::ways::Way;

/// Lists over the fewest that hold enough neighbours.
const MORE_LISTS: [f64; 6] = [1.0, 1.2, 1.5, 2.0, 2.75, 4.0];
/// Candidates of a mini-batch for each result, ε and β.
const BATCHES: [f32; 3] = [0.4, 0.8, 1.6];
const EPSILONS: [f32; 3] = [0.0, 0.1, 0.2];
const BETAS: [u32; 3] = [1, 2, 3];
/// Settings of algorithm 1 whose lists are sought one by one, and the lists that they are chosen with.
const FINALISTS: usize = 6;
const FIRST_LISTS: f64 = 1.75;
/// Margins in standard errors, in steps. With the last one no candidate is left out.
const MARGIN_LEAST: f32 = -1.0;
const MARGIN_STEP: f32 = 0.125;
const MARGIN_STEPS: u32 = 64;
/// Most candidates for each result.
const CANDIDATES: u32 = 100;

/// Ways that give equal answers with equal settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Family {
    /// The default: re-ranking ends by the code distance of the next candidate.
    Margin,
    /// Algorithm 1.
    Changes,
    /// A fixed number of candidates.
    Static,
    /// Lists of vectors, all of whose members are scored.
    Lists,
    /// Lists of codes, and a fixed number of candidates.
    CodeLists,
}

impl Family {
    pub(super) const ALL: [Family; 5] =
        [Family::Lists, Family::Static, Family::CodeLists, Family::Changes, Family::Margin];

    pub(super) fn of(baseline: Baseline) -> Family {
        match baseline {
            Baseline::Spann | Baseline::SpannOnGpu | Baseline::Rummy => Family::Lists,
            Baseline::ListsOfCodes | Baseline::ListsOfCodesOnGpu => Family::CodeLists,
            Baseline::MultiTierOnCpu | Baseline::MultiTierOnGpu | Baseline::StaticCandidates => {
                Family::Static
            }
            Baseline::NoDeduplication | Baseline::NoLayout => Family::Changes,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Family::Margin => "margin",
            Family::Changes => "changes",
            Family::Static => "static",
            Family::Lists => "lists",
            Family::CodeLists => "code-lists",
        }
    }
}

/// Numbers of a search. Those that its family does not use are `None`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Setting {
    pub(super) nprobe: u32,
    pub(super) candidates: Option<u32>,
    pub(super) batch: Option<u32>,
    pub(super) epsilon: Option<f32>,
    pub(super) beta: Option<u32>,
    pub(super) margin: Option<f32>,
}

impl Setting {
    /// Lists alone.
    pub(super) fn lists(nprobe: u32) -> Setting {
        Setting { nprobe, candidates: None, batch: None, epsilon: None, beta: None, margin: None }
    }

    /// A fixed number of candidates.
    pub(super) fn fixed(nprobe: u32, candidates: u32) -> Setting {
        Setting { candidates: Some(candidates), ..Setting::lists(nprobe) }
    }

    /// The switches of a way with these numbers.
    pub(super) fn switches(&self, way: &Way) -> GpuSwitches {
        GpuSwitches {
            candidates: self.candidates,
            batch_size: self.batch,
            epsilon_stop: self.epsilon,
            beta: self.beta,
            margin: self.margin,
            ..way.switches()
        }
    }

    fn key(&self) -> [u32; 6] {
        let bits = |share: Option<f32>| share.map_or(u32::MAX, f32::to_bits);
        let number = |n: Option<u32>| n.unwrap_or(u32::MAX);
        let [candidates, batch, beta] = [self.candidates, self.batch, self.beta].map(number);
        [self.nprobe, candidates, batch, beta, bits(self.epsilon), bits(self.margin)]
    }
}

/// Recall of a setting, and its cost for a query.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Tried {
    pub(super) setting: Setting,
    pub(super) recall: f64,
    /// Reads that were asked for.
    pub(super) reads: f64,
    /// Candidates that needed no read of their own: their block was read for another one.
    pub(super) shared: f64,
    pub(super) codes: f64,
}

/// The cheapest setting of a family at a recall.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub(super) family: Family,
    pub(super) asked: f64,
    pub(super) tried: Tried,
}

/// The cheapest settings of all families at all recalls.
pub(super) struct Chosen(Vec<Choice>);

impl Chosen {
    pub(super) fn all(&self, family: Family) -> impl Iterator<Item = &Choice> {
        self.0.iter().filter(move |choice| choice.family == family)
    }

    /// Choice at the highest recall.
    pub(super) fn last(&self, family: Family) -> Result<&Choice> {
        self.all(family).last().ok_or_else(|| {
            Error::bad_input(format!("no setting of {} reaches a --recall; give a lower one", family.name()))
        })
    }
}

/// Tries settings, each once.
pub(super) struct Search<'b, 'a> {
    pub(super) bench: &'b Bench<'a>,
    known: RefCell<HashMap<(Family, [u32; 6]), Tried>>,
}

impl<'a> Bench<'a> {
    pub(super) fn search(&self) -> Search<'_, 'a> {
        Search { bench: self, known: RefCell::default() }
    }
}

impl Search<'_, '_> {
    /// Runs all queries with a setting.
    pub(super) fn tried(&self, family: Family, setting: Setting) -> Result<Tried> {
        let key = (family, setting.key());
        if let Some(known) = self.known.borrow().get(&key) {
            return Ok(*known);
        }
        let bench = self.bench;
        let options = bench.options(&Way::of_family(family), &setting, bench.args.threads());
        let answers = bench.run(&bench.rows, &options)?;
        let each = |sum: u64| sum as f64 / answers.latency_ns.len().max(1) as f64;
        let stats = &answers.stats;
        let tried = Tried {
            setting,
            recall: bench.recall(&answers),
            reads: each(stats.reads_asked()),
            shared: each(stats.reads_saved_in_batch + stats.reads_saved_across),
            codes: each(stats.code_comparisons),
        };
        self.known.borrow_mut().insert(key, tried);
        Ok(tried)
    }

    fn cost(&self, tried: &Tried) -> f64 {
        tried.reads + tried.codes / self.bench.codes_per_read()
    }

    fn cheapest(&self, all: Vec<Tried>, asked: f64) -> Option<Tried> {
        let enough = all.into_iter().filter(|tried| tried.recall >= asked);
        enough.min_by(|a, b| self.cost(a).total_cmp(&self.cost(b)))
    }

    /// All families at all recalls.
    pub(super) fn all(&self, recalls: &[f64]) -> Result<Chosen> {
        let mut chosen = Vec::new();
        for &asked in recalls {
            self.bench.printer.stage(&format!("cheapest settings at a recall of {asked}"), 0, "queries");
            let first = self.fewest_lists(asked)?;
            for family in Family::ALL {
                let found = match family {
                    Family::Lists => Some(self.tried(family, Setting::lists(first))?),
                    Family::Static | Family::CodeLists => self.fixed(family, first, asked)?,
                    Family::Changes => self.changes(first, asked)?,
                    Family::Margin => self.margins(first, asked)?,
                };
                // A family that does not reach the recall with any setting has no row there.
                chosen.extend(found.map(|tried| Choice { family, asked, tried }));
            }
        }
        Ok(Chosen(chosen))
    }

    fn most_lists(&self) -> u32 {
        self.bench.index.view().size().clusters.clamp(1, MAX_PROBES)
    }

    fn most_candidates(&self) -> u32 {
        self.bench.k().saturating_mul(CANDIDATES).min(MAX_CANDIDATES)
    }

    /// The fewest lists that hold enough of the neighbours. No way to search them finds more.
    fn fewest_lists(&self, asked: f64) -> Result<u32> {
        let most = self.most_lists();
        let is_enough = |nprobe| Ok(self.tried(Family::Lists, Setting::lists(nprobe))?.recall >= asked);
        smallest(1, most, is_enough)?.ok_or_else(|| {
            Error::bad_input(format!("{most} lists do not reach a recall of {asked}; give a lower --recall"))
        })
    }

    fn more_lists(&self, first: u32) -> Vec<u32> {
        let times = |times: f64| ((f64::from(first) * times).round() as u32).min(self.most_lists());
        let mut all: Vec<u32> = MORE_LISTS.map(times).to_vec();
        all.dedup();
        all
    }

    /// The smallest fixed number of candidates that reaches a recall with these lists.
    pub(super) fn smallest_fixed(&self, family: Family, nprobe: u32, asked: f64) -> Result<Option<Tried>> {
        let is_enough = |n| Ok(self.tried(family, Setting::fixed(nprobe, n))?.recall >= asked);
        let found = smallest(self.bench.k(), self.most_candidates(), is_enough)?;
        found.map(|n| self.tried(family, Setting::fixed(nprobe, n))).transpose()
    }

    fn fixed(&self, family: Family, first: u32, asked: f64) -> Result<Option<Tried>> {
        let mut all = Vec::new();
        for nprobe in self.more_lists(first) {
            all.extend(self.smallest_fixed(family, nprobe, asked)?);
        }
        Ok(self.cheapest(all, asked))
    }

    fn changes(&self, first: u32, asked: f64) -> Result<Option<Tried>> {
        let most = self.most_lists();
        let usual = ((f64::from(first) * FIRST_LISTS).round() as u32).min(most);
        let mut all = Vec::new();
        for batch in BATCHES {
            for epsilon in EPSILONS {
                for beta in BETAS {
                    all.push(self.tried(Family::Changes, self.by_changes(usual, batch, epsilon, beta))?);
                }
            }
        }
        // Some that miss a little more here get by with more lists.
        let slack = (1.0 - asked) / 2.0;
        all.retain(|tried| tried.recall >= asked - slack);
        all.sort_by(|a, b| self.cost(a).total_cmp(&self.cost(b)));
        all.truncate(FINALISTS);
        let last = usual.saturating_mul(3).min(most);
        let mut found = Vec::new();
        for tried in all {
            let at = |nprobe| self.tried(Family::Changes, Setting { nprobe, ..tried.setting });
            if let Some(nprobe) = smallest(first, last, |n| Ok(at(n)?.recall >= asked))? {
                found.push(at(nprobe)?);
            }
        }
        Ok(self.cheapest(found, asked))
    }

    /// A setting of algorithm 1, with candidates of a mini-batch for each result.
    pub(super) fn by_changes(&self, nprobe: u32, batch: f32, epsilon: f32, beta: u32) -> Setting {
        Setting {
            candidates: Some(self.most_candidates()),
            batch: Some(self.batch(batch)),
            epsilon: Some(epsilon),
            beta: Some(beta),
            ..Setting::lists(nprobe)
        }
    }

    fn batch(&self, times: f32) -> u32 {
        ((times * self.bench.k() as f32).ceil() as u32).clamp(1, MAX_BATCH)
    }

    fn margins(&self, first: u32, asked: f64) -> Result<Option<Tried>> {
        let mut all = Vec::new();
        for nprobe in self.more_lists(first) {
            for times in BATCHES {
                let at = |step: u32| {
                    let setting = Setting {
                        batch: Some(self.batch(times)),
                        margin: Some(MARGIN_LEAST + MARGIN_STEP * step as f32),
                        candidates: Some(self.most_candidates()),
                        ..Setting::lists(nprobe)
                    };
                    self.tried(Family::Margin, setting)
                };
                if let Some(step) = smallest(0, MARGIN_STEPS, |step| Ok(at(step)?.recall >= asked))? {
                    all.push(at(step)?);
                }
            }
        }
        Ok(self.cheapest(all, asked))
    }
}

/// The smallest number that is enough, where all larger ones are; `None` where the largest is not. Small numbers are
/// tried first: they are cheap.
fn smallest(low: u32, high: u32, is_enough: impl Fn(u32) -> Result<bool>) -> Result<Option<u32>> {
    let (mut low, mut step, mut top) = (low, 1u32, low);
    while !is_enough(top)? {
        if top >= high {
            return Ok(None);
        }
        low = top + 1;
        top = top.saturating_add(step).min(high);
        step = step.saturating_mul(2);
    }
    while low < top {
        let middle = low + (top - low) / 2;
        if is_enough(middle)? {
            top = middle;
        } else {
            low = middle + 1;
        }
    }
    Ok(Some(top))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_number_is_found() {
        for wanted in 3..40 {
            assert_eq!(smallest(3, 39, |n| Ok(n >= wanted)).unwrap(), Some(wanted));
        }
        assert_eq!(smallest(3, 39, |_| Ok(false)).unwrap(), None);
        assert_eq!(smallest(3, 3, |_| Ok(true)).unwrap(), Some(3));
    }

    #[test]
    fn settings_have_keys_of_their_own() {
        let all = [
            Setting::lists(4),
            Setting::fixed(4, 20),
            Setting { epsilon: Some(0.1), ..Setting::fixed(4, 20) },
            Setting { margin: Some(0.1), ..Setting::fixed(4, 20) },
        ];
        for (at, setting) in all.iter().enumerate() {
            assert_eq!(all.iter().position(|other| other.key() == setting.key()), Some(at));
        }
    }
}
