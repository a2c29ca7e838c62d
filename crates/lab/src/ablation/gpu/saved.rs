//! Reads of re-ranking that a rule and shared blocks save (figure 12c), and settings of algorithm 1.

use serde::Serialize;
use stratann_storage::Result;

use super::settings::{Chosen, Family, Search, Setting, Tried};

/// Settings of the sweep: candidates of a mini-batch for each result, ε, β.
const BATCHES: [f32; 4] = [0.4, 0.8, 1.6, 3.2];
const EPSILONS: [f32; 4] = [0.0, 0.1, 0.2, 0.4];
const BETAS: [u32; 3] = [1, 2, 4];

/// Savings of a rule at a recall, beside the smallest fixed number of candidates that is no worse with equal lists.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Saved {
    pub(super) rule: &'static str,
    pub(super) asked: f64,
    pub(super) recall: f64,
    pub(super) setting: Setting,
    /// The smallest fixed number of candidates that reaches the recall of the rule; `None` where none does.
    pub(super) static_n: Option<u32>,
    pub(super) static_recall: Option<f64>,
    /// Reads of the fixed number where each candidate has its own.
    pub(super) static_reads: f64,
    /// Candidates that the rule re-ranks: its reads where each candidate has its own.
    pub(super) candidates: f64,
    /// Reads that are made.
    pub(super) reads: f64,
    /// Reads of `static_reads` that are saved: by the rule, by shared blocks, and by both.
    pub(super) saved_by_rule: f64,
    pub(super) saved_by_sharing: f64,
    pub(super) saved: f64,
    /// The rule: of the reads of the fixed number. Shared blocks: of the candidates that are left.
    pub(super) share_by_rule: f64,
    pub(super) share_by_sharing: f64,
    pub(super) share: f64,
}

impl Saved {
    fn of(rule: &'static str, asked: f64, tried: &Tried, fixed: Option<Tried>) -> Saved {
        let candidates = tried.reads + tried.shared;
        let static_reads = fixed.map_or(candidates, |fixed| fixed.reads + fixed.shared);
        let (by_rule, by_sharing) = (static_reads - candidates, candidates - tried.reads);
        let share = |part: f64, of: f64| if of > 0.0 { part / of } else { 0.0 };
        Saved {
            rule,
            asked,
            recall: tried.recall,
            setting: tried.setting,
            static_n: fixed.and_then(|fixed| fixed.setting.candidates),
            static_recall: fixed.map(|fixed| fixed.recall),
            static_reads,
            candidates,
            reads: tried.reads,
            saved_by_rule: by_rule,
            saved_by_sharing: by_sharing,
            saved: by_rule + by_sharing,
            share_by_rule: share(by_rule, static_reads),
            share_by_sharing: share(by_sharing, candidates),
            share: share(by_rule + by_sharing, static_reads),
        }
    }
}

/// Shares that a rule saves: the best over the recalls, and the mean.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SavedMean {
    pub(super) rule: &'static str,
    /// The recall where the rule saves most, and what it saves there.
    pub(super) best_at: f64,
    pub(super) best_by_rule: f64,
    pub(super) mean_by_rule: f64,
    /// The same of shared blocks.
    pub(super) best_sharing_at: f64,
    pub(super) best_by_sharing: f64,
    pub(super) mean_by_sharing: f64,
    pub(super) mean: f64,
}

impl SavedMean {
    /// Means for each rule.
    pub(super) fn of(all: &[Saved]) -> Vec<SavedMean> {
        let mut rules: Vec<&'static str> = all.iter().map(|saved| saved.rule).collect();
        rules.sort_unstable();
        rules.dedup();
        let summary = |rule: &'static str| {
            let own: Vec<&Saved> = all.iter().filter(|saved| saved.rule == rule).collect();
            let mean =
                |of: fn(&Saved) -> f64| own.iter().map(|s| of(s)).sum::<f64>() / own.len().max(1) as f64;
            let best = |of: fn(&Saved) -> f64| {
                let most = own.iter().max_by(|a, b| of(a).total_cmp(&of(b)));
                most.map_or((0.0, 0.0), |saved| (saved.asked, of(saved)))
            };
            let (best_at, best_by_rule) = best(|saved| saved.share_by_rule);
            let (best_sharing_at, best_by_sharing) = best(|saved| saved.share_by_sharing);
            SavedMean {
                rule,
                best_at,
                best_by_rule,
                mean_by_rule: mean(|saved| saved.share_by_rule),
                best_sharing_at,
                best_by_sharing,
                mean_by_sharing: mean(|saved| saved.share_by_sharing),
                mean: mean(|saved| saved.share),
            }
        };
        rules.into_iter().map(summary).collect()
    }
}

/// A setting of algorithm 1.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Swept {
    #[serde(flatten)]
    pub(super) tried: Tried,
    /// Candidates that are re-ranked.
    pub(super) candidates: f64,
}

impl Search<'_, '_> {
    /// Savings of both rules at all recalls.
    pub(super) fn saved(&self, chosen: &Chosen) -> Result<Vec<Saved>> {
        let mut all = Vec::new();
        for family in [Family::Changes, Family::Margin] {
            for choice in chosen.all(family) {
                let (tried, nprobe) = (&choice.tried, choice.tried.setting.nprobe);
                let fixed = self.smallest_fixed(Family::Static, nprobe, tried.recall)?;
                all.push(Saved::of(family.name(), choice.asked, tried, fixed));
            }
        }
        Ok(all)
    }

    /// All settings of algorithm 1, with the lists that are cheapest at the highest recall.
    pub(super) fn sweep(&self, chosen: &Chosen) -> Result<Vec<Swept>> {
        let nprobe = chosen.last(Family::Changes)?.tried.setting.nprobe;
        let mut all = Vec::new();
        for batch in BATCHES {
            for epsilon in EPSILONS {
                for beta in BETAS {
                    let setting = self.by_changes(nprobe, batch, epsilon, beta);
                    let tried = self.tried(Family::Changes, setting)?;
                    all.push(Swept { candidates: tried.reads + tried.shared, tried });
                }
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_adds_up() {
        let tried = |setting, reads, shared| Tried { setting, recall: 0.9, reads, shared, codes: 0.0 };
        let fixed = tried(Setting::fixed(8, 40), 30.0, 10.0);
        let saved = Saved::of("changes", 0.9, &tried(Setting::lists(8), 15.0, 5.0), Some(fixed));
        assert_eq!((saved.static_n, saved.static_reads, saved.candidates), (Some(40), 40.0, 20.0));
        assert_eq!((saved.saved_by_rule, saved.saved_by_sharing, saved.saved), (20.0, 5.0, 25.0));
        assert_eq!((saved.share_by_rule, saved.share_by_sharing, saved.share), (0.5, 0.25, 0.625));
        let [mean] = &SavedMean::of(&[saved])[..] else { panic!("one rule") };
        assert_eq!((mean.best_at, mean.mean_by_rule, mean.mean), (0.9, 0.5, 0.625));
    }
}
