//! Builds and exact neighbours.

use std::path::PathBuf;

use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;
use stratann_core::format::directory::LocalKind;
use stratann_engine as engine;
use stratann_engine::build::{
    BuildOptions, CodeKind, CodePlace, GpuOptions, GraphOptions, GridOptions, Kind, ListOptions, LocalPlan,
    OptionsByKind, RemoteOptions, Representatives,
};
use stratann_engine::dataset::{OnBadRow, Reader};
use stratann_engine::profile::Profile;
use stratann_engine::{Error, Metric, Progress, Result, budget};

use crate::vectors::Vectors;
use crate::{error, work};

/// Options of a build; `None` keeps the engine's default.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Options {
    kind: String,
    metric: String,
    ram_budget: Option<u64>,
    threads: Option<usize>,
    seed: u64,
    ids: Option<PathBuf>,
    on_bad_row: String,
    force: bool,
    resume: bool,
    degree: Option<usize>,
    build_list: Option<usize>,
    alpha: Option<f32>,
    passes: Option<usize>,
    code_bytes: Option<usize>,
    code_kind: Option<String>,
    codes: Option<String>,
    head_share: Option<f64>,
    pack: Option<bool>,
    compress: Option<bool>,
    nodes_per_block: Option<usize>,
    pages_per_block: Option<usize>,
    exact_points: Option<bool>,
    cells: Option<usize>,
    calibration_queries: Option<usize>,
    clusters: Option<usize>,
    plan: Option<String>,
    search_budget: Option<u64>,
    profile: Option<PathBuf>,
    nav_samples: Option<f64>,
    lists: Option<usize>,
    centroids: Option<PathBuf>,
    list_share: Option<f64>,
    epsilon: Option<f32>,
    baselines: Option<bool>,
    partitions: Option<usize>,
    representatives: Option<String>,
    overflow: Option<u64>,
    m: Option<usize>,
    ef_construction: Option<usize>,
}

fn unknown(what: &str, given: &str, known: &str) -> Error {
    Error::bad_input(format!("{what} is {given:?}; use {known}"))
}

pub(crate) fn metric(name: &str) -> Result<Metric> {
    Metric::from_name(name).ok_or_else(|| unknown("metric", name, "\"l2\", \"ip\" or \"cosine\""))
}

impl Options {
    /// Returns the options of a build of vectors with `dim` components, whose kind is given.
    pub(crate) fn read(self, dim: usize) -> Result<BuildOptions> {
        let known = "\"disk-graph\", \"hybrid-ivf\", \"grid-ivf\", \"gpu-ivf\", \"remote-hnsw\" or \"flat\"";
        let kind = Kind::from_name(&self.kind).ok_or_else(|| unknown("kind", &self.kind, known))?;
        self.check_kind(kind)?;
        let (by_kind, common) = self.read_all(dim)?;
        Ok(BuildOptions { kind: by_kind.of(kind), ..common })
    }

    /// Returns the options of a build of `base`. The kind `"auto"` is chosen by its vectors, and noted.
    fn read_for(self, base: &Reader, progress: &dyn Progress) -> Result<BuildOptions> {
        if self.kind != "auto" {
            let known = "\"auto\", \"disk-graph\", \"hybrid-ivf\", \"grid-ivf\", \"gpu-ivf\", \"remote-hnsw\" or \
                         \"flat\"";
            if Kind::from_name(&self.kind).is_none() {
                return Err(unknown("kind", &self.kind, known));
            }
            return self.read(base.shape().dim);
        }
        let (by_kind, common) = self.read_all(base.shape().dim)?;
        let choice = engine::build::choose(base, &by_kind, &common, progress)?;
        progress.note(&format!("kind=\"auto\": {}: {}", choice.kind.name(), choice.why));
        Ok(BuildOptions { kind: by_kind.of(choice.kind), ..common })
    }

    /// Returns the options of every kind, and those that all kinds share.
    fn read_all(self, dim: usize) -> Result<(OptionsByKind, BuildOptions)> {
        let metric = metric(&self.metric)?;
        let on_bad_row = match self.on_bad_row.as_str() {
            "fail" => OnBadRow::Fail,
            "skip" => OnBadRow::Skip,
            other => return Err(unknown("on_bad_row", other, "\"fail\" or \"skip\"")),
        };
        let grid_ivf = GridOptions { lists: self.lists, centroids: self.centroids.clone() };
        let (disk_graph, hybrid_ivf) = (self.read_graph()?, self.read_lists()?);
        let gpu_ivf = self.read_gpu(&disk_graph);
        let remote_hnsw = self.read_remote()?;
        let by_kind = OptionsByKind { disk_graph, hybrid_ivf, grid_ivf, gpu_ivf, remote_hnsw };
        // A value out of range is refused in the options of another kind as well.
        by_kind.check(dim)?;
        let defaults = BuildOptions::new(Kind::Flat, metric);
        let common = BuildOptions {
            ram_budget: self.ram_budget,
            threads: self.threads.unwrap_or(defaults.threads),
            seed: self.seed,
            ids: self.ids,
            on_bad_row,
            calibration_queries: self.calibration_queries.unwrap_or(defaults.calibration_queries),
            force: self.force,
            resume: self.resume,
            ..defaults
        };
        Ok((by_kind, common))
    }

    /// Options of `disk-graph`.
    fn read_graph(&self) -> Result<GraphOptions> {
        let defaults = GraphOptions::default();
        let code_kind = match self.code_kind.as_deref() {
            None => defaults.code_kind,
            Some("pq") => CodeKind::Pq,
            Some("opq") => CodeKind::Opq,
            Some("residual-opq") => CodeKind::ResidualOpq,
            Some(other) => return Err(unknown("code_kind", other, "\"opq\", \"pq\" or \"residual-opq\"")),
        };
        let codes = match self.codes.as_deref() {
            None => defaults.codes,
            Some("ram") => CodePlace::Ram,
            Some("disk") => CodePlace::Disk,
            Some(other) => return Err(unknown("codes", other, "\"ram\" or \"disk\"")),
        };
        Ok(GraphOptions {
            degree: self.degree.unwrap_or(defaults.degree),
            build_list: self.build_list.unwrap_or(defaults.build_list),
            alpha: self.alpha.unwrap_or(defaults.alpha),
            passes: self.passes.unwrap_or(defaults.passes),
            code_bytes: self.code_bytes,
            code_kind,
            codes,
            head_share: self.head_share.unwrap_or(defaults.head_share),
            pack: self.pack.unwrap_or(defaults.pack),
            compress: self.compress.unwrap_or(defaults.compress),
            nodes_per_block: self.nodes_per_block,
            pages_per_block: self.pages_per_block,
            exact_points: self.exact_points.unwrap_or(defaults.exact_points),
            cells: self.cells,
        })
    }

    /// Options of `gpu-ivf`, which has the codes of `disk-graph`.
    fn read_gpu(&self, graph: &GraphOptions) -> GpuOptions {
        let defaults = GpuOptions::default();
        GpuOptions {
            list_share: self.list_share.unwrap_or(defaults.list_share),
            epsilon: self.epsilon.unwrap_or(defaults.epsilon),
            code_bytes: graph.code_bytes,
            code_kind: graph.code_kind,
            baselines: self.baselines.unwrap_or(defaults.baselines),
        }
    }

    /// Options of `remote-hnsw`.
    fn read_remote(&self) -> Result<RemoteOptions> {
        let defaults = RemoteOptions::default();
        let representatives = match self.representatives.as_deref() {
            None => defaults.representatives,
            Some(name) => Representatives::from_name(name)
                .ok_or_else(|| unknown("representatives", name, "\"sample\" or \"kmeans\""))?,
        };
        Ok(RemoteOptions {
            partitions: self.partitions,
            representatives,
            overflow_bytes: self.overflow,
            m: self.m.unwrap_or(defaults.m),
            ef_construction: self.ef_construction.unwrap_or(defaults.ef_construction),
        })
    }

    /// Refuses options that do not apply to this kind.
    fn check_kind(&self, kind: Kind) -> Result<()> {
        let given = [
            ("clusters", Kind::HybridIvf, self.clusters.is_some()),
            ("plan", Kind::HybridIvf, self.plan.is_some()),
            ("search_budget", Kind::HybridIvf, self.search_budget.is_some()),
            ("profile", Kind::HybridIvf, self.profile.is_some()),
            ("nav_samples", Kind::HybridIvf, self.nav_samples.is_some()),
            ("lists", Kind::GridIvf, self.lists.is_some()),
            ("centroids", Kind::GridIvf, self.centroids.is_some()),
            ("list_share", Kind::GpuIvf, self.list_share.is_some()),
            ("epsilon", Kind::GpuIvf, self.epsilon.is_some()),
            ("baselines", Kind::GpuIvf, self.baselines.is_some()),
            ("partitions", Kind::RemoteHnsw, self.partitions.is_some()),
            ("representatives", Kind::RemoteHnsw, self.representatives.is_some()),
            ("overflow", Kind::RemoteHnsw, self.overflow.is_some()),
            ("m", Kind::RemoteHnsw, self.m.is_some()),
            ("ef_construction", Kind::RemoteHnsw, self.ef_construction.is_some()),
        ];
        match given.into_iter().find(|&(_, of, is_given)| is_given && of != kind) {
            Some((name, of, _)) => Err(Error::bad_input(format!(
                "{name} is an option of kind={:?}, the kind is {:?}; leave it out",
                of.name(),
                self.kind
            ))),
            None => Ok(()),
        }
    }

    /// Options of `hybrid-ivf`.
    fn read_lists(&self) -> Result<ListOptions> {
        let local_plan = match self.plan.as_deref() {
            None | Some("auto") => LocalPlan::Auto,
            Some("uniform-flat") => LocalPlan::Uniform(LocalKind::Flat),
            Some("uniform-graph") => LocalPlan::Uniform(LocalKind::Graph),
            Some("uniform-ivf") => LocalPlan::Uniform(LocalKind::Ivf),
            Some(other) => {
                let known = "\"auto\", \"uniform-flat\", \"uniform-graph\" or \"uniform-ivf\"";
                return Err(unknown("plan", other, known));
            }
        };
        Ok(ListOptions {
            clusters: self.clusters,
            local_plan,
            search_budget: self.search_budget,
            profile: self.profile.as_deref().map(Profile::read).transpose()?,
            nav_samples: self.nav_samples.unwrap_or(ListOptions::default().nav_samples),
            code_bytes: self.code_bytes,
        })
    }
}

/// Builds an index. Returns the report as JSON.
#[pyfunction]
pub(crate) fn build<'py>(
    py: Python<'py>,
    base: Vectors<'py>,
    path: PathBuf,
    options: Options,
    on_progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let base = base.open(py)?;
    let report = work::run(py, on_progress.as_ref(), |progress| {
        let options = options.read_for(&base, progress)?;
        progress.note(&engine::build::plan(&base, &options)?.describe());
        engine::build::build(&base, &path, &options, progress)
    })?;
    crate::json(py, &report)
}

type Neighbours<'py> = (usize, Bound<'py, PyArray1<u32>>, Bound<'py, PyArray1<f32>>);

/// Computes exact neighbours: results per query, row numbers, distances.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // One for each argument of the Python function.
pub(crate) fn groundtruth<'py>(
    py: Python<'py>,
    base: Vectors<'py>,
    queries: Vectors<'py>,
    k: usize,
    metric: &str,
    ram_budget: Option<u64>,
    threads: Option<usize>,
    on_progress: Option<Py<PyAny>>,
) -> PyResult<Neighbours<'py>> {
    let metric = self::metric(metric).map_err(|e| error::to_python(py, &e))?;
    let (base, queries) = (base.open(py)?, queries.open(py)?);
    let truth = work::run(py, on_progress.as_ref(), |progress| {
        let budget = ram_budget.unwrap_or(u64::MAX);
        let exact = || engine::groundtruth::exact(&base, &queries, metric, k, budget, progress);
        work::in_pool(threads.unwrap_or(0), exact)
    })?;
    Ok((truth.k, truth.ids.into_pyarray(py), truth.distances.into_pyarray(py)))
}

/// Parses a size such as `2GiB`.
#[pyfunction]
pub(crate) fn parse_size(py: Python<'_>, text: &str) -> PyResult<u64> {
    budget::parse_size(text).map_err(|e| error::input(py, &e))
}
