//! Options that say where codes of a gpu-ivf are ranked.

use clap::ValueEnum;
use stratann_engine::exec::scorer::{ScorerChoice, ScorerOptions};
use stratann_storage::{Error, Result as Checked};

use crate::options;

/// `--scorer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScorerName {
    /// A GPU where one can be used, otherwise this machine's threads.
    Auto,
    /// A GPU, or an error.
    Cuda,
    /// This machine's threads.
    Cpu,
}

/// Where codes are ranked.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Scorer of gpu-ivf")]
pub(crate) struct ScorerArgs {
    /// What ranks candidates by their codes; `stratann doctor` names the GPUs [default: auto]
    #[arg(long, value_enum)]
    scorer: Option<ScorerName>,
    /// Number of the GPU [default: 0]
    #[arg(long, value_name = "N")]
    device: Option<u32>,
    /// Limit of the GPU's memory, such as 8GiB [default: nine tenths of what is free]
    #[arg(long, value_name = "SIZE", value_parser = options::size)]
    gpu_budget: Option<u64>,
    /// Rank codes that do not fit on the GPU with this machine's threads; otherwise they are refused
    #[arg(long)]
    spill: bool,
    /// Let the GPU build the look-up table of a query with its candidates, not while the processor finds these
    #[arg(long)]
    no_early_tables: bool,
}

impl ScorerArgs {
    /// The scorer that is asked for, where values that are not given come from `file`.
    ///
    /// # Errors
    /// Options of a GPU for a scorer without.
    pub(crate) fn options(&self, file: &ScorerKeys) -> Checked<ScorerOptions> {
        let name = match (self.scorer, file.scorer.as_deref()) {
            (Some(name), _) => name,
            (None, None) => ScorerName::Auto,
            (None, Some(text)) => ScorerName::from_str(text, false)
                .map_err(|_| Error::bad_input(format!("scorer is {text:?}; use auto, cuda or cpu")))?,
        };
        let device = self.device.or(file.device);
        let gpu_budget = match (self.gpu_budget, file.gpu_budget.as_deref()) {
            (Some(bytes), _) => Some(bytes),
            (None, Some(text)) => Some(
                options::size(text)
                    .map_err(|why| Error::bad_input(format!("gpu_budget is {text:?}: {why}")))?,
            ),
            (None, None) => None,
        };
        let spill = self.spill || file.spill.unwrap_or(false);
        let early_tables = !self.no_early_tables && file.early_tables.unwrap_or(true);
        if name == ScorerName::Cpu && (device.is_some() || gpu_budget.is_some() || spill || !early_tables) {
            return Err(Error::bad_input(
                "--device, --gpu-budget, --spill and --no-early-tables are for a GPU; leave them out with --scorer cpu",
            ));
        }
        let choice = match (name, device) {
            (ScorerName::Cpu, _) => ScorerChoice::Cpu,
            (ScorerName::Auto, None) => ScorerChoice::Auto,
            // A number asks for that GPU.
            (ScorerName::Auto | ScorerName::Cuda, device) => {
                ScorerChoice::Cuda { device: device.unwrap_or(0) }
            }
        };
        Ok(ScorerOptions { choice, gpu_budget, spill, early_tables })
    }
}

/// The same in the file of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScorerKeys {
    pub(crate) scorer: Option<String>,
    pub(crate) device: Option<u32>,
    pub(crate) gpu_budget: Option<String>,
    pub(crate) spill: Option<bool>,
    pub(crate) early_tables: Option<bool>,
}
