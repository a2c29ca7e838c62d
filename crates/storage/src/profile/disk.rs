//! Costs of reads on the disk that holds a folder.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use stratann_core::PAGE;
use stratann_core::build::hash;

use super::fit;
use super::scratch::{PIECE_BYTES, ScratchFile};
use crate::tier::{self, Buffer, Completion, FileId, IoChoice, Tier};
use crate::{Error, Progress, Result};

/// Random reads of one size, a fixed number of them under way at all times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RandomReads {
    /// Bytes of each read.
    pub bytes: u32,
    /// Reads under way.
    pub depth: u32,
    /// Number of reads that were timed.
    pub reads: u64,
    /// Reads that ended in a second.
    pub per_second: f64,
    /// Mean time from submission to completion, microseconds.
    pub mean_us: f64,
    /// Half of them took no longer.
    pub median_us: f64,
}

/// Time of a random read by its size: `fixed_us + bytes × ns_per_byte / 1000`, fitted by relative errors and rounded to
/// powers of √2.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadLine {
    /// Reads under way.
    pub depth: u32,
    /// Time whatever the size, microseconds.
    pub fixed_us: f64,
    /// Time for each byte, nanoseconds; one over this is the bandwidth of a single read in GB/s.
    pub ns_per_byte: f64,
}

impl ReadLine {
    fn fit(depth: u32, measured: &[RandomReads]) -> ReadLine {
        let of_depth = measured.iter().filter(|r| r.depth == depth);
        let points: Vec<(f64, f64)> = of_depth.map(|r| (f64::from(r.bytes), r.mean_us)).collect();
        let (fixed_us, us_per_byte) = fit::line(&points);
        ReadLine { depth, fixed_us, ns_per_byte: 1000.0 * us_per_byte }
    }

    fn rounded(self) -> ReadLine {
        let (fixed_us, ns_per_byte) = (fit::rounded(self.fixed_us), fit::rounded(self.ns_per_byte));
        ReadLine { fixed_us, ns_per_byte, ..self }
    }

    /// Time from submission to completion, microseconds.
    pub fn us(&self, bytes: u64) -> f64 {
        self.fixed_us + bytes as f64 * self.ns_per_byte / 1000.0
    }
}

/// Costs of reads past the page cache, through the tier that a search would use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskCosts {
    /// Whether the file system allows reads past the page cache; without, the numbers here are those of memory.
    pub direct: bool,
    /// Length of the file that was read. A disk may be quicker on a small one.
    pub file_bytes: u64,
    /// Large reads one after the other, some under way: `BW_seq` of OrchANN, §5.1.
    pub sequential_bytes_per_s: f64,
    /// Median of a random read of a page alone: `Lat_rand` of OrchANN, §5.1.
    pub latency_us: f64,
    /// Mean of the same.
    pub latency_mean_us: f64,
    /// Every size at [`ALONE`] and [`LOADED`], a page at all [`DEPTHS`].
    pub random: Vec<RandomReads>,
    /// One read at a time.
    pub alone: ReadLine,
    /// [`LOADED`] reads under way.
    pub loaded: ReadLine,
}

impl DiskCosts {
    /// Time of a random read of `bytes` with `depth` of such reads under way, microseconds. What it keeps from the
    /// others is this over `depth`.
    ///
    /// Between the two fitted lines it grows evenly with the depth; beyond, as the reads of a page were seen to.
    pub fn read_us(&self, bytes: u64, depth: u32) -> f64 {
        let (low, high) = (self.alone.depth, self.loaded.depth);
        if depth > high {
            return self.loaded.us(bytes) * self.page_us(depth) / self.page_us(high).max(f64::MIN_POSITIVE);
        }
        let share = f64::from(depth.saturating_sub(low)) / f64::from(high.saturating_sub(low).max(1));
        self.alone.us(bytes) * (1.0 - share) + self.loaded.us(bytes) * share
    }

    /// The mean of a page's read, between the depths that were measured; in proportion to the depth beyond the last
    /// one.
    fn page_us(&self, depth: u32) -> f64 {
        let pages = || self.random.iter().filter(|r| r.bytes as usize == PAGE);
        let below = pages().filter(|r| r.depth <= depth).max_by_key(|r| r.depth);
        let above = pages().filter(|r| r.depth >= depth).min_by_key(|r| r.depth);
        match (below, above) {
            (Some(a), Some(b)) => {
                let share = f64::from(depth - a.depth) / f64::from((b.depth - a.depth).max(1));
                a.mean_us + share * (b.mean_us - a.mean_us)
            }
            (Some(a), None) => a.mean_us * f64::from(depth) / f64::from(a.depth.max(1)),
            (None, _) => f64::from(depth),
        }
    }

    /// False when a file that says so cannot have been measured.
    pub(super) fn is_consistent(&self) -> bool {
        let lines = [&self.alone, &self.loaded];
        let is_sum = |x: f64| x.is_finite() && x >= 0.0;
        self.alone.depth < self.loaded.depth
            && lines.iter().all(|l| is_sum(l.fixed_us) && is_sum(l.ns_per_byte) && l.us(PAGE as u64) > 0.0)
            && self.random.iter().all(|r| r.mean_us > 0.0 && r.per_second > 0.0)
            && self.sequential_bytes_per_s > 0.0
            && self.latency_us > 0.0
    }
}

/// Depth of the line for a read alone.
pub const ALONE: u32 = 1;
/// Depth of the line for a disk at work.
pub const LOADED: u32 = 32;
/// Depths at which a page is read.
pub const DEPTHS: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// Sizes that are read at [`ALONE`] and [`LOADED`].
pub const SIZES: [u32; 7] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10];
/// Bytes of a read of a stream, and number of those under way.
const STREAM_BYTES: u32 = PIECE_BYTES as u32;
const STREAM_DEPTH: u32 = 8;
/// Number of times that all settings are measured, one after the other. The median counts: what disturbs the disk for
/// less than half of the time changes nothing.
const PASSES: u32 = 5;

/// Measures for about `time`. Gives the name of the back end, too.
pub(super) fn measure(
    scratch: &ScratchFile,
    io: IoChoice,
    time: Duration,
    progress: &dyn Progress,
) -> Result<(DiskCosts, &'static str)> {
    let mut settings: Vec<(u32, u32)> = DEPTHS.iter().map(|&depth| (SIZES[0], depth)).collect();
    settings.extend(SIZES[1..].iter().flat_map(|&bytes| [(bytes, ALONE), (bytes, LOADED)]));
    let mut readings = vec![Reading { bytes: STREAM_BYTES, depth: STREAM_DEPTH, order: Order::Sequential }];
    readings.extend(settings.iter().map(|&(bytes, depth)| Reading { bytes, depth, order: Order::Random }));
    let slice = time / (PASSES * readings.len() as u32);
    progress.stage("timing reads", u64::from(PASSES) * readings.len() as u64, "settings");
    let mut passes: Vec<Vec<RandomReads>> = vec![Vec::new(); readings.len()];
    let mut io_backend = "";
    for pass in 0..PASSES {
        for (reading, of_setting) in readings.iter().zip(&mut passes) {
            let timed = time_reads(scratch, *reading, pass, io, slice, progress)?;
            of_setting.push(timed.reads);
            io_backend = timed.io_backend;
            progress.advance(1);
        }
    }
    let mut all = passes.iter().map(|reads| middle(reads));
    let streamed = all.next().map_or(0.0, |reads| reads.per_second * f64::from(STREAM_BYTES));
    let random: Vec<RandomReads> = all.collect();
    let costs = DiskCosts {
        direct: scratch.direct,
        file_bytes: scratch.bytes,
        sequential_bytes_per_s: streamed,
        latency_us: random[0].median_us,
        latency_mean_us: random[0].mean_us,
        alone: ReadLine::fit(ALONE, &random).rounded(),
        loaded: ReadLine::fit(LOADED, &random).rounded(),
        random,
    };
    Ok((costs, io_backend))
}

/// The medians of several passes of one setting, of which there is at least one.
fn middle(passes: &[RandomReads]) -> RandomReads {
    let of = |figure: fn(&RandomReads) -> f64| fit::median(passes.iter().map(figure));
    RandomReads {
        bytes: passes[0].bytes,
        depth: passes[0].depth,
        reads: passes.iter().map(|p| p.reads).sum(),
        per_second: of(|p| p.per_second),
        mean_us: of(|p| p.mean_us),
        median_us: of(|p| p.median_us),
    }
}

/// Order of the places of reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// One after the other, from the start again at the end.
    Sequential,
    /// To any page.
    Random,
}

/// Size, depth and order of reads.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Bytes of each read.
    pub bytes: u32,
    /// Reads under way.
    pub depth: u32,
    /// Order of their places.
    pub order: Order,
}

impl Reading {
    /// Offset of the read number `n` in a file of so many bytes, which holds at least one.
    fn offset(&self, n: u64, file_bytes: u64) -> u64 {
        match self.order {
            Order::Sequential => n % (file_bytes / u64::from(self.bytes)) * u64::from(self.bytes),
            Order::Random => {
                let places = (file_bytes - u64::from(self.bytes)) / PAGE as u64 + 1;
                hash(u64::from(self.bytes), u64::from(self.depth), n) % places * PAGE as u64
            }
        }
    }
}

/// Reads that were timed, and how they were done.
pub struct Timed {
    /// Rate and latencies.
    pub reads: RandomReads,
    /// Way in which blocks were read: `io_uring` or `pread`.
    pub io_backend: &'static str,
}

/// Reads for `time`, and at least `depth` times, at other places in each pass.
///
/// # Errors
/// When a read fails or ends early, or the work is interrupted.
pub fn time_reads(
    scratch: &ScratchFile,
    reading: Reading,
    pass: u32,
    io: IoChoice,
    time: Duration,
    progress: &dyn Progress,
) -> Result<Timed> {
    let failed = |e: std::io::Error| Error::io("reading a scratch file in", &scratch.folder, &e);
    let (bytes, depth) = (reading.bytes as usize, reading.depth as usize);
    let mut tier = tier::open_file(&scratch.file, depth, bytes, io).map_err(failed)?;
    let started = Instant::now();
    let is_over = || started.elapsed() >= time || progress.interrupted();
    let at = |n| reading.offset(n + (u64::from(pass) << 32), scratch.bytes);
    let mut taken_us = read_until(tier.as_mut(), depth, bytes, &at, &is_over).map_err(failed)?;
    let seconds = started.elapsed().as_secs_f64().max(1e-9);
    progress.check_interrupted()?;
    let count = taken_us.len();
    let mean_us = taken_us.iter().map(|&us| f64::from(us)).sum::<f64>() / count as f64;
    let (_, median_us, _) = taken_us.select_nth_unstable_by(count / 2, f32::total_cmp);
    let reads = RandomReads {
        bytes: reading.bytes,
        depth: reading.depth,
        reads: count as u64,
        per_second: count as f64 / seconds,
        mean_us,
        median_us: f64::from(*median_us),
    };
    Ok(Timed { reads, io_backend: tier.name() })
}

/// Keeps `depth` reads under way until it is over; what each took, microseconds.
fn read_until(
    tier: &mut dyn Tier,
    depth: usize,
    bytes: usize,
    at: &dyn Fn(u64) -> u64,
    is_over: &dyn Fn() -> bool,
) -> std::io::Result<Vec<f32>> {
    let mut buffers = tier.buffers();
    buffers.resize_with(depth, || Buffer::new(bytes));
    // A read's tag is the number of its buffer.
    let mut idle: Vec<(u64, Buffer)> = (0..).zip(buffers).collect();
    let mut submitted = vec![Instant::now(); depth];
    let (mut next, mut taken_us, mut done) = (0, Vec::new(), Vec::<Completion>::new());
    loop {
        let go_on = next < depth as u64 || !is_over();
        while go_on
            && tier.room() > 0
            && let Some((tag, buffer)) = idle.pop()
        {
            submitted[tag as usize] = Instant::now();
            tier.submit(tag, FileId(0), at(next), buffer);
            next += 1;
        }
        if idle.len() == depth {
            return Ok(taken_us);
        }
        tier.poll(true, &mut done)?;
        for completion in done.drain(..) {
            if completion.result? < bytes {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            taken_us.push(submitted[completion.tag as usize].elapsed().as_secs_f32() * 1e6);
            idle.push((completion.tag, completion.buffer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_stay_inside_the_file() {
        let file_bytes = 1 << 20;
        for (bytes, order) in
            [(4096, Order::Random), (256 << 10, Order::Random), (1 << 20, Order::Sequential)]
        {
            let reading = Reading { bytes, depth: 4, order };
            for n in 0..1000 {
                let at = reading.offset(n, file_bytes);
                assert!(at.is_multiple_of(PAGE as u64) && at + u64::from(bytes) <= file_bytes);
            }
        }
    }

    #[test]
    fn a_read_costs_by_size_and_depth() {
        let read = |bytes, depth, mean_us| RandomReads {
            bytes,
            depth,
            reads: 9,
            per_second: 1e6 * f64::from(depth) / mean_us,
            mean_us,
            median_us: mean_us,
        };
        let random = vec![
            read(4096, 1, 100.0),
            read(8192, 1, 104.0),
            read(4096, 32, 400.0),
            read(8192, 32, 500.0),
            read(4096, 64, 800.0),
        ];
        let costs = DiskCosts {
            direct: true,
            file_bytes: 1 << 20,
            sequential_bytes_per_s: 1e9,
            latency_us: 100.0,
            latency_mean_us: 100.0,
            alone: ReadLine::fit(1, &random),
            loaded: ReadLine::fit(32, &random),
            random,
        };
        assert!(costs.is_consistent());
        let expected = [
            (4096, 1, 100.0),
            (4096, 0, 100.0),
            (16_384, 1, 112.0),
            (4096, 32, 400.0),
            (16_384, 32, 700.0),
            (4096, 48, 600.0),
            (8192, 64, 1000.0),
            (4096, 128, 1600.0),
        ];
        for (bytes, depth, us) in expected {
            let found = costs.read_us(bytes, depth);
            assert!((found - us).abs() < 1e-6, "{bytes} {depth}: {found}");
        }
        assert!((costs.read_us(4096, 16) - (100.0 + 300.0 * 15.0 / 31.0)).abs() < 1e-6);
    }
}
