//! The last step: data files move up, the manifest is created.

use std::collections::BTreeMap;
use std::path::Path;

use stratann_storage::data_file::FileEntry;
use stratann_storage::durable::sync_folder;
use stratann_storage::names::{BuildId, FileName};
use stratann_storage::{Error, Result, data_file};

use super::report::BuildReport;
use super::stage::Stage;
use crate::curve::{RECALL_USUAL, all_unreached};
use crate::files;
use crate::kinds::section::Section;
use crate::manifest::{BlockShape, FORMAT_WHOLE, Manifest};
use crate::stages::build::Build;

/// Name under which the state keeps lengths and checksums that are known before the end.
pub(crate) const FILES: Stage = Stage::named("files");

/// The manifest of the files so far.
pub(crate) fn manifest(
    build: &Build<'_>,
    rows: u64,
    blocks: BlockShape,
    code_error: f32,
    section: Section,
) -> Result<Manifest> {
    let shape = build.base.shape();
    let mut known: BTreeMap<FileName, FileEntry> = build.partial.facts(FILES).unwrap_or_default();
    let mut entries = BTreeMap::new();
    for role in files::BUILT {
        let (name, path) = (files::name(build.number, role), build.file(role));
        if let Some(entry) = known.remove(&name) {
            entries.insert(name, entry);
        } else if path.exists() {
            entries.insert(name, data_file::entry(&path)?);
        }
    }
    let mut manifest = Manifest {
        format_version: FORMAT_WHOLE,
        kind: build.options.kind().name().into(),
        metric: build.options.metric.name().into(),
        dtype: shape.dtype.name().into(),
        rows,
        dim: shape.dim,
        blocks,
        code_error,
        build: build.options.record(shape.dim),
        build_id: BuildId::default(),
        files: entries,
        curves: Vec::new(),
        section,
        spread: None,
        deletes: None,
        points: None,
        curve_rows: None,
        damaged_newer: Vec::new(),
    };
    manifest.build_id = manifest.content_id();
    Ok(manifest)
}

/// Moves the files up, creates the manifest, removes what is no longer needed.
pub(crate) fn publish(mut build: Build<'_>, out: &Path, manifest: &Manifest) -> Result<BuildReport> {
    for name in manifest.files.keys() {
        let (from, to) = (build.partial.path(name), out.join(name));
        // A build killed while publishing has moved some already.
        if from.exists() {
            std::fs::rename(&from, &to).map_err(|e| Error::io("moving", &to, &e))?;
        }
    }
    sync_folder(out)?;
    manifest.publish(out, build.number)?;
    build.report.kind.clone_from(&manifest.kind);
    build.report.index_bytes = manifest.files.values().map(|f| f.bytes).sum();
    build.report.unreached = all_unreached(&manifest.curves, RECALL_USUAL);
    build.partial.remove()?;
    crate::manifest::remove_older(out, build.number, manifest);
    Ok(build.report)
}
