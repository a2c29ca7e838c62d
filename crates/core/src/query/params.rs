//! What a query was asked to do, and the limits it carries.

use super::Probe;

/// Most results a query can ask for.
pub const MAX_K: u32 = 16_384;
/// Longest beam.
pub const MAX_SEARCH_LIST: u32 = 65_536;
/// Most reads of one query that can be under way.
pub const MAX_WIDTH: u32 = 64;

/// When what arrived is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// A step waits for all of its reads: the same answer under any order of arrival.
    Barrier = 0,
    /// A step uses whatever came first (PipeANN, OSDI 2025): lower latency, a few more reads, no promise of equal answers.
    Eager = 1,
}

impl Mode {
    /// The name used on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Barrier => "barrier",
            Mode::Eager => "eager",
        }
    }
}

/// What is left of a query's allowance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Rounds of the search.
    pub hops: u32,
    /// Reads.
    pub reads: u32,
    /// Hand-overs to another server.
    pub hand_overs: u32,
}

impl Default for Budget {
    /// Far beyond what a search needs: an end for what would otherwise have none.
    fn default() -> Self {
        Budget { hops: 100_000, reads: 1_000_000, hand_overs: 10_000 }
    }
}

/// The parameters of one query; plain data that travels with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// Results wanted.
    pub k: u32,
    /// Length of the beam, L in DiskANN and BatANN, `ef` in HNSW.
    pub search_list: u32,
    /// Most blocks in one round (I/O pipeline width W, BatANN §4.4).
    pub width: u32,
    /// Blocks in one round while the search still approaches; `width` once it settles (PipeANN §4.2).
    pub approach_width: u32,
    /// When what arrived is used.
    pub mode: Mode,
    /// Stop once the best unread candidate is farther than the k-th result by this many standard errors of its code distance; infinity
    /// turns the rule off.
    pub stop_slack: f32,
    /// Stop after so many reads in a row that changed none of the k results; 0 turns the rule off.
    pub patience: u32,
    /// Whether nodes that came along in a block are scored and, where useful, expanded.
    pub whole_blocks: bool,
    /// Whether the head graph gives the first candidates; otherwise the medoid does (DiskANN).
    pub head: bool,
    /// Length of the head graph's own beam.
    pub head_list: u32,
    /// A node that does not exist for this query (calibration asks with rows of the index); `u32::MAX` for none.
    pub exclude: u32,
    /// How clusters are looked through, by kinds that have them.
    pub probe: Probe,
}

impl Params {
    /// Usable parameters for `k` results with a beam of `search_list`: the defaults of everything else.
    pub fn new(k: u32, search_list: u32) -> Params {
        let k = k.clamp(1, MAX_K);
        let search_list = search_list.clamp(k, MAX_SEARCH_LIST);
        Params {
            k,
            search_list,
            width: 1,
            approach_width: 1,
            mode: Mode::Barrier,
            stop_slack: f32::INFINITY,
            patience: 0,
            whole_blocks: true,
            head: true,
            head_list: search_list.clamp(16, 64),
            exclude: u32::MAX,
            probe: Probe::new(search_list),
        }
    }

    /// True when every count is within its limit; parameters from outside must be checked before use.
    pub fn is_valid(&self) -> bool {
        (1..=MAX_K).contains(&self.k)
            && (self.k..=MAX_SEARCH_LIST).contains(&self.search_list)
            && (1..=MAX_WIDTH).contains(&self.width)
            && (1..=self.width).contains(&self.approach_width)
            && (1..=MAX_SEARCH_LIST).contains(&self.head_list)
            && self.stop_slack >= -16.0
            && self.probe.is_valid()
    }
}
