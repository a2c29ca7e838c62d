//! Ranks codes on a GPU: FusionANNS §4.1 and §5. What exceeds its memory is ranked here, and so is everything once it
//! has failed: it is left alone then.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use stratann_core::score::{CodeJob, RankScratch, Ranking, rank};
use stratann_gpu::{Device, DeviceOptions, Job};
use stratann_kernel::bits::BitCoder;
use stratann_kernel::coder::Coder;
use stratann_storage::budget::size_up;
use stratann_storage::data_file::{FileEntry, read_resident};
use stratann_storage::tier::Resident;
use stratann_storage::{Error, Result};

#[cfg(feature = "emulated")]
use super::EmulatedFault;
use super::{
    CodeFile, Failure, GpuReport, OpenScorer, Reply, Scorer, ScorerChoice, ScorerOptions, ScorerReport,
};

/// See the module.
struct GpuScorer {
    device: Device,
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
    let device_options = device_options(options);
    let code_bytes = coder.layout().code_bytes().max(1) as u64;
    let all = codes.len() as u64;
    let fitting = match room_for_codes(coder, options, &device_options) {
        Ok(room) => room.map_or(all, |room| (room / code_bytes * code_bytes).min(all)),
        Err(e) => return Err((codes, e)),
    };
    if fitting < all && !options.spill {
        let needed = Device::needed_bytes(&device_options, coder, all);
        let budget = options.gpu_budget.map_or("the free memory of the GPU".into(), |budget| {
            format!("a GPU budget of {}", stratann_storage::budget::size(budget))
        });
        let e = Error::budget(format!(
            "{budget} is too small for the codes of this index; give --gpu-budget {} or more, or rank what does not \
             fit on the CPU with --spill",
            size_up(needed)
        ));
        return Err((codes, e));
    }
    let (on_gpu, here) = codes.split_at(fitting as usize);
    let device = match open_device(options, &device_options, coder, on_gpu) {
        Ok(device) => device,
        Err(e) => return Err((codes, Error::bad_input(e.to_string()))),
    };
    let Some(mut rest) = Resident::new(here.len()) else {
        return Err((codes, Error::budget("there is no memory for the codes that are not on the GPU")));
    };
    rest.copy_from_slice(here);
    drop(codes);
    let (rest, held) = (Arc::new(rest), (fitting / code_bytes) as u32);
    let scorer = GpuScorer {
        device,
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

fn device_options(options: &ScorerOptions) -> DeviceOptions {
    let device = if let ScorerChoice::Cuda { device } = options.choice { device } else { 0 };
    let usual = DeviceOptions { device, budget_bytes: options.gpu_budget, ..DeviceOptions::default() };
    #[cfg(feature = "emulated")]
    if let ScorerChoice::Emulated(_) = options.choice {
        // Kernels on a processor take long, and a test of a device that hangs should not.
        let timeout = std::time::Duration::from_secs(5);
        return DeviceOptions { ids_max: 1 << 13, queries_in_flight: 8, timeout, ..usual };
    }
    usual
}

/// Bytes of codes that the budget, or the free memory, has room for; `None` where the open device will tell.
fn room_for_codes(
    coder: &BitCoder,
    options: &ScorerOptions,
    device_options: &DeviceOptions,
) -> Result<Option<u64>> {
    // Codes are aligned on the device.
    const ALIGNMENT: u64 = 256;
    let without = Device::needed_bytes(device_options, coder, 0) + ALIGNMENT;
    let room = |bytes: u64| {
        bytes.checked_sub(without).ok_or_else(|| {
            Error::budget(format!(
                "a GPU budget of {} is too small to rank anything; give --gpu-budget {} or more",
                stratann_storage::budget::size(bytes),
                size_up(without)
            ))
        })
    };
    if let Some(budget) = options.gpu_budget {
        return room(budget).map(Some);
    }
    if !matches!(options.choice, ScorerChoice::Auto | ScorerChoice::Cuda { .. }) {
        return Ok(None);
    }
    let devices = stratann_gpu::probe().devices.unwrap_or_default();
    let own = devices.into_iter().find(|device| device.number == device_options.device);
    own.map(|device| room(device.memory_free_bytes / 10 * 9)).transpose()
}

fn open_device(
    options: &ScorerOptions,
    device_options: &DeviceOptions,
    coder: &BitCoder,
    codes: &[u8],
) -> std::result::Result<Device, stratann_gpu::Error> {
    #[cfg(feature = "emulated")]
    if let ScorerChoice::Emulated(fault) = options.choice {
        let mut faults = stratann_gpu::Faults::default();
        match fault {
            EmulatedFault::None => {}
            EmulatedFault::FailAt(launch) => faults.fail_launch = Some(launch),
            EmulatedFault::HangAt(batch) => faults.hang_at = Some(batch),
            EmulatedFault::LoseAt(batch) => faults.lose_at = Some(batch),
            EmulatedFault::NoMemory => faults.allocation_limit = Some(1024),
        }
        return Device::emulated(device_options, &faults, coder, codes);
    }
    let _ = options;
    Device::open(device_options, coder, codes)
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
        let on_gpu = Job {
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
        self.device.submit(query, on_gpu, Box::new(done));
        None
    }

    fn rank_here(
        &self,
        job: &CodeJob<'_>,
        scratch: &mut RankScratch,
    ) -> std::result::Result<Ranking, Failure> {
        self.ranked_here.fetch_add(1, Ordering::Relaxed);
        if self.device.is_lost() {
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
        let (memory, counters) = (self.device.memory(), self.device.counters());
        let memory_bytes = BTreeMap::from([
            ("codes", memory.codes),
            ("blocks of queries", memory.blocks),
            ("kernels", memory.module),
        ]);
        let gpu = GpuReport {
            device: self.device.info().name.clone(),
            codes: self.device.held_codes(),
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
