//! Memory limits of collections, and `stratann collection limit`.

use serde::Serialize;
use stratann_node::collections::MemoryLimits;
use stratann_params::collection::LimitSettings;
use stratann_params::{Param, Stage, parse_size};
use stratann_storage::budget::size;
use stratann_storage::{Error, Result};

use super::{SHARED, opened};
use crate::Verdict;
use crate::data_folder::plain;
use crate::output::Output;
use crate::parameters::{Parameters, Rows};
use crate::progress::ProgressPrinter;

/// The table's options of memory limits.
pub(super) const LIMITS: [&str; 2] = ["memory_quota", "memory_minimum"];

/// The table's options of the command.
struct LimitRows;

impl Rows for LimitRows {
    const STAGES: &'static [Stage] = &[Stage::Collection];

    fn has(param: &Param) -> bool {
        SHARED.contains(&param.name) || LIMITS.contains(&param.name)
    }
}

/// Change the memory limits of a collection
///
/// The quota is the most memory that its newest points and its open segments take together; changes beyond it are
/// refused. The minimum is memory that other collections never take. What is not given stays as it is.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Limit {
    /// Name of the collection
    name: String,
    #[command(flatten)]
    table: Parameters<LimitRows>,
}

const EXAMPLES: &str = "\
Examples:
  stratann collection limit --data photos.data photos --memory-quota 1GiB
  stratann collection limit --data photos.data photos --memory-quota none --memory-minimum 64MiB";

/// Limits of the memory of a collection; a quota of null is none.
#[derive(Serialize)]
pub(super) struct LimitsDocument {
    memory_quota_bytes: Option<u64>,
    memory_minimum_bytes: u64,
}

impl LimitsDocument {
    pub(super) fn of(limits: &MemoryLimits) -> LimitsDocument {
        LimitsDocument { memory_quota_bytes: limits.quota_bytes, memory_minimum_bytes: limits.minimum_bytes }
    }

    /// As a part of a line: `quota 1.0 GiB, minimum 0 B`.
    pub(super) fn text(&self) -> String {
        let quota = self.memory_quota_bytes.map_or("none".into(), size);
        format!("quota {quota}, minimum {}", size(self.memory_minimum_bytes))
    }
}

#[derive(Serialize)]
struct LimitDocument<'a> {
    name: &'a str,
    #[serde(flatten)]
    limits: LimitsDocument,
}

/// Changes limits as options say. Returns whether there are any.
///
/// # Errors
/// A quota that is no size.
pub(super) fn change(settings: &LimitSettings, limits: &mut MemoryLimits) -> Result<bool> {
    if let Some(quota) = &settings.memory_quota {
        let wrong = |e| Error::bad_input(format!("--memory-quota: {e}; none is for no quota"));
        limits.quota_bytes = match quota.as_str() {
            "none" => None,
            quota => Some(parse_size(quota).map_err(wrong)?),
        };
    }
    limits.minimum_bytes = settings.memory_minimum.unwrap_or(limits.minimum_bytes);
    Ok(settings.memory_quota.is_some() || settings.memory_minimum.is_some())
}

/// Runs `stratann collection limit`.
pub(super) fn limit(args: &Limit, output: Output) -> Result<Verdict> {
    let settings: LimitSettings = args.table.given.read();
    if !change(&settings, &mut MemoryLimits::default())? {
        return Err(Error::bad_input("no limit is given; give --memory-quota or --memory-minimum, or both"));
    }
    let printer = ProgressPrinter::new(output);
    let node = opened(&args.table, &printer)?;
    let limits = node.change_limits(&args.name, |own| {
        // It was read above.
        let _ = change(&settings, own);
    });
    let document = LimitDocument { name: &args.name, limits: LimitsDocument::of(&limits.map_err(plain)?) };
    printer.finish();
    output.result(&document, || format!("{}: memory {}\n", args.name, document.limits.text()))?;
    Ok(Verdict::Fine)
}
