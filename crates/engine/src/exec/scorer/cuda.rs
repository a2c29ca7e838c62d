//! Ranks codes on a GPU: FusionANNS §4.1 and §5. What exceeds its memory is ranked here, and so is everything once it
//! has failed, with this index or with another one: it is left alone then.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use stratann_core::score::{CodeJob, RankScratch, Ranking, rank};
use stratann_gpu::{CodesOptions, Device, DeviceCodes, DeviceOptions, Job};
use stratann_kernel::bits::BitCoder;
use stratann_kernel::coder::Coder;
use stratann_storage::budget::size_up;
use stratann_storage::data_file::{FileEntry, read_resident};
use stratann_storage::tier::Resident;
use stratann_storage::{Error, Result};

#[cfg(feature = "emulated")]
use super::EmulatedFault;
use super::devices::{DeviceId, OpenDevices};
use super::{
    CodeFile, Failure, GpuReport, OpenScorer, Reply, Scorer, ScorerChoice, ScorerOptions, ScorerReport,
};

/// See the module.
struct GpuScorer {
    on_gpu: DeviceCodes,
    // Codes that are not on the GPU, from the id `held` on.
    rest: Arc<Resident>,
    held: u32,
    gpu_budget: Option<u64>,
    // Read when the GPU has failed.
    file: CodesOnDisk,
    all: OnceLock<std::result::Result<Resident, String>>,
    ranked_here: AtomicU64,
    lost: OnceLock<String>,
}

/// Refusal of an index of before codes of bits.
const TRAINED_CODES: &str =
    "the codes of this index are of the old form, which the processor ranks; rebuild the index for a GPU";

/// The file of the codes.
struct CodesOnDisk {
    folder: PathBuf,
    name: String,
    entry: FileEntry,
}

/// Copies as many codes to a GPU as it has room for. The codes come back with the error when there is no such scorer.
pub(crate) fn open_gpu(
    file: &CodeFile<'_>,
    codes: Resident,
    coder: &Coder,
    options: &ScorerOptions,
) -> std::result::Result<OpenScorer, (Resident, Error)> {
    let Coder::Bits(coder) = coder else {
        return Err((codes, Error::bad_input(TRAINED_CODES)));
    };
    let codes_options = codes_options(options);
    let (device, fitting) = match device_with_room(coder, options, &codes_options, codes.len() as u64) {
        Ok(found) => found,
        Err(e) => return Err((codes, e)),
    };
    let (on_gpu, here) = codes.split_at(fitting as usize);
    let on_gpu = match device.load(&codes_options, coder, on_gpu) {
        Ok(on_gpu) => on_gpu,
        Err(e) => return Err((codes, refused(e))),
    };
    let Some(mut rest) = Resident::new(here.len()) else {
        return Err((codes, Error::budget("there is no memory for the codes that are not on the GPU")));
    };
    rest.copy_from_slice(here);
    drop(codes);
    let (rest, held) = (Arc::new(rest), (fitting / code_bytes_of(coder)) as u32);
    let scorer = GpuScorer {
        on_gpu,
        rest: rest.clone(),
        held,
        gpu_budget: options.gpu_budget,
        file: CodesOnDisk {
            folder: file.folder.to_path_buf(),
            name: file.name.to_string(),
            entry: file.entry.clone(),
        },
        all: OnceLock::new(),
        ranked_here: AtomicU64::new(0),
        lost: OnceLock::new(),
    };
    Ok(OpenScorer { scorer: Box::new(scorer), codes: rest, codes_from: held })
}

fn refused(e: stratann_gpu::Error) -> Error {
    Error::bad_input(e.to_string())
}

fn code_bytes_of(coder: &BitCoder) -> u64 {
    coder.layout().code_bytes().max(1) as u64
}

/// The device, and how many of `all` bytes of codes it gets.
fn device_with_room(
    coder: &BitCoder,
    options: &ScorerOptions,
    codes_options: &CodesOptions,
    all: u64,
) -> Result<(Arc<Device>, u64)> {
    let fitting = |memory: u64| {
        let room = room_for_codes(coder, codes_options, memory)?;
        let fitting = (room / code_bytes_of(coder) * code_bytes_of(coder)).min(all);
        if fitting == all || options.spill {
            return Ok(fitting);
        }
        let budget = options.gpu_budget.map_or("the free memory of the GPU".into(), |budget| {
            format!("a GPU budget of {}", stratann_storage::budget::size(budget))
        });
        Err(Error::budget(format!(
            "{budget} is too small for the codes of this index; give --gpu-budget {} or more, or rank what does not \
             fit on the CPU with --spill",
            size_up(DeviceCodes::needed_bytes(codes_options, coder, all))
        )))
    };
    if let Some(budget) = options.gpu_budget {
        // One that is too small is refused before a device is opened.
        let fitting = fitting(budget)?;
        return Ok((open_device(options).map_err(refused)?, fitting));
    }
    let device = open_device(options).map_err(refused)?;
    let fitting = fitting(device.usable_bytes().map_err(refused)?)?;
    Ok((device, fitting))
}

fn codes_options(options: &ScorerOptions) -> CodesOptions {
    let usual = CodesOptions { budget_bytes: options.gpu_budget, ..CodesOptions::default() };
    #[cfg(feature = "emulated")]
    if let ScorerChoice::Emulated(_) = options.choice {
        // Kernels on a processor take long.
        return CodesOptions { ids_max: 1 << 13, queries_in_flight: 8, ..usual };
    }
    usual
}

/// Bytes of codes for which a budget, or the free memory, has room.
fn room_for_codes(coder: &BitCoder, options: &CodesOptions, budget: u64) -> Result<u64> {
    // Codes are aligned on the device.
    const ALIGNMENT: u64 = 256;
    let without = DeviceCodes::needed_bytes(options, coder, 0) + ALIGNMENT;
    budget.checked_sub(without).ok_or_else(|| {
        Error::budget(format!(
            "a GPU budget of {} is too small to rank anything; give --gpu-budget {} or more",
            stratann_storage::budget::size(budget),
            size_up(without)
        ))
    })
}

/// The device of this process, opened where it is not open. An emulated one with a fault is the caller's alone.
fn open_device(options: &ScorerOptions) -> std::result::Result<Arc<Device>, stratann_gpu::Error> {
    #[cfg(feature = "emulated")]
    if let ScorerChoice::Emulated(fault) = options.choice {
        return open_emulated(fault);
    }
    let device = if let ScorerChoice::Cuda { device } = options.choice { device } else { 0 };
    let device_options = DeviceOptions { device, ..DeviceOptions::default() };
    OpenDevices::of_process().get(DeviceId::Cuda(device), || Device::open(&device_options))
}

#[cfg(feature = "emulated")]
fn open_emulated(fault: EmulatedFault) -> std::result::Result<Arc<Device>, stratann_gpu::Error> {
    // Kernels on a processor take long, and a test of a device that hangs should not.
    let timeout = std::time::Duration::from_secs(5);
    let device_options = DeviceOptions { timeout, ..DeviceOptions::default() };
    let mut faults = stratann_gpu::Faults::default();
    match fault {
        EmulatedFault::None => {
            let open = || Device::emulated(&device_options, &faults);
            return OpenDevices::of_process().get(DeviceId::Emulated, open);
        }
        EmulatedFault::FailAt(launch) => faults.fail_launch = Some(launch),
        EmulatedFault::HangAt(batch) => faults.hang_at = Some(batch),
        EmulatedFault::LoseAt(batch) => faults.lose_at = Some(batch),
        EmulatedFault::NoMemory => faults.allocation_limit = Some(1024),
    }
    Device::emulated(&device_options, &faults)
}

impl GpuScorer {
    /// The ranking of the codes that are not on the GPU.
    fn rank_rest(&self, job: &CodeJob<'_>, scratch: &mut RankScratch) -> Ranking {
        let mut ranking = Ranking::default();
        if !self.rest.is_empty() {
            rank(job, &self.rest, self.held, scratch, &mut ranking);
        }
        ranking
    }
}

impl Scorer for GpuScorer {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn submit(&self, job: &CodeJob<'_>, scratch: &mut RankScratch, reply: Reply) -> Option<Ranking> {
        let Some(query) = job.coded.bits() else {
            reply.send(Err(Failure(TRAINED_CODES.into())));
            return None;
        };
        let of_rest = self.rank_rest(job, scratch);
        let keep = job.keep;
        let for_gpu = Job {
            ranges: job.ranges.iter().map(|&(first, count)| [first, count]).collect(),
            ids: job.ids.to_vec(),
            keep,
            exclude: job.exclude,
        };
        let done = move |ranked: std::result::Result<stratann_gpu::Ranked, stratann_gpu::Failure>| {
            reply.send(match ranked {
                Ok(ranked) => {
                    let mut ranking = Ranking { nearest: ranked.nearest, distinct: ranked.distinct };
                    if of_rest.distinct > 0 {
                        ranking.merge(&of_rest, keep);
                    }
                    Ok(ranking)
                }
                Err(failure) => Err(Failure(failure.to_string())),
            });
        };
        self.on_gpu.submit(query, for_gpu, Box::new(done));
        None
    }

    fn rank_here(
        &self,
        job: &CodeJob<'_>,
        scratch: &mut RankScratch,
    ) -> std::result::Result<Ranking, Failure> {
        self.ranked_here.fetch_add(1, Ordering::Relaxed);
        if self.on_gpu.is_lost() {
            self.lost.get_or_init(|| "a batch failed or did not end in time".into());
        }
        let all = self.all.get_or_init(|| {
            let CodesOnDisk { folder, name, entry } = &self.file;
            read_resident(folder, name, entry).map_err(|e| e.message)
        });
        let codes =
            all.as_ref().map_err(|why| Failure(format!("the GPU failed, and so did its codes: {why}")))?;
        let mut ranking = Ranking::default();
        rank(job, codes, 0, scratch, &mut ranking);
        Ok(ranking)
    }

    fn report(&self) -> ScorerReport {
        let (memory, counters) = (self.on_gpu.memory(), self.on_gpu.counters());
        let memory_bytes = BTreeMap::from([
            ("codes", memory.codes),
            ("blocks of queries", memory.blocks),
            ("kernels", memory.module),
        ]);
        let gpu = GpuReport {
            device: self.on_gpu.info().name.clone(),
            codes: self.on_gpu.count(),
            memory_bytes,
            gpu_budget_bytes: self.gpu_budget,
            host_staging_bytes: memory.host_staging,
            batches: counters.batches,
            jobs: counters.jobs,
            bytes_to_device: counters.bytes_to_device,
            bytes_from_device: counters.bytes_from_device,
            kernel_us: counters.kernel_us,
            ranked_here: self.ranked_here.load(Ordering::Relaxed),
            lost: self.lost.get().cloned(),
        };
        ScorerReport { name: "cuda".into(), gpu: Some(gpu) }
    }
}
