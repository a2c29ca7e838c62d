//! Options of `simulate` that depend on each other beyond what the table says.

use stratann_params::IndexKind;
use stratann_params::choices::SimulatedMode;
use stratann_storage::{Error, Result};

use super::Settings;

/// The modes that a kind has: one without reads has nothing to fetch, and only a `hybrid-ivf` chooses whether lists of
/// other servers are scored there.
fn modes(kind: Option<IndexKind>) -> &'static [SimulatedMode] {
    use SimulatedMode::{Baton, Fetch, Forward, ScatterGather, Score};
    match kind {
        Some(IndexKind::HybridIvf) => &[Baton, Score, Forward, ScatterGather, Fetch],
        Some(IndexKind::GridIvf) => &[Baton, ScatterGather],
        _ => &[Baton, ScatterGather, Fetch],
    }
}

/// Checks modes and what belongs to them.
///
/// # Errors
/// No servers; a mode that the kind does not have; options of another mode.
pub(super) fn check(settings: &Settings, kind: Option<IndexKind>) -> Result<()> {
    let wrong = |what: String| Err(Error::bad_input(what));
    let (servers, scatter) = (&settings.servers, &settings.scatter);
    if servers.servers.is_empty() {
        return wrong("the number of servers is missing; give --servers, such as 1,4,10".into());
    }
    let possible = modes(kind);
    if let Some(mode) = servers.mode.iter().find(|mode| !possible.contains(mode)) {
        let names: Vec<_> = possible.iter().map(|mode| mode.name()).collect();
        return wrong(format!(
            "--mode {}: a {} does not work like this; use {}",
            mode.name(),
            kind.map_or("index of an unknown kind", IndexKind::name),
            names.join(", ")
        ));
    }
    let is_of_scatter =
        scatter.partitions.is_some() || scatter.partition_list.is_some() || scatter.match_recall;
    if is_of_scatter && !servers.mode.contains(&SimulatedMode::ScatterGather) {
        return wrong(
            "--partitions, --partition-list and --match-recall belong to --mode scatter-gather; add it"
                .into(),
        );
    }
    if scatter.partitions.is_some() && servers.servers.len() > 1 {
        return wrong("--partitions is for one number of servers; give only that number to --servers".into());
    }
    Ok(())
}
