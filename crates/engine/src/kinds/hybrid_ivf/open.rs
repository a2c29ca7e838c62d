//! An open `hybrid-ivf`: its tables, its resident lists, and what it learns.

use std::sync::Arc;

use stratann_core::kinds::hybrid_ivf::{MAX_PROBES, View};
use stratann_core::kinds::{KindParams, KindView};
use stratann_storage::Result;
use stratann_storage::budget::{Account, release_freed, size, size_up};
use stratann_storage::cache::ExtentCache;

use super::account::{self, IN_FLIGHT_LOW_MEMORY};
use super::calibration;
use super::facts::ListSection;
use super::learning::{Learning, LearningSource};
use super::lists::ListReader;
use super::residency::{CostModel, ResidencyBudget, ResidentLists};
use super::tables::{ListTables, cost_model};
use crate::base::{Base, OpenOptions, Reserve};
use crate::curve::Grid;
use crate::files;
use crate::kinds::answers::ExactCost;
use crate::kinds::answers::{SievePlan, SievedQuery};
use crate::kinds::questions::OpenKind;
use crate::kinds::section::Section;
use crate::kinds::sieved_lists::{LIST_BYTES, SievedLists};
use crate::sieve_ways::SieveWay;
use crate::units::{Held, HeldRanges};

/// Learning takes at most one part in so many of the memory that it shares with the codes of lists, where these do not
/// all fit. With more it reads more: see `decisions/`.
const LEARNING_SHARE: u64 = 3;

/// See the module.
pub(crate) struct ListIndex {
    pub(crate) tables: Arc<ListTables>,
    section: ListSection,
    // Where the index does not learn; otherwise snapshots hold them.
    resident: Arc<ResidentLists>,
    pub(crate) learning: Learning,
    /// Whether memory is so low that not all list codes are resident.
    low_memory: bool,
}

impl ListIndex {
    /// Reads and checks the files in RAM, and loads what the budget has room for: of all lists, or of those that one
    /// server holds. Adds warnings.
    ///
    /// # Errors
    /// A file that is missing or damaged.
    pub(crate) fn open(
        base: &Base,
        held: Option<Held<'_>>,
        options: &OpenOptions,
        warnings: &mut Vec<String>,
    ) -> Result<ListIndex> {
        let section = base.manifest.own(&base.folder, Section::lists)?.clone();
        let server = held.map(|held| held.server);
        let mut tables = ListTables::load(&base.folder, &base.manifest, &base.block)?;
        if let Some(held) = held {
            tables.hold(held, &base.manifest);
        }
        let tables = Arc::new(tables);
        let source = LearningSource {
            tables: tables.clone(),
            file: base.blocks_file()?.clone(),
            lists: base.blocks_path.clone(),
            metric: base.metric,
            dtype: base.dtype,
            seed: base.seed(),
            path: base.folder.join(files::learnt(server)),
            build_id: base.manifest.learnt_id(),
        };
        let (learning, warning) = Learning::begin(source, options.learning);
        warnings.extend(warning);
        let mut index = ListIndex { tables, section, resident: Arc::default(), learning, low_memory: false };
        // Reading the files has left freed memory.
        release_freed();
        warnings.extend(index.stop_learning_on_low_memory(options));
        index.load_resident(base, options)?;
        Ok(index)
    }

    /// Stops learning where the budget has no room for it, or where lists need that room more: a search can do without.
    /// Returns a warning then.
    fn stop_learning_on_low_memory(&mut self, options: &OpenOptions) -> Option<String> {
        let budget = options.ram_budget?;
        let Reserve { low_memory_bytes, threads, .. } = options.search_reserve;
        let bytes = self.learning.bytes(threads.max(1));
        let lists_bytes = self.tables.all_codes_bytes().min((LEARNING_SHARE - 1) * bytes);
        let least = self.open_bytes() + bytes + lists_bytes + low_memory_bytes;
        if !self.learning.is_on() || least <= budget {
            return None;
        }
        self.learning.stop();
        Some(format!(
            "the RAM budget of {} has no room for learning from queries, which would take {} that save more reads as \
             codes of lists: give --ram-budget {} or more, or --no-learning",
            size(budget),
            size(bytes),
            size_up(least)
        ))
    }

    /// Loads list codes, as many as the budget allows, and then records; without a budget all list codes.
    fn load_resident(&mut self, base: &Base, options: &OpenOptions) -> Result<()> {
        let Reserve { bytes, low_memory_bytes, threads } = options.search_reserve;
        let taken = self.open_bytes() + self.learning.bytes(threads.max(1));
        let left_by =
            |reserve: u64| options.ram_budget.map_or(u64::MAX, |b| b.saturating_sub(taken + reserve));
        self.low_memory = self.tables.all_codes_bytes() > left_by(bytes);
        // Queries read the codes of graphs that are not resident before they search them.
        let local = self.tables.local_codes_bytes(&ResidentLists::default());
        let local = local * (IN_FLIGHT_LOW_MEMORY * threads.max(1)) as u64;
        let left = left_by(if self.low_memory { low_memory_bytes + local } else { bytes });
        let codes_bytes = options.head_budget.unwrap_or(u64::MAX).min(left);
        // Records are loaded only when it is known that codes leave memory for them.
        let is_automatic = options.ram_budget.is_some() && options.head_budget.is_none();
        let records_bytes = if is_automatic { left } else { 0 };
        self.load_lists(base, ResidencyBudget { codes_bytes, records_bytes })
    }

    /// Replaces the resident lists by those that `budget` has room for.
    ///
    /// # Errors
    /// Lists that cannot be read, or are damaged.
    fn load_lists(&mut self, base: &Base, budget: ResidencyBudget) -> Result<()> {
        let Some(plan) = &self.section.plan else { return Ok(()) };
        let model = cost_model(plan, &self.tables.shape, self.tables.read_max());
        let newest = self.learning.newest();
        let mut reader = ListReader::new(&self.tables, base.blocks_file()?, &base.blocks_path);
        let costs = CostModel { model: &model, visits: &newest.visits };
        let resident = Arc::new(ResidentLists::load(&mut reader, budget, &costs)?);
        if self.learning.is_on() {
            self.learning.rebalance_within(resident, budget, model);
        } else {
            self.resident = resident;
        }
        Ok(())
    }

    /// Makes as many lists resident as `budget_bytes` has room for.
    ///
    /// # Errors
    /// As [`ListIndex::load_lists`].
    pub(crate) fn fill_memory(&mut self, base: &Base, budget_bytes: u64) -> Result<()> {
        self.load_lists(base, ResidencyBudget { codes_bytes: budget_bytes, records_bytes: budget_bytes })
    }

    /// The part of the index that queries see, learned state excluded.
    pub(crate) fn view(&self) -> View<'_> {
        View {
            resident: self.resident.codes(),
            resident_records: self.resident.records(),
            ..self.tables.view()
        }
    }

    /// The lists that are resident now.
    pub(crate) fn resident(&self) -> Arc<ResidentLists> {
        self.learning.newest().resident.clone().unwrap_or_else(|| self.resident.clone())
    }

    fn open_bytes(&self) -> u64 {
        let mut account = Account::new();
        self.account(&mut account);
        account.total()
    }
}

impl OpenKind for ListIndex {
    fn view<'a>(&'a self, _: &'a Base) -> KindView<'a> {
        KindView::HybridIvf(ListIndex::view(self))
    }

    fn plan_sieve(&self, _: &Base, query: &SievedQuery<'_>) -> Option<SievePlan> {
        let directory = &self.tables.directory;
        let clusters = (0..directory.clusters()).map(|cluster| directory.members_of(cluster));
        let mut plan = SievePlan {
            way: SieveWay::Exact,
            params: query.usual,
            more_bytes: LIST_BYTES * u64::from(directory.clusters()),
            prices: None,
        };
        let KindParams::HybridIvf(own) = &mut plan.params.kind else { return None };
        own.exact |= query.only == Some(SieveWay::Exact);
        if !own.exact {
            own.bound_slack = own.bound_slack.max(query.slack());
        }
        let lists = SievedLists::new(query, own.nprobe, clusters);
        plan.prices = Some(lists.prices_of_codes());
        match lists.nprobe() {
            _ if own.exact => {}
            Some(nprobe) => (plan.way, own.nprobe) = (SieveWay::Search, nprobe),
            // Bounds leave out what codes tell to be far.
            None => {
                let all = directory.clusters().clamp(1, MAX_PROBES);
                (plan.way, own.nprobe, own.early_stop) = (SieveWay::Codes, all, f32::INFINITY);
                // Of divided clusters, too, all lists.
                own.local_lists = u32::MAX;
            }
        }
        Some(plan)
    }

    fn account(&self, account: &mut Account) {
        self.tables.account(account);
        self.resident().account(account);
    }

    fn cache(&self, base: &Base, budget_bytes: u64) -> Option<ExtentCache> {
        ExtentCache::new(budget_bytes, base.block.block_bytes as u64)
    }

    fn in_flight(&self) -> usize {
        account::in_flight(self.low_memory)
    }

    fn read_bytes_max(&self, base: &Base) -> usize {
        self.tables.pages_max() * base.block.block_bytes
    }

    fn query_tables_bytes(&self, base: &Base, local_beam: u64) -> u64 {
        account::query_bytes(self, base, local_beam)
    }

    fn exact_cost(&self, _: &Base) -> ExactCost {
        self.tables.exact_cost()
    }

    fn grid(&self, _: &Base, k: u32, _: Option<&str>) -> Grid {
        calibration::grid(k, self.tables.directory.clusters())
    }

    fn held_ranges(&self) -> Option<&HeldRanges> {
        self.tables.held_ranges()
    }
}
