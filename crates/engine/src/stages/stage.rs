//! Stages of a build as values: progress, the expected time, the report, the plan of memory and an unfinished build
//! read them.

use super::forecast::Size;

/// A stage of a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stage {
    /// Name in the state of an unfinished build, which resumes after the stages that have finished.
    pub(crate) name: &'static str,
    /// Name in the report.
    pub(crate) reported: &'static str,
    /// Whether it reports its progress as that of several stages, of which none is most of the work.
    pub(crate) in_parts: bool,
}

impl Stage {
    pub(crate) const fn named(name: &'static str) -> Stage {
        Stage { name, reported: name, in_parts: false }
    }

    pub(crate) const fn in_parts(self) -> Stage {
        Stage { in_parts: true, ..self }
    }

    pub(crate) const fn reported_as(self, reported: &'static str) -> Stage {
        Stage { reported, ..self }
    }

    /// The stage in a build that takes these seconds.
    pub(crate) fn takes<'a>(self, seconds: impl Fn(&Size) -> f64 + 'a) -> PlannedStage<'a> {
        PlannedStage { seconds: Some(Box::new(seconds)), ..self.takes_unknown() }
    }

    /// The stage in a build, of which nothing is expected.
    pub(crate) const fn takes_unknown(self) -> PlannedStage<'static> {
        PlannedStage { stage: self, memory: None, seconds: None }
    }
}

/// Checks all rows.
pub(crate) const SCAN: Stage = Stage::named("scan");
/// Divides the rows into clusters, each with a list.
pub(crate) const CLUSTERS: Stage = Stage::named("clusters").in_parts();
/// Prepares the codes.
pub(crate) const CODEBOOK: Stage = Stage::named("codebook");
/// Encodes all rows.
pub(crate) const CODES: Stage = Stage::named("codes");
/// Gives ids, and writes blocks.
pub(crate) const LAYOUT: Stage = Stage::named("layout");
/// Writes lists.
pub(crate) const LISTS: Stage = Stage::named("lists");
/// Builds the graph that leads to lists.
pub(crate) const NAVIGATION: Stage = Stage::named("navigation");
/// Measures the cost of recall.
pub(crate) const CALIBRATE: Stage = Stage::named("calibrate").in_parts();
/// Writes ids and payloads of points.
pub(crate) const POINTS: Stage = Stage::named("points");

/// The seconds that work of a size takes.
type Seconds<'a> = Box<dyn Fn(&Size) -> f64 + 'a>;

/// A stage of the build of an index, before it begins.
pub(crate) struct PlannedStage<'a> {
    pub(crate) stage: Stage,
    /// The work that takes most memory, and the least that does, bytes.
    pub(crate) memory: Option<(&'static str, u64)>,
    /// Seconds that it is expected to take; `None` when nothing is expected.
    pub(crate) seconds: Option<Seconds<'a>>,
}

impl PlannedStage<'_> {
    pub(crate) fn needs(self, what: &'static str, bytes: u64) -> Self {
        PlannedStage { memory: Some((what, bytes)), ..self }
    }
}
