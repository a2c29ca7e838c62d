//! Ways to load clusters without some techniques of the kind.

use stratann_capacity::memory_nodes::recorded::LoadWay;
use stratann_engine::exec::BatchOptions;
use stratann_engine::kinds::remote_hnsw::baseline::LoadScheme;
use stratann_params::choices::LoadWayName;

fn scheme(name: LoadWayName) -> LoadScheme {
    match name {
        LoadWayName::Own => LoadScheme::Own,
        LoadWayName::Naive => LoadScheme::Naive,
        LoadWayName::NoDoorbell => LoadScheme::NoDoorbell,
        LoadWayName::NoOverlap => LoadScheme::NoOverlap,
    }
}

/// Each scheme once, that of the kind where none is given.
pub(super) fn ways(names: &[LoadWayName], own: BatchOptions) -> Vec<LoadWay> {
    let mut schemes: Vec<LoadScheme> = Vec::new();
    for &name in names {
        if !schemes.contains(&scheme(name)) {
            schemes.push(scheme(name));
        }
    }
    if schemes.is_empty() {
        schemes.push(LoadScheme::Own);
    }
    schemes.into_iter().map(|scheme| way(scheme, own)).collect()
}

/// The way of a scheme, where the kind loads by `own`.
fn way(scheme: LoadScheme, own: BatchOptions) -> LoadWay {
    LoadWay {
        name: scheme.name(),
        batch_options: scheme.batch_options(own),
        is_for_each: scheme == LoadScheme::Naive,
    }
}
