//! Measures the costs of work on this machine: a second or two of real work and real reads.
//!
//! Queries run through the simulated cluster, with a clock for each piece of real work: preparing tables, steps,
//! encoding and decoding messages. They do so several times; the fastest time of each piece counts, because other
//! programs rarely disturb it. The costs of a step and of comparisons are those that explain the times of all steps
//! best, by least squares. Real searches follow: the CPU time beyond all this, over their reads, is the cost of a read.
//! What a message takes beyond its encoding is that of real connections ([`crate::sockets`]).

use std::time::Instant;

use serde::Serialize;
use stratann_core::query::Params;
use stratann_engine::doctor;
use stratann_engine::index::Index;
use stratann_engine::search::{Latency, SearchOptions};
use stratann_engine::spread::Placed;
use stratann_sim::{Timed, Work};
use stratann_storage::tier::IoChoice;
use stratann_storage::{Progress, Result};

use crate::costs::{Given, NETWORK_GBPS, NETWORK_LATENCY_US, Origin, Prices};
use crate::passes::Passes;
use crate::sockets::{self, By};

/// Searches that count as one step of a stage; an interruption still counts.
struct Unheard<'a>(&'a dyn Progress);

impl Progress for Unheard<'_> {
    fn stage(&self, _: &str, _: u64, _: &str) {}
    fn advance(&self, _: u64) {}
    fn note(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        self.0.interrupted()
    }
}

/// Queries that run with a clock.
const TIMED: usize = 200;
/// Rounds of timing; the fastest counts.
const ROUNDS: usize = 3;
/// Least queries of a real search.
const COMPARED: usize = 4000;
/// Contents of the messages between two links: about a reply, and a long hand-over.
const MESSAGE_BYTES: [usize; 2] = [200, 16 << 10];

/// Search whose costs are measured.
pub struct Measured<'a> {
    pub passes: &'a Passes<'a>,
    /// The first queries.
    pub rows: &'a [u8],
    pub params: Params,
    pub search: SearchOptions,
    /// Placements over one server, and over several.
    pub placements: &'a [Placed],
}

impl Measured<'_> {
    /// Measures all costs that are not given.
    pub fn prices(&self, given: &Given, progress: &dyn Progress) -> Result<Prices> {
        progress.stage("measuring costs of work", 4, "steps");
        let (index, cores) = (self.passes.index, crate::all_cores());
        let threads = given.threads.unwrap_or(cores);
        let mut timed: Vec<Vec<Timed>> = Vec::new();
        for placed in self.placements {
            timed.push(self.time(placed)?);
        }
        let work = Solved::of(&timed.concat());
        progress.advance(1);
        let one_server = timed.first().map_or(&[][..], Vec::as_slice);
        let read_ns = self.read_ns(&work, one_server, threads.min(cores), progress)?;
        progress.advance(1);
        let [fixed_ns, byte_ns, wake_ns] = sockets_ns();
        progress.advance(1);
        let disk = disk(index, given)?;
        progress.advance(1);
        let whole = |x: f64| x.round() as u64;
        Ok(Prices {
            threads,
            prepare_ns: whole(work.prepare_ns),
            step_ns: whole(work.step_ns),
            read_ns: whole(read_ns),
            route_comparison_ps: Some(whole(1000.0 * work.route_ns)),
            code_comparison_ps: whole(1000.0 * work.code_ns),
            full_comparison_ps: whole(1000.0 * work.full_ns),
            component_ps: whole(1000.0 * work.component_ns),
            scorer_code_ps: 0,
            scorer_job_us: 0.0,
            message_ns: whole(work.message_ns + fixed_ns),
            message_byte_ps: whole(1000.0 * (work.byte_ns + byte_ns)),
            wake_ns: whole(wake_ns),
            request_us: 0.0,
            disk_iops: disk.iops.round(),
            disk_latency_us: (10.0 * disk.latency_us).round() / 10.0,
            disk_mb_per_s: Some(disk.mb_per_s.round().max(1.0)),
            network_latency_us: NETWORK_LATENCY_US,
            network_gbps: NETWORK_GBPS,
            network_latency_from: Origin::Assumed,
            network_gbps_from: Origin::Assumed,
            servers_per_host: None,
            cores_per_host: None,
        })
    }

    /// The fastest time of each piece of work.
    fn time(&self, placed: &Placed) -> Result<Vec<Timed>> {
        let started = Instant::now();
        let clock = || started.elapsed().as_nanos() as u64;
        let rows =
            self.passes.rows_of(&self.rows[..self.rows.len().min(TIMED * self.passes.index.row_bytes())]);
        let mut best = self.passes.time(placed, self.params, &rows, &clock);
        for _ in 1..ROUNDS {
            let again = self.passes.time(placed, self.params, &rows, &clock);
            best.iter_mut().zip(&again).for_each(|(best, one)| best.ns = best.ns.min(one.ns));
        }
        Ok(best)
    }

    /// CPU time of a real search beyond its other work, over its reads.
    fn read_ns(
        &self,
        work: &Solved,
        one_server: &[Timed],
        threads: usize,
        progress: &dyn Progress,
    ) -> Result<f64> {
        let queries = (self.rows.len() / self.passes.index.row_bytes()).clamp(1, TIMED) as f64;
        let all = sum(one_server.iter());
        let known_ns = work.ns(&all) / queries;
        let options = SearchOptions { threads, ..self.search };
        let runs = searches(self.passes.index, self.rows, &options, progress)?;
        // Other programs make it longer.
        let real_ns = 1000.0 * runs.iter().map(|run| run.cpu_us).fold(f64::INFINITY, f64::min);
        let reads = f64::from(all.reads) / queries;
        Ok(if reads > 0.0 { ((real_ns - known_ns) / reads).max(0.0) } else { 0.0 })
    }
}

/// Measured speed of a disk.
struct DiskSpeed {
    iops: f64,
    latency_us: f64,
    mb_per_s: f64,
}

fn disk(index: &Index, given: &Given) -> Result<DiskSpeed> {
    if let (Some(iops), Some(latency_us), Some(mb_per_s)) =
        (given.disk_iops, given.disk_latency_us, given.disk_mb_per_s)
    {
        return Ok(DiskSpeed { iops, latency_us, mb_per_s });
    }
    let probed = doctor::probe_disk(index.folder(), IoChoice::Auto).map_err(|e| stratann_storage::Error {
        message: format!("{}; or give --disk-iops, --disk-latency-us and --disk-mb-per-s", e.message),
        ..e
    })?;
    let mb_per_s = probed.transfer_bytes_per_s() / 1e6;
    Ok(DiskSpeed { iops: probed.iops, latency_us: probed.latency_us, mb_per_s })
}

/// Processor time of a message beyond its encoding, of each byte, and of waking the thread that waits for it,
/// nanoseconds; zeros without a loopback device.
fn sockets_ns() -> [f64; 3] {
    let measured = MESSAGE_BYTES.map(|bytes| sockets::message_ns(bytes, By::Link));
    let waiting = sockets::message_ns(MESSAGE_BYTES[0], By::Waiting);
    let ([Some((short, short_ns)), Some((long, long_ns))], Some((_, waiting_ns))) = (measured, waiting)
    else {
        return [0.0; 3];
    };
    let byte_ns = ((long_ns - short_ns) / (long - short).max(1) as f64).max(0.0);
    [(short_ns - byte_ns * short as f64).max(0.0), byte_ns, (waiting_ns - short_ns).max(0.0)]
}

fn sum<'a>(timed: impl Iterator<Item = &'a Timed>) -> Work {
    timed.fold(Work::default(), |mut all, one| {
        all.add(&one.work);
        all
    })
}

/// Nanoseconds of each kind of work.
#[derive(Clone, Copy, Debug, Default)]
struct Solved {
    prepare_ns: f64,
    step_ns: f64,
    route_ns: f64,
    code_ns: f64,
    full_ns: f64,
    component_ns: f64,
    message_ns: f64,
    byte_ns: f64,
}

impl Solved {
    fn of(timed: &[Timed]) -> Solved {
        let per = |ns: f64, count: f64| if count > 0.0 { (ns / count).max(0.0) } else { 0.0 };
        let of = |test: fn(&Work) -> bool| timed.iter().filter(move |one| test(&one.work));
        let ns = |one: &Timed| one.ns as f64;
        let prepares = of(|w| w.prepared > 0);
        let prepare_ns = per(prepares.clone().map(ns).sum(), prepares.count() as f64);
        let steps = Solved::of_steps(timed);
        let messages: Vec<([f64; 2], f64)> =
            of(|w| w.messages > 0).map(|one| ([1.0, f64::from(one.work.message_bytes)], ns(one))).collect();
        let [message_ns, byte_ns] = least_squares(&messages);
        Solved { prepare_ns, message_ns, byte_ns, ..steps }
    }

    /// Costs of what steps do. The first one of a query is apart, because its comparisons differ from all others.
    fn of_steps(timed: &[Timed]) -> Solved {
        let is_scanned = timed.iter().any(|one| one.work.components > 0);
        let of =
            |test: fn(&Work) -> bool| timed.iter().filter(move |one| one.work.steps > 0 && test(&one.work));
        if is_scanned {
            let counts = |w: &Work| [1.0, f64::from(w.route_comparisons), w.components as f64];
            let points: Vec<_> = of(|_| true).map(|one| (counts(&one.work), one.ns as f64)).collect();
            let [step_ns, route_ns, component_ns] = least_squares(&points);
            return Solved { step_ns, route_ns, component_ns, ..Solved::default() };
        }
        let counts = |w: &Work| [1.0, f64::from(w.code_comparisons), f64::from(w.full_comparisons)];
        let later = of(|w| w.route_comparisons == 0).map(|one| (counts(&one.work), one.ns as f64));
        let [step_ns, code_ns, full_ns] = least_squares(&later.collect::<Vec<_>>());
        let first = of(|w| w.route_comparisons > 0);
        let routed = sum(first.clone());
        let known_ns = f64::from(routed.steps) * step_ns + f64::from(routed.full_comparisons) * full_ns;
        let first_ns: f64 = first.map(|one| one.ns as f64).sum();
        let route_ns = ((first_ns - known_ns) / f64::from(routed.route_comparisons.max(1))).max(0.0);
        Solved { step_ns, route_ns, code_ns, full_ns, ..Solved::default() }
    }

    /// Time of all work but reads and messages.
    fn ns(&self, work: &Work) -> f64 {
        f64::from(work.prepared) * self.prepare_ns
            + f64::from(work.steps) * self.step_ns
            + f64::from(work.route_comparisons) * self.route_ns
            + f64::from(work.code_comparisons) * self.code_ns
            + f64::from(work.full_comparisons) * self.full_ns
            + work.components as f64 * self.component_ns
    }
}

/// Passes over the coefficients; each makes the error smaller.
const PASSES: usize = 2000;

/// The coefficients, 0 or more, with the least sum of squared errors, scaled so that they explain the sum.
///
/// One coefficient after the other takes its best value (coordinate descent), which finds the least sum because the
/// error is convex.
fn least_squares<const N: usize>(points: &[([f64; N], f64)]) -> [f64; N] {
    let product = |a: usize, b: usize| points.iter().map(|(x, _)| x[a] * x[b]).sum::<f64>();
    let squares: [[f64; N]; N] = std::array::from_fn(|a| std::array::from_fn(|b| product(a, b)));
    let targets: [f64; N] = std::array::from_fn(|a| points.iter().map(|(x, y)| x[a] * y).sum());
    let mut found = [0.0; N];
    for _ in 0..PASSES {
        for a in 0..N {
            let others: f64 = (0..N).filter(|&b| b != a).map(|b| squares[a][b] * found[b]).sum();
            found[a] =
                if squares[a][a] > 0.0 { ((targets[a] - others) / squares[a][a]).max(0.0) } else { 0.0 };
        }
    }
    let explained: f64 = points.iter().map(|(x, _)| (0..N).map(|a| x[a] * found[a]).sum::<f64>()).sum();
    let all: f64 = points.iter().map(|point| point.1).sum();
    if explained > 0.0 { found.map(|x| x * all / explained) } else { found }
}

/// Measured or predicted figures of one server.
#[derive(Clone, Debug, Serialize)]
pub struct OneServer {
    pub qps: f64,
    pub latency_us: Latency,
    pub cpu_us: f64,
}

/// Comparison of the model with the machine.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    pub real: OneServer,
    pub simulated: OneServer,
    /// Simulated over real, less 1.
    pub qps_error: f64,
}

/// Searches for real, three times; the run with the median rate counts.
pub fn search(
    index: &Index,
    rows: &[u8],
    options: &SearchOptions,
    progress: &dyn Progress,
) -> Result<OneServer> {
    progress.stage("searching, to compare", 1, "steps");
    let mut runs = searches(index, rows, options, progress)?;
    runs.sort_by(|a, b| a.qps.total_cmp(&b.qps));
    Ok(runs.swap_remove(ROUNDS / 2))
}

fn searches(
    index: &Index,
    rows: &[u8],
    options: &SearchOptions,
    progress: &dyn Progress,
) -> Result<Vec<OneServer>> {
    let size = index.row_bytes();
    let many = rows.repeat(COMPARED.div_ceil((rows.len() / size).max(1)));
    let mut runs = Vec::new();
    for _ in 0..ROUNDS {
        let answers = index.search(&many, options, &Unheard(progress))?;
        let queries = answers.latency_ns.len() as f64;
        runs.push(OneServer {
            qps: queries / answers.seconds.max(1e-9),
            latency_us: Latency::of(&answers.latency_ns),
            cpu_us: answers.cpu_us as f64 / queries.max(1.0),
        });
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coefficients_are_found_and_are_never_negative() {
        let points = |of: fn(f64, f64) -> f64| -> Vec<([f64; 3], f64)> {
            let at = |i: u32| (f64::from(i % 7), f64::from(i * i % 11));
            (0..50).map(at).map(|(x, y)| ([1.0, x, y], of(x, y))).collect()
        };
        let near = |found: [f64; 3], expected: [f64; 3]| {
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?} {expected:?}");
        };
        near(least_squares(&points(|x, y| 5.0 + 2.0 * x + 0.5 * y)), [5.0, 2.0, 0.5]);
        let falling = points(|x, y| 20.0 - x + y);
        let found = least_squares(&falling);
        assert!(found[1] == 0.0 && found[2] > 0.0, "{found:?}");
        let explained: f64 =
            falling.iter().map(|(x, _)| x[0] * found[0] + x[1] * found[1] + x[2] * found[2]).sum();
        assert!((explained / falling.iter().map(|p| p.1).sum::<f64>() - 1.0).abs() < 1e-9);
        near(least_squares(&[]), [0.0; 3]);
    }

    #[test]
    fn each_kind_of_work_gets_its_cost() {
        let of = |work: Work, ns: u64| Timed { work, ns };
        let mut timed = vec![of(Work { prepared: 1, ..Work::default() }, 9000)];
        for i in 1..40u32 {
            let (codes, full) = (10 * i, i * i % 13);
            let step = Work { steps: 1, code_comparisons: codes, full_comparisons: full, ..Work::default() };
            timed.push(of(step, 500 + 8 * u64::from(codes) + 40 * u64::from(full)));
            let first = Work { steps: 1, route_comparisons: codes, ..Work::default() };
            timed.push(of(first, 500 + 30 * u64::from(codes)));
            let message = Work { messages: 1, message_bytes: 100 * i, ..Work::default() };
            timed.push(of(message, 700 + 200 * u64::from(i)));
        }
        let solved = Solved::of(&timed);
        let found = [
            solved.prepare_ns,
            solved.step_ns,
            solved.route_ns,
            solved.code_ns,
            solved.full_ns,
            solved.message_ns,
            solved.byte_ns,
        ];
        let expected = [9000.0, 500.0, 30.0, 8.0, 40.0, 700.0, 2.0];
        assert!(found.iter().zip(expected).all(|(a, b)| (a / b - 1.0).abs() < 1e-3), "{found:?}");
    }

    #[test]
    fn components_get_their_cost_where_lists_are_scanned_by_them() {
        let mut timed = Vec::new();
        for i in 1..40u32 {
            let (route, components) = (if i % 3 == 0 { 200 } else { 0 }, u64::from(1000 * (i * i % 17)));
            let work = Work { steps: 1, route_comparisons: route, components, ..Work::default() };
            timed.push(Timed { work, ns: 600 + 20 * u64::from(route) + components / 2 });
        }
        let solved = Solved::of(&timed);
        let (found, expected) = ([solved.step_ns, solved.route_ns, solved.component_ns], [600.0, 20.0, 0.5]);
        assert!(found.iter().zip(expected).all(|(a, b)| (a / b - 1.0).abs() < 1e-3), "{found:?}");
        assert_eq!((solved.code_ns, solved.full_ns), (0.0, 0.0));
    }
}
