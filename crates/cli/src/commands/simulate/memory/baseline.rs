//! Ways to load clusters without some techniques of the kind.

use clap::ValueEnum;
use stratann_capacity::memory_nodes::recorded::LoadWay;
use stratann_engine::exec::GatherOptions;
use stratann_engine::kinds::remote_hnsw::baseline::LoadScheme;

/// `--baseline`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum SchemeName {
    /// That of the kind.
    #[value(name = "none")]
    Own,
    /// Each query reads its clusters for itself, one after another, without a cache.
    Naive,
    /// A round trip for each cluster.
    NoDoorbell,
    /// A doorbell begins when the one before has been searched.
    NoOverlap,
}

impl From<SchemeName> for LoadScheme {
    fn from(name: SchemeName) -> LoadScheme {
        match name {
            SchemeName::Own => LoadScheme::Own,
            SchemeName::Naive => LoadScheme::Naive,
            SchemeName::NoDoorbell => LoadScheme::NoDoorbell,
            SchemeName::NoOverlap => LoadScheme::NoOverlap,
        }
    }
}

/// Each scheme once, that of the kind where none is given.
pub(super) fn ways(names: &[SchemeName], own: GatherOptions) -> Vec<LoadWay> {
    let mut schemes: Vec<LoadScheme> = Vec::new();
    for &name in names {
        if !schemes.contains(&name.into()) {
            schemes.push(name.into());
        }
    }
    if schemes.is_empty() {
        schemes.push(LoadScheme::Own);
    }
    schemes.into_iter().map(|scheme| way(scheme, own)).collect()
}

/// The way of a scheme, where the kind loads by `own`.
fn way(scheme: LoadScheme, own: GatherOptions) -> LoadWay {
    LoadWay { name: scheme.name(), gather: scheme.gather(own), is_for_each: scheme == LoadScheme::Naive }
}
