//! The parameters of a search, by kind: from a point of a curve, from a setting, with switches, and as reported.

use stratann_core::kinds::KindParams;
use stratann_core::query::{Params, ScoringMode};
use stratann_params::IndexKind;

use super::answers::Setting;
use super::questions::SearchParams;
use super::{disk_graph, hybrid_ivf, kind};
use crate::curve::Point;
use crate::exec::Width;

#[cfg(feature = "test-kind")]
impl SearchParams for stratann_core::kinds::sorted::Params {
    fn setting(&self, k: u32) -> Setting {
        Setting::of_beam(k)
    }
}

/// Makes the sums of parameters.
macro_rules! parameters {
    ($($variant:ident $room:ident,)*) => {
        /// The parameters of the kind.
        pub(crate) fn own(params: &KindParams) -> &dyn SearchParams {
            match params {
                $(KindParams::$variant(own) => own,)*
                #[cfg(feature = "test-kind")]
                KindParams::Sorted(own) => own,
            }
        }

        /// The parameters of the kind, to change them.
        pub(crate) fn own_mut(params: &mut KindParams) -> &mut dyn SearchParams {
            match params {
                $(KindParams::$variant(own) => own,)*
                #[cfg(feature = "test-kind")]
                KindParams::Sorted(own) => own,
            }
        }
    };
}

with_kinds!(parameters);

/// The parameters of a point of the recall curve. `variant` is the one that the curve was measured with.
pub(crate) fn params_at(of: IndexKind, k: u32, point: &Point, variant: Option<&str>) -> Params {
    kind(of).params_at(k, point, variant)
}

/// The setting of a search.
pub fn setting(params: &Params) -> Setting {
    own(&params.kind).setting(params.k)
}

/// The parameters of a search of the same kind with the values of a setting, and defaults for the others.
pub fn with_setting(params: &Params, setting: &Setting) -> KindParams {
    own(&params.kind).with_setting(setting).unwrap_or_else(|| params_of(params.k, setting).kind)
}

/// The parameters of the kind that a report shows besides its setting, by their names in JSON.
pub fn reported_params(params: &Params) -> Vec<(&'static str, serde_json::Value)> {
    own(&params.kind).reported()
}

/// The width of a search with these parameters: the one that was asked for, or that of the kind.
pub fn width(params: &Params, asked: Width) -> Width {
    asked.or_usual(own(&params.kind).usual_width())
}

/// The search with lists and vectors of other servers used in this way, for kinds that can.
pub fn with_remote(params: Params, remote: ScoringMode) -> Params {
    let kind = match params.kind {
        KindParams::HybridIvf(own) => {
            KindParams::HybridIvf(stratann_core::kinds::hybrid_ivf::Params { remote, ..own })
        }
        other => other,
    };
    Params { kind, ..params }
}

/// Parameters with the values of a setting, and defaults for the others, of a kind that reads from a disk.
pub fn params_of(k: u32, setting: &Setting) -> Params {
    match setting.nprobe {
        Some(nprobe) => hybrid_ivf::calibration::nprobe_params(k, nprobe, setting.slack, setting.early_stop),
        None => disk_graph::calibration::params_of(k, setting),
    }
}
