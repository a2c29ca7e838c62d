//! Techniques of a search that can be switched, and scorers.

use pyo3::prelude::*;
use stratann_core::plan::gpu_ivf::Rule;
use stratann_engine::exec::GatherOptions;
use stratann_engine::exec::scorer::{ScorerChoice, ScorerOptions};
use stratann_engine::kinds::kind::Kind;
use stratann_engine::kinds::options::{GpuSwitches, GridSwitches, RemoteSwitches, Switches};
use stratann_storage::{Error, Result};

/// Those of a `grid-ivf`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct GridTechniques {
    prune_dimension: bool,
    prune_vector: bool,
    prewarm: bool,
    fan_out: u8,
    static_order: bool,
    balance: bool,
    pipeline: bool,
}

/// Those of a `gpu-ivf`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct GpuTechniques {
    baseline: Option<String>,
    rule: Option<String>,
    candidates: Option<u32>,
    batch_size: Option<u32>,
    epsilon_stop: Option<f32>,
    beta: Option<u32>,
    margin: Option<f32>,
}

/// Numbers of a search in a `remote-hnsw`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct RemoteTechniques {
    ef: Option<u32>,
    batch: Option<usize>,
    doorbell: Option<usize>,
}

impl RemoteTechniques {
    /// How batches are loaded.
    ///
    /// # Errors
    /// An index of another kind; a number out of range.
    pub(crate) fn gather(&self, kind: Kind) -> Result<GatherOptions> {
        let usual = GatherOptions::default();
        let given = [
            ("ef", self.ef.is_some()),
            ("batch", self.batch.is_some()),
            ("doorbell", self.doorbell.is_some()),
        ];
        if let Some((name, _)) = given.iter().find(|given| given.1 && !kind.shares_reads()) {
            let kind = kind.name();
            return Err(Error::bad_input(format!(
                "{name} is for a remote-hnsw, and this index is a {kind}; leave it out"
            )));
        }
        for (name, value, most) in [("batch", self.batch, 65_536), ("doorbell", self.doorbell, 512)] {
            if let Some(value) = value.filter(|&value| value == 0 || value > most) {
                return Err(Error::bad_input(format!("{name} is {value}; use 1 to {most}")));
            }
        }
        Ok(GatherOptions {
            batch: self.batch.unwrap_or(usual.batch),
            doorbell: self.doorbell.unwrap_or(usual.doorbell),
            is_doorbell_chosen: self.doorbell.is_some(),
            ..usual
        })
    }
}

impl GridTechniques {
    fn switches(&self) -> GridSwitches {
        GridSwitches {
            prune_dimension: self.prune_dimension,
            prune_vector: self.prune_vector,
            prewarm: self.prewarm,
            fan_out: self.fan_out,
            busy_last: !self.static_order,
            balance: self.balance,
            pipeline: self.pipeline,
        }
    }
}

impl GpuTechniques {
    fn switches(&self) -> Result<GpuSwitches> {
        if let Some(name) = &self.baseline {
            return Err(Error::laboratory(&format!("baseline={name:?}"), "search"));
        }
        let rule =
            named("rule", self.rule.as_deref(), Rule::from_name, || Rule::ALL.map(Rule::name).join(", "))?;
        #[allow(clippy::needless_update, reason = "the laboratory has more of them")]
        Ok(GpuSwitches {
            rule,
            candidates: self.candidates,
            batch: self.batch_size,
            epsilon_stop: self.epsilon_stop,
            beta: self.beta,
            margin: self.margin,
            no_whole_blocks: false,
            ..GpuSwitches::default()
        })
    }
}

/// The techniques of the kind that has any switched. Kinds other than `grid-ivf` have their defaults with its defaults.
///
/// # Errors
/// Unknown names.
pub(crate) fn switches(
    grid: &GridTechniques,
    gpu: &GpuTechniques,
    remote: &RemoteTechniques,
) -> Result<Switches> {
    let gpu = gpu.switches()?;
    if remote.ef.is_some() && gpu == GpuSwitches::default() {
        return Ok(RemoteSwitches { ef: remote.ef }.into());
    }
    Ok(if gpu == GpuSwitches::default() { grid.switches().into() } else { gpu.into() })
}

/// The scorer of this name.
///
/// # Errors
/// An unknown name, or options of a GPU for the processor.
pub(crate) fn scorer(
    name: &str,
    device: Option<u32>,
    gpu_budget: Option<u64>,
    spill: bool,
    early_tables: bool,
) -> Result<ScorerOptions> {
    let choice = match (name, device) {
        ("auto", None) => ScorerChoice::Auto,
        // A number asks for that GPU.
        ("auto" | "cuda", device) => ScorerChoice::Cuda { device: device.unwrap_or(0) },
        ("cpu", None) if gpu_budget.is_none() && !spill && early_tables => ScorerChoice::Cpu,
        ("cpu", _) => {
            return Err(Error::bad_input(
                "device, gpu_budget, spill and early_tables are for a GPU; leave them out with scorer=\"cpu\"",
            ));
        }
        _ => {
            return Err(Error::bad_input(format!("scorer is {name:?}; use \"auto\", \"cuda\" or \"cpu\"")));
        }
    };
    Ok(ScorerOptions { choice, gpu_budget, spill, early_tables })
}

/// Refuses files of baselines, which the laboratory opens.
///
/// # Errors
/// Any name but `none`.
pub(crate) fn no_baselines(name: &str) -> Result<()> {
    if name == "none" { Ok(()) } else { Err(Error::laboratory(&format!("baselines={name:?}"), "search")) }
}

fn named<T>(
    what: &str,
    name: Option<&str>,
    from_name: fn(&str) -> Option<T>,
    all: impl Fn() -> String,
) -> Result<Option<T>> {
    let Some(name) = name else { return Ok(None) };
    match from_name(name) {
        Some(found) => Ok(Some(found)),
        None => Err(Error::bad_input(format!("{what} is {name:?}; use one of {}", all()))),
    }
}
