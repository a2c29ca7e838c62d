//! Part of an open `gpu-ivf` in RAM.

#[cfg(feature = "lab")]
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use stratann_core::check::Blocks;
use stratann_core::exact::STEP_COMPARISONS;
use stratann_core::format::block_map::BlockMap;
use stratann_core::format::posting_lists::PostingLists;
use stratann_core::kinds::gpu_ivf::{
    MAX_CANDIDATES, MAX_PROBES, Params, Resident as ResidentView, Rule, View,
};
use stratann_core::kinds::{KindParams, KindView};
#[cfg(feature = "lab")]
use stratann_core::query::StoreId;
use stratann_core::route::NavGraph;
use stratann_kernel::coder::Coder;
use stratann_storage::budget::{Account, release_freed};
use stratann_storage::tier::Resident;
use stratann_storage::{Progress, Result};

#[cfg(feature = "lab")]
use super::baseline::{self, OpenBaselines, files::BaselineFiles};
use super::facts::GpuFacts;
use super::{account, calibration};
use crate::base::{Base, OpenOptions, decode_role, read_role};
use crate::curve::Grid;
use crate::exec::scorer::{self, CodeFile, OpenScorer, Scorer};
use crate::files;
use crate::kinds::answers::{SievePlan, SievedQuery};
use crate::kinds::blocks::{self, ResidentRows};
use crate::kinds::questions::{Members, MovesIntoMemory, OpenKind, RanksCodes};
use crate::kinds::section::Section;
use crate::kinds::sieved_lists::{LIST_BYTES, SievedLists};
use crate::sieve_ways::SieveWay;
#[cfg(feature = "lab")]
use stratann_params::search::GpuSwitches;

/// See the module.
pub(crate) struct GpuIndex {
    pub(crate) facts: GpuFacts,
    pub(crate) coder: Coder,
    codes: Arc<Resident>,
    codes_from: u32,
    scorer: Box<dyn Scorer>,
    pub(crate) map: BlockMap,
    pub(crate) lists: PostingLists,
    centroids: Vec<u8>,
    nav: NavGraph,
    code_error: f32,
    // Of all vectors; `None` where they are read with their blocks.
    rows: Option<ResidentRows>,
    #[cfg(feature = "lab")]
    pub(super) baselines: Option<BaselineFiles>,
}

impl GpuIndex {
    /// Reads and checks the files in RAM.
    ///
    /// # Errors
    /// A file that is missing or damaged.
    pub(crate) fn open(base: &Base, options: &OpenOptions, warnings: &mut Vec<String>) -> Result<GpuIndex> {
        let (folder, manifest) = (&base.folder, &base.manifest);
        let facts = manifest.own(folder, Section::gpu)?.facts.clone();
        let (rows, lists) = (manifest.rows as u32, facts.lists());
        let coder = decode_role(folder, manifest, files::CODEBOOK, |bytes| {
            files::decode_coder(bytes).filter(|coder| coder.dim() == manifest.dim)
        })?;
        let map = decode_role(folder, manifest, files::MAP, |bytes| {
            files::decode_map(bytes).filter(|m| m.nodes() == rows && m.blocks() == manifest.blocks.count)
        })?;
        let postings = decode_role(folder, manifest, files::POSTINGS, |bytes| {
            files::decode_postings(bytes).filter(|p| p.count() == lists && p.is_consistent(rows))
        })?;
        let nav = decode_role(folder, manifest, files::NAV, |bytes| {
            files::decode_nav(bytes).filter(|n| n.nodes() == lists && n.is_consistent(lists, 0, 0))
        })?;
        // What was read for the tables is free again before the largest of them come.
        release_freed();
        let (path, centroids) = read_role(folder, manifest, files::CENTROIDS)?;
        let components = manifest.dim as u64 * u64::from(lists);
        if ![2 * components, 4 * components].contains(&(centroids.len() as u64)) {
            return Err(files::senseless(&path));
        }
        let (name, entry) = manifest.file(files::CODES)?;
        if entry.bytes != manifest.rows * coder.code_bytes() as u64 {
            return Err(files::senseless(&folder.join(name)));
        }
        let file = CodeFile { folder, name, entry };
        let OpenScorer { scorer, codes, codes_from } =
            scorer::open(&file, &coder, &options.scorer, warnings)?;
        let code_error = manifest.code_error;
        #[cfg_attr(
            not(feature = "lab"),
            expect(unused_mut, reason = "files of baselines are opened by what is there")
        )]
        let mut index = GpuIndex {
            facts,
            coder,
            codes,
            codes_from,
            scorer,
            map,
            lists: postings,
            centroids,
            nav,
            code_error,
            rows: None,
            #[cfg(feature = "lab")]
            baselines: None,
        };
        #[cfg(feature = "lab")]
        if options.baselines != OpenBaselines::No {
            index.baselines = Some(BaselineFiles::open(base, &index, options.baselines)?);
        }
        Ok(index)
    }

    /// The part of the index that queries see.
    pub(crate) fn view<'a>(&'a self, base: &'a Base) -> View<'a> {
        View {
            block: &base.block,
            blocks: base.manifest.blocks.count,
            map: &self.map,
            coder: &self.coder,
            codes: &self.codes,
            codes_from: self.codes_from,
            lists: &self.lists,
            centroids: &self.centroids,
            nav: &self.nav,
            code_error: self.code_error,
            vector_norm: self.facts.vector_norm,
            resident: self
                .rows
                .as_ref()
                .map(|rows| ResidentView { rows, step_comparisons: STEP_COMPARISONS }),
            #[cfg(feature = "lab")]
            baselines: self.baselines.as_ref().map(|own| own.view(&self.facts)),
        }
    }
}

impl Members for GpuIndex {
    fn member(&self, base: &Base, id: u32) -> Result<(u64, Vec<u8>)> {
        blocks::member(base, self.map.block_of(id), id)
    }
}

/// How many times the usual candidates are kept for a query with a sieve: far from it, many rows have nearly the same
/// distance.
const MORE_CANDIDATES: u32 = 4;

/// Bytes of an id in a job.
const ID_BYTES: u64 = 4;

impl OpenKind for GpuIndex {
    fn view<'a>(&'a self, base: &'a Base) -> KindView<'a> {
        KindView::GpuIvf(GpuIndex::view(self, base))
    }

    fn block_with(&self, _: &Base, row: u32) -> Option<(u32, Range<u32>)> {
        let block = self.map.block_of(row);
        Some((block, self.map.nodes_of(block)))
    }

    fn plan_sieve(&self, _: &Base, query: &SievedQuery<'_>) -> Option<SievePlan> {
        let lists = (0..self.lists.count()).map(|list| {
            let (first, count) = self.lists.own(list);
            first..first + count
        });
        let mut plan = SievePlan {
            way: SieveWay::Exact,
            params: query.usual,
            more_bytes: LIST_BYTES * u64::from(self.lists.count())
                + ID_BYTES * u64::from(query.sieve.count()),
            prices: None,
        };
        let KindParams::GpuIvf(own) = &mut plan.params.kind else { return None };
        let lists = SievedLists::new(query, own.nprobe, lists).beside_codes(query);
        plan.prices = Some(lists.prices_of_codes());
        // Of so few rows each would be a candidate, and be read.
        let is_exact = query.only.map_or(query.sieve.count() <= own.candidates, |way| way == SieveWay::Exact);
        if own.exact || is_exact {
            own.exact = true;
            return Some(plan);
        }
        // The margin ends a query, not the number of candidates.
        if own.rule == Rule::Margin && self.coder.is_unbiased() {
            own.margin = own.margin.max(query.slack());
            own.candidates = own.candidates.saturating_mul(MORE_CANDIDATES).min(MAX_CANDIDATES);
        }
        match lists.nprobe() {
            Some(nprobe) => (plan.way, own.nprobe) = (SieveWay::Search, nprobe),
            None => {
                own.nprobe = self.lists.count().clamp(1, MAX_PROBES);
                plan.way = SieveWay::Codes;
            }
        }
        Some(plan)
    }

    fn account(&self, account: &mut Account) {
        account.add("codes", self.codes.len() as u64);
        if let Some(gpu) = self.scorer.report().gpu {
            account.add("copies to and from the GPU", gpu.host_staging_bytes);
        }
        account.add("centroids", self.centroids.len() as u64);
        account.add("navigation graph", self.nav.bytes() as u64);
        account.add("ids of lists", self.lists.bytes() as u64);
        account.add("block map", self.map.bytes() as u64);
        account.add("codebook", files::coder_bytes(&self.coder));
        if let Some(rows) = &self.rows {
            account.add("vectors", rows.bytes() as u64);
        }
        #[cfg(feature = "lab")]
        if let Some(own) = &self.baselines {
            own.account(account);
        }
    }

    fn in_flight(&self) -> usize {
        account::IN_FLIGHT
    }

    fn read_bytes_max(&self, base: &Base) -> usize {
        #[cfg(feature = "lab")]
        let list_bytes = self.baselines.as_ref().map_or(0, |own| own.list_bytes_max);
        #[cfg(not(feature = "lab"))]
        let list_bytes = 0;
        base.block.block_bytes.max(list_bytes)
    }

    fn query_tables_bytes(&self, base: &Base, _: u64) -> u64 {
        account::query_bytes(&base.manifest, self.coder.code_bytes(), &self.facts)
    }

    fn grid(&self, _: &Base, k: u32, family: Option<&str>) -> Grid {
        let trained = !self.coder.is_unbiased();
        calibration::grid(k, self.facts.lists(), family, (trained, self.has_baselines()))
    }

    fn checked<'a>(&'a self, base: &'a Base) -> Option<Blocks<'a>> {
        Some(GpuIndex::view(self, base).checked(base.view()))
    }

    fn reads_blocks(&self) -> bool {
        !self.has_baselines()
    }

    fn ranks_codes(&self) -> Option<&dyn RanksCodes> {
        Some(self)
    }

    fn residency(&self) -> Option<&dyn MovesIntoMemory> {
        Some(self)
    }

    fn residency_mut(&mut self) -> Option<&mut dyn MovesIntoMemory> {
        Some(self)
    }
}

impl MovesIntoMemory for GpuIndex {
    fn resident_bytes(&self) -> u64 {
        self.rows.as_ref().map_or(0, |rows| rows.bytes() as u64)
    }

    fn is_resident(&self) -> bool {
        self.rows.is_some()
    }

    fn rows(&self) -> Option<&ResidentRows> {
        self.rows.as_ref()
    }

    /// Its searches are the same from memory and from disk.
    fn is_calibrated(&self, _: &Base) -> bool {
        true
    }

    fn shrink(&mut self, budget_bytes: u64) {
        self.rows.take_if(|rows| rows.bytes() as u64 > budget_bytes);
    }

    /// All vectors, or none: a cache of blocks is better for a part. Other systems read their own files.
    fn make_resident(&mut self, base: &Base, budget_bytes: u64, progress: &dyn Progress) -> Result<()> {
        self.shrink(budget_bytes);
        if self.rows.is_none() && !self.has_baselines() {
            self.rows = blocks::load_rows(base, budget_bytes, progress)?;
        }
        Ok(())
    }
}

impl RanksCodes for GpuIndex {
    fn scorer(&self) -> &dyn Scorer {
        &*self.scorer
    }

    fn families(&self) -> &'static [&'static str] {
        #[cfg(feature = "lab")]
        if self.has_baselines() {
            return &baseline::FAMILIES;
        }
        &calibration::FAMILIES
    }

    fn set_defaults(&self, params: &mut Params) {
        if !self.coder.is_unbiased() {
            params.margin = calibration::SHARE_USUAL;
        }
    }

    #[cfg(feature = "lab")]
    fn stores(&self) -> &[Arc<File>] {
        self.baselines.as_ref().map_or(&[], |own| &own.stores)
    }

    #[cfg(feature = "lab")]
    fn store_role(&self, store: StoreId) -> Option<&'static str> {
        baseline::files::store_role(store)
    }

    #[cfg(feature = "lab")]
    fn check_switches(&self, switches: &GpuSwitches) -> Result<()> {
        switches.baseline.map_or(Ok(()), |baseline| self.check_open(baseline.into()))
    }
}

/// An index without files of other systems.
#[cfg(not(feature = "lab"))]
impl GpuIndex {
    fn has_baselines(&self) -> bool {
        false
    }
}
