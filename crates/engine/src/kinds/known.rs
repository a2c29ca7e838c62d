//! The constants of every kind that this program knows.

use stratann_params::IndexKind;

use super::facts::KindFacts;

/// Kinds whose vectors are on disk, among which `--kind auto` chooses.
pub const ON_DISK: [IndexKind; 3] = [IndexKind::DiskGraph, IndexKind::HybridIvf, IndexKind::Flat];

/// The kind that memory nodes hold.
pub const IN_MEMORY_NODES: IndexKind = IndexKind::RemoteHnsw;

/// Makes the sum of constants.
macro_rules! constants {
    ($($variant:ident $room:ident,)*) => {
        /// The constants of a kind.
        pub const fn facts(kind: IndexKind) -> &'static KindFacts {
            match kind { $(IndexKind::$variant => &super::$room::facts::FACTS,)* }
        }
    };
}

with_kinds!(constants);
