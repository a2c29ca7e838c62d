//! The copies and launches of a batch.

use crate::backend::Staging;
use crate::job::Prepared;
use crate::layout::{Kernel, Params};

/// Threads of a thread block.
const THREADS: u32 = 256;

/// Threads of the kernel that selects and sorts: one thread block has all candidates of a job.
const TOP_THREADS: u32 = 1024;

/// Candidates of one thread.
const IDS: u32 = 4;

/// Vectors of one thread block: four times as many as it has at once.
const ROWS: u32 = 64;

/// One launch. The grid is `grid_x` × `jobs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    pub(crate) kernel: Kernel,
    pub(crate) grid_x: u32,
    // The first jobs of the batch.
    pub(crate) jobs: u32,
    pub(crate) threads: u32,
    pub(crate) shared_bytes: u32,
}

/// Fields that most launches share.
const LAUNCH: Launch =
    Launch { kernel: Kernel::Gather, grid_x: 1, jobs: 0, threads: THREADS, shared_bytes: 0 };

/// A job's copies, from and to the start and the results of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transfer {
    pub(crate) block: u32,
    pub(crate) input_bytes: usize,
    pub(crate) result_bytes: usize,
}

/// Work of a stream for a batch: all copies to the device, the launches in their order, all copies back.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) params: Params,
    pub(crate) staging: Staging,
    pub(crate) transfers: Vec<Transfer>,
    pub(crate) launches: Vec<Launch>,
}

impl Batch {
    /// Plans a batch of jobs of the same codes, each with its block. There are at most `JOBS_MAX`; surplus ones are
    /// ignored. All have codes to score, or all have vectors.
    pub(crate) fn new<'a>(
        common: &Params,
        staging: Staging,
        jobs: impl Iterator<Item = (u32, &'a Prepared)>,
    ) -> Batch {
        let mut params = *common;
        let (mut candidates, mut has_vectors) = (1, false);
        let transfers = jobs.take(params.slots.len()).map(|(block, job)| {
            candidates = candidates.max(job.candidates());
            has_vectors = job.has_vectors();
            let (input_bytes, result_bytes) = (job.input_bytes(), job.result_bytes());
            Transfer { block, input_bytes, result_bytes }
        });
        let transfers: Vec<Transfer> = transfers.collect();
        for (transfer, slot) in transfers.iter().zip(&mut params.slots) {
            *slot = transfer.block;
        }
        params.jobs = transfers.len() as u32;
        let launches = match has_vectors {
            true => launches_of_vectors(params.jobs, candidates),
            false => launches_of_codes(&params, candidates),
        };
        Batch { params, staging, transfers, launches }
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

/// Scores the candidates of all jobs, the largest of which has `candidates`.
fn launches_of_codes(params: &Params, candidates: u32) -> Vec<Launch> {
    let jobs = params.jobs;
    let all = Launch { grid_x: candidates.div_ceil(THREADS * IDS), jobs, ..LAUNCH };
    vec![
        Launch { kernel: Kernel::Arrange, ..all },
        Launch { kernel: Kernel::Gather, ..all },
        Launch { kernel: Kernel::Distances, shared_bytes: params.shared_bytes, ..all },
        Launch { kernel: Kernel::Top, jobs, threads: TOP_THREADS, ..LAUNCH },
    ]
}

/// Scores the vectors of all jobs, the largest of which has `rows`.
fn launches_of_vectors(jobs: u32, rows: u32) -> Vec<Launch> {
    vec![
        Launch { kernel: Kernel::Vectors, grid_x: rows.div_ceil(ROWS), jobs, ..LAUNCH },
        Launch { kernel: Kernel::Top, jobs, threads: TOP_THREADS, ..LAUNCH },
    ]
}
