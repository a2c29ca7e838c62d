//! The state of a query and its one transition.
//!
//! The state is plain data: no pointer, no clock, no `usize` on the wire. Encoded at any step ([`super::wire`]) and
//! decoded elsewhere, it goes on with the same answer and the same counters, but for vectors that were visited before
//! and are scored again. What can be rebuilt from the query is in
//! [`Scratch`] and never travels.

use alloc::vec::Vec;

use stratann_kernel::distance::Exact;

use super::Params;
use crate::kinds::kind::Ordered;
use crate::kinds::{
    self, IndexView, KindScratch, KindState, disk_graph, gpu_ivf, grid_ivf, hybrid_ivf, remote_hnsw,
};
use crate::score::{self, CodeJob, RankScratch, Ranking};
use crate::search::{
    Arrival, Budget, Extent, Hit, IndexSize, Io, Known, Loss, LostUnits, Mode, Outcome, Query, QueryStats,
    Read, ScorerId, Step, Tag, Threshold, TopK, Want,
};

/// Scratch memory of a query; any machine can rebuild it from the query.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    exact: Exact,
    order: Vec<u32>,
    own: KindScratch,
    rank: RankScratch,
}

/// Tables that a step uses and a waiting query does not need.
pub type StepTables = remote_hnsw::Tables;

impl Scratch {
    /// Prepares distances for `query`: `dim` components of the index's element type, as bytes.
    pub fn prepare(&mut self, view: &IndexView<'_>, query: &[u8]) {
        self.exact.set(view.base.metric, view.base.dtype, view.base.dim, query);
        view.kind.prepare(&view.base, query, &mut self.own);
    }

    /// As [`Scratch::prepare`], as far as `state` needs it: a job that scores vectors uses no codes.
    pub fn prepare_for(&mut self, view: &IndexView<'_>, query: &[u8], state: &QueryState) {
        if state.uses_codes() {
            return self.prepare(view, query);
        }
        self.exact.set(view.base.metric, view.base.dtype, view.base.dim, query);
        view.kind.scratch(&mut self.own);
    }

    /// Exact distances of the prepared query.
    pub fn exact(&self) -> &Exact {
        &self.exact
    }

    /// Scratch memory of a `disk-graph` query.
    pub fn disk_graph(&self) -> Option<&disk_graph::Scratch> {
        if let KindScratch::DiskGraph(own) = &self.own { Some(own) } else { None }
    }

    /// Scratch memory of a `hybrid-ivf` query.
    pub fn hybrid_ivf(&self) -> Option<&hybrid_ivf::Scratch> {
        if let KindScratch::HybridIvf(own) = &self.own { Some(own) } else { None }
    }

    /// Ranks the lists that the prepared query would visit, without a search: see [`Scratch::ranked_lists`]. Nothing is
    /// done for a kind that ranks no lists here.
    pub fn rank_lists(&mut self, view: &IndexView<'_>, params: &Params) {
        if let (KindScratch::GridIvf(own), Some(kind), Some(params)) =
            (&mut self.own, view.kind.grid_ivf(), params.kind.grid_ivf())
        {
            own.rank(&view.base, kind, params);
        }
    }

    /// The job that the last step asks a scorer of codes to do; `None` of a kind that asks for none.
    pub fn code_job(&self, view: &IndexView<'_>) -> Option<CodeJob<'_>> {
        view.kind.code_job(&self.own)
    }

    /// Does [`Scratch::code_job`] with the codes that are in memory.
    pub fn rank_codes(&mut self, view: &IndexView<'_>) -> Ranking {
        let (codes, from) = view.kind.codes();
        let mut ranking = Ranking::default();
        if let Some(job) = view.kind.code_job(&self.own) {
            score::rank(&job, codes, from, &mut self.rank, &mut ranking);
        }
        ranking
    }

    /// Scratch memory of a `gpu-ivf` query.
    pub fn gpu_ivf(&self) -> Option<&gpu_ivf::Scratch> {
        if let KindScratch::GpuIvf(own) = &self.own { Some(own) } else { None }
    }

    /// Scratch memory of a `grid-ivf` query.
    pub fn grid_ivf(&self) -> Option<&grid_ivf::Scratch> {
        if let KindScratch::GridIvf(own) = &self.own { Some(own) } else { None }
    }

    /// Scratch memory of a `remote-hnsw` query.
    pub fn remote_hnsw(&self) -> Option<&remote_hnsw::Scratch> {
        if let KindScratch::RemoteHnsw(own) = &self.own { Some(own) } else { None }
    }

    /// Exchanges the tables that a step uses and a waiting query does not need. A thread that lends its tables for each
    /// step, and takes them back, has them once for all of its queries. Nothing is done for a kind without such tables.
    pub fn swap_tables(&mut self, tables: &mut StepTables) {
        if let KindScratch::RemoteHnsw(own) = &mut self.own {
            own.swap_tables(tables);
        }
    }

    /// The distance and number of each inverted list that the query has chosen to visit, the nearest first; none of a
    /// kind that ranks no lists here.
    pub fn ranked_lists(&self) -> &[(f32, u32)] {
        self.grid_ivf().map_or(&[], |own| own.ranked())
    }

    /// Keeps a trace of the lists that the query scans from now on, of a kind that has lists.
    pub fn trace_lists(&mut self) {
        if let KindScratch::GridIvf(own) = &mut self.own {
            own.trace();
        }
        if let KindScratch::HybridIvf(own) = &mut self.own {
            own.trace_lists();
        }
        if let KindScratch::GpuIvf(own) = &mut self.own {
            own.trace();
        }
        if let KindScratch::RemoteHnsw(own) = &mut self.own {
            own.trace();
        }
    }
}

/// One query on its way through an index.
#[derive(Clone, Debug, PartialEq)]
pub struct QueryState {
    pub(crate) q: Query,
    pub(crate) own: KindState,
    pub(crate) params: Params,
}

impl Default for QueryState {
    fn default() -> Self {
        QueryState::new(Params::flat(1), Budget::default())
    }
}

impl QueryState {
    /// A query that has not begun.
    pub fn new(params: Params, budget: Budget) -> QueryState {
        let q = Query {
            width: params.width,
            approach_width: params.approach_width,
            mode: params.mode,
            exclude: params.exclude,
            far_tenths: params.far_tenths,
            budget,
            started: false,
            known: Known::default(),
            top: TopK::default(),
            io: Io::default(),
            lost_units: LostUnits::default(),
            lost_parts: 0,
            outcome: Outcome::Running,
            stats: QueryStats::default(),
            next: None,
        };
        let own = KindState::default();
        let mut state = QueryState { q, own, params };
        state.restart(params, budget);
        state
    }

    /// Begins again with other parameters; keeps the memory.
    pub fn restart(&mut self, params: Params, budget: Budget) {
        let q = &mut self.q;
        (q.width, q.approach_width) = (params.width, params.approach_width);
        (q.mode, q.exclude, q.far_tenths) = (params.mode, params.exclude, params.far_tenths);
        q.budget = budget;
        q.started = false;
        q.known = Known::default();
        q.top.reset(params.k);
        q.io.reset();
        q.lost_units.0.clear();
        q.lost_parts = 0;
        q.outcome = Outcome::Running;
        q.stats = QueryStats::default();
        q.next = None;
        self.own.reset(&params.kind, params.k);
        self.params = params;
    }

    /// Tells of results that the asker has from elsewhere. Results beyond their bound may be missing. It holds until
    /// the
    /// state is restarted or sent.
    pub fn set_known(&mut self, known: Known) {
        let number = |distance: f32| if distance.is_nan() { f32::INFINITY } else { distance };
        self.q.known = Known { bound: number(known.bound), near: number(known.near), ..known };
    }

    /// Takes in what arrived and decides what to do next. No I/O, no clock, cannot fail.
    ///
    /// `scratch` must have been prepared for this query and `view`. Arrivals with unknown tags are ignored. A state
    /// of another kind than the index ends with [`Outcome::WrongKind`].
    pub fn step(&mut self, view: &IndexView<'_>, scratch: &mut Scratch, arrived: &[Arrival<'_>]) -> Step {
        self.q.io.wants.clear();
        self.q.next = None;
        if self.q.outcome == Outcome::Running {
            let Scratch { exact, order, own, .. } = scratch;
            let ordered = Ordered::new(arrived, order);
            kinds::step(&mut self.q, &mut self.own, &self.params.kind, view, exact, own, ordered);
        }
        kinds::kind::decision(&self.q)
    }

    /// Wants of the last step.
    pub fn wants(&self) -> &[Want] {
        &self.q.io.wants
    }

    /// The reads that the last step asked for.
    pub fn fetches(&self) -> impl Iterator<Item = (Tag, Extent)> {
        self.q.io.wants.iter().filter_map(|want| match *want {
            Want::Fetch { tag, at } => Some((tag, at)),
            Want::Score { .. } | Want::Tell { .. } => None,
        })
    }

    /// The jobs that the last step asked for, and the servers that are to score them.
    pub fn jobs(&self) -> impl Iterator<Item = (Tag, u8)> {
        self.q.io.wants.iter().filter_map(|want| match *want {
            Want::Score { tag, to: ScorerId::Server(to) } => Some((tag, to)),
            Want::Score { to: ScorerId::Codes, .. } | Want::Fetch { .. } | Want::Tell { .. } => None,
        })
    }

    /// The wants of the last step that a scorer of codes meets, with [`Scratch::code_job`].
    pub fn code_wants(&self) -> impl Iterator<Item = Tag> {
        self.q.io.wants.iter().filter_map(|want| match *want {
            Want::Score { tag, to: ScorerId::Codes } => Some(tag),
            Want::Score { to: ScorerId::Server(_), .. } | Want::Fetch { .. } | Want::Tell { .. } => None,
        })
    }

    /// The servers that get a lower threshold for the jobs of this query, by the last step.
    pub fn tells(&self) -> impl Iterator<Item = (u8, Threshold)> {
        self.q.io.wants.iter().filter_map(|want| match *want {
            Want::Tell { to, threshold } => Some((to, threshold)),
            Want::Fetch { .. } | Want::Score { .. } => None,
        })
    }

    /// Lowers the threshold of a job to what its query knows by now. It changes no answer.
    pub fn lower_threshold(&mut self, threshold: Threshold) {
        self.own.lower_threshold(threshold);
    }

    /// Reads and jobs asked for that have not arrived.
    pub fn pending(&self) -> usize {
        self.q.io.pending.len()
    }

    /// The pending read of a tag.
    pub fn read_of(&self, tag: Tag) -> Option<Read> {
        self.q.io.get(tag).filter(|p| p.scorer.is_none()).map(|p| p.read)
    }

    /// Makes `job` the job that a [`Want::Score`] of the last step asks for. Another server steps it to its end and
    /// replies with [`super::wire::write_scores`].
    pub(crate) fn job(&self, view: &IndexView<'_>, tag: Tag, job: &mut QueryState) {
        let mut params = self.params;
        let scorer = self.q.io.get(tag).and_then(|pending| pending.scorer);
        let server = if let Some(ScorerId::Server(server)) = scorer { Some(server) } else { None };
        if server.zip(view.base.here).is_some_and(|(server, here)| here.is_relay(server)) {
            params.kind.forward_jobs();
        }
        let forwards = params.kind.forwards_jobs();
        let hand_overs = if forwards { self.q.budget.hand_overs } else { 0 };
        job.restart(params, Budget { hand_overs, score_jobs: 0, ..self.q.budget });
        job.q.started = true;
        // A job that is forwarded does not visit servers that have failed.
        if forwards {
            job.q.lost_units.0.extend_from_slice(&self.q.lost_units.0);
        }
        self.own.job(&view.kind, tag, &mut job.own);
    }

    /// Whether it goes on with distances of codes, whose tables take long to prepare.
    pub fn uses_codes(&self) -> bool {
        self.own.uses_codes()
    }

    /// Whether it is a job of another query.
    pub(crate) fn is_job(&self) -> bool {
        self.own.is_job()
    }

    /// Notes that a cache answers a pending read: it is counted as a hit and no longer as a read. Reads that are
    /// counted with the batch are not noted.
    pub fn count_cache_hit(&mut self, tag: Tag) {
        let Some(read) = self.read_of(tag).filter(|_| !self.own.shares_reads()) else { return };
        let stats = &mut self.q.stats;
        stats.cache_hits += 1;
        stats.reads = stats.reads.saturating_sub(1);
        stats.pages_read = stats.pages_read.saturating_sub(read.at.pages());
        stats.bytes_read = stats.bytes_read.saturating_sub(read.at.pages() * crate::PAGE as u64);
        if let Some(counter) = self.own.read_counter(stats, &read) {
            *counter = counter.saturating_sub(1);
        }
    }

    /// Whether `count` arrivals are enough for the next step.
    pub fn is_ready(&self, count: usize) -> bool {
        match self.q.mode {
            Mode::Barrier if self.own.takes_any_order() => count > 0 || self.q.io.pending.is_empty(),
            Mode::Barrier => count >= self.q.io.pending.len(),
            Mode::Eager => count > 0 || self.q.io.pending.is_empty(),
        }
    }

    /// A unit that no live replica could read, and what happened at the last try: what an ended query lacks.
    pub fn unreadable(&self) -> Option<(u32, Loss)> {
        self.q.lost_units.given_up().map(|u| (u.unit, u.loss))
    }

    /// Parts that gave no answer, of an answer that was joined of several: a bit for each.
    pub fn lost_parts(&self) -> u64 {
        self.q.lost_parts
    }

    /// The results so far, closest first, at most k; without those already reported to the origin.
    pub fn results(&self) -> &[Hit] {
        &self.q.top.hits
    }

    /// Outcome of the query, or that it still runs.
    pub fn outcome(&self) -> Outcome {
        self.q.outcome
    }

    /// Whether the state may go on at another server of an index of this size: it runs, nothing is pending, and all
    /// that it names exists.
    pub fn is_baton(&self, size: &IndexSize) -> bool {
        self.q.outcome == Outcome::Running && self.q.io.pending.is_empty() && self.own.fits(size)
    }

    /// Whether its candidates have their distances. A state that came with ids alone gets them in its next step.
    pub fn has_distances(&self) -> bool {
        self.own.has_distances()
    }

    /// Outcome with results and counters alone: all that an answer needs.
    pub fn answer(&self) -> QueryState {
        let mut answer = QueryState::new(self.params, self.q.budget);
        answer.become_answer_of(self);
        answer
    }

    /// Becomes [`QueryState::answer`] of `ended`, in its own memory.
    pub(crate) fn become_answer_of(&mut self, ended: &QueryState) {
        self.restart(ended.params, ended.q.budget);
        let (q, from) = (&mut self.q, &ended.q);
        q.started = from.started;
        q.io.next_tag = from.io.next_tag;
        q.top.hits.clone_from(&from.top.hits);
        q.top.reports_sent = from.top.reports_sent;
        q.lost_units.0.extend(from.lost_units.given_up().copied());
        q.lost_parts = from.lost_parts;
        q.outcome = from.outcome;
        q.stats = from.stats;
    }

    /// Limits that are left.
    pub fn budget(&self) -> Budget {
        self.q.budget
    }

    /// Whether it has not made a step.
    pub fn is_new(&self) -> bool {
        !self.q.started && self.q.stats.hand_overs == 0
    }

    /// All memory that it takes, bytes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<QueryState>()
            + self.q.top.memory_bytes()
            + self.q.io.memory_bytes()
            + self.q.lost_units.0.capacity() * size_of::<crate::search::LostUnit>()
            + self.own.memory_bytes()
    }

    /// Counters so far.
    pub fn stats(&self) -> &QueryStats {
        &self.q.stats
    }

    /// The parameters it runs with.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The state of a `disk-graph` query, for `explain`.
    pub fn disk_graph(&self) -> Option<&disk_graph::State> {
        if let KindState::DiskGraph(own) = &self.own { Some(own) } else { None }
    }

    /// The candidates of a `disk-graph` query.
    #[cfg(test)]
    pub(crate) fn beam_mut(&mut self) -> &mut crate::search::Beam {
        match &mut self.own {
            KindState::DiskGraph(own) => &mut own.beam,
            _ => panic!("only disk-graph has a beam"),
        }
    }

    /// The trace of a `hybrid-ivf` query, for `explain` and for learning from traffic.
    pub fn hybrid_ivf(&self) -> Option<hybrid_ivf::Trace<'_>> {
        let KindState::HybridIvf(own) = &self.own else { return None };
        Some(hybrid_ivf::Trace::new(&self.q, own, self.params.kind.hybrid_ivf()?))
    }
}
