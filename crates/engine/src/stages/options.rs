//! Options of a build, whatever the kind.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;
use stratann_kernel::Metric;
use stratann_params::Given;
use stratann_params::build::CommonOptions;
use stratann_params::choices::{MetricName, OnBadRow};
use stratann_storage::profile::Profile;
use stratann_storage::{Error, Result};

use crate::curve::Curve;
use crate::dataset::{Reader, Shape};
use crate::kinds::known::facts;
use crate::kinds::options::KindOptions;
use crate::parallel;
use crate::stages::older_graph::GrowFrom;
use stratann_params::IndexKind;

/// Options of a build. [`BuildOptions::new`] gives the defaults.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// Kind of index, and its own options.
    pub kind: KindOptions,
    /// Distance.
    pub metric: Metric,
    /// Bytes of RAM that the build may take; `None` for no limit.
    pub ram_budget: Option<u64>,
    /// Threads.
    pub threads: usize,
    /// Seed of all choices.
    pub seed: u64,
    /// A u64 for every row; `None` for the row number.
    pub ids: Option<PathBuf>,
    /// Treatment of rows that cannot be indexed.
    pub on_bad_row: OnBadRow,
    /// Rows whose exact neighbours calibrate the recall curve, at most; 0 for none.
    pub calibration_queries: usize,
    /// Recall curves of another index of this kind whose rows are of the same source. The index gets them in place of
    /// curves of its own.
    pub curves: Option<Arc<Vec<Curve>>>,
    /// A graph that the graph of this index grows from, where it is of the same kind.
    pub grow_from: Option<GrowFrom>,
    /// Replace an index that is there.
    pub force: bool,
    /// Go on with a build that did not finish.
    pub resume: bool,
    /// Costs of reads and distances on this machine, of a kind that plans by them; `None` for those of the disk, which
    /// are measured once and kept.
    pub profile: Option<Profile>,
}

/// Rows of a set for each of its rows that calibrates; a small set has as many as this at least.
const ROWS_PER_QUERY: usize = 50;
const QUERIES_LEAST: usize = 100;

/// The kernel's name of a metric.
pub fn metric_of(name: MetricName) -> Metric {
    match name {
        MetricName::L2 => Metric::L2,
        MetricName::Ip => Metric::Ip,
        MetricName::Cosine => Metric::Cosine,
    }
}

impl BuildOptions {
    /// The defaults, with the options of a kind or their defaults.
    pub fn new(kind: impl Into<KindOptions>, metric: Metric) -> BuildOptions {
        BuildOptions {
            kind: kind.into(),
            metric,
            ram_budget: None,
            threads: parallel::cores(),
            seed: 1,
            ids: None,
            on_bad_row: OnBadRow::Fail,
            calibration_queries: 500,
            curves: None,
            grow_from: None,
            force: false,
            resume: false,
            profile: None,
        }
    }

    /// Reads what a user gave for every kind, with the options of one.
    ///
    /// # Errors
    /// A profile that cannot be read.
    pub fn read(given: &Given, kind: impl Into<KindOptions>) -> Result<BuildOptions> {
        let common: CommonOptions = given.read();
        let usual = BuildOptions::new(kind, metric_of(common.metric));
        Ok(BuildOptions {
            ram_budget: common.ram_budget,
            threads: common.threads.unwrap_or(usual.threads),
            seed: common.seed,
            ids: common.ids,
            on_bad_row: common.on_bad_row,
            calibration_queries: common.calibration_queries,
            force: common.force,
            resume: common.resume,
            profile: common.profile.as_deref().map(Profile::read).transpose()?,
            ..usual
        })
    }

    /// Chooses what nobody gave and depends on the set.
    pub fn for_rows(mut self, shape: Shape) -> BuildOptions {
        self.kind.own_mut().choose_for(shape.rows, shape.dim, self.ram_budget);
        self
    }

    /// The kind of index.
    pub fn kind(&self) -> IndexKind {
        self.kind.kind()
    }

    /// Rows that calibrate, of `rows`: fewer where so many searches would take longer than the rest of the build.
    pub(crate) fn calibration_rows(&self, rows: usize) -> usize {
        let share = (rows / ROWS_PER_QUERY).max(QUERIES_LEAST);
        self.calibration_queries.min(share).min(rows / 2)
    }

    /// Bytes of a calibration; 0 of a build without one.
    pub(crate) fn calibration_bytes(&self, bytes: u64) -> u64 {
        if self.calibration_queries == 0 { 0 } else { bytes }
    }

    pub(crate) fn check(&self, base: &Reader) -> Result<()> {
        let shape = base.shape();
        let bad = |text: String| Err(Error::bad_input(text));
        if shape.rows >= u64::from(u32::MAX) {
            return bad(format!(
                "{} has {} rows; one index holds up to {}",
                base.path().display(),
                shape.rows,
                u32::MAX - 1
            ));
        }
        if shape.dim > 4096 {
            return bad(format!(
                "{} has {} dimensions; up to 4096 are supported",
                base.path().display(),
                shape.dim
            ));
        }
        self.kind.own().check(shape.dim)
    }

    /// The options that the content of an index depends on, for vectors of `dim` components. The manifest records them;
    /// a build is resumed with equal ones.
    pub(crate) fn record(&self, dim: usize) -> BTreeMap<String, Value> {
        let on_bad_row = if self.on_bad_row == OnBadRow::Skip { "skip" } else { "fail" };
        let mut all: Vec<(&str, Value)> = vec![
            ("seed", self.seed.into()),
            ("on_bad_row", on_bad_row.into()),
            ("ids", self.ids.is_some().into()),
        ];
        if let Some(own) = &self.grow_from {
            all.push(("grown_from_rows", own.rows_left().into()));
        }
        if facts(self.kind()).has_curve {
            all.push(("calibration_queries", self.calibration_queries.into()));
        }
        all.extend(self.kind.own().record(dim));
        all.into_iter().map(|(key, value)| (key.to_string(), value)).collect()
    }
}
