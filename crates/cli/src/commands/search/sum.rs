//! Sums over the parts of a run.

use stratann_core::query::{Params, QueryStats};
use stratann_engine::dataset::GroundTruth;
use stratann_engine::exec::{MergedReads, Times, Width};
use stratann_engine::groundtruth::{CheckedTruth, Found};
use stratann_engine::kinds::{self, reported_params, setting};
use stratann_engine::search::{Answers, Effort, Latency, SearchOptions, hits};
use stratann_params::Key;
use stratann_params::search::{BatchSettings, GraphSwitches, SearchSettings};
use stratann_storage::Result;
use stratann_storage::budget::{self, Account};

use super::{PerQuery, Run, Stages};
use crate::output::eprint_line;
use crate::{memory, options};

/// Sums over the parts of one run.
pub(super) struct Sum {
    pub(super) latency_ns: Vec<u64>,
    pub(super) stats: QueryStats,
    pub(super) times: Times,
    pub(super) merged: MergedReads,
    pub(super) seconds: f64,
    pub(super) cpu_us: u64,
    // Queries, each by the share of its true neighbours that were found; and how many count for that.
    found: f64,
    measured: f64,
    pub(super) failed: Vec<(usize, String)>,
    pub(super) short: usize,
    // k-th distances of the queries with k results.
    pub(super) kth_distances: Vec<f32>,
    pub(super) params: Option<Params>,
    pub(super) k: usize,
    pub(super) io_backend: String,
}

impl Sum {
    pub(super) fn new(count: usize) -> Sum {
        Sum {
            latency_ns: Vec::with_capacity(count),
            stats: QueryStats::default(),
            times: Times::default(),
            merged: MergedReads::default(),
            seconds: 0.0,
            cpu_us: 0,
            found: 0.0,
            measured: 0.0,
            failed: Vec::new(),
            short: 0,
            kth_distances: Vec::with_capacity(count),
            params: None,
            k: 0,
            io_backend: String::new(),
        }
    }

    /// Adds the answers to these queries, the first of which has number `first`.
    ///
    /// # Errors
    /// `BadInput` when they contradict the ground truth.
    pub(super) fn add(
        &mut self,
        first: usize,
        queries: &[u8],
        answers: &Answers,
        truth: Option<&mut CheckedTruth>,
    ) -> Result<()> {
        self.latency_ns.extend_from_slice(&answers.latency_ns);
        self.stats.add(&answers.stats);
        self.times.add(&answers.times);
        self.merged.add(&answers.merged);
        self.seconds += answers.seconds;
        self.cpu_us += answers.cpu_us;
        self.failed.extend(answers.failed.iter().map(|(q, why)| (first + q, why.clone())));
        self.short += answers.short;
        let lasts = answers.distances.chunks_exact(answers.k.max(1)).filter_map(|d| d.last());
        self.kth_distances.extend(lasts.filter(|d| d.is_finite()));
        if let Some(truth) = truth {
            let Answers { k, ids, distances, .. } = answers;
            truth.compare(&Found { first, queries, k: *k, ids, distances })?;
            self.measure(first, answers, truth.truth());
        }
        self.params = Some(answers.params);
        self.k = answers.k;
        self.io_backend.clone_from(&answers.io_backend);
        Ok(())
    }

    /// Adds the recall of answers, the first of which is that of query number `first`.
    fn measure(&mut self, first: usize, answers: &Answers, truth: &GroundTruth) {
        let count = answers.latency_ns.len();
        // Fewer rows than k may match a filter.
        let wanted = answers.k.min(truth.k);
        if (first..first + count).all(|query| truth.count_of(query) >= wanted) {
            let true_ids: Vec<u64> = (first..first + count)
                .flat_map(|q| truth.ids_of(q)[..wanted].iter().map(|&id| u64::from(id)))
                .collect();
            self.found += answers.recall(&true_ids, wanted) * count as f64;
            self.measured += count as f64;
        } else {
            // A query counts by the neighbours that it has.
            let (found, of) = hits((&answers.ids, &answers.counts), answers.k, truth, first);
            self.found += found as f64 / wanted as f64;
            self.measured += of as f64 / wanted as f64;
        }
    }

    pub(super) fn into_run(
        self,
        options: &SearchOptions,
        account: Account,
        ram_budget: Option<u64>,
        truth: bool,
    ) -> Run {
        if self.short > 0 {
            let why = match self.stats.clusters > 0 {
                true => "because the visited lists hold no more; a larger --nprobe finds more",
                false => "because the graph search reached no more; a longer --search-list finds more",
            };
            eprint_line(&format!("note: {} queries found fewer than {} results, {why}", self.short, self.k));
        }
        let queries = self.latency_ns.len();
        for (query, why) in self.failed.iter().take(FAILURES_PRINTED) {
            eprint_line(&format!("query {query} failed: {why}"));
        }
        if self.failed.len() > FAILURES_PRINTED {
            eprint_line(&format!("{} more queries failed", self.failed.len() - FAILURES_PRINTED));
        }
        Run {
            recall: (truth && self.measured > 0.0).then(|| self.found / self.measured),
            qps: queries as f64 / self.seconds.max(1e-9),
            latency_us: Latency::of(&self.latency_ns),
            stage_us: Some(Stages::of(&self.times, queries)),
            cpu_us: self.cpu_us as f64 / queries as f64,
            queries,
            failed_queries: self.failed.len(),
            threads: options.threads,
            in_flight: 0,
            params: params_json(options, self.params.as_ref(), self.k),
            routed_by_cache: None,
            routed_by_entry: None,
            per_query: PerQuery { merged: Some(self.merged), ..PerQuery::of(&self.stats, queries) },
            peak_rss_bytes: budget::process().peak_rss_bytes,
            ram_budget_bytes: ram_budget,
            io_backend: self.io_backend,
            filter: None,
            filters: Vec::new(),
            scorer: None,
            learning: None,
            memory: memory::json(&account),
            memory_node_bytes: Vec::new(),
            account,
        }
    }
}

/// Most failed queries that are listed on stderr.
const FAILURES_PRINTED: usize = 5;

/// The width of the queries.
fn width_of(options: &SearchOptions, used: Option<&Params>) -> Width {
    used.map_or(options.width, |params| kinds::width(params, options.width))
}

fn params_json(options: &SearchOptions, used: Option<&Params>, k: usize) -> serde_json::Value {
    let asked = match options.effort {
        Effort::Recall(recall) => Some(recall),
        Effort::SearchList(..) | Effort::Nprobe(..) => None,
    };
    let setting = used.map(setting);
    let graph: GraphSwitches = options.switches.own();
    let mut params = serde_json::json!({
        (Key::<SearchSettings>::k): k,
        (Key::<SearchSettings>::recall): asked,
        (Key::<SearchSettings>::search_list): setting.map(|s| s.search_list),
        (Key::<SearchSettings>::stop_slack): setting.and_then(|s| s.slack),
        (Key::<GraphSwitches>::patience): setting.map(|s| s.patience),
        (Key::<SearchSettings>::width): options::width_name(width_of(options, used)),
        (Key::<SearchSettings>::mode): options.mode.name(),
        (Key::<SearchSettings>::in_flight): options.in_flight,
        (Key::<SearchSettings>::admission): options::admission_name(options.admission),
        (Key::<GraphSwitches>::head): graph.head,
        (Key::<GraphSwitches>::whole_blocks): graph.whole_blocks,
    });
    for (name, value) in used.map(reported_params).unwrap_or_default() {
        params[name] = value;
    }
    if used.is_some_and(|used| used.kind.remote_hnsw().is_some()) {
        let batch_options = &options.batch_options;
        (params[Key::<BatchSettings>::batch], params[Key::<BatchSettings>::doorbell]) =
            (batch_options.batch.into(), batch_options.doorbell.into());
        params["doorbell_bytes"] = batch_options.lowered_bytes().into();
    }
    params
}
