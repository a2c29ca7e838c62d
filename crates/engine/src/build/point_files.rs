//! Ids and payloads of points as files of an index. What is in them is written and read by others; here they get rows,
//! names and a place in the manifest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stratann_storage::data_file::{self, FileEntry, open_file};
use stratann_storage::names::FileName;
use stratann_storage::{Error, Progress, Result};

use crate::files;
use crate::index::{Index, OpenOptions};
use crate::manifest::{Manifest, PointFacts, format_of};
use crate::stages::build::Build;
use crate::stages::stage::POINTS;

/// Ids and payloads of the rows that an index is built from.
pub trait PointFiles: Sync {
    /// Hash of all ids and payloads. An unfinished build goes on with equal ones alone.
    fn content(&self) -> u64;

    /// Writes and syncs the files; those of payloads only where some row has one. `rows` are the numbers of the rows in
    /// the index, in the order of their ids.
    ///
    /// # Errors
    /// A disk that is full or fails; an interruption.
    fn write(&self, rows: &[u32], to: &PointPaths, progress: &dyn Progress) -> Result<PointFacts>;
}

/// Paths of the files of points.
#[derive(Clone, Debug)]
pub struct PointPaths {
    /// The external ids.
    pub ids: PathBuf,
    /// The payloads.
    pub payloads: PathBuf,
    /// The index of payloads.
    pub payload_index: PathBuf,
}

impl PointPaths {
    /// Those of a published index; `None` of one without points. They are there, with the lengths of the manifest.
    ///
    /// # Errors
    /// `BadInput` for a file that is missing; `Corrupt` for one that has another length; `Io`.
    pub fn of(folder: &Path, manifest: &Manifest) -> Result<Option<PointPaths>> {
        let Some(points) = &manifest.points else { return Ok(None) };
        let needed = if points.payloads > 0 { &files::OF_POINTS[..] } else { &files::OF_POINTS[..1] };
        for role in needed {
            let (name, entry) = manifest.file(role)?;
            open_file(&folder.join(name), entry)?;
        }
        let path =
            |role| manifest.file(role).map_or_else(|_| folder.join(role), |found| folder.join(found.0));
        Ok(Some(PointPaths::by(path)))
    }

    fn by(path: impl Fn(&'static str) -> PathBuf) -> PointPaths {
        PointPaths {
            ids: path(files::POINT_IDS),
            payloads: path(files::PAYLOADS),
            payload_index: path(files::PAYLOAD_INDEX),
        }
    }
}

/// What the stage leaves.
#[derive(Serialize, Deserialize)]
struct Written {
    facts: PointFacts,
    files: BTreeMap<FileName, FileEntry>,
}

/// Writes the files of points of a built index, and names them in its manifest.
pub(super) fn add(build: &mut Build<'_>, manifest: &mut Manifest, points: &dyn PointFiles) -> Result<()> {
    let Written { facts, files } = build.stage(POINTS, |build| write(build, manifest, points))?;
    build.fact("payloads", facts.payloads);
    manifest.files.extend(files);
    manifest.points = Some(facts);
    manifest.format_version = format_of(&manifest.deletes, &manifest.points);
    manifest.build_id = manifest.content_id();
    Ok(())
}

fn write(build: &Build<'_>, manifest: &Manifest, points: &dyn PointFiles) -> Result<Written> {
    let rows = rows_by_id(build, manifest)?;
    let facts = points.write(&rows, &PointPaths::by(|role| build.file(role)), build.progress)?;
    let mut files = BTreeMap::new();
    for role in files::OF_POINTS {
        let path = build.file(role);
        if path.exists() {
            files.insert(files::name(build.number, role), data_file::entry(&path)?);
        }
    }
    Ok(Written { facts, files })
}

/// The numbers of the rows in the index, in the order of their ids.
fn rows_by_id(build: &Build<'_>, manifest: &Manifest) -> Result<Vec<u32>> {
    let wanted = build.base.shape().rows;
    if manifest.rows != wanted {
        return Err(Error::bad_input(format!(
            "{} of {wanted} rows cannot be indexed, and every row of points has its payload; leave these rows out of \
             the file",
            wanted - manifest.rows.min(wanted)
        )));
    }
    let options = OpenOptions { head_budget: Some(0), ..OpenOptions::default() };
    let index = Index::from_manifest(build.partial.folder(), build.number, manifest.clone(), options)?;
    Ok(index.row_ids(build.progress)?.iter().map(|(_, row)| row).collect())
}
