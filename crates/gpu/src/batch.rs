//! The copies and launches of a batch.

use crate::job::{self, Prepared, TableSource};
use crate::layout::{Kernel, Params};
use crate::pool::TableRequest;

/// Threads of a thread block; fixed in the kernels that have one thread for each of 256 terms.
const THREADS: u32 = 256;

/// Threads of the kernels that go over all candidates. Few large thread blocks copy the table to shared memory less
/// often than many small ones.
const DISTANCE_THREADS: u32 = 512;
const TOP_THREADS: u32 = 1024;

/// Candidates of one thread.
const GATHER_IDS: u32 = 4;
const DISTANCE_IDS: u32 = 8;

/// Codes of bits of one thread: their thread blocks copy little, so that smaller ones keep more of a device busy.
const BIT_IDS: u32 = 4;

/// Vectors of one thread block: four times as many as it has at once.
const ROWS: u32 = 64;

/// Rows of the rotation in one thread block.
const ROTATE_ROWS: u32 = 16;

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
    Launch { kernel: Kernel::Rotate, grid_x: 1, jobs: 0, threads: THREADS, shared_bytes: 0 };

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
    pub(crate) transfers: Vec<Transfer>,
    pub(crate) launches: Vec<Launch>,
}

impl Batch {
    /// Plans a batch of jobs, each with its block. There are at most `JOBS_MAX`; surplus ones are ignored. All have
    /// codes to score, or all have vectors. Those that build their tables come first.
    pub(crate) fn new<'a>(common: &Params, jobs: impl Iterator<Item = (u32, &'a Prepared)>) -> Batch {
        let (mut candidates, mut tables, mut has_vectors) = (1, 0, false);
        let transfers = jobs.map(|(block, job)| {
            candidates = candidates.max(job.candidates());
            tables += u32::from(job.table == TableSource::Job);
            has_vectors = job.has_vectors();
            let (input_bytes, result_bytes) = (job.input_bytes(), job.result_bytes());
            Transfer { block, input_bytes, result_bytes }
        });
        let mut batch = Batch::of(common, transfers);
        let jobs = batch.params.jobs;
        if has_vectors {
            let grid_x = candidates.div_ceil(ROWS);
            batch.launches.push(Launch { kernel: Kernel::Vectors, grid_x, jobs, ..LAUNCH });
        } else {
            batch.launch_tables(tables);
            batch.launch_distances(candidates);
        }
        batch.launches.push(Launch { kernel: Kernel::Top, jobs, threads: TOP_THREADS, ..LAUNCH });
        batch
    }

    /// Plans a batch of tables whose jobs have not come. Nothing is copied back.
    pub(crate) fn of_tables<'a>(common: &Params, requests: impl Iterator<Item = &'a TableRequest>) -> Batch {
        let transfers = requests.map(|request| {
            let input_bytes = job::table_bytes(&request.query);
            Transfer { block: request.block, input_bytes, result_bytes: 0 }
        });
        let mut batch = Batch::of(common, transfers);
        batch.launch_tables(batch.params.jobs);
        batch
    }

    fn of(common: &Params, transfers: impl Iterator<Item = Transfer>) -> Batch {
        let mut params = *common;
        let transfers: Vec<Transfer> = transfers.take(params.slots.len()).collect();
        for (transfer, slot) in transfers.iter().zip(&mut params.slots) {
            *slot = transfer.block;
        }
        params.jobs = transfers.len() as u32;
        Batch { params, transfers, launches: Vec::new() }
    }

    /// Builds the tables of the first `jobs` jobs.
    fn launch_tables(&mut self, jobs: u32) {
        if jobs == 0 {
            return;
        }
        let terms = 1 + self.params.code_bytes - self.params.wide;
        let rotations = self.params.dim.div_ceil(ROTATE_ROWS);
        for (kernel, grid_x) in
            [(Kernel::Rotate, rotations), (Kernel::Terms, terms), (Kernel::Quantise, terms)]
        {
            self.launches.push(Launch { kernel, grid_x, jobs, ..LAUNCH });
        }
    }

    /// Scores the candidates of all jobs, the largest of which has `candidates`.
    fn launch_distances(&mut self, candidates: u32) {
        let jobs = self.params.jobs;
        let grid_x = candidates.div_ceil(THREADS * GATHER_IDS);
        let is_bits = self.params.plane_count > 0;
        if is_bits {
            self.launches.push(Launch { kernel: Kernel::Arrange, grid_x, jobs, ..LAUNCH });
        }
        self.launches.push(Launch { kernel: Kernel::Gather, grid_x, jobs, ..LAUNCH });
        let (kernel, threads, ids) = match is_bits {
            true => (Kernel::BitDistances, THREADS, BIT_IDS),
            false => (Kernel::Distances, DISTANCE_THREADS, DISTANCE_IDS),
        };
        let (grid_x, shared_bytes) = (candidates.div_ceil(threads * ids), self.params.shared_bytes);
        self.launches.push(Launch { kernel, grid_x, jobs, threads, shared_bytes });
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
