//! The parameters of a search, by kind: from a point of a curve, from a setting, with switches, and as reported.

use stratann_core::plan::KindParams;
use stratann_core::query::{Params, QueryStats, Remote};
use stratann_storage::Result;

use super::answers::Setting;
use super::kind::Kind;
use super::options::Switches;
use super::{disk_graph, flat, gpu_ivf, grid_ivf, hybrid_ivf, remote_hnsw};
use crate::curve::Point;
use crate::exec::GatherOptions;
use crate::manifest::Manifest;

/// The parameters of a point of the recall curve. `variant` is the one that the curve was measured with.
pub(crate) fn params_at(kind: Kind, k: u32, point: &Point, variant: Option<&str>) -> Params {
    match kind {
        Kind::Flat => Params::flat(k),
        Kind::DiskGraph => disk_graph::calibration::params(k, point),
        Kind::HybridIvf => hybrid_ivf::calibration::params(k, point, variant),
        Kind::GridIvf => grid_ivf::calibration::params(k, point),
        Kind::GpuIvf => gpu_ivf::calibration::params(k, point, variant),
        Kind::RemoteHnsw => remote_hnsw::calibration::params(k, point),
    }
}

/// Whether a query searches everything, of a kind that need not.
pub(crate) fn is_exact(params: &KindParams) -> bool {
    match params {
        KindParams::Flat(_) => false,
        KindParams::DiskGraph(own) => own.scan,
        KindParams::HybridIvf(own) => own.exact,
        KindParams::GridIvf(own) => own.exact,
        KindParams::GpuIvf(own) => own.exact,
        KindParams::RemoteHnsw(own) => own.exact,
        #[cfg(feature = "test-kind")]
        KindParams::Sorted(_) => false,
    }
}

/// Candidates of codes that were enough for every query of a search with these parameters and largest counters; `None`
/// where their number is fixed, and of a kind without.
pub(crate) fn needed_candidates(params: &Params, largest: &QueryStats) -> Option<u32> {
    if let KindParams::GpuIvf(own) = &params.kind {
        gpu_ivf::calibration::needed_candidates(own, largest)
    } else {
        None
    }
}

/// Lengthens what must not be shorter than the answer, after k has grown.
pub(crate) fn fit_to_k(params: &mut Params) {
    match &mut params.kind {
        KindParams::Flat(_) | KindParams::HybridIvf(_) | KindParams::GridIvf(_) => {}
        KindParams::DiskGraph(own) => own.search_list = own.search_list.max(params.k),
        KindParams::GpuIvf(own) => own.candidates = own.candidates.max(params.k),
        KindParams::RemoteHnsw(own) => own.ef = own.ef.max(params.k),
        #[cfg(feature = "test-kind")]
        KindParams::Sorted(_) => {}
    }
}

/// Applies the switches of the kind to its parameters. `variant` is the one that calibration chose.
///
/// # Errors
/// A value out of range.
pub(crate) fn apply_switches(params: &mut Params, switches: &Switches, variant: Option<&str>) -> Result<()> {
    match &mut params.kind {
        KindParams::Flat(_) => Ok(()),
        KindParams::DiskGraph(own) => disk_graph::calibration::apply_switches(own, &switches.graph()),
        KindParams::HybridIvf(own) => {
            hybrid_ivf::calibration::apply_switches(own, &switches.lists(), variant)
        }
        KindParams::GridIvf(own) => {
            grid_ivf::calibration::apply_switches(own, &switches.grid());
            Ok(())
        }
        KindParams::GpuIvf(own) => gpu_ivf::calibration::apply_switches(params.k, own, &switches.gpu()),
        KindParams::RemoteHnsw(own) => remote_hnsw::calibration::apply_switches(own, &switches.remote()),
        #[cfg(feature = "test-kind")]
        KindParams::Sorted(_) => Ok(()),
    }
}

/// Reads of a query that are under way at once whatever its width: those of a mini-batch.
pub(crate) fn reads_at_once(params: &Params) -> u32 {
    if let KindParams::GpuIvf(own) = &params.kind { own.batch } else { 0 }
}

/// The same before the parameters are known.
pub(crate) fn planned_reads_at_once(manifest: &Manifest, switches: &Switches) -> u32 {
    manifest.section.gpu().map_or(0, |_| gpu_ivf::account::reads_at_once(switches.gpu().batch_size))
}

/// Bytes of the doorbells of a search on an index that is not open yet; 0 of a kind whose queries read for themselves.
pub(crate) fn planned_doorbells_bytes(manifest: &Manifest, options: &GatherOptions) -> u64 {
    let section = manifest.section.remote();
    section.map_or(0, |section| remote_hnsw::account::planned_doorbells_bytes(&section.facts, options))
}

/// The variants of a kind that calibration compares, and the point that it compares them at.
pub(crate) fn variants(kind: Kind) -> (&'static [&'static str], Point) {
    match kind {
        Kind::Flat | Kind::DiskGraph | Kind::GridIvf | Kind::GpuIvf | Kind::RemoteHnsw => {
            (&[], Point::default())
        }
        Kind::HybridIvf => hybrid_ivf::calibration::VARIANTS,
    }
}

/// The same search, with lists and vectors of other servers used in this way, for kinds that can.
pub fn with_remote(params: Params, remote: Remote) -> Params {
    let kind = match params.kind {
        KindParams::HybridIvf(own) => {
            KindParams::HybridIvf(stratann_core::plan::hybrid_ivf::Params { remote, ..own })
        }
        other => other,
    };
    Params { kind, ..params }
}

/// The setting that these parameters are.
pub fn setting(params: &Params) -> Setting {
    match params.kind {
        KindParams::Flat(_) => flat::setting(params.k),
        KindParams::DiskGraph(own) => disk_graph::calibration::setting(&own),
        KindParams::HybridIvf(own) => hybrid_ivf::calibration::setting(params.k, &own),
        KindParams::GridIvf(own) => grid_ivf::calibration::setting(params.k, &own),
        KindParams::GpuIvf(own) => gpu_ivf::calibration::setting(params.k, &own),
        KindParams::RemoteHnsw(own) => remote_hnsw::calibration::setting(&own),
        #[cfg(feature = "test-kind")]
        KindParams::Sorted(_) => flat::setting(params.k),
    }
}

/// Parameters with the values of a setting, and defaults for the others, of a kind that reads from a disk.
pub fn params_of(k: u32, setting: &Setting) -> Params {
    match setting.nprobe {
        Some(nprobe) => hybrid_ivf::calibration::nprobe_params(k, nprobe, setting.slack, setting.early_stop),
        None => disk_graph::calibration::params_of(k, setting),
    }
}

/// The parameters of a search of the same kind with the values of a setting, and defaults for the others.
pub fn with_setting(params: &Params, setting: &Setting) -> KindParams {
    match params.kind {
        KindParams::GridIvf(own) => {
            KindParams::GridIvf(stratann_core::plan::grid_ivf::Params { nprobe: setting.effort, ..own })
        }
        KindParams::GpuIvf(own) => {
            KindParams::GpuIvf(stratann_core::plan::gpu_ivf::Params { nprobe: setting.effort, ..own })
        }
        KindParams::RemoteHnsw(own) => KindParams::RemoteHnsw(stratann_core::plan::remote_hnsw::Params {
            nprobe: setting.effort,
            ef: setting.search_list,
            ..own
        }),
        _ => params_of(params.k, setting).kind,
    }
}

/// The parameters of the kind that a report shows besides its setting, by their names in JSON.
pub fn reported_params(params: &Params) -> Vec<(&'static str, serde_json::Value)> {
    match &params.kind {
        KindParams::Flat(_) => Vec::new(),
        KindParams::DiskGraph(own) => disk_graph::calibration::reported_params(own),
        KindParams::HybridIvf(own) => hybrid_ivf::calibration::reported_params(own),
        KindParams::GridIvf(own) => grid_ivf::calibration::reported_params(own),
        KindParams::GpuIvf(own) => gpu_ivf::calibration::reported_params(own),
        KindParams::RemoteHnsw(own) => remote_hnsw::calibration::reported_params(own),
        #[cfg(feature = "test-kind")]
        KindParams::Sorted(_) => Vec::new(),
    }
}
