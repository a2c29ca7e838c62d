//! Replans a `hybrid-ivf` for another RAM budget (OrchANN §5.1), and rebuilds the clusters whose local index is to
//! be another.
//!
//! Clusters keep their numbers, and their members a range of ids. What stays as it is is copied or shared by name;
//! the new version is published by its manifest, last, so that until then the old one is what there is.

mod moved;
mod rewrite;
mod scratch;

use std::path::{Path, PathBuf};

use serde::Serialize;
use stratann_core::build::costs::VisitCostModel;
use stratann_core::format::directory::LocalKind;
use stratann_core::route::NavGraph;
use stratann_kernel::{DType, Metric};
use stratann_storage::budget::PROGRAM_BYTES;
use stratann_storage::durable::sync_folder;
use stratann_storage::names::FileName;
use stratann_storage::{Error, Progress, Result, data_file};

use crate::base::{IndexShape, shape};
use crate::files;
use crate::kinds::hybrid_ivf::build::plan::{Planner, code_budget};
use crate::kinds::hybrid_ivf::facts::{ListFacts, ListSection, PlanReport};
use crate::kinds::hybrid_ivf::learning::{TrafficSummary, file as summary_file};
use crate::kinds::hybrid_ivf::options::LocalPlan;
use crate::kinds::hybrid_ivf::residency::weights;
use crate::kinds::hybrid_ivf::tables::{ListTables, cost_model};
use crate::kinds::section::Section;
use crate::manifest::{FORMAT_WHOLE, Manifest, number_after};
use crate::stages::state::lock as lock_folder;
use moved::Moved;
use rewrite::{Rewrite, Written};
use scratch::Scratch;

/// Budget and figures of a new plan.
#[derive(Clone, Debug)]
pub struct ReplanOptions {
    /// RAM that searches will have, bytes.
    pub search_budget: u64,
    /// Which local index clusters get.
    pub local_plan: LocalPlan,
    /// Threads.
    pub threads: usize,
    /// Bytes of memory in all; `None` for no limit.
    pub ram_budget: Option<u64>,
}

/// Result of replanning.
#[derive(Clone, Debug, Serialize)]
pub struct Replanned {
    /// Number of the manifest that was published.
    pub version: u64,
    /// Whether clusters were weighed by observed visits; otherwise by their sizes.
    pub observed: bool,
    /// Clusters that were flat, graphs, and divided into lists.
    pub kinds_before: [u32; 3],
    /// Clusters that are flat, graphs, and divided into lists.
    pub kinds_after: [u32; 3],
    /// Clusters whose local index was replaced.
    pub rebuilt: u64,
    /// Bytes of lists, edges and tables that were made again.
    pub rewritten_bytes: u64,
    /// Bytes of lists and edges that were copied as they were.
    pub copied_bytes: u64,
    /// Bytes of files that both versions name.
    pub shared_bytes: u64,
    /// Predicted cost of a visit under this budget with the local indexes as they were, microseconds; none where they
    /// do not fit in it.
    pub visit_us_before: Option<f64>,
    /// Cost of a visit with the new local indexes.
    pub visit_us: f64,
    /// Bytes that the budget leaves for codes.
    pub code_budget_bytes: u64,
    /// Bytes of these that the plan takes.
    pub ram_bytes: u64,
    /// Whether recall curves were measured on other local indexes: `stratann tune` measures them again.
    pub tune: bool,
}

/// The version that is there.
struct Old {
    folder: PathBuf,
    /// Number of the version that is written.
    next: u64,
    manifest: Manifest,
    facts: ListFacts,
    plan: PlanReport,
    metric: Metric,
    dtype: DType,
    tables: ListTables,
    summary: Option<TrafficSummary>,
}

/// Plans again, rebuilds what changes, and publishes the result.
///
/// # Errors
/// An index that is no `hybrid-ivf`, another writer, a budget too small (one that suffices is named), a damaged file,
/// a full disk, an interruption. The index stays as it was then.
pub fn replan(folder: &Path, options: &ReplanOptions, progress: &dyn Progress) -> Result<Replanned> {
    let (_, manifest) = Manifest::read(folder)?;
    check_kind(folder, &manifest)?;
    // Rows get other numbers, by which payloads are found.
    manifest.check_without_points(folder, "planning its local indexes again")?;
    let _lock = lock_folder(folder)?;
    locked(folder, options, progress)
}

fn locked(folder: &Path, options: &ReplanOptions, progress: &dyn Progress) -> Result<Replanned> {
    let old = Old::open(folder, options, progress)?;
    let decided = old.decide(options)?;
    let before = &old.tables.directory.kinds;
    let rebuilt = before.iter().zip(&decided.kinds).filter(|(a, b)| a != b).count() as u64;
    let mut replanned = Replanned {
        version: old.next,
        observed: decided.report.observed,
        kinds_before: count(before),
        kinds_after: count(&decided.kinds),
        rebuilt,
        rewritten_bytes: 0,
        copied_bytes: 0,
        shared_bytes: old.manifest.files.values().map(|f| f.bytes).sum(),
        visit_us_before: decided.before_us,
        visit_us: decided.report.visit_us,
        code_budget_bytes: decided.report.budget_bytes.unwrap_or(0),
        ram_bytes: decided.report.ram_bytes,
        tune: rebuilt > 0 && !old.manifest.curves.is_empty(),
    };
    if rebuilt == 0 {
        let section = ListSection { facts: old.facts, plan: Some(decided.report) };
        let manifest = Manifest { section: section.into(), ..old.manifest.clone() };
        manifest.publish(folder, replanned.version)?;
        return Ok(replanned);
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(options.threads).build();
    let pool =
        pool.map_err(|e| Error::bad_input(format!("cannot start {} threads: {e}", options.threads)))?;
    pool.install(|| old.replace(decided, options, progress, &mut replanned))?;
    Ok(replanned)
}

fn check_kind(folder: &Path, manifest: &Manifest) -> Result<()> {
    if let Section::HybridIvf(_) = manifest.section {
        return Ok(());
    }
    Err(Error::bad_input(format!(
        "{} is a {}: only a hybrid-ivf has clusters with a plan; nothing is to be done for another budget but to \
         search with it",
        folder.display(),
        manifest.kind
    )))
}

fn count(kinds: &[LocalKind]) -> [u32; 3] {
    LocalKind::ALL.map(|kind| kinds.iter().filter(|&&k| k == kind).count() as u32)
}

/// Decisions about the clusters.
struct Decided {
    kinds: Vec<LocalKind>,
    report: PlanReport,
    before_us: Option<f64>,
}

impl Old {
    fn open(folder: &Path, options: &ReplanOptions, progress: &dyn Progress) -> Result<Old> {
        let (number, manifest) = Manifest::read(folder)?;
        manifest.check_newest()?;
        check_kind(folder, &manifest)?;
        let ListSection { facts, plan } = manifest.own(folder, Section::lists)?.clone();
        let Some(plan) = plan else {
            return Err(Error::bad_input(format!(
                "{} does not say what its plan was made from; build it again with `stratann build --force`",
                folder.display()
            )));
        };
        manifest.planned_account(0).check(options.ram_budget, "replan this index")?;
        let IndexShape { metric, dtype, block, .. } = shape(folder, &manifest)?;
        let tables = ListTables::load(folder, &manifest, &block)?;
        let path = folder.join(files::LEARNT);
        let summary = summary_file::load(&path, manifest.learnt_id(), tables.directory.clusters());
        let summary = summary.unwrap_or_else(|why| {
            progress.note(&format!("warning: {why}"));
            None
        });
        let (folder, next) = (folder.to_path_buf(), number_after(number, folder)?);
        Ok(Old { folder, next, manifest, facts, plan, metric, dtype, tables, summary })
    }

    /// Members of each cluster.
    fn sizes(&self) -> Vec<u64> {
        let directory = &self.tables.directory;
        (0..directory.clusters()).map(|c| directory.members_of(c).len() as u64).collect()
    }

    fn seed(&self) -> u64 {
        self.manifest.seed()
    }

    fn decide(&self, options: &ReplanOptions) -> Result<Decided> {
        let sizes = self.sizes();
        let clusters = sizes.len() as u64;
        let recorded = self.manifest.build.get("nav_samples").and_then(|s| s.as_f64());
        let drawn = f64::from(self.tables.nav.nodes()) / clusters.max(1) as f64 - 1.0;
        let samples = recorded.unwrap_or(drawn);
        let rows = self.manifest.rows;
        let budget = code_budget(options.search_budget, &self.tables.shape, clusters, samples, rows)?;
        let visits = self.summary.as_ref().map_or(&[][..], |l| &l.visits);
        let (mut weights, observed) = weights(sizes.iter().copied(), visits);
        let total: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|w| *w /= total.max(f64::MIN_POSITIVE));
        let model: VisitCostModel = cost_model(&self.plan, &self.tables.shape, self.facts.read_max);
        let planner = Planner {
            model,
            members: &sizes,
            weights: &weights,
            budget: Some(budget),
            search_budget: Some(options.search_budget),
            graph_members: u64::MAX,
        };
        let (kinds, report) = planner.choose(options.local_plan, self.plan.local, observed)?;
        let report = PlanReport { profile: self.plan.profile.clone(), ..report };
        let before_us = planner.cost_of(&self.tables.directory.kinds);
        Ok(Decided { kinds, report, before_us })
    }

    /// Writes and publishes the version with the kinds that were decided.
    fn replace(
        &self,
        decided: Decided,
        options: &ReplanOptions,
        progress: &dyn Progress,
        report: &mut Replanned,
    ) -> Result<()> {
        let mut account = self.manifest.planned_account(0);
        account.add("tables of the new version", account.total() - PROGRAM_BYTES);
        account.add("the largest cluster", rewrite::memory_bytes(self, &decided.kinds));
        account.check(options.ram_budget, "rebuild clusters of this index")?;
        let scratch = Scratch::create(&self.folder, report.version)?;
        let known = self.tables.nav.ids.iter().copied();
        let hot = self.summary.iter().flat_map(|l| l.hot.iter().map(|h| h.0));
        let mut moved = Moved::of(known.chain(hot));
        let rewrite = Rewrite::new(self, &decided.kinds, &scratch, progress)?;
        let written = rewrite.run(&mut moved)?;
        let manifest = self.manifest_of(decided.report, &scratch, &written, &moved)?;
        progress.check_interrupted()?;
        let is_shared = |name: &&FileName| self.manifest.files.contains_key(*name);
        for name in manifest.files.keys().filter(|name| !is_shared(name)) {
            scratch.move_up(name, &self.folder)?;
        }
        sync_folder(&self.folder)?;
        manifest.publish(&self.folder, report.version)?;
        if let Some(summary) = &self.summary {
            self.write_summary(summary, &manifest, &moved, progress);
        }
        crate::manifest::remove_older(&self.folder, report.version, &manifest);
        let shared = manifest.files.iter().filter(|(name, _)| is_shared(name));
        report.shared_bytes = shared.map(|(_, entry)| entry.bytes).sum();
        report.copied_bytes = written.copied_bytes;
        let all: u64 = manifest.files.values().map(|f| f.bytes).sum();
        report.rewritten_bytes = all.saturating_sub(report.shared_bytes + report.copied_bytes);
        Ok(())
    }

    /// The manifest of what was written; writes the small files too.
    fn manifest_of(
        &self,
        report: PlanReport,
        scratch: &Scratch,
        written: &Written,
        moved: &Moved,
    ) -> Result<Manifest> {
        let mut manifest = self.manifest.clone();
        let mut nav = NavGraph::clone(&self.tables.nav);
        nav.ids.iter_mut().for_each(|id| *id = moved.now(*id));
        let tables = [
            (files::DIRECTORY, files::encode_directory(&written.directory)),
            (files::SUBLISTS, files::encode_sublists(&written.sublists)),
            (files::NAV, files::encode_nav(&nav)),
        ];
        let mut replace = |role: &str, entry| -> Result<()> {
            let before = manifest.file(role)?.0.to_string();
            manifest.files.remove(before.as_str());
            manifest.files.insert(scratch.name(role), entry);
            Ok(())
        };
        replace(files::LISTS, data_file::entry(&scratch.path(files::LISTS))?)?;
        for (role, bytes) in tables {
            let entry = data_file::entry_of(&bytes);
            if self.manifest.file(role)?.1 != &entry {
                scratch.write(role, &bytes)?;
                replace(role, entry)?;
            }
        }
        manifest.blocks = written.blocks;
        manifest.format_version = manifest.format_version.max(FORMAT_WHOLE);
        let now = |id| moved.now(id);
        let place = (scratch.name(files::DELETED), &*scratch.path(files::DELETED));
        manifest.move_deletes(&self.folder, place, now)?;
        let lists = written.directory.list_count();
        let facts = ListFacts { lists, kinds: count(&written.directory.kinds), ..self.facts };
        manifest.section = ListSection { facts, plan: Some(report) }.into();
        let resident_share = manifest.section.planned_resident_share();
        manifest.curves.iter_mut().for_each(|curve| curve.resident_share = resident_share);
        manifest.build_id = manifest.content_id();
        Ok(manifest)
    }

    /// Writes the summary of learned state: it holds for the new version as well; should it be lost, no more than that
    /// is.
    fn write_summary(
        &self,
        summary: &TrafficSummary,
        manifest: &Manifest,
        moved: &Moved,
        progress: &dyn Progress,
    ) {
        let summary = TrafficSummary {
            hot: summary.hot.iter().map(|&(id, score)| (moved.now(id), score)).collect(),
            visits: summary.visits.clone(),
            ..*summary
        };
        let saved = summary_file::save(&self.folder.join(files::LEARNT), manifest.learnt_id(), &summary);
        if let Err(e) = saved {
            progress.note(&format!("warning: what was learned is lost: {e}"));
        }
    }
}
