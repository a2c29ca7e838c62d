//! Checks of the files of a `gpu-ivf`.

use std::path::Path;

use stratann_storage::{Progress, Result};

#[cfg(feature = "lab")]
use super::baseline::OpenBaselines;
use crate::base::{Base, OpenOptions};
use crate::files;
use crate::findings::{Finding, Report};
use crate::kinds::blocks;
use crate::kinds::gpu_ivf::open::GpuIndex;
use crate::manifest::Manifest;

/// Checks every block, and that lists name every vector once as their own.
pub(crate) fn check(
    folder: &Path,
    number: u64,
    manifest: &Manifest,
    progress: &dyn Progress,
    report: &mut Report,
) -> Result<()> {
    check_blocks(folder, number, manifest, progress, report)?;
    let options = OpenOptions {
        #[cfg(feature = "lab")]
        baselines: OpenBaselines::of(manifest.section.gpu()),
        ..OpenOptions::default()
    };
    let (base, index) = match open(folder, number, manifest, &options) {
        Ok(opened) => opened,
        Err(e) => {
            report.found(Finding { file: "manifest".into(), what: e.message, ..Finding::default() });
            return Ok(());
        }
    };
    let view = index.view(&base);
    for list in 0..view.lists.count() {
        let mut ids = Vec::new();
        let (first, count) = view.lists.own(list);
        let is_read = view.lists.replicas_of(list, &mut ids).is_some();
        if !is_read || ids.iter().any(|id| (first..first + count).contains(id)) {
            let what = "a replica is a member of the list itself".into();
            report.found(Finding {
                file: files::POSTINGS.into(),
                list: Some(list),
                what,
                ..Finding::default()
            });
        }
    }
    report.lists = Some(view.lists.count());
    Ok(())
}

fn check_blocks(
    folder: &Path,
    number: u64,
    manifest: &Manifest,
    progress: &dyn Progress,
    report: &mut Report,
) -> Result<()> {
    let opened = open(folder, number, manifest, &OpenOptions::default());
    let blocks = opened.as_ref().map(|(base, index)| (base, Some(index.view(base).checked(base.view()))));
    blocks::verify::check(folder, number, (manifest, blocks), progress, report)
}

fn open(folder: &Path, number: u64, manifest: &Manifest, options: &OpenOptions) -> Result<(Base, GpuIndex)> {
    let base = Base::open(folder, number, manifest.clone(), files::BLOCKS)?;
    let index = GpuIndex::open(&base, options, &mut Vec::new())?;
    Ok((base, index))
}
