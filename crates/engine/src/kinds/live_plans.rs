//! Plans of searches among the rows that are left where some are deleted. The rows are the same as long as the version
//! is open, so a plan is made once for the searches that would get equal ones.

use std::sync::{Mutex, MutexGuard};

use stratann_core::query::Params;
use stratann_storage::Result;

use super::answers::SievePlan;

/// Plans that are kept. A server has a few settings in use; the plan that was made first makes room.
const PLANS_MAX: usize = 16;

/// All that a plan among given rows follows from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PlannedSearch {
    /// The search without a sieve.
    pub(crate) usual: Params,
    /// Recall that was asked for; `None` where an effort was.
    pub(crate) recall: Option<f64>,
    /// Whether it needs no reads, which has curves of its own.
    pub(crate) is_resident: bool,
}

/// Plans by what they follow from.
#[derive(Debug, Default)]
pub(crate) struct LivePlans {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    plans: Vec<(PlannedSearch, SievePlan)>,
    /// Plans that were made.
    made: u64,
}

impl LivePlans {
    /// The plan of a search: what is kept, or what `plan` makes. It is made without a lock, so two threads may both
    /// make the first; they are equal.
    pub(crate) fn get_or_plan(
        &self,
        asked: PlannedSearch,
        plan: impl FnOnce() -> Result<SievePlan>,
    ) -> Result<SievePlan> {
        if let Some((_, kept)) = self.lock().plans.iter().find(|(own, _)| *own == asked) {
            return Ok(*kept);
        }
        let made = plan()?;
        let mut kept = self.lock();
        kept.made += 1;
        if kept.plans.len() >= PLANS_MAX {
            kept.plans.remove(0);
        }
        kept.plans.push((asked, made));
        Ok(made)
    }

    /// Plans that were made since the version was opened.
    pub(crate) fn made(&self) -> u64 {
        self.lock().made
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use stratann_storage::Error;

    use super::*;
    use crate::sieve_ways::SieveWay;

    fn asked(k: u32, recall: f64, is_resident: bool) -> PlannedSearch {
        PlannedSearch { usual: Params::flat(k), recall: Some(recall), is_resident }
    }

    fn plan(k: u32) -> SievePlan {
        SievePlan { way: SieveWay::Exact, params: Params::flat(k), more_bytes: k.into(), prices: None }
    }

    #[test]
    fn each_search_has_its_own_plan_and_few_are_kept() {
        let plans = LivePlans::default();
        let get = |asked: PlannedSearch, k| plans.get_or_plan(asked, || Ok(plan(k))).unwrap().more_bytes;
        assert_eq!([get(asked(1, 0.9, false), 1), get(asked(1, 0.9, false), 2)], [1, 1]);
        assert_eq!(get(asked(1, 0.95, false), 3), 3);
        assert_eq!(get(asked(1, 0.9, true), 4), 4);
        assert_eq!(get(asked(2, 0.9, false), 5), 5);
        assert_eq!(plans.made(), 4);
        for k in 10..10 + PLANS_MAX as u32 {
            get(asked(k, 0.9, false), k);
        }
        assert_eq!(plans.lock().plans.len(), PLANS_MAX);
        assert_eq!(get(asked(1, 0.9, false), 6), 6, "the first made room");
        let failed = plans.get_or_plan(asked(99, 0.9, false), || Err(Error::bad_input("no")));
        assert!(failed.is_err() && get(asked(99, 0.9, false), 7) == 7, "a refusal is not kept");
    }
}
