//! The techniques of a `hybrid-ivf`: local indexes, learning, pruning (OrchANN §6.5, figure 18).

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use stratann_params::build::ListOptions;
use stratann_params::choices::Learn;
use stratann_params::choices::{BoundsName, OrderName};
use stratann_params::search::ListSwitches;

use serde::Serialize;
use stratann_cli::output::{Named, Output, count, table};
use stratann_cli::progress::ProgressPrinter;
use stratann_cli::queries::Queries;
use stratann_cli::{Verdict, memory};
use stratann_engine::build::{self, BuildOptions, KindOptions, LocalPlan};
use stratann_engine::dataset::{GroundTruth, Reader};
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::kinds::options::LearnOptions;
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{Effort, SearchOptions};
use stratann_storage::profile::{Profile, ProfileOptions};
use stratann_storage::{Error, ErrorKind, Progress, Result};

use super::{Args, figure, plot_path};

/// Queries of an epoch, and lists that are visited while learning, by default.
const EPOCH: u32 = 2000;
const LEARNT_PROBES: u32 = 64;
/// Values of nprobe of a sweep.
const PROBES: [u32; 9] = [4, 8, 16, 32, 64, 96, 128, 256, 512];
/// Stop rules of a calibrated search: slack of bounds, ρ.
const SLACK: f32 = 1.5;
const EARLY_STOP: f32 = 0.15;
/// Sweeps of each way; medians count.
const ROUNDS: usize = 5;
/// The plan once more, in the same rounds: how far two measurements of one thing lie apart.
const AGAIN: &str = "auto again";

/// One setting.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Point {
    nprobe: u32,
    pub(super) recall: f64,
    pub(super) qps: f64,
    reads: f64,
    kib_read: f64,
    clusters: f64,
}

/// Settings of one variant, by rising effort.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Sweep {
    pub(super) name: String,
    pub(super) points: Vec<Point>,
}

impl Sweep {
    /// The recall that is reached, `most` at most, and the throughput there.
    fn reached(&self, most: f64) -> (f64, f64) {
        let recall = self.points.iter().map(|point| point.recall).fold(0.0, f64::max).min(most);
        (recall, self.at(recall).map_or(0.0, |point| point.qps))
    }

    /// Interpolates the setting that reaches `recall`, by the share of misses.
    fn at(&self, recall: f64) -> Option<Point> {
        let above = self.points.iter().position(|p| p.recall >= recall)?;
        let b = self.points[above];
        let Some(a) = above.checked_sub(1).map(|i| self.points[i]) else { return Some(b) };
        let misses = |r: f64| (1.0 - r).max(1e-4).ln();
        let share = (misses(a.recall) - misses(recall)) / (misses(a.recall) - misses(b.recall));
        let mix = |of: fn(&Point) -> f64| of(&a) + share * (of(&b) - of(&a));
        Some(Point {
            nprobe: mix(|p| f64::from(p.nprobe)).ceil() as u32,
            recall,
            // Time, not its inverse, grows with nprobe.
            qps: 1.0 / mix(|p| 1.0 / p.qps),
            reads: mix(|p| p.reads),
            kib_read: mix(|p| p.kib_read),
            clusters: mix(|p| p.clusters),
        })
    }
}

/// Results of an epoch of queries.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Epoch {
    pub(super) queries: usize,
    /// Precision: visited lists that hold a result.
    pub(super) precision: f64,
    /// Recall of the selection: lists with true neighbours, in number, that were visited and hold a result.
    cluster_recall: f64,
    pub(super) f1: f64,
    recall: f64,
    reads: f64,
    /// Share of the scored vectors that were resident.
    pinned_share: f64,
    p99_us: f64,
}

#[derive(Serialize)]
pub(super) struct Document<'a> {
    base: Named<'a>,
    queries: Named<'a>,
    ram_budget_bytes: Option<u64>,
    recalls: &'a [f64],
    pub(super) local_indexes: Vec<Sweep>,
    /// Uniform plans that do not fit in the budget, and why.
    refused: Vec<(String, String)>,
    pub(super) learning: Vec<Epoch>,
    pub(super) pruning: Vec<Sweep>,
}

/// Inputs of all measurements.
struct Bench<'a> {
    args: &'a Args,
    printer: &'a ProgressPrinter,
    output: Output,
    truth: GroundTruth,
}

/// Measures them.
pub(super) fn run(args: &Args, output: Output) -> Result<Verdict> {
    let plot = plot_path(args)?;
    let base = Reader::open(&args.base)?;
    let truth = GroundTruth::read(&args.groundtruth)?;
    let printer = ProgressPrinter::new(output);
    std::fs::create_dir_all(args.folder()).map_err(|e| Error::io("creating", args.folder(), &e))?;
    let profile = profile(args, &printer)?;
    let mut bench = Bench { args, printer: &printer, output, truth };
    let mixed = bench.build(&base, "auto", LocalPlan::Auto, &profile)?;
    bench.check_truth(&mixed)?;
    let mut indexes = vec![("auto".to_string(), mixed.clone())];
    let mut refused = Vec::new();
    for kind in stratann_core::format::directory::LocalKind::ALL {
        let name = format!("uniform-{}", kind.name());
        match bench.build(&base, &name, LocalPlan::Uniform(kind), &profile) {
            Ok(folder) => indexes.push((name, folder)),
            Err(e) if e.kind == ErrorKind::Budget => refused.push((name, e.message)),
            Err(e) => return Err(e),
        }
    }
    let document = Document {
        base: Named(&args.base),
        queries: Named(&args.queries),
        ram_budget_bytes: args.ram_budget,
        recalls: &args.recall,
        local_indexes: bench
            .local_indexes(&[&indexes[..], &[(AGAIN.to_string(), mixed.clone())]].concat())?,
        refused,
        pruning: bench.pruning(&mixed)?,
        learning: bench.learning(&mixed)?,
    };
    printer.finish();
    if let Some(plot) = &plot {
        figure::draw(plot, &document)?;
    }
    output.result(&document, || text(&document))?;
    Ok(Verdict::Fine)
}

fn profile(args: &Args, printer: &ProgressPrinter) -> Result<Profile> {
    match &args.profile {
        Some(path) => Profile::read(path),
        None => Profile::measure(args.folder(), &ProfileOptions::default(), printer),
    }
}

impl Bench<'_> {
    /// Builds an index with this plan, unless it exists.
    fn build(&self, base: &Reader, name: &str, plan: LocalPlan, profile: &Profile) -> Result<PathBuf> {
        let folder = self.args.folder().join(format!("{name}.idx"));
        if let Ok((_, manifest)) = Manifest::read(&folder) {
            if manifest.rows == base.shape().rows && manifest.dim == base.shape().dim {
                self.output.note(&format!("{} exists and is used again", folder.display()));
                return Ok(folder);
            }
            return Err(Error::bad_input(format!(
                "{} is an index of other vectors; give another folder with -o",
                folder.display()
            )));
        }
        let own = ListOptions {
            clusters: self.args.clusters,
            plan: plan.into(),
            search_budget: self.args.ram_budget,
            ..ListOptions::default()
        };
        let options = BuildOptions {
            threads: self.threads(),
            calibration_queries: 0,
            profile: Some(profile.clone()),
            ..BuildOptions::new(KindOptions::HybridIvf(own), self.args.metric())
        };
        build::build(base, &folder, &options, self.printer)?;
        Ok(folder)
    }

    fn threads(&self) -> usize {
        self.args.threads()
    }

    fn options(&self, nprobe: u32, variant: &Variant) -> SearchOptions {
        SearchOptions {
            k: self.args.k,
            effort: Effort::Nprobe(nprobe, variant.slack, Some(EARLY_STOP)),
            threads: self.threads(),
            switches: variant.switches.into(),
            ..SearchOptions::default()
        }
    }

    /// Opens an index within the budget, whose rest holds list codes.
    fn open(&self, folder: &Path, learning: LearnOptions) -> Result<(Index, Queries)> {
        let (_, manifest) = Manifest::read(folder)?;
        let queries = Queries::open(&self.args.queries, &manifest, self.output)?;
        if self.truth.queries() != queries.count() || self.truth.k < self.args.k {
            return Err(Error::bad_input(format!(
                "{} holds {} neighbours of {} queries, {} of {} are needed; compute it again",
                self.args.groundtruth.display(),
                self.truth.k,
                self.truth.queries(),
                self.args.k,
                queries.count()
            )));
        }
        let extra = [("ground truth", 4 * self.truth.ids.len() as u64)];
        let search_reserve = memory::set_aside(&manifest, &self.options(1, &FULL), &extra, &queries);
        let open = OpenOptions {
            ram_budget: self.args.ram_budget,
            search_reserve,
            learning,
            ..OpenOptions::default()
        };
        Ok((Index::open(folder, open)?, queries))
    }

    /// Compares the ground truth with an index of the vectors. Its distances are not needed after that.
    fn check_truth(&mut self, folder: &Path) -> Result<()> {
        let (index, queries) =
            self.open(folder, LearnOptions { learn: Learn::Off, ..LearnOptions::default() })?;
        let sample = self.args.sample.clamp(1, queries.count());
        let mut rows = Vec::new();
        queries.read(0, sample, &mut rows)?;
        index.check_truth(self.truth.clone(), &self.args.groundtruth, &rows, self.threads(), self.printer)?;
        self.truth.distances = Vec::new();
        Ok(())
    }

    /// (a): the planned local indexes compared with uniform plans.
    fn local_indexes(&self, indexes: &[(String, PathBuf)]) -> Result<Vec<Sweep>> {
        let mut opened = Vec::new();
        for (name, folder) in indexes {
            let (index, queries) = self.open(folder, LearnOptions::default())?;
            let switches = self.best_effort(name, &index, &queries)?;
            opened.push((name, Variant { switches, ..FULL }, index, queries));
        }
        // Rounds in turn, so that a disturbance affects all.
        let round = |_| {
            let sweep = |(name, variant, index, queries): &(&String, Variant, Index, Queries)| {
                self.sweep(name, index, queries, variant)
            };
            opened.iter().map(sweep).collect::<Result<Vec<Sweep>>>()
        };
        Ok(medians(&(0..ROUNDS).map(round).collect::<Result<Vec<_>>>()?))
    }

    /// The local effort that suits the recalls best: one list has a few sub-lists scanned, or a beam of some length,
    /// and a uniform index of these would reach no high recall with what a plan gives its largest lists.
    fn best_effort(&self, name: &str, index: &Index, queries: &Queries) -> Result<ListSwitches> {
        let most = self.args.recall.iter().copied().fold(0.0, f64::max);
        let mut best = (ALL_ON, (0.0, 0.0));
        let efforts = local_efforts(name);
        for &switches in efforts.iter().filter(|_| efforts.len() > 1) {
            let reached = self.sweep(name, index, queries, &Variant { switches, ..FULL })?.reached(most);
            best = if reached > best.1 { (switches, reached) } else { best };
        }
        Ok(best.0)
    }

    /// (c): one pruning technique switched off at a time.
    fn pruning(&self, folder: &Path) -> Result<Vec<Sweep>> {
        let (index, queries) = self.open(folder, LearnOptions::default())?;
        let round = |_| {
            VARIANTS.iter().map(|v| self.sweep(v.name, &index, &queries, v)).collect::<Result<Vec<Sweep>>>()
        };
        Ok(medians(&(0..ROUNDS).map(round).collect::<Result<Vec<_>>>()?))
    }

    fn sweep(&self, name: &str, index: &Index, queries: &Queries, variant: &Variant) -> Result<Sweep> {
        let sample = self.args.sample.clamp(1, queries.count());
        let most = self.args.recall.iter().copied().fold(0.0, f64::max);
        let mut rows = Vec::new();
        queries.read(0, sample, &mut rows)?;
        let truth = self.truth_of(0, sample);
        self.printer.stage(name, (PROBES.len() * sample) as u64, "queries");
        let mut points: Vec<Point> = Vec::new();
        for nprobe in PROBES {
            let answers = index.search(&rows, &self.options(nprobe, variant), self.printer)?;
            let each = |x: u64| x as f64 / sample as f64;
            points.push(Point {
                nprobe,
                recall: answers.recall(&truth, self.args.k),
                qps: sample as f64 / answers.seconds,
                reads: each(answers.stats.reads),
                kib_read: each(answers.stats.pages_read) * 4.0,
                clusters: each(answers.stats.clusters),
            });
            if points.last().is_some_and(|p| p.recall >= most) {
                break;
            }
        }
        Ok(Sweep { name: name.into(), points })
    }

    fn truth_of(&self, first: usize, count: usize) -> Vec<u64> {
        let of = |q: usize| self.truth.ids_of(q)[..self.args.k].iter().map(|&id| u64::from(id));
        (first..first + count).flat_map(of).collect()
    }

    /// (b): precision and F1 of the list selection by epoch, without earlier learning.
    fn learning(&self, folder: &Path) -> Result<Vec<Epoch>> {
        // Statistics of an earlier run would distort the result.
        let _ = std::fs::remove_file(folder.join("learnt.bin"));
        let learning = LearnOptions {
            learn: Learn::Always,
            epoch_queries: self.args.epoch_queries.unwrap_or(EPOCH).max(1),
            hot: None,
        };
        let (index, queries) = self.open(folder, learning)?;
        let wanted: HashSet<u64> = self.truth_of(0, queries.count()).into_iter().collect();
        let homes = index.clusters_of(&wanted)?;
        let options = self.options(self.args.nprobe.unwrap_or(LEARNT_PROBES), &FULL);
        let each = self.args.epoch_queries.unwrap_or(EPOCH).max(1) as usize;
        self.printer.stage("learning", queries.count() as u64, "queries");
        let mut rows = Vec::new();
        let mut epochs = Vec::new();
        for first in (0..queries.count()).step_by(each) {
            let count = each.min(queries.count() - first);
            queries.read(first, count, &mut rows)?;
            let answers = index.search(&rows, &options, self.printer)?;
            let truth = self.truth_of(first, count);
            epochs.push(self.epoch(&answers, &truth, &homes));
        }
        Ok(epochs)
    }

    fn epoch(
        &self,
        answers: &stratann_engine::search::Answers,
        truth: &[u64],
        homes: &HashMap<u64, u32>,
    ) -> Epoch {
        let queries = answers.latency_ns.len();
        let true_clusters: usize = truth
            .chunks(self.args.k)
            .map(|ids| ids.iter().filter_map(|id| homes.get(id)).collect::<HashSet<_>>().len())
            .sum();
        // Clusters of true neighbours that the answers hold: those that a search of them alone would have visited.
        let found: usize = truth
            .chunks(self.args.k)
            .zip(answers.ids.chunks(answers.k))
            .map(|(truth, ids)| {
                let hits = ids.iter().filter(|id| truth.contains(id));
                hits.filter_map(|id| homes.get(id)).collect::<HashSet<_>>().len()
            })
            .sum();
        let s = &answers.stats;
        let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        let precision = share(found as u64, s.clusters);
        let cluster_recall = share(found as u64, true_clusters as u64);
        Epoch {
            queries,
            precision,
            cluster_recall,
            f1: 2.0 * precision * cluster_recall / (precision + cluster_recall).max(f64::MIN_POSITIVE),
            recall: answers.recall(truth, self.args.k),
            reads: s.reads as f64 / queries.max(1) as f64,
            pinned_share: share(s.pinned_hits, s.full_comparisons),
            p99_us: stratann_engine::search::Latency::of(&answers.latency_ns).p99,
        }
    }
}

/// Variants with techniques switched on and off.
struct Variant {
    name: &'static str,
    slack: Option<f32>,
    switches: ListSwitches,
}

const ALL_ON: ListSwitches = ListSwitches {
    order: None,
    stop_early: true,
    weights: true,
    bounds: BoundsName::Both,
    local_lists: None,
    local_list: None,
    votes: None,
};
/// Sweeps with the median throughput of each setting over rounds. Counters are those of the first round.
fn medians(rounds: &[Vec<Sweep>]) -> Vec<Sweep> {
    let mut first = rounds.first().cloned().unwrap_or_default();
    for (at, sweep) in first.iter_mut().enumerate() {
        for (setting, point) in sweep.points.iter_mut().enumerate() {
            let of = |round: &Vec<Sweep>| Some(round.get(at)?.points.get(setting)?.qps);
            let mut all: Vec<f64> = rounds.iter().filter_map(of).collect();
            all.sort_by(f64::total_cmp);
            point.qps = all[all.len() / 2];
        }
    }
    first
}

/// Local efforts of a uniform index, and that of the plan for others.
fn local_efforts(name: &str) -> Vec<ListSwitches> {
    let planned = [None];
    match name {
        "uniform-ivf" => {
            let of = |local_lists| ListSwitches { local_lists, ..ALL_ON };
            planned.into_iter().chain([4, 16, 64].map(Some)).map(of).collect()
        }
        "uniform-graph" => {
            let of = |local_list| ListSwitches { local_list, ..ALL_ON };
            planned.into_iter().chain([16, 96].map(Some)).map(of).collect()
        }
        _ => vec![ALL_ON],
    }
}

const FULL: Variant = Variant { name: "all", slack: Some(SLACK), switches: ALL_ON };
const VARIANTS: [Variant; 6] = [
    FULL,
    Variant {
        name: "no list pruning",
        slack: Some(SLACK),
        switches: ListSwitches { stop_early: false, order: Some(OrderName::Centroid), ..ALL_ON },
    },
    Variant {
        name: "no early stop",
        slack: Some(SLACK),
        switches: ListSwitches { stop_early: false, ..ALL_ON },
    },
    Variant { name: "strict bounds by codes", slack: None, switches: ALL_ON },
    Variant {
        name: "bounds by centroids",
        slack: None,
        switches: ListSwitches { bounds: BoundsName::Centroid, ..ALL_ON },
    },
    Variant { name: "no bounds", slack: None, switches: ListSwitches { bounds: BoundsName::Off, ..ALL_ON } },
];

fn text(document: &Document<'_>) -> String {
    let mut out = String::from("local indexes\n");
    out += &compared(&document.local_indexes, document.recalls);
    for (name, why) in &document.refused {
        out += &format!("{name}: not built: {why}\n");
    }
    out += "\nlearning\n";
    let headings = ["queries", "precision", "F1", "recall", "reads", "pinned", "p99 us"];
    let mut seen = 0;
    let rows: Vec<Vec<String>> = document
        .learning
        .iter()
        .map(|e| {
            seen += e.queries;
            vec![
                count(seen as u64),
                format!("{:.3}", e.precision),
                format!("{:.3}", e.f1),
                format!("{:.4}", e.recall),
                format!("{:.1}", e.reads),
                format!("{:.0} %", 100.0 * e.pinned_share),
                format!("{:.0}", e.p99_us),
            ]
        })
        .collect();
    out += &table(&headings, &rows);
    out += "\npruning\n";
    out + &compared(&document.pruning, document.recalls)
}

/// Returns one row per sweep and recall, with the throughput relative to the first sweep, and bytes.
fn compared(sweeps: &[Sweep], recalls: &[f64]) -> String {
    let headings = ["", "recall", "nprobe", "clusters", "reads", "KiB", "QPS", "QPS of all"];
    let mut rows = Vec::new();
    for &recall in recalls {
        let first = sweeps.first().and_then(|s| s.at(recall));
        for sweep in sweeps {
            let mut row = vec![sweep.name.clone(), format!("{recall}")];
            match sweep.at(recall) {
                Some(p) => row.extend([
                    p.nprobe.to_string(),
                    format!("{:.1}", p.clusters),
                    format!("{:.1}", p.reads),
                    count(p.kib_read as u64),
                    count(p.qps as u64),
                    first.map_or("-".into(), |f| format!("{:.2} x", f.qps / p.qps)),
                ]),
                None => row.push(format!(
                    "out of reach: {:.4}",
                    sweep.points.iter().map(|p| p.recall).fold(0.0, f64::max)
                )),
            }
            rows.push(row);
        }
    }
    table(&headings, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_interpolated_by_misses() {
        let point =
            |nprobe, recall, qps| Point { nprobe, recall, qps, reads: 1.0, kib_read: 4.0, clusters: 2.0 };
        let sweep = Sweep { name: "all".into(), points: vec![point(8, 0.8, 400.0), point(32, 0.95, 200.0)] };
        let middle = sweep.at(0.9).unwrap();
        assert!((19..=21).contains(&middle.nprobe) && (middle.qps - 266.7).abs() < 1.0, "{middle:?}");
        assert_eq!(sweep.at(0.7).unwrap().nprobe, 8);
        assert!(sweep.at(0.99).is_none());
    }
}
