//! Options of a driver, and the times that it measures.

use stratann_params::{AutoOr, choices};

/// Time at which the next query is admitted (BatANN figure 7 compares them).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// One query at a time, as DiskANN does.
    One,
    /// A batch at a time: the next one starts when all of it has ended, as PipeANN's coroutines do.
    Batch,
    /// A fixed number in flight: a query that ends is replaced.
    #[default]
    Fixed,
}

impl From<choices::Admission> for Admission {
    fn from(name: choices::Admission) -> Admission {
        match name {
            choices::Admission::One => Admission::One,
            choices::Admission::Batch => Admission::Batch,
            choices::Admission::Fixed => Admission::Fixed,
        }
    }
}

/// Reads under way that keep a thread of this engine busy.
pub(super) const READS_WANTED: usize = 8;

/// Reads in one round of a query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Width {
    /// That of the kind, whatever the load.
    #[default]
    Usual,
    /// By load: wide with few queries in flight, narrow with many.
    Auto,
    /// Always the same.
    Fixed(u32),
}

impl From<AutoOr<u32>> for Width {
    fn from(reads: AutoOr<u32>) -> Width {
        match reads {
            AutoOr::Auto => Width::Auto,
            AutoOr::Given(reads) => Width::Fixed(reads),
        }
    }
}

impl From<Option<AutoOr<u32>>> for Width {
    fn from(reads: Option<AutoOr<u32>>) -> Width {
        reads.map_or(Width::Usual, Width::from)
    }
}

impl Width {
    /// This width, or where none was asked for that of the kind.
    pub(crate) fn or_usual(self, usual: u32) -> Width {
        if self == Width::Usual { Width::Fixed(usual) } else { self }
    }

    /// The widths (approaching, settled) of a query that starts with `load` queries in flight on its thread. Without
    /// the kind's, the usual one is 1.
    ///
    /// More queries than [`READS_WANTED`] need no width of their own.
    pub fn at_load(self, load: usize) -> (u32, u32) {
        match self {
            Width::Usual => (1, 1),
            Width::Fixed(width) => (width, width),
            Width::Auto => {
                let settled = (READS_WANTED / load.max(1)).clamp(1, READS_WANTED) as u32;
                (settled.div_ceil(2), settled)
            }
        }
    }
}

/// Options of one thread's driver.
#[derive(Clone, Copy, Debug)]
pub struct DriverOptions {
    /// Bytes of a usual read: the size of most buffers.
    pub buffer_bytes: usize,
    /// Queries in flight.
    pub in_flight: usize,
    /// Time at which the next query is admitted.
    pub admission: Admission,
    /// Reads in one round of a query.
    pub width: Width,
    /// Most bytes of all read buffers, without those of [`super::Queries::extra_bytes`].
    pub buffers_bytes: usize,
    /// Longest turn of a query, nanoseconds; it ends after the step that exceeds it. Also the most by which the
    /// background is ahead of its share, or behind.
    pub turn_ns: u64,
}

impl Default for DriverOptions {
    /// One query at a time, without limits of memory and time.
    fn default() -> Self {
        DriverOptions {
            buffer_bytes: 0,
            in_flight: 1,
            admission: Admission::default(),
            width: Width::default(),
            buffers_bytes: usize::MAX,
            turn_ns: u64::MAX,
        }
    }
}

/// Reads that were not made because an equal one was under way. They depend on timing, so they are counted beside the
/// reads of queries and never subtracted from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergedReads {
    /// Number of reads.
    pub reads: u64,
    /// Bytes of their pages.
    pub bytes: u64,
}

impl MergedReads {
    /// Adds others.
    pub fn add(&mut self, other: &MergedReads) {
        self.reads += other.reads;
        self.bytes += other.bytes;
    }
}

/// Parts of a query's time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Time from admission to answer.
    pub latency: u64,
    /// Time of preparing the query and searching the head graph: all before the first read.
    pub route: u64,
    /// Time of scoring what arrived and choosing what to read next. The rest is access: waiting for reads, and for the
    /// thread.
    pub verify: u64,
    /// Time of waiting for the thread with all reads complete, a part of the access.
    pub ready: u64,
}

impl Times {
    /// Adds the times of another query.
    pub fn add(&mut self, other: &Times) {
        self.latency += other.latency;
        self.route += other.route;
        self.verify += other.verify;
        self.ready += other.ready;
    }

    /// Time that is neither route nor verify.
    pub fn access(&self) -> u64 {
        self.latency.saturating_sub(self.route + self.verify)
    }
}
