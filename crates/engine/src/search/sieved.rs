//! Filters of a search: the rows that its queries may return, and how they are found.

mod by_ids;
mod by_rows;
mod work;

use std::sync::Arc;

use stratann_core::query::Params;
use stratann_core::sieve::{IdSieve, Sieve};
use stratann_storage::{Error, Progress, Quiet, Result};

use super::run::Call;
use super::waves::Wave;
use super::{Answers, Effort, Purpose, SearchOptions};
use crate::curve::{self, Aim};
use crate::exec::Snapshot;
use crate::files;
use crate::index::{Index, LeftRows, RowIds};
use crate::kinds;
use crate::kinds::answers::{SievePlan, SievedQuery};
use crate::kinds::live_plans::PlannedSearch;
use crate::manifest::Manifest;
use crate::sieve_ways::{SievePrices, SieveWay};

/// Whether a filter names the rows that may be returned, or those that may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// Rows that may be returned.
    Only,
    /// Rows that may not.
    Without,
}

impl Naming {
    /// The rows of a set with these numbers, or all others. Numbers beyond the set are ignored.
    ///
    /// # Errors
    /// More rows than one index has.
    pub fn rows(self, numbers: &[u64], rows: u64) -> Result<Sieve> {
        let too_many =
            || Error::bad_input(format!("{rows} rows are too many for a filter; at most {}", u32::MAX));
        let rows = u32::try_from(rows).map_err(|_| too_many())?;
        let mut numbers: Vec<u32> =
            numbers.iter().filter_map(|&id| u32::try_from(id).ok()).filter(|&id| id < rows).collect();
        numbers.sort_unstable();
        numbers.dedup();
        self.sieve(rows, &numbers).ok_or_else(too_many)
    }

    /// The sieve of the named rows, which ascend, or of all others; `None` where they do not ascend.
    fn sieve(self, rows: u32, named: &[u32]) -> Option<Sieve> {
        let named = Sieve::from_sorted(rows, named)?;
        Some(if self == Naming::Only { named } else { named.complement() })
    }
}

/// The rows that queries may return, and the way to find them.
#[derive(Clone, Debug)]
pub struct Filter {
    matches: Matches,
    plan: SievePlan,
    /// Ids that no row of the index has; `None` where that is not known.
    unknown: Option<usize>,
    /// Ids that were named more than once.
    repeated: usize,
}

/// The rows of a filter.
#[derive(Clone, Debug)]
enum Matches {
    /// By their numbers.
    Rows(Arc<Sieve>),
    /// By their ids, of an index in memory nodes.
    Ids(Arc<IdSieve>),
}

/// The ids, each once and ascending, and how many were named again.
fn sorted(ids: &[u64]) -> (Vec<u64>, usize) {
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let repeated = ids.len() - sorted.len();
    (sorted, repeated)
}

impl Filter {
    /// Rows that may be returned, see [`Filter::is_exact`].
    pub fn matches(&self) -> u32 {
        match &self.matches {
            Matches::Rows(rows) => rows.count(),
            Matches::Ids(ids) => u32::try_from(ids.matches()).unwrap_or(u32::MAX),
        }
    }

    /// Whether [`Filter::matches`] is exact. Of an index in memory nodes it is the number of ids that were named, or of
    /// all rows less these: ids that no row has are counted too.
    pub fn is_exact(&self) -> bool {
        matches!(self.matches, Matches::Rows(_))
    }

    /// Results that a query for k can have at least.
    pub(super) fn results_min(&self, k: u32) -> u32 {
        // One with fewer has read all clusters.
        if self.is_exact() { self.matches().min(k) } else { 0 }
    }

    /// Whether it was made of an index like this one.
    pub(crate) fn is_of(&self, index: &Index) -> bool {
        match &self.matches {
            Matches::Rows(rows) => {
                u64::from(rows.rows()) == index.base.manifest.rows && !index.is_in_memory_nodes()
            }
            Matches::Ids(_) => index.is_in_memory_nodes(),
        }
    }

    /// How they are found.
    pub fn way(&self) -> SieveWay {
        self.plan.way
    }

    /// What the ways were compared by.
    pub fn prices(&self) -> Option<SievePrices> {
        self.plan.prices
    }

    /// Ids that no row of the index has; they are ignored. `None` of an index in memory nodes, which does not tell.
    pub fn unknown(&self) -> Option<usize> {
        self.unknown
    }

    /// Ids that were named again; they count once.
    pub fn repeated(&self) -> usize {
        self.repeated
    }

    /// Memory, bytes.
    pub fn bytes(&self) -> u64 {
        match &self.matches {
            Matches::Rows(rows) => (rows.bytes() + size_of::<Filter>()) as u64,
            Matches::Ids(ids) => (ids.bytes() + size_of::<Filter>()) as u64,
        }
    }

    /// The rows by their numbers, where they have some.
    pub(crate) fn sieve(&self) -> Option<&Arc<Sieve>> {
        if let Matches::Rows(rows) = &self.matches { Some(rows) } else { None }
    }

    /// What a query with this filter sees, of what its batch does.
    pub(crate) fn seen(&self, batch: Arc<dyn Snapshot>) -> Arc<dyn Snapshot> {
        match &self.matches {
            Matches::Rows(_) => batch,
            Matches::Ids(ids) => kinds::sieved(batch, ids.clone()),
        }
    }

    pub(crate) fn params(&self) -> Params {
        self.plan.params
    }

    /// Bytes that a query may take beyond what its parameters tell.
    pub(crate) fn more_bytes(&self) -> u64 {
        self.plan.more_bytes
    }
}

/// The rows that ids name.
pub(crate) struct Named {
    pub(crate) rows: Sieve,
    /// Ids without a row.
    pub(crate) unknown: usize,
    /// Ids that were named more than once.
    pub(crate) repeated: usize,
}

/// The filters of the queries of a call.
#[derive(Clone, Copy, Debug, Default)]
pub enum Filters<'a> {
    /// Every row may be returned.
    #[default]
    None,
    /// One for all queries.
    Shared(&'a Filter),
    /// One for each.
    Each(&'a [Filter]),
}

impl<'a> Filters<'a> {
    /// The filter of a query.
    pub(super) fn of(&self, query: usize) -> Option<&'a Filter> {
        match *self {
            Filters::None => None,
            Filters::Shared(filter) => Some(filter),
            Filters::Each(filters) => filters.get(query),
        }
    }

    /// The filter that all queries share.
    pub(super) fn shared(&self) -> Option<&'a Filter> {
        if let Filters::Shared(filter) = *self { Some(filter) } else { None }
    }

    /// All filters.
    pub(super) fn all(&self) -> &'a [Filter] {
        match *self {
            Filters::None => &[],
            Filters::Shared(filter) => std::slice::from_ref(filter),
            Filters::Each(filters) => filters,
        }
    }

    /// Memory of all of them, bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.all().iter().map(Filter::bytes).sum()
    }

    /// Bytes that the largest query with a filter takes beyond one with `params`.
    pub(super) fn more_bytes(&self, params: &Params) -> u64 {
        let bytes = |filter: &Filter| kinds::state_bytes(&filter.params()) + filter.more_bytes();
        let largest = self.all().iter().map(bytes).max().unwrap_or(0);
        largest.saturating_sub(kinds::state_bytes(params))
    }
}

impl Index {
    /// Makes a filter of external ids, in any order, for searches with these options. Ids that no row has are counted
    /// and ignored.
    ///
    /// # Errors
    /// A kind or a place of the index whose searches take no filters; a RAM budget without room for the ids; rows that
    /// cannot be read; an interruption; bad options.
    pub fn filter(
        &self,
        ids: &[u64],
        naming: Naming,
        options: &SearchOptions,
        progress: &dyn Progress,
    ) -> Result<Filter> {
        if self.is_in_memory_nodes() {
            return self.filter_by_ids(ids, naming, options);
        }
        let live = self.base.live.as_deref();
        let Named { rows, unknown, repeated } = self.named(ids, live, progress)?;
        let sieve = if naming == Naming::Only { rows } else { rows.complement() };
        let sieve = Arc::new(live.map_or(sieve.clone(), |live| sieve.intersection(live)));
        let plan = self.plan_sieve(&sieve, options)?;
        Ok(Filter { matches: Matches::Rows(sieve), plan, unknown: Some(unknown), repeated })
    }

    /// The rows with these ids, in any order, of those in `live`.
    ///
    /// # Errors
    /// As [`Index::filter`].
    pub(crate) fn named(&self, ids: &[u64], live: Option<&Sieve>, progress: &dyn Progress) -> Result<Named> {
        self.check_filters()?;
        let row_ids = self.row_ids(progress)?;
        self.check_room(Self::sieve_bytes_max(&self.base.manifest, ids.len()))?;
        let (ids, repeated) = sorted(ids);
        let mut rows = Vec::with_capacity(ids.len());
        let mut is_unknown = |id: u64| {
            let first = rows.len();
            row_ids.rows_of(id, &mut rows);
            let (mut kept, all) = (first, rows.len());
            for at in first..all {
                if live.is_none_or(|live| live.has(rows[at])) {
                    rows[kept] = rows[at];
                    kept += 1;
                }
            }
            rows.truncate(kept);
            kept == first
        };
        let unknown = ids.iter().filter(|&&id| is_unknown(id)).count();
        rows.sort_unstable();
        let rows = Sieve::from_sorted(self.base.manifest.rows as u32, &rows).ok_or_else(|| {
            Error::corrupt(format!("{}: two rows have one place", self.base.folder.display()))
        })?;
        Ok(Named { rows, unknown, repeated })
    }

    /// The rows that are left where some are deleted, as a filter of searches with these options.
    ///
    /// # Errors
    /// Bad options.
    pub(crate) fn live_filter(&self, options: &SearchOptions) -> Result<Option<Filter>> {
        let Some(sieve) = self.base.live.clone() else { return Ok(None) };
        let asked = PlannedSearch {
            usual: self.params_of_search(options)?,
            recall: options.recall(),
            is_resident: self.is_resident(),
        };
        let plan = self.live_plans.get_or_plan(asked, || self.plan_sieve(&sieve, options))?;
        Ok(Some(Filter { matches: Matches::Rows(sieve), plan, unknown: Some(0), repeated: 0 }))
    }

    /// A filter of these rows for searches with these options; `None` where all are left.
    ///
    /// # Errors
    /// Bad options; a kind whose searches take no filter.
    pub fn filter_of(&self, left: &LeftRows, options: &SearchOptions) -> Result<Option<Filter>> {
        let sieve = left.rows();
        if sieve.count() == sieve.rows() {
            return Ok(None);
        }
        let asked = PlannedSearch {
            usual: self.params_of_search(options)?,
            recall: options.recall(),
            is_resident: self.is_resident(),
        };
        let plan = left.plans().get_or_plan(asked, || self.plan_sieve(sieve, options))?;
        Ok(Some(Filter { matches: Matches::Rows(sieve.clone()), plan, unknown: Some(0), repeated: 0 }))
    }

    /// The parameters of a search without a filter: where rows are deleted, it passes over these.
    ///
    /// # Errors
    /// As [`Index::params`].
    pub(crate) fn live_params(&self, options: &SearchOptions) -> Result<Params> {
        self.live_filter(options)?.map_or_else(|| self.params(options), |filter| Ok(filter.params()))
    }

    /// A filter of these rows whose queries go this way, whatever it costs: to compare ways.
    ///
    /// # Errors
    /// As [`Index::filter_of`]; `BadInput` for a way that the kind does not have for these rows.
    pub fn filter_by_way(&self, left: &LeftRows, options: &SearchOptions, way: SieveWay) -> Result<Filter> {
        let plan = self.plan_way(left.rows(), options, Some(way))?;
        Ok(Filter { matches: Matches::Rows(left.rows().clone()), plan, unknown: Some(0), repeated: 0 })
    }

    /// The rows of a filter of this index, for searches with other options.
    ///
    /// # Errors
    /// Bad options.
    pub fn filter_for(&self, filter: &Filter, options: &SearchOptions) -> Result<Filter> {
        let plan = match &filter.matches {
            Matches::Rows(sieve) => self.plan_sieve(sieve, options)?,
            Matches::Ids(ids) => self.plan_ids(ids, options)?,
        };
        Ok(Filter { plan, ..filter.clone() })
    }

    /// Makes filters, one for each list of ids, as [`Index::filter`] does.
    ///
    /// # Errors
    /// As [`Index::filter`]; a RAM budget without room for all of them.
    pub fn filters(
        &self,
        ids: &[&[u64]],
        naming: Naming,
        options: &SearchOptions,
        progress: &dyn Progress,
    ) -> Result<Vec<Filter>> {
        let (mut all, mut bytes) = (Vec::with_capacity(ids.len()), 0);
        for ids in ids {
            let filter = self.filter(ids, naming, options, progress)?;
            bytes += filter.bytes();
            self.check_room(bytes)?;
            all.push(filter);
        }
        Ok(all)
    }

    /// Refuses filters that the RAM budget has no room for beside the open index.
    fn check_room(&self, bytes: u64) -> Result<()> {
        let mut account = self.account();
        account.add("filters", bytes);
        account.check(self.ram_budget, "search this index with such filters")
    }

    /// Whether the ids of the index are the numbers of its rows, so that a mask over rows names ids.
    ///
    /// # Errors
    /// As [`Index::filter`].
    pub fn has_row_numbers(&self, progress: &dyn Progress) -> Result<bool> {
        self.check_filters()?;
        Ok(!self.is_in_memory_nodes() && self.row_ids(progress)?.are_numbers())
    }

    /// Whether a filter of this index has a row with this id.
    pub fn matches(&self, filter: &Filter, id: u64) -> bool {
        let sieve = match &filter.matches {
            Matches::Rows(sieve) => sieve,
            Matches::Ids(ids) => return ids.has(id),
        };
        let mut rows = Vec::new();
        self.known_row_ids().is_some_and(|ids| ids.rows_of(id, &mut rows))
            && rows.iter().any(|&row| sieve.has(row))
    }

    /// The first of these ids whose rows are all deleted, or that no row has, of an index with deletes.
    ///
    /// # Errors
    /// As [`Index::filter`].
    pub fn first_deleted(
        &self,
        mut ids: impl Iterator<Item = u64>,
        progress: &dyn Progress,
    ) -> Result<Option<u64>> {
        let Some(live) = self.base.live.as_deref() else { return Ok(None) };
        let row_ids = self.row_ids(progress)?;
        let mut rows = Vec::new();
        Ok(ids.find(|&id| {
            rows.clear();
            row_ids.rows_of(id, &mut rows);
            !rows.iter().any(|&row| live.has(row))
        }))
    }

    /// Most memory that a filter of so many ids takes beside the open index, bytes: the ids of all rows, and copies of
    /// those that were named.
    pub fn filter_bytes_max(manifest: &Manifest, ids: usize) -> u64 {
        const NAMED_BYTES: u64 = 8;
        RowIds::bytes_max(manifest) + Self::sieve_bytes_max(manifest, ids) + ids as u64 * NAMED_BYTES
    }

    /// Most memory of a sieve of so many ids while it is made: sorted ids, their rows, and two sets of rows.
    pub(super) fn sieve_bytes_max(manifest: &Manifest, ids: usize) -> u64 {
        manifest.rows / 4 + ids as u64 * (8 + 4)
    }

    /// Refuses filters where searches take none.
    pub(crate) fn check_filters(&self) -> Result<()> {
        if self.base.manifest.spread.is_some() && self.base.manifest.file(files::ROW_IDS).is_err() {
            return Err(Error::bad_input(
                "the servers of this partition have no ids of rows, so they take no filter: partitions of an earlier \
                 version, or within a small RAM budget, have none; search the whole index, partition it again, or \
                 leave the filter out",
            ));
        }
        Ok(())
    }

    /// How the rows of a sieve are found by searches with these options.
    fn plan_sieve(&self, sieve: &Sieve, options: &SearchOptions) -> Result<SievePlan> {
        self.plan_way(sieve, options, None)
    }

    fn plan_way(&self, sieve: &Sieve, options: &SearchOptions, only: Option<SieveWay>) -> Result<SievePlan> {
        self.params_of_search(options)?;
        let aim = self.aim(options, f64::from(sieve.count()) / self.base.manifest.measured_rows() as f64);
        self.plan_aimed(sieve, options, aim, (None, only))
    }

    /// Where a search with these options aims that may return this share of the rows.
    fn aim(&self, options: &SearchOptions, share: f64) -> Option<Aim> {
        let k = options.k.min(self.base.manifest.rows as usize) as u32;
        curve::aim(&self.base.manifest.curves, self.curve_family(), (k, options.recall()?), share)
    }

    /// The way to search whose curve counts here.
    pub(crate) fn curve_family(&self) -> Option<&'static str> {
        let has =
            |family| self.base.manifest.curves.iter().any(|curve| curve.family.as_deref() == Some(family));
        Some(curve::IN_MEMORY).filter(|&family| self.is_resident() && has(family))
    }

    /// How the rows of a sieve are found by searches that aim so.
    fn plan_aimed(
        &self,
        sieve: &Sieve,
        options: &SearchOptions,
        aim: Option<Aim>,
        (measured, only): (Option<u8>, Option<SieveWay>),
    ) -> Result<SievePlan> {
        let aimed =
            aim.map_or(*options, |aim| SearchOptions { effort: Effort::Recall(aim.recall), ..*options });
        let mut usual = self.params(&aimed)?;
        let far_tenths = measured.or(aim.and_then(|aim| aim.far_tenths));
        if let Some(tenths) = far_tenths {
            usual.far_tenths = tenths;
        }
        let recalls = (options.recall(), aimed.recall());
        let plan = self.plan_query(sieve, usual, (recalls, aim), (far_tenths, measured.is_some(), only));
        let name = self.base.kind.name();
        let plan = plan.ok_or_else(|| {
            Error::bad_input(format!("searches of a {name} take no filter yet; leave it out"))
        })?;
        match only.filter(|way| *way != plan.way) {
            Some(way) => {
                Err(Error::bad_input(format!("a {name} has no way {} here; take another", way.name())))
            }
            None => Ok(plan),
        }
    }

    /// Answers queries by the search that calibration measures: with the settings of the recall in `options`, and wider
    /// by rule for the rows that it passes over, or as `aim` has it.
    pub(crate) fn search_made(
        &self,
        queries: &[u8],
        (sieve, far_tenths, aim): (&Sieve, u8, Option<Aim>),
        exclude: &(dyn Fn(usize) -> u32 + Sync),
        options: &SearchOptions,
        progress: &dyn Progress,
    ) -> Result<Answers> {
        let plan = self.plan_aimed(sieve, options, aim, (Some(far_tenths), None))?;
        let filter =
            Filter { matches: Matches::Rows(Arc::new(sieve.clone())), plan, unknown: Some(0), repeated: 0 };
        let filters = Filters::Shared(&filter);
        let call = Call {
            queries,
            params: plan.params,
            exclude,
            filters,
            progress,
            purpose: Purpose::Measure,
            wave: Wave::Alone,
        };
        self.answer(call, options)
    }

    /// How the rows of a sieve are found by a search that has these parameters without one, for this recall: wider by
    /// rule, because nothing else was measured with them. `None` of a kind that takes no filter.
    pub(crate) fn plan_for(&self, sieve: &Sieve, usual: Params, recall: Option<f64>) -> Option<SievePlan> {
        self.plan_query(sieve, usual, ((recall, recall), None), (None, false, None))
    }

    /// How the rows of a sieve are found by a search with these parameters, for the recall that is asked and the one
    /// that the parameters are of.
    fn plan_query(
        &self,
        sieve: &Sieve,
        usual: Params,
        ((recall, recall_of_usual), aim): ((Option<f64>, Option<f64>), Option<Aim>),
        (far_tenths, is_measured, only): (Option<u8>, bool, Option<SieveWay>),
    ) -> Option<SievePlan> {
        // The curves were measured where there were so many.
        let rows = self.base.manifest.measured_rows() as f64;
        let times = (rows / f64::from(sieve.count().max(1))).max(1.0);
        let (work, effort_times) = self.aimed_work(&usual, recall_of_usual, times, aim);
        // Codes err no more than they did where lists were counted.
        let of_lists = aim.filter(|aim| aim.effort.is_some()).map_or(0.0, |aim| aim.recall);
        let recall = recall.map(|recall| recall.max(of_lists));
        let query =
            SievedQuery { sieve, usual, times, effort_times, work, recall, far_tenths, is_measured, only };
        self.kind.plan_sieve(&self.base, &query)
    }

    /// The rows that a filter of these ids, which ascend, lets queries return.
    ///
    /// # Errors
    /// As [`Index::filter`].
    pub(crate) fn rows_of_filter(&self, ids: &[u64], naming: Naming) -> Result<Sieve> {
        let live = self.base.live.as_deref();
        let Named { rows, .. } = self.named(ids, live, &Quiet)?;
        let sieve = if naming == Naming::Only { rows } else { rows.complement() };
        Ok(live.map_or(sieve.clone(), |live| sieve.intersection(live)))
    }
}
