//! Parameters of a query.

use crate::kinds::{KindParams, disk_graph, flat, gpu_ivf, grid_ivf, hybrid_ivf, remote_hnsw};
use crate::search::{FAR_MAX, Mode};

/// Most results a query can ask for.
pub const MAX_K: u32 = 16_384;
/// Most reads of one round.
pub const MAX_WIDTH: u32 = 64;

/// The parameters of one query; plain data that travels with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// Results wanted.
    pub k: u32,
    /// Most reads of one round (I/O pipeline width W, BatANN §4.4).
    pub width: u32,
    /// Most reads of one round while the search still approaches; `width` once it settles (PipeANN §4.2).
    pub approach_width: u32,
    /// Time at which arrivals are used.
    pub mode: Mode,
    /// A vector that does not exist for this query (calibration asks with rows of the index); `u32::MAX` for none.
    pub exclude: u32,
    /// How many more lists a query visits where the nearest have few rows of its sieve, in tenths: 0 for as many times
    /// more as the rows are fewer, [`FAR_MAX`] for the square of that.
    pub far_tenths: u8,
    /// The parameters of the kind.
    pub kind: KindParams,
}

impl Params {
    fn of(k: u32, kind: KindParams) -> Params {
        Params {
            k,
            width: 1,
            approach_width: 1,
            mode: Mode::Barrier,
            exclude: u32::MAX,
            far_tenths: FAR_MAX,
            kind,
        }
    }

    /// The `k` nearest of all vectors.
    pub fn flat(k: u32) -> Params {
        Params::of(k.clamp(1, MAX_K), KindParams::Flat(flat::Params))
    }

    /// Usable parameters for `k` results with a beam of `search_list`, at least k: the defaults of everything else.
    pub fn disk_graph(k: u32, search_list: u32) -> Params {
        let k = k.clamp(1, MAX_K);
        Params::of(k, KindParams::DiskGraph(disk_graph::Params::new(search_list.max(k))))
    }

    /// Usable parameters for `k` results from `nprobe` inverted lists: the defaults of everything else.
    pub fn hybrid_ivf(k: u32, nprobe: u32) -> Params {
        Params::of(k.clamp(1, MAX_K), KindParams::HybridIvf(hybrid_ivf::Params::new(nprobe)))
    }

    /// Usable parameters for `k` results from `nprobe` inverted lists in memory: the defaults of everything else.
    pub fn grid_ivf(k: u32, nprobe: u32) -> Params {
        Params::of(k.clamp(1, MAX_K), KindParams::GridIvf(grid_ivf::Params::new(nprobe)))
    }

    /// Usable parameters for `k` results from the codes of `nprobe` inverted lists: the defaults of everything else.
    pub fn gpu_ivf(k: u32, nprobe: u32) -> Params {
        let k = k.clamp(1, MAX_K);
        Params::of(k, KindParams::GpuIvf(gpu_ivf::Params::new(k, nprobe)))
    }

    /// Usable parameters for `k` results from the sub-HNSWs of `nprobe` clusters: the defaults of everything else.
    pub fn remote_hnsw(k: u32, nprobe: u32) -> Params {
        let k = k.clamp(1, MAX_K);
        Params::of(k, KindParams::RemoteHnsw(remote_hnsw::Params::new(k, nprobe)))
    }

    /// The `k` nearest of all vectors, in their order by the first component.
    #[cfg(any(test, feature = "test-kind"))]
    pub fn sorted(k: u32, stops: bool) -> Params {
        Params::of(k.clamp(1, MAX_K), KindParams::Sorted(crate::kinds::sorted::Params { stops }))
    }

    /// Whether every number is within its limit; parameters from outside must be checked before use.
    pub fn is_valid(&self) -> bool {
        (1..=MAX_K).contains(&self.k)
            && (1..=MAX_WIDTH).contains(&self.width)
            && (1..=self.width).contains(&self.approach_width)
            && self.far_tenths <= FAR_MAX
            && self.kind.is_valid(self.k)
    }
}
