//! `disk-graph`: BatANN's single-server search (PVLDB 14, §4.1–4.4), after DiskANN, with whole blocks scored as in
//! Starling and PageANN, and PipeANN's eager mode.
//!
//! In memory, and where `rerank` asks for it, the search goes [by codes](code_walk) alone. Whole blocks of an index in
//! memory are used without reads, too, in the same rounds. Where few rows may be returned, [their codes](code_scan)
//! are compared instead of a walk, or [their blocks](scan) are read. Where many may that lie far from the query, a
//! second walk goes [among them](seeds).
//!
//! route = [`crate::route::HeadGraph`] over codes, in [`enter`] · access = [`walk`] · verify = [`crate::exact`]

mod code_scan;
pub mod code_walk;
mod enter;
pub mod resident;
mod scan;
mod seeds;
mod source;
mod stop;
mod walk;
mod wire;

use alloc::vec::Vec;

use stratann_kernel::coder::Coder;

use crate::access::{CodedQuery, ExpectedDistances, blocks};
use crate::check::{Blocks, Links};
use crate::codec::{Reader, Refused, Writer};
use crate::exact::BlockScratch;
use crate::format::block;
use crate::format::block_map::BlockMap;
use crate::kinds::kind::{Carry, Kind, Ordered, StepContext};
use crate::route::HeadGraph;
use crate::search::{Beam, Budget, Candidate, IndexSize, Outcome, Progress, Read, Visited};
use crate::sieve::Sieve;
use crate::view::Base;
use code_walk::CodeWalk;
use resident::Resident;
use scan::Scan;
pub use seeds::SEEDS;

/// Longest beam.
pub const MAX_SEARCH_LIST: u32 = 65_536;

/// Most rows that a walk among those that may be returned begins at.
pub const SEEDS_MAX: u32 = 1024;

/// Length of the head graph's beam in a walk by codes.
const CODE_WALK_HEAD_LIST: u32 = 4;

/// The kind itself.
pub(crate) struct DiskGraph;

/// Part of a `disk-graph` in RAM.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The layout of all blocks.
    pub block: &'a block::BlockLayout,
    /// Number of blocks.
    pub blocks: u32,
    /// How vectors are encoded.
    pub coder: &'a Coder,
    /// Place of the codes of nodes.
    pub codes: Codes<'a>,
    /// Block of each node.
    pub map: &'a BlockMap,
    /// Mean squared error of the codes.
    pub code_error: f32,
    /// Root mean square length of the vectors, as their codes have it. Used under inner product only.
    pub vector_norm: f32,
    /// The entry of every search.
    pub head: &'a HeadGraph,
    /// What else is in memory.
    pub resident: Option<Resident<'a>>,
}

impl<'a> View<'a> {
    /// The index as it is checked.
    pub fn checked(&self, base: Base<'a>) -> Blocks<'a> {
        let head_codes = if let Codes::Head(codes) = self.codes { Some(codes) } else { None };
        let links = Links { map: self.map, head: self.head, head_codes };
        Blocks { base, layout: self.block, count: self.blocks, links: Some(links) }
    }
}

/// Places of codes. Distances are the same wherever a code comes from.
#[derive(Clone, Copy, Debug)]
pub enum Codes<'a> {
    /// In RAM: one per node.
    All(&'a [u8]),
    /// In the blocks, beside the ids that their adjacency lists name. In RAM are those of the head graph's nodes, in
    /// their order there.
    Head(&'a [u8]),
}

/// The parameters of one query; plain data that travels with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// Length of the beam: L in DiskANN and BatANN, `ef` in HNSW.
    pub search_list: u32,
    /// Stop once the best unread candidate is farther than the k-th result by this many standard errors of its code
    /// distance; infinity turns the rule off.
    pub stop_slack: f32,
    /// Stop after this many reads in a row that changed none of the k results; 0 turns the rule off.
    pub patience: u32,
    /// Stop once the best unread candidate is expected to be farther than the k-th result by this share of its
    /// distance, and [`Params::idle_share`] agrees; infinity turns the rule off.
    pub stop_margin: f32,
    /// The share of all reads that must be in a row without a new result before [`Params::stop_margin`] stops.
    pub idle_share: f32,
    /// Read and score every block instead: the exact answer.
    pub scan: bool,
    /// Whether nodes that came along in a block are scored and, where useful, expanded.
    pub whole_blocks: bool,
    /// Whether the head graph gives the first candidates; otherwise the medoid does (DiskANN).
    pub head: bool,
    /// Length of the head graph's own beam.
    pub head_list: u32,
    /// Walk by codes alone, and compare so many of the nearest candidates exactly in the end; the stop rules and
    /// [`Params::whole_blocks`] are not used then. With 0 nodes are compared as their blocks arrive.
    pub rerank: u32,
    /// How the rows of a sieve are found.
    pub sieving: Sieving,
}

/// How a search finds rows of which few may be returned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sieving {
    /// Compare the codes of all rows that may be returned instead of a walk, and read the nearest.
    pub code_scan: bool,
    /// A scan of codes ends when the best unread row is farther than the k-th result by this many standard errors of
    /// its code distance.
    pub slack: f32,
    /// Candidates that a scan of codes keeps; at least k are.
    pub list: u32,
    /// A walk that has used so many blocks gives way; 0 for never.
    pub blocks_max: u32,
    /// A walk that has compared so many codes gives way; 0 for never.
    pub comparisons_max: u64,
    /// Whether it gives way to a scan of codes; otherwise to a scan of the blocks.
    pub to_codes: bool,
    /// Rows from all parts of the index at which a walk begins among those that may be returned, where the nearest
    /// nodes have too few; 0 for no such walk.
    pub seeds: u32,
    /// Length of its beam where the nearest nodes have next to none; 0 for no such walk there.
    pub seed_list: u32,
}

impl Default for Sieving {
    fn default() -> Self {
        Sieving {
            code_scan: false,
            slack: f32::INFINITY,
            list: 0,
            blocks_max: 0,
            comparisons_max: 0,
            to_codes: false,
            seeds: SEEDS,
            seed_list: 0,
        }
    }
}

impl Params {
    /// A beam of `search_list`, and the defaults of everything else.
    pub fn new(search_list: u32) -> Params {
        let search_list = search_list.clamp(1, MAX_SEARCH_LIST);
        Params {
            search_list,
            stop_slack: f32::INFINITY,
            patience: 0,
            stop_margin: f32::INFINITY,
            idle_share: 0.0,
            scan: false,
            whole_blocks: true,
            head: true,
            head_list: search_list.clamp(16, 64),
            rerank: 0,
            sieving: Sieving::default(),
        }
    }

    /// Length of the beam of a walk, or of a scan of codes.
    fn beam(&self, is_scan: bool) -> u32 {
        if is_scan { self.sieving.list.max(1) } else { self.search_list }
    }

    /// Makes it a walk by codes that compares `rerank` candidates in the end; with 0 the opposite. Comparisons of such
    /// a walk cost more than its way, so the head graph only brings it near.
    pub fn walk_by_codes(&mut self, rerank: u32) {
        self.rerank = rerank;
        self.head_list = if rerank > 0 { CODE_WALK_HEAD_LIST } else { self.search_list.clamp(16, 64) };
    }
}

/// The candidates, and what the stop rules count.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Whether codes are compared. Only an exact scan compares none.
    pub(crate) uses_codes: bool,
    /// Whether candidates have distances. A decoded baton carries ids only; its first step rescores them.
    pub(crate) is_scored: bool,
    /// Reads since the results last changed, and blocks in memory that were used instead.
    pub(crate) reads_without_change: u32,
    /// Blocks that were used from memory and not read.
    pub(crate) blocks_in_memory: u32,
    /// Whether the walk gave way.
    pub(crate) gave_way: bool,
    /// Length of the beam of a walk that follows nothing but rows that may be returned; 0 of another.
    pub(crate) among: u32,
    /// Progress of a scan.
    pub(crate) scan: Scan,
    /// Progress of a search by codes.
    pub(crate) walk: CodeWalk,
    pub(crate) beam: Beam,
}

impl Default for State {
    fn default() -> Self {
        State {
            uses_codes: true,
            is_scored: true,
            reads_without_change: 0,
            blocks_in_memory: 0,
            gave_way: false,
            among: 0,
            scan: Scan::default(),
            walk: CodeWalk::default(),
            beam: Beam::default(),
        }
    }
}

impl State {
    /// The candidates.
    pub fn beam(&self) -> &Beam {
        &self.beam
    }
}

/// Code distances of the query, and reusable buffers.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    query: CodedQuery,
    visited: Visited,
    blocks: BlockScratch,
    ids: Vec<u32>,
    distances: Vec<u32>,
    /// Nodes of the head graph's search.
    head_nodes: Vec<u32>,
    head_beam: Beam,
    /// Nodes that have a code in the block that is expanded, and a list's places among them.
    coded: Vec<u32>,
    ranks: Vec<u32>,
    /// The nodes of the block that is expanded, by code distance.
    block_nodes: Vec<(u32, u32)>,
    remote_blocks: Vec<u32>,
    /// Nodes that a round in memory follows, or blocks that it uses.
    round: Vec<u32>,
    /// Keys of candidates that are offered together, and candidates that make room for them.
    keys: Vec<u64>,
    moved: Vec<Candidate>,
    expected: ExpectedDistances,
}

impl Scratch {
    /// A code distance on the scale of exact distances.
    pub fn estimate(&self, code_distance: u32) -> f32 {
        self.expected.estimate(&self.query, code_distance)
    }
}

impl Kind for DiskGraph {
    type View<'a> = View<'a>;
    type Params = Params;
    type State = State;
    type Scratch = Scratch;

    fn is_valid(params: &Params, k: u32) -> bool {
        (k..=MAX_SEARCH_LIST).contains(&params.search_list)
            && (1..=MAX_SEARCH_LIST).contains(&params.head_list)
            && params.stop_slack >= -16.0
            && params.stop_margin >= -1.0
            && (0.0..=1.0).contains(&params.idle_share)
            && params.sieving.slack >= -16.0
            && params.sieving.list <= MAX_SEARCH_LIST
            && params.sieving.seeds <= SEEDS_MAX
            && params.sieving.seed_list <= MAX_SEARCH_LIST
            && (params.rerank == 0 || (k..=MAX_SEARCH_LIST).contains(&params.rerank))
    }

    fn reset(state: &mut State, params: &Params, _: u32) {
        (state.uses_codes, state.is_scored) = (!params.scan, true);
        (state.reads_without_change, state.blocks_in_memory) = (0, 0);
        (state.gave_way, state.among, state.scan) = (false, 0, Scan::default());
        state.walk.has_ended = false;
        state.walk.scored.clear();
        state.beam.reset(params.beam(params.sieving.code_scan) as usize);
    }

    fn budget(view: &View<'_>) -> Budget {
        let usual = Budget::default();
        // A walk may give way to a scan of all blocks when it has read as many.
        let most = view.blocks.saturating_mul(2);
        Budget { hops: usual.hops.max(most), reads: usual.reads.max(most), ..usual }
    }

    fn prepare(base: &Base<'_>, view: &View<'_>, query: &[u8], scratch: &mut Scratch) {
        forget_visited(base, scratch);
        scratch.query.set(base, view.coder, query);
        scratch.expected = ExpectedDistances::new(base, view.coder, view.code_error, view.vector_norm);
    }

    fn step(cx: &mut StepContext<'_, Self>, arrived: Ordered<'_>) {
        if cx.params.scan || cx.own.gave_way || cx.params.sieving.code_scan {
            return scan_rows(cx, arrived);
        }
        walk(cx, arrived);
        while falls_short(cx) {
            let begins = seeds::begin(cx);
            if !begins && !may_give_way(cx) {
                break;
            }
            cx.q.outcome = Outcome::Running;
            match begins {
                true => walk(cx, Ordered::default()),
                false => give_way(cx),
            }
        }
        if cx.own.gave_way && cx.q.outcome == Outcome::Running {
            scan_rows(cx, Ordered::default());
        }
    }

    fn requeue(state: &mut State, view: &View<'_>, unit: u32) -> bool {
        state.beam.renew(|id| view.map.block_of(id) == unit);
        true
    }

    fn check_read(_: &Base<'_>, view: &View<'_>, read: &Read, bytes: &[u8]) -> bool {
        blocks::verify(view.block, view.blocks, read.at, bytes)
    }

    fn size(base: &Base<'_>, view: &View<'_>) -> IndexSize {
        IndexSize { nodes: base.nodes, units: view.blocks, clusters: 0 }
    }

    fn fits(state: &State, size: &IndexSize) -> bool {
        state.scan.next_block <= size.units && state.beam.entries().iter().all(|c| c.id < size.nodes)
    }

    fn has_distances(state: &State) -> bool {
        state.is_scored || state.beam.entries().is_empty()
    }

    fn uses_codes(state: &State) -> bool {
        state.uses_codes
    }

    fn rescores(view: &View<'_>) -> bool {
        matches!(view.codes, Codes::All(_))
    }

    fn encode_params(params: &Params, version: u32, w: &mut Writer<'_>) {
        wire::encode_params(params, version, w);
    }

    fn decode_params(r: &mut Reader<'_>) -> Result<Params, Refused> {
        wire::decode_params(r)
    }

    fn encode(state: &State, carry: (Carry, u32), w: &mut Writer<'_>, sorted: &mut Vec<Candidate>) {
        wire::encode(state, carry, w, sorted);
    }

    fn decode(state: &mut State, params: &Params, k: u32, r: &mut Reader<'_>) -> Result<(), Refused> {
        wire::decode(state, (params, k), r)
    }

    fn memory_bytes(state: &State) -> usize {
        state.beam.memory_bytes() + state.walk.memory_bytes()
    }
}

fn walk(cx: &mut StepContext<'_, DiskGraph>, arrived: Ordered<'_>) {
    match cx.params.rerank {
        0 => walk::step(cx, arrived),
        _ => code_walk::step(cx, arrived),
    }
}

/// Scans the rows that may be returned: their codes, or their blocks.
fn scan_rows(cx: &mut StepContext<'_, DiskGraph>, arrived: Ordered<'_>) {
    if scans_codes(cx) { code_scan::step(cx, arrived) } else { scan::step(cx, arrived) }
}

/// Whether the codes of all rows that may be returned are compared. Codes in blocks would have to be read.
fn scans_codes(cx: &StepContext<'_, DiskGraph>) -> bool {
    let Sieving { code_scan, to_codes, .. } = cx.params.sieving;
    let is_asked = code_scan || to_codes && cx.own.gave_way;
    !cx.params.scan && is_asked && matches!(cx.view.codes, Codes::All(_))
}

/// Whether the walk has cost as much as another way, and gives way to it (Lucene's rule for a search with a filter,
/// LUCENE-10382). Asked before each round, so that it does not depend on what is in memory.
fn gives_way(cx: &mut StepContext<'_, DiskGraph>) -> bool {
    let Sieving { blocks_max, comparisons_max, .. } = cx.params.sieving;
    let used = cx.q.stats.reads_asked() + u64::from(cx.own.blocks_in_memory);
    let is_beyond = (blocks_max > 0 && used >= blocks_max.into())
        || (comparisons_max > 0 && cx.q.stats.code_comparisons >= comparisons_max);
    if is_beyond && !cx.own.gave_way {
        give_way(cx);
    }
    cx.own.gave_way
}

fn give_way(cx: &mut StepContext<'_, DiskGraph>) {
    (cx.own.gave_way, cx.own.among) = (true, 0);
    // Those that were reported are found once more.
    cx.q.top.reported_distances.clear();
    cx.own.beam.reset(cx.params.sieving.list.max(cx.q.top.k) as usize);
    cx.q.stats.gave_way += 1;
}

fn may_give_way(cx: &StepContext<'_, DiskGraph>) -> bool {
    let Sieving { blocks_max, comparisons_max, .. } = cx.params.sieving;
    blocks_max > 0 || comparisons_max > 0
}

/// Whether a walk has come to the end of its beam with too few rows that may be returned: the nearest of them lie
/// beyond it.
fn falls_short(cx: &mut StepContext<'_, DiskGraph>) -> bool {
    let has_ended = cx.q.outcome == Outcome::Complete && cx.own.beam.next_fresh(0).is_none();
    if cx.base.sieve.is_none() || cx.own.gave_way || !has_ended {
        return false;
    }
    let wanted = wanted(cx);
    let found = cx.own.beam.entries().iter().filter(|candidate| cx.may_return(candidate.id)).count();
    found < wanted as usize
}

/// Rows that may be returned and that the beam of a walk ends with, where it reaches as far as the results.
fn wanted(cx: &StepContext<'_, DiskGraph>) -> u32 {
    let k = cx.q.top.k;
    k + cx.params.rerank.saturating_sub(k) / 2
}

/// Drops the rows that the walk does not follow: those that may not be returned, where it goes among the others.
/// Returns how many.
fn keep_followed(sieve: Option<&Sieve>, among: u32, ids: &mut Vec<u32>) -> u64 {
    let met = ids.len();
    if let Some(sieve) = sieve.filter(|_| among > 0) {
        ids.retain(|&id| sieve.has(id));
    }
    (met - ids.len()) as u64
}

/// Empties the visited set. On a server of a partition a query meets few nodes before it is handed over.
fn forget_visited(base: &Base<'_>, scratch: &mut Scratch) {
    match base.here {
        Some(_) => scratch.visited.clear_for_few(base.nodes),
        None => scratch.visited.clear(base.nodes),
    }
}

/// Forgets the candidates, as if nothing had been read; results and budget stay. Results that were reported are found
/// once more.
fn restart(cx: &mut StepContext<'_, DiskGraph>) {
    cx.q.top.reported_distances.clear();
    cx.own.beam.reset(cx.params.search_list as usize);
    cx.own.walk.has_ended = false;
    cx.q.started = false;
}

/// The progress that a number on the wire stands for.
fn progress(number: u32) -> Result<Progress, Refused> {
    match number {
        0 => Ok(Progress::Fresh),
        1 => Ok(Progress::Awaited),
        2 => Ok(Progress::Expanded),
        _ => Err(Refused::Content),
    }
}
