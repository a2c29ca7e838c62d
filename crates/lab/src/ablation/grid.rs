//! The techniques of a `grid-ivf` (HARMONY §3 and §6): pruning on this machine; on simulated servers the ways to divide
//! the lists, their speed-up, and what each technique is worth under a skewed load.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use stratann_params::build::GridOptions;
use stratann_params::search::GridSwitches;

use serde::{Deserialize, Serialize};
use stratann_capacity::costs::Prices;
use stratann_cli::Verdict;
use stratann_cli::output::{Named, Output};
use stratann_cli::progress::ProgressPrinter;
use stratann_cli::queries::Queries;
use stratann_core::query::Params;
use stratann_engine::build::{self, BuildOptions, KindOptions};
use stratann_engine::dataset::{GroundTruth, Reader};
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{Effort, SearchOptions};
use stratann_storage::{Error, Result, input};

use super::{Args, plot_path};

mod divisions;
mod figure;
mod loads;
mod one;
mod servers;
mod text;

use divisions::Division;
use loads::Skew;
use one::{AtRecall, Stability, Survival};
use servers::{Choice, Simulated, Simulation, Skewed};

#[derive(Serialize)]
struct Document<'a> {
    base: Named<'a>,
    queries: Named<'a>,
    rows: u64,
    dim: usize,
    lists: u32,
    recalls: &'a [f64],
    /// Seconds of the build (figure 10); `None` where the index was not built here.
    build: Option<BuildSeconds>,
    /// Cost of dividing, and content of each server (figure 10, tables 4 and 5).
    divisions: Vec<Division>,
    /// Processor time of a query in one process, microseconds.
    one_process_cpu_us: f64,
    /// Vectors that are left before each quarter of the components (figure 2a, table 3).
    survival: Survival,
    /// Variation of pruning over queries (§3.1).
    stability: Stability,
    /// Techniques on this machine.
    one_server: Vec<AtRecall>,
    costs: Prices,
    /// Ways to divide under the load of the given queries (figures 2b, 6, 8, 11b).
    even: Vec<Simulated>,
    /// Origin of the skewed loads.
    loads: Vec<Skew>,
    /// Ways to divide under skewed loads (figure 7).
    skewed: Vec<Simulated>,
    /// Techniques switched off under the last skewed load (figure 9).
    techniques: Vec<Simulated>,
    /// The planner's choice beside all ways.
    choices: Vec<Choice>,
}

/// Seconds of a build.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct BuildSeconds {
    /// Centroids, with the nearest one of each row, and axes.
    train: f64,
    /// Reading all rows, and writing them into their lists.
    add: f64,
    by_stage: BTreeMap<String, f64>,
}

impl BuildSeconds {
    fn of(stages: BTreeMap<String, f64>) -> BuildSeconds {
        let is_training = |stage: &str| ["clusters", "axes"].contains(&stage);
        let sum = |trains: bool| stages.iter().filter(|s| is_training(s.0) == trains).map(|s| s.1).sum();
        BuildSeconds { train: sum(true), add: sum(false), by_stage: stages }
    }

    fn sum(&self) -> f64 {
        self.train + self.add
    }
}

/// The index, its queries, and what all measurements share.
struct Bench<'a> {
    args: &'a Args,
    printer: &'a ProgressPrinter,
    output: Output,
    index: Index,
    queries: Queries,
    truth: GroundTruth,
}

/// Measures them.
pub(super) fn run(args: &Args, output: Output) -> Result<Verdict> {
    let (servers, skews) = (server_counts(args)?, skews(args)?);
    let plot = plot_path(args)?;
    let base = Reader::open(&args.base)?;
    let truth = GroundTruth::read(&args.groundtruth)?;
    let printer = ProgressPrinter::new(output);
    std::fs::create_dir_all(args.folder()).map_err(|e| Error::io("creating", args.folder(), &e))?;
    let (folder, build) = built(args, &base, &printer, output)?;
    let bench = Bench::open(args, &folder, truth, &printer, output)?;
    let one_server = bench.one_server()?;
    let probes: Vec<(f64, u32)> =
        one_server.iter().filter(|at| at.name == one::ALL).map(|at| (at.asked, at.nprobe)).collect();
    let Some(&(_, usual)) = probes.last() else {
        return Err(Error::bad_input("--recall is empty; give one recall or more"));
    };
    let (survival, stability) = bench.survival(usual)?;
    let simulation = Simulation::new(&bench, usual, servers[0])?;
    let even = simulation.even(&servers, &probes)?;
    let Skewed { loads, modes: skewed, techniques } = simulation.skewed(&servers, &skews, &probes)?;
    let divisions = bench.divisions(&folder, &simulation, &servers)?;
    let document = Document {
        base: Named(&args.base),
        queries: Named(&args.queries),
        rows: bench.index.manifest().rows,
        dim: bench.index.manifest().dim,
        lists: bench.lists(),
        recalls: &args.recall,
        build,
        divisions,
        one_process_cpu_us: bench.one_process_cpu_us(usual)?,
        survival,
        stability,
        one_server,
        costs: simulation.prices.clone(),
        choices: servers::choices(&[&even[..], &skewed].concat()),
        even,
        loads,
        skewed,
        techniques,
    };
    printer.finish();
    if let Some(plot) = &plot {
        figure::draw(plot, &document)?;
    }
    output.result(&document, || text::text(&document))?;
    Ok(Verdict::Fine)
}

fn server_counts(args: &Args) -> Result<Vec<usize>> {
    let counts = if args.servers.is_empty() { vec![4, 8, 16] } else { args.servers.clone() };
    match counts.iter().find(|count| !(2..=64).contains(*count)) {
        Some(wrong) => Err(Error::bad_input(format!("--servers is {wrong}; use 2 to 64"))),
        None => Ok(counts),
    }
}

fn skews(args: &Args) -> Result<Vec<f64>> {
    let skews = if args.skew.is_empty() { vec![0.4, 0.5, 0.6] } else { args.skew.clone() };
    match skews.iter().find(|share| !(0.0..=1.0).contains(*share)) {
        Some(wrong) => Err(Error::bad_input(format!("--skew is {wrong}; give shares from 0 to 1"))),
        None => Ok(skews),
    }
}

/// Builds the index unless it exists. Returns its folder, and what its build took.
fn built(
    args: &Args,
    base: &Reader,
    printer: &ProgressPrinter,
    output: Output,
) -> Result<(PathBuf, Option<BuildSeconds>)> {
    let (folder, times) = (args.folder().join("grid.idx"), args.folder().join("grid-build.json"));
    if let Ok((_, manifest)) = Manifest::read(&folder) {
        if manifest.rows != base.shape().rows || manifest.dim != base.shape().dim {
            return Err(Error::bad_input(format!(
                "{} is an index of other vectors; give another folder with -o",
                folder.display()
            )));
        }
        output.note(&format!("{} exists and is used again", folder.display()));
        // Without the file, the times are not known.
        let known = input::read(&times).ok().and_then(|text| serde_json::from_slice(&text).ok());
        return Ok((folder, known));
    }
    let own = GridOptions { lists: args.clusters, centroids: None };
    let options = BuildOptions {
        threads: args.threads(),
        calibration_queries: 0,
        ..BuildOptions::new(KindOptions::GridIvf(own), args.metric())
    };
    let build = BuildSeconds::of(build::build(base, &folder, &options, printer)?.stages);
    let text = serde_json::to_vec(&build).unwrap_or_default();
    std::fs::write(&times, text).map_err(|e| Error::io("writing", &times, &e))?;
    Ok((folder, Some(build)))
}

impl<'a> Bench<'a> {
    fn open(
        args: &'a Args,
        folder: &Path,
        truth: GroundTruth,
        printer: &'a ProgressPrinter,
        output: Output,
    ) -> Result<Bench<'a>> {
        let index = Index::open(folder, OpenOptions::default())?;
        let queries = Queries::open(&args.queries, index.manifest(), output)?;
        if truth.queries() != queries.count() || truth.k < args.k {
            return Err(Error::bad_input(format!(
                "{} holds {} neighbours of {} queries, {} of {} are needed; compute it again",
                args.groundtruth.display(),
                truth.k,
                truth.queries(),
                args.k,
                queries.count()
            )));
        }
        let bench = Bench { args, printer, output, index, queries, truth };
        let rows = bench.sample()?;
        let (truth, path) = (bench.truth.clone(), &args.groundtruth);
        bench.index.check_truth(truth, path, &rows, bench.threads(), printer)?;
        Ok(bench)
    }

    fn threads(&self) -> usize {
        self.args.threads()
    }

    /// The first queries.
    fn sample(&self) -> Result<Vec<u8>> {
        let mut rows = Vec::new();
        self.queries.read(0, self.args.sample.clamp(1, self.queries.count()), &mut rows)?;
        Ok(rows)
    }

    fn lists(&self) -> u32 {
        self.index.view().size().clusters
    }

    fn options(&self, nprobe: u32, switches: GridSwitches) -> SearchOptions {
        SearchOptions {
            k: self.args.k,
            effort: Effort::Nprobe(nprobe, None, None),
            threads: self.threads(),
            switches: switches.into(),
            ..SearchOptions::default()
        }
    }

    fn params(&self, nprobe: u32, switches: GridSwitches) -> Result<Params> {
        self.index.params(&self.options(nprobe, switches))
    }
}
