//! Ranking of candidates by their codes: in the memory of this machine, or on a GPU.
//!
//! A [`Scorer`] takes jobs from any thread. It answers at once, or later through a [`Reply`]. All scorers give the
//! ranking of [`stratann_core::score::rank`], to the bit; [`conformance`] checks that.

pub mod conformance;
mod cpu;
mod cuda;
mod devices;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use stratann_core::score::{CodeJob, RankScratch, Ranking};
use stratann_kernel::coder::Coder;
use stratann_storage::data_file::{FileEntry, read_resident};
use stratann_storage::tier::Resident;
use stratann_storage::{Error, Result};

pub use cpu::CpuScorer;
pub(crate) use cuda::open_gpu;
pub use stratann_gpu::{Probe, probe};

use stratann_params::choices::ScorerName;
use stratann_params::open::ScorerSettings;
/// Choice of the scorer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScorerChoice {
    /// The threads of the search.
    #[default]
    Cpu,
    /// A GPU where one can be used, otherwise the threads of the search.
    Auto,
    /// The GPU with this number, or an error.
    Cuda {
        /// Device number, as the driver counts.
        device: u32,
    },
    /// A GPU that runs its kernels on the processor, for tests.
    #[cfg(feature = "emulated")]
    Emulated(EmulatedFault),
}

impl ScorerChoice {
    /// Refuses a GPU that was asked for by number, of a kind without codes for one.
    pub(crate) fn refuse_device(self, kind: &str) -> Result<()> {
        match self {
            ScorerChoice::Cuda { .. } => Err(Error::bad_input(format!(
                "--scorer cuda ranks the codes of a gpu-ivf, and this index is a {kind}; leave it out"
            ))),
            _ => Ok(()),
        }
    }
}

/// Fault of an emulated GPU.
#[cfg(feature = "emulated")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EmulatedFault {
    /// Nothing.
    #[default]
    None,
    /// The launch with this number fails.
    FailAt(u64),
    /// The batch with this number never ends.
    HangAt(u64),
    /// The device is lost during the batch with this number.
    LoseAt(u64),
    /// There is too little memory, though it seems free.
    NoMemory,
}

/// Options of the ranking of codes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScorerOptions {
    /// Choice of the scorer.
    pub choice: ScorerChoice,
    /// Most bytes of GPU memory; `None` for what is free.
    pub gpu_budget: Option<u64>,
    /// Whether codes that exceed the GPU's memory are ranked by this machine's threads. Otherwise they are refused.
    pub spill: bool,
}

impl ScorerOptions {
    /// Reads what a user gave.
    ///
    /// # Errors
    /// Options of a GPU for a scorer without.
    pub fn read(settings: &ScorerSettings) -> Result<ScorerOptions> {
        let ScorerSettings { scorer, device, gpu_budget, spill, .. } = *settings;
        if scorer == ScorerName::Cpu && (device.is_some() || gpu_budget.is_some() || spill) {
            return Err(Error::bad_input(
                "--device, --gpu-budget and --spill are for a GPU; leave them out with --scorer cpu",
            ));
        }
        let choice = match (scorer, device) {
            (ScorerName::Cpu, _) => ScorerChoice::Cpu,
            (ScorerName::Auto, None) => ScorerChoice::Auto,
            // A number asks for that GPU.
            (ScorerName::Auto | ScorerName::Cuda, device) => {
                ScorerChoice::Cuda { device: device.unwrap_or(0) }
            }
        };
        Ok(ScorerOptions { choice, gpu_budget, spill })
    }
}

/// Receiver of a ranking that is not there at once.
pub struct Reply(Box<dyn FnOnce(std::result::Result<Ranking, Failure>) + Send>);

impl Reply {
    /// A reply that does this, once, on any thread. It must not block.
    pub fn new(take: impl FnOnce(std::result::Result<Ranking, Failure>) + Send + 'static) -> Reply {
        Reply(Box::new(take))
    }

    pub(crate) fn send(self, ranking: std::result::Result<Ranking, Failure>) {
        (self.0)(ranking);
    }
}

/// Reason why a scorer has no ranking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(pub String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Ranks candidates by their codes.
pub trait Scorer: Send + Sync {
    /// The name used in reports.
    fn name(&self) -> &'static str;

    /// Begins a job. Returns the ranking when it is there at once; otherwise `reply` gets it, or why there is none.
    /// `scratch` is memory of the calling thread.
    fn submit(&self, job: &CodeJob<'_>, scratch: &mut RankScratch, reply: Reply) -> Option<Ranking>;

    /// Ranks on the calling thread a job that [`Scorer::submit`] failed with.
    ///
    /// # Errors
    /// Why that is not possible either.
    fn rank_here(
        &self,
        job: &CodeJob<'_>,
        scratch: &mut RankScratch,
    ) -> std::result::Result<Ranking, Failure>;

    /// Work and memory of the scorer, for reports.
    fn report(&self) -> ScorerReport;
}

/// Work and memory of a scorer.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct ScorerReport {
    /// Name of the scorer.
    pub name: String,
    /// The GPU; absent where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuReport>,
}

/// Work and memory of a GPU.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct GpuReport {
    /// The product.
    pub device: String,
    /// Codes on it.
    pub codes: u64,
    /// Memory of the GPU by component, bytes.
    pub memory_bytes: std::collections::BTreeMap<&'static str, u64>,
    /// The limit of that memory; absent where none was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_budget_bytes: Option<u64>,
    /// Memory of this machine that copies use, bytes.
    pub host_staging_bytes: u64,
    /// Batches of jobs.
    pub batches: u64,
    /// Jobs in them.
    pub jobs: u64,
    /// Bytes to the GPU.
    pub bytes_to_device: u64,
    /// Bytes from the GPU.
    pub bytes_from_device: u64,
    /// Time of all kernels, as the GPU measures it.
    pub kernel_us: u64,
    /// Jobs that this machine's threads ranked because the GPU did not.
    pub ranked_here: u64,
    /// Reason why the GPU is not used any more; absent while it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
}

/// The file of all codes of an index.
pub(crate) struct CodeFile<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) name: &'a str,
    pub(crate) entry: &'a FileEntry,
}

/// A scorer, and the codes that are in this machine's memory with the id of the first.
pub(crate) struct OpenScorer {
    pub(crate) scorer: Box<dyn Scorer>,
    pub(crate) codes: Arc<Resident>,
    pub(crate) codes_from: u32,
}

/// Opens the scorer of an index. What is noteworthy is added to `warnings`.
///
/// # Errors
/// Codes that cannot be read or are damaged; a GPU that was asked for and cannot be used, or has too little memory.
pub(crate) fn open(
    file: &CodeFile<'_>,
    coder: &Coder,
    options: &ScorerOptions,
    warnings: &mut Vec<String>,
) -> Result<OpenScorer> {
    let codes = || read_resident(file.folder, file.name, file.entry);
    let on_cpu = |codes: Resident| {
        let codes = Arc::new(codes);
        OpenScorer { scorer: Box::new(CpuScorer::new(codes.clone(), 0)), codes, codes_from: 0 }
    };
    match options.choice {
        ScorerChoice::Cpu => Ok(on_cpu(codes()?)),
        ScorerChoice::Auto => {
            let found = probe();
            if found.driver.is_err() || !found.devices.as_ref().is_ok_and(|devices| !devices.is_empty()) {
                return Ok(on_cpu(codes()?));
            }
            match open_gpu(file, codes()?, coder, options) {
                Ok(opened) => Ok(opened),
                Err((codes, e)) => {
                    warnings.push(format!("the GPU is not used: {}", e.message));
                    Ok(on_cpu(codes))
                }
            }
        }
        _ => open_gpu(file, codes()?, coder, options)
            .map_err(|(_, e)| Error { message: format!("{}; or use --scorer cpu", e.message), ..e }),
    }
}
