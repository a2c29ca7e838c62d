//! `remote-hnsw`: d-HNSW (Liu, Fang and Qian, 2025). A small HNSW over representatives, the meta-HNSW, is in memory;
//! each of its nodes is a cluster of vectors with an HNSW of its own, the sub-HNSW, which is read whole and searched
//! where it lies.
//!
//! route = the meta-HNSW, in [`navigate`] · access = all chosen clusters at once · verify = [`scan`], cluster by
//! cluster: what one finds does not depend on the others.

mod chooser;
mod cluster;
mod found;
mod navigate;
mod params;
mod scan;
mod sieved;
#[cfg(test)]
mod tests;
mod trace;
mod view;
mod wire;

use alloc::vec::Vec;

use crate::access::hnsw::HnswScratch;
use crate::codec::{Reader, Refused, Writer};
use crate::kinds::kind::{Carry, Kind, Ordered, StepContext};
use crate::search::{Budget, Candidate, IndexSize, Outcome, Read};
use crate::view::Base;

pub use chooser::Chooser;
pub use cluster::ClusterSearch;
use found::Found;
pub use params::{MAX_EF, MAX_PROBES, Params};
pub use trace::{Trace, Visit};
pub use view::{Located, View, WHOLE};

/// The kind itself.
pub(crate) struct RemoteHnsw;

/// The clusters of a query, and what it has found in those that arrived.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// The clusters that are searched.
    clusters: Vec<u32>,
    /// The nearest vectors, at most k, ascending.
    found: Vec<Found>,
    /// The sum of the shares of clusters that were searched, in parts of [`WHOLE`].
    searched: u64,
    /// Matches and rows of each cluster that has arrived, of a query with a filter; none for the last ones.
    seen: Vec<(u32, u32)>,
}

/// Tables of a step: a beam and the set of visited members, and all clusters by their distance where a filter chooses
/// of them. A query that waits does not need them.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    hnsw: HnswScratch,
    ranked: Vec<(f32, u32)>,
}

/// Tables of the step under way, and the trace.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    tables: Tables,
    trace: Option<Trace>,
}

impl Scratch {
    /// Keeps a trace of the query from now on.
    pub fn trace(&mut self) {
        self.trace = Some(Trace::default());
    }

    /// Trace of the query since it is kept; `None` when none is.
    pub fn traced(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    pub(crate) fn swap_tables(&mut self, tables: &mut Tables) {
        core::mem::swap(&mut self.tables, tables);
    }
}

impl Kind for RemoteHnsw {
    type View<'a> = View<'a>;
    type Params = Params;
    type State = State;
    type Scratch = Scratch;

    fn is_valid(params: &Params, _: u32) -> bool {
        params.is_valid()
    }

    fn takes_any_order() -> bool {
        true
    }

    fn shares_reads() -> bool {
        true
    }

    fn reset(state: &mut State, _: &Params, _: u32) {
        state.clusters.clear();
        state.found.clear();
        state.searched = 0;
        state.seen.clear();
    }

    fn budget(view: &View<'_>) -> Budget {
        let usual = Budget::default();
        // Of each cluster its sub-HNSW and the parts of its fresh records.
        let reads = (1 + view::FRESH_PARTS).saturating_mul(view.clusters.len() as u32);
        Budget { reads: usual.reads.max(reads), ..usual }
    }

    fn prepare(_: &Base<'_>, _: &View<'_>, _: &[u8], _: &mut Scratch) {}

    fn step(cx: &mut StepContext<'_, Self>, arrived: Ordered<'_>) {
        if !core::mem::replace(&mut cx.q.started, true) {
            return navigate::choose(cx);
        }
        cx.take_in(arrived, |cx, pending, bytes| scan::take(cx, &pending.read, bytes));
        if cx.q.outcome != Outcome::Running {
            return;
        }
        if cx.q.io.pending.is_empty() && navigate::needs_more(cx) && navigate::choose_more(cx) {
            return;
        }
        if cx.q.io.pending.is_empty() {
            for found in &cx.own.found {
                cx.q.top.offer(found.distance, || found.id);
            }
        }
        cx.end_round(&[]);
    }

    fn check_read(base: &Base<'_>, view: &View<'_>, read: &Read, bytes: &[u8]) -> bool {
        view.check_read(base, read, bytes)
    }

    fn mask_unwritten(view: &View<'_>, read: &Read, bytes: &mut [u8]) -> bool {
        view.mask_unwritten(read, bytes)
    }

    fn size(base: &Base<'_>, view: &View<'_>) -> IndexSize {
        let clusters = view.clusters.len() as u32;
        IndexSize { nodes: base.nodes, units: clusters, clusters }
    }

    fn fits(state: &State, size: &IndexSize) -> bool {
        state.clusters.iter().all(|&cluster| cluster < size.clusters)
    }

    fn encode_params(params: &Params, _: u32, w: &mut Writer<'_>) {
        params.encode(w);
    }

    fn decode_params(r: &mut Reader<'_>) -> Result<Params, Refused> {
        Params::decode(r)
    }

    fn encode(state: &State, _: (Carry, u32), w: &mut Writer<'_>, _: &mut Vec<Candidate>) {
        wire::encode(state, w);
    }

    fn decode(state: &mut State, _: &Params, k: u32, r: &mut Reader<'_>) -> Result<(), Refused> {
        wire::decode(state, k, r)
    }

    fn memory_bytes(state: &State) -> usize {
        state.clusters.capacity() * size_of::<u32>()
            + state.found.capacity() * size_of::<Found>()
            + state.seen.capacity() * size_of::<(u32, u32)>()
    }
}
