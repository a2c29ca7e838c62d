//! Ways to search at a recall: time, and exact counters (figures 4, 9, 10 and 12).

use serde::Serialize;
use stratann_engine::exec::Times;
use stratann_engine::kinds::gpu_ivf::baseline::Baseline;
use stratann_engine::search::{Answers, Latency, SearchOptions};
use stratann_storage::{Progress, Result};

use super::Bench;
use super::saved::Saved;
use super::settings::{Chosen, Family, Setting};
use super::ways::Way;

/// Runs of each setting; the median counts.
const ROUNDS: usize = 3;

/// A way at its setting.
#[derive(Clone, Debug, Serialize)]
pub(super) struct AtRecall {
    pub(super) name: &'static str,
    /// The recall that was asked for, and that of all queries.
    pub(super) asked: f64,
    pub(super) recall: f64,
    pub(super) setting: Setting,
    /// Absent where a GPU would score.
    #[serde(flatten)]
    pub(super) speed: Option<Speed>,
    /// Reads of each query; the same on any machine.
    pub(super) reads: f64,
    pub(super) pages: f64,
    pub(super) bytes_a_read: f64,
    pub(super) gpu_bytes: f64,
    pub(super) codes: f64,
    pub(super) vectors: f64,
    pub(super) lists: f64,
    pub(super) mini_batches: f64,
    pub(super) duplicates: f64,
}

/// Measured times of a way.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Speed {
    /// With many queries in flight on each thread.
    pub(super) qps: f64,
    /// Queries a second with a query on each thread, as in the paper.
    pub(super) blocking_qps: f64,
    pub(super) latency_us: Latency,
    pub(super) stage_us: Stages,
    /// Ratio to the rate of spann at the same recall; absent where spann is not measured.
    pub(super) qps_over_spann: Option<f64>,
    pub(super) latency_over_spann: Option<f64>,
}

/// Mean time of a query by stage, microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Stages {
    /// Before the first read or job.
    pub(super) route: f64,
    /// Waiting for reads, and for the thread.
    pub(super) access: f64,
    /// Scoring what arrived.
    pub(super) verify: f64,
}

impl Stages {
    pub(super) fn of(times: &Times, queries: usize) -> Stages {
        let each = |ns: u64| ns as f64 / 1000.0 / queries.max(1) as f64;
        Stages { route: each(times.route), access: each(times.access()), verify: each(times.verify) }
    }
}

impl Speed {
    /// Of a run with many queries in flight, and of one with a query on each thread.
    fn of(many: &Answers, one: &Answers) -> Speed {
        let rate = |answers: &Answers| answers.latency_ns.len() as f64 / answers.seconds.max(1e-9);
        Speed {
            qps: rate(many),
            blocking_qps: rate(one),
            latency_us: Latency::of(&one.latency_ns),
            stage_us: Stages::of(&one.times, one.latency_ns.len()),
            qps_over_spann: None,
            latency_over_spann: None,
        }
    }
}

/// A way, the recall that was asked for, and the setting.
pub(super) type Job = (Way, f64, Setting);

/// One query on each thread.
pub(super) fn blocking(options: SearchOptions) -> SearchOptions {
    SearchOptions { in_flight: Some(1), ..options }
}

/// The run with the median time.
pub(super) fn median(mut runs: Vec<Answers>) -> Option<Answers> {
    runs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let middle = runs.len().checked_sub(1)? / 2;
    Some(runs.swap_remove(middle))
}

impl Bench<'_> {
    /// Every way at every recall.
    pub(super) fn ways(&self, chosen: &Chosen) -> Result<Vec<AtRecall>> {
        let mut found = Vec::new();
        for &asked in &self.args.recall {
            let setting = |way: &Way| {
                let choice = chosen.all(way.family).find(|choice| choice.asked == asked)?;
                Some((*way, asked, choice.tried.setting))
            };
            let jobs: Vec<Job> = Way::all().iter().filter_map(setting).collect();
            found.extend(self.timed(&jobs)?);
        }
        Ok(found)
    }

    /// The multi-tiered index, then algorithm 1, then shared blocks, all with equal lists; and the default.
    pub(super) fn techniques(&self, saved: &[Saved]) -> Result<Vec<AtRecall>> {
        let mut found = Vec::new();
        for changes in saved.iter().filter(|saved| saved.rule == Family::Changes.name()) {
            let mut jobs: Vec<Job> = Vec::new();
            let nprobe = changes.setting.nprobe;
            if let Some(n) = changes.static_n {
                jobs.push((Way::of(Baseline::MultiTierOnCpu), changes.asked, Setting::fixed(nprobe, n)));
            }
            jobs.push((Way::of(Baseline::NoDeduplication), changes.asked, changes.setting));
            jobs.push((Way::of_family(Family::Changes), changes.asked, changes.setting));
            let is_default =
                |saved: &&Saved| saved.rule == Family::Margin.name() && saved.asked == changes.asked;
            let default = saved.iter().find(is_default);
            jobs.extend(default.map(|own| (Way::of_family(Family::Margin), own.asked, own.setting)));
            found.extend(self.timed(&jobs)?);
        }
        Ok(found)
    }

    /// Times jobs at one recall. Rounds are interleaved, so that a disturbance affects all.
    fn timed(&self, jobs: &[Job]) -> Result<Vec<AtRecall>> {
        let asked = jobs.first().map_or(0.0, |job| job.1);
        let rows = self.timed_rows();
        let timed = jobs.iter().filter(|job| job.0.is_timed).count();
        let queries = 2 * ROUNDS * timed * (rows.len() / self.queries.row_bytes());
        let counted = jobs.len() * self.queries.count();
        self.printer.stage(&format!("times at a recall of {asked}"), (queries + counted) as u64, "queries");
        let options: Vec<SearchOptions> =
            jobs.iter().map(|(way, _, setting)| self.options(way, setting, self.args.threads())).collect();
        let mut many: Vec<Vec<Answers>> = jobs.iter().map(|_| Vec::new()).collect();
        let mut one: Vec<Vec<Answers>> = jobs.iter().map(|_| Vec::new()).collect();
        for _ in 0..ROUNDS {
            for (at, options) in options.iter().enumerate().filter(|&(at, _)| jobs[at].0.is_timed) {
                many[at].push(self.run(rows, options)?);
                one[at].push(self.run(rows, &blocking(*options))?);
            }
        }
        let mut found = Vec::new();
        for (((job, options), many), one) in jobs.iter().zip(&options).zip(many).zip(one) {
            let all = self.run(&self.rows, options)?;
            let speed = median(many).zip(median(one)).map(|(many, one)| Speed::of(&many, &one));
            found.push(self.at(job, &all, speed));
        }
        let spann = found.iter().find(|at| at.name == Baseline::Spann.name()).and_then(|at| at.speed.clone());
        if let Some(spann) = spann {
            for own in found.iter_mut().filter_map(|at| at.speed.as_mut()) {
                own.qps_over_spann = Some(own.qps / spann.qps);
                own.latency_over_spann = Some(own.latency_us.mean / spann.latency_us.mean);
            }
        }
        Ok(found)
    }

    fn at(&self, (way, asked, setting): &Job, all: &Answers, speed: Option<Speed>) -> AtRecall {
        let each = |sum: u64| sum as f64 / all.latency_ns.len().max(1) as f64;
        AtRecall {
            name: way.name,
            asked: *asked,
            recall: self.recall(all),
            setting: *setting,
            speed,
            reads: each(all.stats.reads_asked()),
            pages: each(all.stats.pages_read),
            bytes_a_read: all.stats.bytes_read as f64 / all.stats.reads.max(1) as f64,
            gpu_bytes: each(all.stats.gpu_bytes),
            codes: each(all.stats.code_comparisons),
            vectors: each(all.stats.full_comparisons),
            lists: each(all.stats.lists),
            mini_batches: each(all.stats.mini_batches),
            duplicates: each(all.stats.duplicates),
        }
    }
}
