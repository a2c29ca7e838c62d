//! Options of opening an index, as a user gave them.

use stratann_params::Given;
use stratann_params::choices::BaselineFiles;
use stratann_params::open::{LearnSettings, OpenSettings, ScorerSettings};
use stratann_storage::Result;

use crate::base::OpenOptions;
use crate::exec::scorer::ScorerOptions;
#[cfg(feature = "lab")]
use crate::kinds::options::{Baseline, OpenBaselines};

impl OpenOptions {
    /// Reads what a user gave, without the cache.
    ///
    /// # Errors
    /// Options of a GPU for a scorer without; files that only the laboratory opens.
    pub fn read(given: &Given) -> Result<OpenOptions> {
        let (open, lists): (OpenSettings, LearnSettings) = (given.read(), given.read());
        let settings: ScorerSettings = given.read();
        #[cfg(not(feature = "lab"))]
        if settings.baselines != BaselineFiles::None {
            let name = settings.baselines.name();
            return Err(stratann_storage::Error::laboratory(&format!("baselines={name:?}"), "search"));
        }
        let scorer = ScorerOptions::read(&settings)?;
        #[cfg(feature = "lab")]
        let (scorer, baselines) = of_baseline(given, scorer, settings.baselines);
        Ok(OpenOptions {
            ram_budget: open.ram_budget,
            head_budget: lists.head_budget,
            learning: lists.into(),
            scorer,
            #[cfg(feature = "lab")]
            baselines,
            ..OpenOptions::default()
        })
    }
}

/// The scorer and the files of a search as another system does it, which may want the processor whatever GPU there is.
#[cfg(feature = "lab")]
fn of_baseline(given: &Given, scorer: ScorerOptions, files: BaselineFiles) -> (ScorerOptions, OpenBaselines) {
    let switches: stratann_params::search::GpuSwitches = given.read();
    let baseline = switches.baseline.map(Baseline::from);
    let scorer = match baseline {
        Some(baseline) if !baseline.uses_scorer() => ScorerOptions::default(),
        _ => scorer,
    };
    let files = match (files, baseline) {
        (BaselineFiles::Ram, _) => OpenBaselines::Resident,
        (_, Some(baseline)) if baseline.is_resident() => OpenBaselines::Resident,
        (BaselineFiles::Disk, _) => OpenBaselines::OnDisk,
        (_, Some(baseline)) if baseline.needs_files() => OpenBaselines::OnDisk,
        (BaselineFiles::None, _) => OpenBaselines::No,
    };
    (scorer, files)
}
