//! `grid-ivf`: HARMONY (Xu et al., SIGMOD 2025): inverted lists in memory, scanned component group by component group.
//! A vector is dropped as soon as the components so far exceed the k-th best distance.
//!
//! route = the nearest centroids, in [`rank`] · access = [`scan`], in memory · verify = the same sums, which are exact
//! once all components are in. Lists may be divided over servers, in slices of their components: see [`rows`]. Many
//! exact queries are scored together, without pruning: see [`pass`].

mod codes;
mod fine;
pub mod pass;
mod rank;
mod rotated_query;
mod rows;
mod scan;
mod sums;
#[cfg(test)]
mod tests;
mod trace;
mod view;

use alloc::vec::Vec;

use crate::codec::{Reader, Refused, Writer};
use crate::kinds::kind::{Carry, Kind, Ordered, StepContext};
use crate::place::SERVERS_MAX;
use crate::search::{Budget, Candidate, FAR_MAX, Hit, IndexSize, Loss, Read, Tag, Threshold};
use crate::view::Base;

use codes::CodedQuery;
pub use codes::Codes;
use rows::{Gathered, Probe, Row};
pub use trace::{ScannedList, Trace};
pub use view::{Axes, ELSEWHERE, Firsts, Line, Pilot, Unit, View, prewarmed};

/// Most lists that a query can visit.
pub const MAX_PROBES: u32 = 65_536;
/// Most rows that a query visits at a time.
pub const MAX_FAN_OUT: u8 = 64;

/// The first versions of states that can switch off balance and the pipeline, codes, and chains of rows.
const SWITCHES_VERSION: u32 = 12;
const CODES_VERSION: u32 = 13;
const CHAINS_VERSION: u32 = 14;
/// With the number of rows at a time: rows are not chained.
const UNCHAINED: u8 = 0x80;

/// The kind itself.
pub(crate) struct GridIvf;

/// The parameters of one query; plain data that travels with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Lists that are scanned.
    pub nprobe: u32,
    /// Whether all lists are scanned, whatever `nprobe` says.
    pub exact: bool,
    /// Whether a vector is dropped by its first components.
    pub prune_dimension: bool,
    /// Whether a vector is dropped by its code, where lists have codes.
    pub prune_code: bool,
    /// Whether the threshold falls from list to list; otherwise it stays what the prewarmed vectors made it.
    pub prune_vector: bool,
    /// Whether some members of every probed list are scored first, whole, for a first threshold.
    pub prewarm: bool,
    /// Rows that are visited at the same time, of lists that are divided over servers. With one, each row is pruned by
    /// all rows before it (HARMONY §4.3, the vector level).
    pub fan_out: u8,
    /// Whether slices on busy servers come last: few vectors are left then (HARMONY §4.3).
    pub busy_last: bool,
    /// Whether the loads of servers count at all: of replicas, the least busy one scores.
    pub balance: bool,
    /// Whether a row visits its slices one after another, each dropping vectors for those that follow. Otherwise all
    /// slices are scored at once, and their sums are added at the origin.
    pub pipeline: bool,
    /// Whether one job visits the rows of whole lists one after another, and replies at the end of its way. Otherwise
    /// each row is a job of its own.
    pub chain: bool,
}

impl Params {
    /// The defaults of everything else.
    pub fn new(nprobe: u32) -> Params {
        Params {
            nprobe: nprobe.clamp(1, MAX_PROBES),
            exact: false,
            prune_dimension: true,
            prune_code: true,
            prune_vector: true,
            prewarm: true,
            fan_out: 1,
            busy_last: true,
            balance: true,
            pipeline: true,
            chain: true,
        }
    }

    /// The first five are those of states before version 12; the others are false by default.
    fn flags(&self) -> [bool; 8] {
        let Params { exact, prune_dimension, prune_vector, prewarm, .. } = *self;
        let Params { busy_last, balance, pipeline, prune_code, .. } = *self;
        [exact, prune_dimension, prune_vector, prewarm, busy_last, !balance, !pipeline, !prune_code]
    }
}

/// The lists that are left, where they are divided over servers. Elsewhere all is done in one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    // It is a job: it scans its one row, and ends with the best vectors of it.
    is_job: bool,
    // Lists that are not begun, the nearest first.
    open: Vec<Probe>,
    // Rows that are scanned, or slices of them, and by which job.
    rows: Vec<(Tag, Row)>,
    // Rows whose slices are scored at the same time.
    gathered: Vec<Gathered>,
    // The limit of sums before any list was scanned.
    limit: f64,
    // What a job ends with.
    found: Vec<Hit>,
}

/// The query in the axes of the index, and reusable buffers.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    // As the centroids are.
    point: Vec<f32>,
    // Component by component in the order of the axes.
    query: Vec<f32>,
    // By group.
    norms: Vec<f32>,
    // In units of the pilot's codes.
    pilot: Vec<f32>,
    coded: CodedQuery,
    // The query as jobs carry it: its components, and what they are multiplied with.
    values: Vec<u8>,
    factor: f32,
    length: f32,
    // The unit of this query is larger than that of the index by so many powers of two, and has this scale.
    shift: u8,
    scale: f32,
    distances: Vec<f32>,
    ranked: Vec<(f32, u32)>,
    rests: Vec<[f64; stratann_kernel::columns::LANES]>,
    trace: Option<Trace>,
}

impl Scratch {
    /// Keeps a trace of what is scanned from now on.
    pub fn trace(&mut self) {
        self.trace = Some(Trace::default());
    }

    /// Ranks the lists that a prepared query with these parameters would visit: see [`Scratch::ranked`].
    pub fn rank(&mut self, base: &Base<'_>, view: &View<'_>, params: &Params) {
        rank::rank_lists(base, view, (params, FAR_MAX, 0), self);
    }

    /// The lists that the query visits, the nearest first, with the distances of their centroids.
    pub fn ranked(&self) -> &[(f32, u32)] {
        &self.ranked
    }

    /// Trace of what was scanned since it is kept; `None` when none is.
    pub fn scanned(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }
}

/// The same step, with another view of what all kinds have.
fn with_base<'b>(cx: &'b mut StepContext<'_, GridIvf>, base: &'b Base<'b>) -> StepContext<'b, GridIvf> {
    StepContext {
        q: cx.q,
        own: cx.own,
        base,
        view: cx.view,
        params: cx.params,
        exact: cx.exact,
        scratch: cx.scratch,
    }
}

impl Kind for GridIvf {
    type View<'a> = View<'a>;
    type Params = Params;
    type State = State;
    type Scratch = Scratch;

    fn is_valid(params: &Params, _: u32) -> bool {
        (1..=MAX_PROBES).contains(&params.nprobe) && (1..=MAX_FAN_OUT).contains(&params.fan_out)
    }

    fn reset(state: &mut State, _: &Params, _: u32) {
        state.is_job = false;
        state.open.clear();
        state.rows.clear();
        state.gathered.clear();
        state.limit = 0.0;
        state.found.clear();
    }

    fn budget(_: &View<'_>) -> Budget {
        Budget::default()
    }

    fn prepare(base: &Base<'_>, view: &View<'_>, query: &[u8], scratch: &mut Scratch) {
        rotated_query::prepare(base, view, query, scratch);
    }

    fn step(cx: &mut StepContext<'_, Self>, arrived: Ordered<'_>) {
        let mut base = *cx.base;
        if let Some(here) = base.here.as_mut().filter(|_| !cx.params.balance) {
            here.others.loads = [0; SERVERS_MAX];
        }
        let cx: &mut StepContext<'_, GridIvf> = &mut with_base(cx, &base);
        if cx.own.is_job {
            return rows::step_job(cx);
        }
        cx.take_in(arrived, |_, _, _| None);
        if !cx.q.started {
            cx.q.started = true;
            cx.q.count_hop();
            rank::rank(cx);
            rows::begin(cx);
        }
        rows::choose(cx);
        rows::tell(cx);
    }

    fn lower_threshold(state: &mut State, threshold: Threshold) {
        rows::lower_threshold(state, threshold.get());
    }

    fn job(state: &State, _: &View<'_>, tag: Tag, job: &mut State) {
        job.is_job = true;
        job.rows.extend(state.rows.iter().filter(|row| row.0 == tag).cloned());
    }

    fn forwards_jobs(_: &Params) -> bool {
        true
    }

    fn is_job(state: &State) -> bool {
        state.is_job
    }

    fn jobs_have_queries() -> bool {
        true
    }

    fn uses_codes(state: &State) -> bool {
        !state.is_job
    }

    fn encode_scores(state: &State, w: &mut Writer<'_>) {
        rows::encode_scores(state, w);
    }

    fn take_scores(
        cx: &mut StepContext<'_, Self>,
        (tag, _): (Tag, u8),
        scores: Result<&mut Reader<'_>, Loss>,
    ) -> Result<(), Refused> {
        rows::take_scores(cx, tag, scores.ok())
    }

    fn check_read(_: &Base<'_>, _: &View<'_>, _: &Read, _: &[u8]) -> bool {
        // Nothing is read.
        false
    }

    fn size(base: &Base<'_>, view: &View<'_>) -> IndexSize {
        IndexSize { nodes: base.nodes, units: view.units(), clusters: view.lists() }
    }

    fn fits(state: &State, size: &IndexSize) -> bool {
        rows::fits(state, size)
    }

    fn encode_params(params: &Params, version: u32, w: &mut Writer<'_>) {
        w.u32(params.nprobe);
        let known = match version {
            ..SWITCHES_VERSION => 5,
            SWITCHES_VERSION..CODES_VERSION => 7,
            _ => 8,
        };
        w.u8((0..known).zip(params.flags()).map(|(i, flag)| u8::from(flag) << i).sum());
        let is_unchained = version >= CHAINS_VERSION && !params.chain;
        w.u8(params.fan_out | if is_unchained { UNCHAINED } else { 0 });
    }

    fn decode_params(r: &mut Reader<'_>) -> Result<Params, Refused> {
        let nprobe = r.u32()?;
        let flags = r.u8()?;
        let flags: [bool; 8] = core::array::from_fn(|i| flags >> i & 1 == 1);
        let [exact, prune_dimension, prune_vector, prewarm, busy_last, unbalanced, at_once, without_codes] =
            flags;
        let (balance, pipeline, rows) = (!unbalanced, !at_once, r.u8()?);
        let (fan_out, chain) = (rows & !UNCHAINED, rows & UNCHAINED == 0);
        Ok(Params {
            nprobe,
            exact,
            prune_dimension,
            prune_code: !without_codes,
            prune_vector,
            prewarm,
            fan_out,
            busy_last,
            balance,
            pipeline,
            chain,
        })
    }

    fn encode(state: &State, _: (Carry, u32), w: &mut Writer<'_>, _: &mut Vec<Candidate>) {
        rows::encode(state, w);
    }

    fn decode(state: &mut State, _: &Params, k: u32, r: &mut Reader<'_>) -> Result<(), Refused> {
        rows::decode(state, k, r)
    }

    fn memory_bytes(state: &State) -> usize {
        rows::memory_bytes(state)
    }
}
