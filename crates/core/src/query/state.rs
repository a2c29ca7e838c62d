//! The state of a query and its one transition.
//!
//! The state is plain data: no pointer, no clock, no `usize`. It could be encoded at any step ([`super::wire`]), revived elsewhere, and
//! would go on with the same answer and the same counters. What can be rebuilt from the query lives in [`Scratch`] and never travels.

use alloc::vec::Vec;
use core::mem::take;

use stratann_kernel::Metric;
use stratann_kernel::codes::Table;
use stratann_kernel::distance::Exact;

use super::seen::Seen;
use super::{Beam, Budget, Mode, Params, Probing, QueryStats, Reading};
use crate::place::bit;
use crate::plan::{self, IndexView};

/// Ties an arrival to the want it answers; unique within a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tag(pub u32);

/// Something the query needs from the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// The bytes of a block, or of several that follow each other.
    Fetch {
        /// To be repeated in the arrival.
        tag: Tag,
        /// Number of the first block.
        block: u32,
        /// Number of blocks.
        count: u32,
    },
}

/// Why a want was not met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Loss {
    /// The read failed.
    Failed = 0,
    /// The file ended too early.
    Short = 1,
    /// The bytes are damaged: checksum, place or layout.
    Damaged = 2,
    /// The query's time was up.
    Expired = 3,
}

/// What came of one want.
#[derive(Clone, Copy, Debug)]
pub enum Arrived<'a> {
    /// The bytes, already verified.
    Bytes(&'a [u8]),
    /// Nothing will come.
    Lost(Loss),
}

/// The answer to one want.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// The tag of the want.
    pub tag: Tag,
    /// What came of it.
    pub what: Arrived<'a>,
}

/// What the driver does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Submit [`QueryState::wants`] and step again: in `Barrier` mode when all that is outstanding has arrived, in `Eager` mode when something has.
    Wait,
    /// Encode the state, send it to this server, and step it there. Nothing is outstanding.
    HandOver(u8),
    /// Finished: see [`QueryState::outcome`].
    Done,
}

/// How a query ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It still runs.
    Running,
    /// The results are what was asked for.
    Complete,
    /// A limit of the budget stopped it; the results are the best so far.
    OutOfBudget,
    /// As complete as the servers that answer allow: some candidates could not be read.
    Partial,
    /// A block was lost: the results are not to be used.
    Lost {
        /// Which block.
        block: u32,
        /// Why.
        loss: Loss,
    },
}

/// One result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit {
    /// Exact distance.
    pub distance: f32,
    /// The id that the user knows.
    pub external_id: u64,
}

impl Hit {
    /// The order of results: closest first, then the smaller id.
    pub(crate) fn order(&self, other: &Hit) -> core::cmp::Ordering {
        self.distance.total_cmp(&other.distance).then(self.external_id.cmp(&other.external_id))
    }
}

/// What can be rebuilt from the query on any machine.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    /// Exact distances.
    pub exact: Exact,
    /// Code distances.
    pub table: Table,
    pub(crate) wide: Vec<f32>,
    pub(crate) rotated: Vec<f32>,
    pub(crate) norms: Vec<f32>,
    pub(crate) exact_distances: Vec<f32>,
    pub(crate) ids: Vec<u32>,
    pub(crate) elsewhere: Vec<u32>,
    pub(crate) heads: Vec<u32>,
    pub(crate) seen: Seen,
    // Of the block that is expanded, where it carries codes: the nodes that have one there, and a list's places among them.
    pub(crate) coded: Vec<u32>,
    pub(crate) ranks: Vec<u32>,
    pub(crate) distances: Vec<u32>,
    pub(crate) head_beam: Beam,
    pub(crate) member_beam: Beam,
    pub(crate) order: Vec<u32>,
    pub(crate) order_of_mates: Vec<(u32, u32)>,
    // Of the member of a local graph that is expanded: the edges to those not met before.
    pub(crate) edges: Vec<(u32, (f32, f32))>,
    // Of the navigation graph: clusters, how many members speak for them, and how near they are taken to be.
    pub(crate) votes: Vec<(u32, u32, f32)>,
    // Of a query that is watched.
    pub(crate) scanned: Option<Vec<super::ScannedList>>,
    code_scale: f32,
    code_error: f32,
    pub(crate) query_norm: f32,
    dim: f32,
}

impl Scratch {
    /// Prepares distances for `query`: `dim` components of the index' element type, as bytes.
    pub fn prepare(&mut self, view: &IndexView<'_>, query: &[u8]) {
        self.exact.set(view.metric, view.dtype, view.dim, query);
        let codebook = view.graph.as_ref().map(|g| g.codebook).or(view.clusters.as_ref().map(|c| c.codebook));
        if let Some(codebook) = codebook {
            self.seen.clear(view.nodes);
            self.wide.resize(view.dim, 0.0);
            stratann_kernel::element::widen(view.dtype, query, &mut self.wide);
            if view.metric == Metric::Cosine {
                let scale = stratann_kernel::distance::inverse_norm(view.dtype, query);
                self.wide.iter_mut().for_each(|x| *x *= scale);
            }
            self.table.set(codebook, &self.wide, &mut self.rotated);
            // Codes of unit vectors measure squared l2, which is twice the cosine distance.
            self.code_scale = if view.metric == Metric::Cosine { 0.5 } else { 1.0 };
            self.code_error = view.graph.as_ref().map_or(0.0, |g| g.code_error);
            let inverse = stratann_kernel::distance::inverse_norm(view.dtype, query);
            // A query of zeros has no inverse.
            let has_norm = view.metric == Metric::Ip && inverse > 0.0;
            self.query_norm = if has_norm { 1.0 / inverse } else { 0.0 };
            self.dim = view.dim as f32;
        }
    }

    /// The largest code distance (on the scale of exact ones) that a vector at exact distance `exact` is expected to have, `slack` standard errors up.
    ///
    /// With e the error of a code, ‖q − v̂‖² = ‖q − v‖² + ‖e‖² + 2⟨q − v, e⟩: a bias of E‖e‖² and, for errors without preferred direction in d
    /// dimensions, a standard error of 2·√(‖q − v‖²·E‖e‖² / d). An inner product has no bias, and ‖q‖·√(E‖e‖² / d).
    pub(crate) fn expected_at_most(&self, exact: f32, slack: f32) -> f32 {
        if self.query_norm > 0.0 {
            return exact + slack * self.query_norm * stratann_kernel::sqrt(self.code_error / self.dim);
        }
        let error = self.code_error * self.code_scale;
        exact + error + slack * 2.0 * stratann_kernel::sqrt(exact.max(0.0) * error / self.dim)
    }

    /// A code distance on the scale of exact distances.
    pub fn estimate(&self, code_distance: u32) -> f32 {
        self.table.to_float(code_distance) * self.code_scale
    }
}

/// A read under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outstanding {
    pub(crate) tag: Tag,
    pub(crate) block: u32,
    pub(crate) reading: Reading,
}

/// A block that could not be read, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unread {
    pub(crate) block: u32,
    // A bit for every server that tried; all of them once it is given up.
    pub(crate) tried: u64,
    pub(crate) loss: Loss,
}

/// Most blocks that a query looks for at another home after a read failed; with more something is wrong with the whole cluster.
pub(crate) const UNREAD_MAX: usize = 1024;

/// One query on its way through an index.
#[derive(Clone, Debug, PartialEq)]
pub struct QueryState {
    pub(crate) params: Params,
    pub(crate) budget: Budget,
    pub(crate) started: bool,
    // False between the arrival of a state without distances and its next step.
    pub(crate) is_scored: bool,
    pub(crate) next_tag: u32,
    pub(crate) next_block: u32,
    // Reads since the results last changed.
    pub(crate) fruitless: u32,
    pub(crate) beam: Beam,
    pub(crate) results: Vec<Hit>,
    // Distances of further results, ascending: the origin of the query has been told which they are, in so many words.
    pub(crate) told: Vec<f32>,
    pub(crate) words: u32,
    pub(crate) outstanding: Vec<Outstanding>,
    pub(crate) wants: Vec<Want>,
    // Reads that failed and are to be made at another home, or were given up; seldom any.
    pub(crate) unread: Vec<Unread>,
    pub(crate) probing: Probing,
    // Decided by the last step; never travels.
    pub(crate) next_server: Option<u8>,
    pub(crate) outcome: Outcome,
    pub(crate) stats: QueryStats,
}

impl Default for QueryState {
    fn default() -> Self {
        QueryState::new(Params::new(1, 1), Budget::default())
    }
}

impl QueryState {
    /// A query that has not begun.
    pub fn new(params: Params, budget: Budget) -> QueryState {
        let mut state = QueryState {
            params,
            budget,
            started: false,
            is_scored: true,
            next_tag: 0,
            next_block: 0,
            fruitless: 0,
            beam: Beam::default(),
            results: Vec::new(),
            told: Vec::new(),
            words: 0,
            outstanding: Vec::new(),
            wants: Vec::new(),
            unread: Vec::new(),
            probing: Probing::default(),
            next_server: None,
            outcome: Outcome::Running,
            stats: QueryStats::default(),
        };
        state.beam.reset(params.search_list as usize);
        state.probing.reset(params.k as usize);
        state
    }

    /// Begins anew with other parameters, keeping the memory.
    pub fn restart(&mut self, params: Params, budget: Budget) {
        self.params = params;
        self.budget = budget;
        self.started = false;
        self.is_scored = true;
        self.next_tag = 0;
        self.next_block = 0;
        self.fruitless = 0;
        self.beam.reset(params.search_list as usize);
        self.results.clear();
        self.told.clear();
        self.words = 0;
        self.outstanding.clear();
        self.wants.clear();
        self.unread.clear();
        self.probing.reset(params.k as usize);
        self.next_server = None;
        self.outcome = Outcome::Running;
        self.stats = QueryStats::default();
    }

    /// Takes in what arrived and decides what to do next. No I/O, no clock, cannot fail.
    ///
    /// `scratch` must have been prepared for this query and `view`. Arrivals with unknown tags are ignored.
    pub fn step(&mut self, view: &IndexView<'_>, scratch: &mut Scratch, arrived: &[Arrival<'_>]) -> Step {
        self.wants.clear();
        self.next_server = None;
        if self.outcome == Outcome::Running {
            plan::step(self, view, scratch, arrived);
        }
        match self.next_server {
            _ if self.outcome != Outcome::Running => Step::Done,
            Some(server) => Step::HandOver(server),
            None => Step::Wait,
        }
    }

    /// What the last step asked for.
    pub fn wants(&self) -> &[Want] {
        &self.wants
    }

    /// Reads asked for that have not arrived.
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// The block that an outstanding read will bring.
    pub fn block_of(&self, tag: Tag) -> Option<u32> {
        self.outstanding.iter().find(|o| o.tag == tag).map(|o| o.block)
    }

    /// Tells how many of the reads a cache answered: the driver alone knows.
    pub fn set_cache_hits(&mut self, hits: u64) {
        self.stats.cache_hits = hits;
    }

    /// True when `count` arrivals held back are enough for the next step.
    pub fn is_ready(&self, count: usize) -> bool {
        match self.params.mode {
            Mode::Barrier => count >= self.outstanding.len(),
            Mode::Eager => count > 0,
        }
    }

    /// A block that no home could read that answers, and what happened at the last of them: what an ended query lacks.
    pub fn unreadable(&self) -> Option<(u32, Loss)> {
        self.given_up().map(|u| (u.block, u.loss))
    }

    fn given_up(&self) -> Option<&Unread> {
        self.unread.iter().find(|u| u.tried == u64::MAX)
    }

    /// The results so far, closest first, at most k; those alone that its origin has not been told of.
    pub fn results(&self) -> &[Hit] {
        &self.results
    }

    /// Whether it has k results, those that its origin was told of among them.
    pub(crate) fn is_full(&self) -> bool {
        self.results.len() + self.told.len() >= self.params.k as usize
    }

    /// The last of all results: its distance, and its id unless the origin was told of it. Those come after others as far.
    pub(crate) fn worst(&self) -> Option<(f32, Option<u64>)> {
        let here = self.results.last().map(|hit| (hit.distance, Some(hit.external_id)));
        let told = self.told.last().map(|&distance| (distance, None));
        match (here, told) {
            (Some(h), Some(t)) => Some(if h.0.total_cmp(&t.0).is_gt() { h } else { t }),
            (here, told) => here.or(told),
        }
    }

    /// Drops the last of all results.
    pub(crate) fn drop_worst(&mut self) {
        match self.worst() {
            Some((_, Some(_))) => drop(self.results.pop()),
            _ => drop(self.told.pop()),
        }
    }

    /// How it ended, or that it runs.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Whether the state may go on at another server of an index with `nodes` nodes: it runs, waits for nothing, and knows real nodes alone.
    pub fn is_baton(&self, nodes: u32) -> bool {
        self.outcome == Outcome::Running
            && self.outstanding.is_empty()
            && self.beam.entries().iter().all(|c| c.id < nodes)
    }

    /// Whether its candidates have their distances; a state that came with ids alone gets them in its next step.
    pub fn has_distances(&self) -> bool {
        self.is_scored || self.beam.entries().is_empty()
    }

    /// Forgets the candidates, as if nothing had been read; results and budget stay. What the origin was told of will be found once more.
    pub(crate) fn begin_anew(&mut self) {
        self.told.clear();
        self.beam.reset(self.params.search_list as usize);
        self.started = false;
    }

    /// How it ended, with results and counters alone: all that an answer needs.
    pub fn without_beam(&self) -> QueryState {
        QueryState {
            beam: Beam::default(),
            results: self.results.clone(),
            told: Vec::new(),
            outstanding: Vec::new(),
            wants: Vec::new(),
            unread: self.given_up().copied().into_iter().collect(),
            probing: Probing::default(),
            next_server: None,
            ..*self
        }
    }

    /// Becomes [`QueryState::without_beam`] of `ended`, in its own memory.
    pub(crate) fn become_answer_of(&mut self, ended: &QueryState) {
        let (mut results, mut unread) = (take(&mut self.results), take(&mut self.unread));
        let mut told = take(&mut self.told);
        results.clone_from(&ended.results);
        told.clear();
        unread.clear();
        unread.extend(ended.given_up().copied());
        let (mut outstanding, mut wants) = (take(&mut self.outstanding), take(&mut self.wants));
        outstanding.clear();
        wants.clear();
        let mut beam = take(&mut self.beam);
        beam.reset(0);
        let mut probing = take(&mut self.probing);
        probing.reset(0);
        *self = QueryState {
            beam,
            results,
            told,
            outstanding,
            wants,
            unread,
            probing,
            next_server: None,
            ..*ended
        };
    }

    /// All memory that it takes, bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<QueryState>()
            + self.beam.memory_bytes()
            + self.results.capacity() * size_of::<Hit>()
            + self.told.capacity() * size_of::<f32>()
            + self.outstanding.capacity() * size_of::<Outstanding>()
            + self.wants.capacity() * size_of::<Want>()
            + self.unread.capacity() * size_of::<Unread>()
            + self.probing.memory_bytes()
    }

    /// What it has cost so far.
    pub fn stats(&self) -> &QueryStats {
        &self.stats
    }

    /// The parameters it runs with.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Changes the width of the rounds to come: load may drive it, outside of what `Barrier` promises.
    pub fn set_width(&mut self, width: u32) {
        self.params.width = width.clamp(1, super::MAX_WIDTH);
        self.params.approach_width = self.params.approach_width.min(self.params.width);
    }

    /// The candidates, for those who explain a query.
    pub fn beam(&self) -> &Beam {
        &self.beam
    }

    /// A bit for every server where this block could not be read.
    pub(crate) fn tried(&self, block: u32) -> u64 {
        self.unread.iter().find(|u| u.block == block).map_or(0, |u| u.tried)
    }

    /// A read brought nothing. In a cluster its candidates wait to be read at another home, where this one is not asked again; false
    /// where there is no other, or too much was lost already.
    pub(crate) fn lose(&mut self, view: &IndexView<'_>, block: u32, loss: Loss) -> bool {
        let (Some(here), Some(graph)) = (&view.here, &view.graph) else { return false };
        let is_full = self.unread.len() >= UNREAD_MAX;
        match self.unread.iter_mut().find(|u| u.block == block) {
            Some(unread) => (unread.tried, unread.loss) = (unread.tried | bit(here.server), loss),
            None if is_full => return false,
            None => self.unread.push(Unread { block, tried: bit(here.server), loss }),
        }
        self.beam.renew(|id| graph.map.block_of(id) == block);
        true
    }

    /// A read brought what it was to bring.
    pub(crate) fn found(&mut self, block: u32) {
        self.unread.retain(|u| u.block != block);
    }

    /// No home is left where this block could be read: it is not looked for again.
    pub(crate) fn give_up(&mut self, block: u32) {
        self.stats.unreachable += 1;
        self.unread.iter_mut().filter(|u| u.block == block).for_each(|u| u.tried = u64::MAX);
    }

    /// Registers a read of a block. False when the budget allows none.
    pub(crate) fn fetch(&mut self, view: &IndexView<'_>, block: u32) -> bool {
        self.fetch_as(view, block, 1, Reading::Block).is_some()
    }

    /// Registers a read of `count` blocks. `None` when the budget allows none.
    pub(crate) fn fetch_as(
        &mut self,
        view: &IndexView<'_>,
        block: u32,
        count: u32,
        reading: Reading,
    ) -> Option<Tag> {
        if self.budget.reads == 0 {
            return None;
        }
        self.budget.reads -= 1;
        let tag = Tag(self.next_tag);
        self.next_tag = self.next_tag.wrapping_add(1);
        match reading {
            Reading::Edges => self.stats.edge_reads += 1,
            Reading::Records | Reading::Run(..) => self.stats.record_reads += 1,
            Reading::Block | Reading::Lists(..) => {}
        }
        self.outstanding.push(Outstanding { tag, block, reading });
        self.wants.push(Want::Fetch { tag, block, count });
        self.stats.reads += 1;
        self.stats.pages_read += u64::from(count) * (view.block.block_bytes / crate::PAGE) as u64;
        Some(tag)
    }

    /// Ends the query.
    pub(crate) fn finish(&mut self, outcome: Outcome) {
        self.outcome = outcome;
        self.wants.clear();
        self.outstanding.clear();
    }
}
