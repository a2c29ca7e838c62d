//! The copies and launches of a batch.

use crate::job::Prepared;
use crate::layout::{Kernel, Params};

/// Threads of a thread block; fixed in the kernels that have one thread for each of 256 terms.
const THREADS: u32 = 256;

/// Threads of the kernels that go over all candidates. Few large thread blocks copy the table to shared memory less
/// often than many small ones.
const DISTANCE_THREADS: u32 = 512;
const TOP_THREADS: u32 = 1024;

/// Candidates of one thread.
const GATHER_IDS: u32 = 4;
const DISTANCE_IDS: u32 = 8;

/// Vectors of one thread block: four times as many as it has at once.
const ROWS: u32 = 64;

/// Rows of the rotation in one thread block.
const ROTATE_ROWS: u32 = 16;

/// One launch. The grid is `grid_x` × jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    pub(crate) kernel: Kernel,
    pub(crate) grid_x: u32,
    pub(crate) threads: u32,
    pub(crate) shared_bytes: u32,
}

/// A job's copies, from and to the start and the results of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transfer {
    pub(crate) block: u32,
    pub(crate) input_bytes: usize,
    pub(crate) result_bytes: usize,
}

/// What a stream does for a batch: all copies to the device, the launches in their order, all copies back.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) params: Params,
    pub(crate) transfers: Vec<Transfer>,
    pub(crate) launches: Vec<Launch>,
}

impl Batch {
    /// Plans a batch of jobs, each with its block. There are at most `JOBS_MAX`; surplus ones are ignored. All have
    /// codes to score, or all have vectors.
    pub(crate) fn new<'a>(common: &Params, jobs: impl Iterator<Item = (u32, &'a Prepared)>) -> Batch {
        let mut params = *common;
        let mut transfers = Vec::new();
        let mut candidates = 1;
        let mut has_vectors = false;
        for ((block, job), slot) in jobs.zip(&mut params.slots) {
            *slot = block;
            candidates = candidates.max(job.candidates());
            has_vectors = job.has_vectors();
            let (input_bytes, result_bytes) = (job.input_bytes(), job.result_bytes());
            transfers.push(Transfer { block, input_bytes, result_bytes });
        }
        params.jobs = transfers.len() as u32;
        let launches = launches(&params, candidates, has_vectors);
        Batch { params, transfers, launches }
    }

    /// Bytes of all copies to the device. Parameters of launches are not counted.
    pub(crate) fn bytes_to_device(&self) -> u64 {
        self.transfers.iter().map(|t| t.input_bytes as u64).sum()
    }

    /// Bytes of all copies from the device.
    pub(crate) fn bytes_from_device(&self) -> u64 {
        self.transfers.iter().map(|t| t.result_bytes as u64).sum()
    }
}

/// The launches of a batch whose largest job has `candidates`.
fn launches(params: &Params, candidates: u32, has_vectors: bool) -> Vec<Launch> {
    let launch = |kernel, grid_x| Launch { kernel, grid_x, threads: THREADS, shared_bytes: 0 };
    let top = Launch { kernel: Kernel::Top, grid_x: 1, threads: TOP_THREADS, shared_bytes: 0 };
    if has_vectors {
        return vec![launch(Kernel::Vectors, candidates.div_ceil(ROWS)), top];
    }
    let terms = 1 + params.code_bytes - params.wide;
    let distances = Launch {
        kernel: Kernel::Distances,
        grid_x: candidates.div_ceil(DISTANCE_THREADS * DISTANCE_IDS),
        threads: DISTANCE_THREADS,
        shared_bytes: params.shared_bytes,
    };
    vec![
        launch(Kernel::Rotate, params.dim.div_ceil(ROTATE_ROWS)),
        launch(Kernel::Terms, terms),
        launch(Kernel::Quantise, terms),
        launch(Kernel::Gather, candidates.div_ceil(THREADS * GATHER_IDS)),
        distances,
        top,
    ]
}
