//! A collection that is written and searched at once: `make bench-collections`.
//!
//! live FOLDER VECTORS QUERIES [kind=KIND] [rows=N] [seconds=S] [rate=ROWS] [threads=N] [budget_mib=N] [grow=0]
//!      [compact=0]
//!
//! It loads the vectors as fast as they are taken, compacts, searches alone, then searches while `rate` new rows a
//! second are written for `seconds`, and opens the collection again. A collection that is in the folder is used as it
//! is; with compact=0 it is searched as it is, and nothing is written. Every figure is of one run, on a line of JSON.
//! Where other programs run, `cpu_p99_us` says more than `p99_us`.
#![allow(clippy::print_stdout, reason = "a program that reports")]

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use stratann_engine::dataset::Reader;
use stratann_kernel::distance::{Exact, inverse_norm};
use stratann_kernel::{DType, Metric};
use stratann_node::collections::{Collection, Kind, Node, Options, Result, SearchOptions, Spec};
use stratann_node::rows::ExternalId;
use stratann_params::IndexKind;
use stratann_storage::budget::{cpu_us, process, thread_cpu_ns};
use stratann_storage::{ErrorKind, Quiet};

const K: usize = 10;
/// Rows of a batch.
const BATCH: u64 = 100;

/// What is measured.
struct Setting {
    folder: PathBuf,
    spec: Spec,
    base: Vec<u8>,
    queries: Vec<u8>,
    rows: u64,
    seconds: u64,
    rate: u64,
    recall: f64,
    compacts: bool,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let named: BTreeMap<&str, &str> = arguments.iter().filter_map(|own| own.split_once('=')).collect();
    let number = |name: &str, usual: u64| named.get(name).map_or(usual, |own| own.parse().expect("a number"));
    let [folder, base, queries] = [0, 1, 2].map(|at| Path::new(&arguments[at]));
    let (base, queries) = (Reader::open(base)?, Reader::open(queries)?);
    let rows = number("rows", base.shape().rows);
    let spec = Spec {
        dim: base.shape().dim,
        metric: match named.get("metric") {
            Some(&"cosine") => Metric::Cosine,
            Some(&"ip") => Metric::Ip,
            _ => Metric::L2,
        },
        dtype: base.shape().dtype,
        kind: named.get("kind").and_then(|name| IndexKind::parse(name)),
    };
    let read = |reader: &Reader, count: u64| {
        let mut bytes = Vec::new();
        reader.read_rows(0, count.min(reader.shape().rows) as usize, &mut bytes).map(|()| bytes)
    };
    let setting = Setting {
        folder: folder.into(),
        spec,
        base: read(&base, base.shape().rows)?,
        queries: read(&queries, 200)?,
        rows,
        seconds: number("seconds", 60),
        rate: number("rate", 2000),
        recall: named.get("recall").map_or(0.95, |own| own.parse().expect("a number")),
        compacts: number("compact", 1) != 0,
    };
    let budget = named.get("budget_mib").map(|own| own.parse::<u64>().expect("a number") << 20);
    let mut options = Options::of_budget(budget);
    options.segments.threads = number("threads", 2) as usize;
    options.segments.grows_graphs = number("grow", 1) != 0;
    options.segments.in_background = setting.compacts;
    run(&setting, &options)
}

fn run(setting: &Setting, options: &Options) -> Result<()> {
    let node = Node::open(&setting.folder, options, &Quiet)?;
    let points = match node.create_collection("points", setting.spec) {
        Err(e) if e.kind == Kind::Other(ErrorKind::BadInput) => node.collection("points")?,
        created => {
            let points = created?;
            load(setting, &points)?;
            points
        }
    };
    let (begin, cpu, written) = (Instant::now(), cpu_us(), written_bytes());
    let facts = points.facts()?;
    if !setting.compacts {
        describe(&points)?;
        let time = Duration::from_secs(setting.seconds);
        report("quiet", &search_for(setting, &points, time, &AtomicBool::new(false))?);
        report("recall", &[("after", recall(setting, &points)?)]);
        return Ok(());
    }
    if facts.segments.len() != 1 || facts.delta_points > 0 {
        points.compact(&Quiet)?;
    }
    report(
        "compact",
        &[
            ("seconds", begin.elapsed().as_secs_f64()),
            ("cpu_s", (cpu_us() - cpu) as f64 / 1e6),
            ("written_mib", ((written_bytes() - written) >> 20) as f64),
        ],
    );
    describe(&points)?;
    let quiet =
        search_for(setting, &points, Duration::from_secs(setting.seconds.min(20)), &AtomicBool::new(false))?;
    report("quiet", &quiet);
    mixed(setting, &node, &points)?;
    describe(&points)?;
    report("recall", &[("after", recall(setting, &points)?)]);
    drop((points, node));
    // Nothing is written when a folder is closed, so it opens as after a kill.
    let begin = Instant::now();
    let node = Node::open(&setting.folder, options, &Quiet)?;
    let opened = begin.elapsed().as_secs_f64();
    let points = node.collection("points")?;
    points.search(setting.query(0), K)?;
    report("open", &[("node_s", opened), ("first_search_s", begin.elapsed().as_secs_f64())]);
    overwrite(setting, &points)?;
    lone(setting, &points)?;
    let (before, cpu) = (bytes_of(&setting.folder), cpu_us());
    points.compact(&Quiet)?;
    let (cpu, facts) = (cpu_us() - cpu, points.facts()?);
    report(
        "compact again",
        &[("cpu_s", cpu as f64 / 1e6), ("rows_taken_over", facts.rows_taken_over as f64)],
    );
    let (after, segments) = (bytes_of(&setting.folder), bytes_of(&setting.folder.join("s")));
    let of = |bytes: u64| bytes as f64 / (1 << 20) as f64;
    report(
        "space",
        &[("before_mib", of(before)), ("compact_mib", of(after)), ("segments_mib", of(segments))],
    );
    Ok(())
}

/// Rewrites points by chance for five seconds.
fn overwrite(setting: &Setting, points: &Collection) -> Result<()> {
    let (begin, mut rows, mut waits, mut noise) = (Instant::now(), 0, 0, 1u64);
    while begin.elapsed() < Duration::from_secs(5) {
        let mut next = || {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (noise >> 33) % setting.rows
        };
        let ids: Vec<u64> = (0..BATCH).map(|_| next()).collect();
        let vectors = ids.iter().flat_map(|id| setting.vector(*id)).collect();
        waits += write(points, &(ids.into_iter().map(ExternalId::Number).collect(), vectors))?;
        rows += BATCH;
    }
    let seconds = begin.elapsed().as_secs_f64();
    report("overwrite", &[("rows_per_s", rows as f64 / seconds), ("waits", waits as f64)]);
    Ok(())
}

/// Durable changes of one point, in turns with as many bytes that are appended to a file and synced.
fn lone(setting: &Setting, points: &Collection) -> Result<()> {
    let path = setting.folder.with_extension("appended");
    let failed = |e: std::io::Error| stratann_storage::Error::io("appending to", &path, &e);
    let mut file = std::fs::File::create(&path).map_err(failed)?;
    let (mut ours, mut appended) = (Vec::new(), Vec::new());
    for id in 0..200 {
        let vector = setting.vector(id);
        let begin = Instant::now();
        points.upsert(&[ExternalId::Number(id)], &vector)?;
        ours.push(begin.elapsed());
        let begin = Instant::now();
        file.write_all(&vector).and_then(|()| file.sync_data()).map_err(failed)?;
        appended.push(begin.elapsed());
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e6
    };
    let (ours, appended) = (median(&mut ours), median(&mut appended));
    report("lone", &[("upsert_us", ours), ("append_us", appended), ("ratio", ours / appended)]);
    std::fs::remove_file(&path).map_err(|e| stratann_storage::Error::io("removing", &path, &e))?;
    Ok(())
}

impl Setting {
    fn query(&self, number: usize) -> &[u8] {
        let bytes = self.spec.row_bytes();
        let count = self.queries.len() / bytes;
        &self.queries[number % count * bytes..][..bytes]
    }

    /// The vector of an id: one of the base, moved a little where ids go beyond it.
    fn vector(&self, id: u64) -> Vec<u8> {
        let (bytes, size) = (self.spec.row_bytes(), self.spec.dtype.size());
        let rows = (self.base.len() / bytes) as u64;
        let mut vector = self.base[(id % rows) as usize * bytes..][..bytes].to_vec();
        let mut noise = id / rows;
        if noise > 0 && self.spec.dtype == DType::U8 {
            for component in vector.chunks_mut(size) {
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(id | 1);
                component[0] = component[0].saturating_add((noise >> 61) as u8);
            }
        }
        vector
    }

    fn batch(&self, first: u64) -> (Vec<ExternalId>, Vec<u8>) {
        let ids = first..first + BATCH;
        (ids.clone().map(ExternalId::Number).collect(), ids.flat_map(|id| self.vector(id)).collect())
    }
}

/// Writes a batch, and waits where the collection is full. Returns how often it waited.
fn write(points: &Collection, (ids, vectors): &(Vec<ExternalId>, Vec<u8>)) -> Result<u64> {
    let mut waits = 0;
    loop {
        match points.upsert(ids, vectors) {
            Ok(_) => return Ok(waits),
            Err(e) if e.kind == Kind::Busy => waits += 1,
            Err(e) => return Err(e),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn load(setting: &Setting, points: &Collection) -> Result<()> {
    let (begin, cpu, written, mut waits, mut first_wait) =
        (Instant::now(), cpu_us(), written_bytes(), 0, None);
    let mut made = Duration::ZERO;
    for first in (0..setting.rows).step_by(BATCH as usize) {
        let making = Instant::now();
        let batch = setting.batch(first);
        made += making.elapsed();
        let own = write(points, &batch)?;
        if own > 0 && first_wait.is_none() {
            first_wait = Some((first, begin.elapsed() - made));
        }
        waits += own;
    }
    let seconds = (begin.elapsed() - made).as_secs_f64();
    let (before, until) = first_wait.unwrap_or((setting.rows, begin.elapsed() - made));
    report(
        "load",
        &[
            ("rows", setting.rows as f64),
            ("rows_per_s", setting.rows as f64 / seconds),
            ("rows_per_s_until_full", before as f64 / until.as_secs_f64()),
            ("waits", waits as f64),
            ("cpu_s", (cpu_us() - cpu) as f64 / 1e6),
            ("written_mib", ((written_bytes() - written) >> 20) as f64),
        ],
    );
    Ok(())
}

fn describe(points: &Collection) -> Result<()> {
    let facts = points.facts()?;
    let mut parts: Vec<String> = facts
        .segments
        .iter()
        .map(|own| {
            format!(
                "{} {} -{} {}MiB",
                own.kind.map_or("", |kind| kind.name()),
                own.rows,
                own.dead,
                own.bytes >> 20
            )
        })
        .collect();
    parts.push(format!("memory {}", facts.delta_points));
    let (points, trouble) = (facts.points, facts.trouble.map(|e| e.message));
    println!("{{\"what\": \"parts\", \"points\": {points}, \"parts\": {parts:?}, \"trouble\": {trouble:?}}}");
    Ok(())
}

fn search_for(
    setting: &Setting,
    points: &Collection,
    time: Duration,
    end: &AtomicBool,
) -> Result<Vec<(&'static str, f64)>> {
    let options = SearchOptions { k: K, recall: setting.recall, ..SearchOptions::default() };
    let (begin, cpu) = (Instant::now(), thread_cpu_ns());
    let (mut times, mut cpus, mut reads, mut comparisons) = (Times::default(), Times::default(), 0, 0);
    let mut slow = Slow::default();
    while begin.elapsed() < time && !end.load(Ordering::Relaxed) {
        let (one, cpu) = (Instant::now(), thread_cpu_ns());
        let found = points.search_with(setting.query(times.count as usize), &options)?;
        times.add(one.elapsed().as_nanos() as u64);
        let cpu = thread_cpu_ns() - cpu;
        cpus.add(cpu);
        reads += found.stats.reads;
        let of_graphs = found.stats.code_comparisons + found.stats.full_comparisons;
        slow.add([cpu, of_graphs, found.delta.rows, found.delta.codes, found.delta.distances]);
        let in_segments = found.stats.code_comparisons + found.stats.full_comparisons;
        comparisons += in_segments + found.delta.codes + found.delta.distances;
    }
    let cpu = thread_cpu_ns() - cpu;
    let count = times.count.max(1);
    slow.report();
    Ok(vec![
        ("queries", count as f64),
        ("cpu_us", cpu as f64 / 1000.0 / count as f64),
        ("cpu_p99_us", cpus.at_us(0.99)),
        ("p50_us", times.at_us(0.5)),
        ("p99_us", times.at_us(0.99)),
        ("p999_us", times.at_us(0.999)),
        ("reads", reads as f64 / count as f64),
        ("comparisons", comparisons as f64 / count as f64),
    ])
}

/// What the slowest queries did: processor time in nanoseconds, comparisons in segments, rows that are scanned, of
/// these codes and distances that were compared.
#[derive(Default)]
struct Slow(Vec<[u64; 5]>);

impl Slow {
    /// Queries that are kept.
    const COUNT_MAX: usize = 1 << 18;

    fn add(&mut self, query: [u64; 5]) {
        if self.0.len() < Slow::COUNT_MAX {
            self.0.push(query);
        }
    }

    /// Means of one in a hundred, and of one in two.
    fn report(mut self) {
        self.0.sort_unstable_by(|one, two| two.cmp(one));
        for part in [100, 2] {
            let some = &self.0[..self.0.len() / part];
            let mean =
                |at: usize| some.iter().map(|own| own[at]).sum::<u64>() as f64 / some.len().max(1) as f64;
            let names = ["cpu_ns", "comparisons", "scanned_rows", "codes", "distances"];
            let figures: Vec<(&str, f64)> = names.into_iter().zip((0..5).map(mean)).collect();
            report(&format!("slowest of {part}"), &figures);
        }
    }
}

/// How often times were taken, in steps of less than two hundredths. A list of an hour would take more than the node.
#[derive(Default)]
struct Times {
    steps: BTreeMap<u32, u64>,
    count: u64,
}

impl Times {
    /// Steps of a time and the next power of two.
    const STEPS: f64 = 64.0;

    fn add(&mut self, ns: u64) {
        *self.steps.entry(((ns.max(1) as f64).log2() * Times::STEPS) as u32).or_default() += 1;
        self.count += 1;
    }

    /// The time that a share of all were below, microseconds.
    fn at_us(&self, share: f64) -> f64 {
        let (mut below, end) = (0, (share * self.count as f64) as u64);
        let reaches = |step: &(&u32, &u64)| {
            below += step.1;
            below > end
        };
        let step = self.steps.iter().find(reaches).map_or(0.0, |(step, _)| f64::from(*step) + 0.5);
        (step / Times::STEPS).exp2() / 1000.0
    }
}

/// Searches while new rows are written at a rate.
fn mixed(setting: &Setting, node: &Node, points: &Collection) -> Result<()> {
    let end = AtomicBool::new(false);
    let (begin, cpu, before) = (Instant::now(), cpu_us(), written_bytes());
    let time = Duration::from_secs(setting.seconds);
    let (written, searched) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| -> Result<(u64, u64)> {
            let (mut rows, mut waits) = (0, 0);
            while begin.elapsed() < time {
                let due = (begin.elapsed().as_secs_f64() * setting.rate as f64) as u64;
                if rows >= due {
                    std::thread::sleep(Duration::from_millis(2));
                    continue;
                }
                waits += write(points, &setting.batch(setting.rows + rows))?;
                rows += BATCH;
            }
            Ok((rows, waits))
        });
        let watcher = scope.spawn(|| stages_of(points, &end));
        let searched = search_for(setting, points, time, &AtomicBool::new(false));
        end.store(true, Ordering::Relaxed);
        watcher.join().expect("a watcher").iter().for_each(|(stage, seconds)| {
            report(stage, &[("seconds", *seconds)]);
        });
        (writer.join().expect("a writer"), searched)
    });
    let (rows, waits) = written?;
    let mut all = searched?;
    all.push(("rows_written", rows as f64));
    all.push(("waits", waits as f64));
    all.push(("process_cpu_s", (cpu_us() - cpu) as f64 / 1e6));
    let given = (rows * setting.spec.row_bytes() as u64) as f64;
    all.push(("write_amplification", (written_bytes() - before) as f64 / given));
    all.push(("rested_s", node.rested_us() as f64 / 1e6));
    all.push(("peak_rss_mib", (process().peak_rss_bytes >> 20) as f64));
    // Those that are written are held by this program, beside the node.
    all.push(("vectors_mib", ((setting.base.len() + setting.queries.len()) >> 20) as f64));
    report("mixed", &all);
    Ok(())
}

/// Seconds that jobs spent in each of their stages, until the end.
fn stages_of(points: &Collection, end: &AtomicBool) -> BTreeMap<String, f64> {
    const STEP: Duration = Duration::from_millis(50);
    let mut all = BTreeMap::new();
    while !end.load(Ordering::Relaxed) {
        let begin = Instant::now();
        std::thread::sleep(STEP);
        for own in points.facts().map(|facts| facts.progress).unwrap_or_default() {
            *all.entry(format!("{}: {}", own.kind, own.stage)).or_default() += begin.elapsed().as_secs_f64();
        }
    }
    all
}

/// Bytes that the process had written to disks.
fn written_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
}

/// Bytes of all files in a folder.
fn bytes_of(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = |entry: std::fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => bytes_of(&entry.path()),
        _ => entry.metadata().map_or(0, |facts| facts.len()),
    };
    entries.map(bytes).sum()
}

/// Recall of the queries, by all points compared one by one.
fn recall(setting: &Setting, points: &Collection) -> Result<f64> {
    let options = SearchOptions { k: K, recall: setting.recall, ..SearchOptions::default() };
    let count = setting.queries.len() / setting.spec.row_bytes();
    let all = points.count()?;
    let mut exact = Exact::default();
    let mut found = 0;
    for query in (0..count).map(|number| setting.query(number)) {
        exact.set(setting.spec.metric, setting.spec.dtype, setting.spec.dim, query);
        let distance = |id: u64| {
            let vector = setting.vector(id);
            exact.distance(&vector, inverse_norm(setting.spec.dtype, &vector))
        };
        let mut distances: Vec<f32> = (0..all).map(distance).collect();
        let (_, most, _) = distances.select_nth_unstable_by(K - 1, f32::total_cmp);
        let most = *most;
        let hits = &points.search_with(query, &options)?.hits[0];
        found += hits.iter().filter(|hit| hit.distance <= most * 1.000_001).count();
    }
    Ok(found as f64 / (count * K) as f64)
}

fn report(what: &str, figures: &[(&str, f64)]) {
    let figures: Vec<String> =
        figures.iter().map(|(name, value)| format!("\"{name}\": {value:.4}")).collect();
    println!("{{\"what\": \"{what}\", {}}}", figures.join(", "));
}
