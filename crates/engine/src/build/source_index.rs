//! The vectors of an index as files, from which another index is built: so an older one gets the codes of today.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use stratann_kernel::{DType, Metric};
use stratann_params::IndexKind;
use stratann_storage::{Error, ErrorKind, Progress, Result};

use crate::dataset::{BIN_HEADER, Reader, bin_suffix};
use crate::index::{Index, OpenOptions};
use crate::manifest::Manifest;
use crate::stages::plan::check_disk;

/// An index whose vectors another one is built from.
pub struct SourceIndex {
    folder: PathBuf,
    manifest: Manifest,
    kind: IndexKind,
    dtype: DType,
    metric: Metric,
}

/// Vectors and external ids of an index, in the order of ids. The files lie in the folder of the index that is built,
/// and are removed with this value.
pub struct SourceRows {
    /// The vectors.
    pub reader: Reader,
    /// Their ids; `None` where they are the numbers of the rows.
    pub ids: Option<PathBuf>,
    _files: Files,
}

impl SourceIndex {
    /// Reads what an index is, for one that is built in the folder `out`.
    ///
    /// # Errors
    /// No index there, one of a newer format, or `out` itself.
    pub fn open(folder: &Path, out: &Path) -> Result<SourceIndex> {
        let named = |path: &Path| path.canonicalize().ok();
        if named(folder).is_some() && named(folder) == named(out) {
            return Err(Error::bad_input(format!(
                "{} would be read and replaced at once; name another folder for the new index",
                folder.display()
            )));
        }
        let (_, manifest) = Manifest::read(folder).map_err(of_input)?;
        manifest.check_without_points(folder, "a build from it")?;
        let (Some(kind), Some(dtype), Some(metric)) = (manifest.kind(), manifest.dtype(), manifest.metric())
        else {
            return Err(Error::bad_input(format!(
                "{} is of a newer version; use a newer stratann",
                folder.display()
            )));
        };
        Ok(SourceIndex { folder: folder.into(), manifest, kind, dtype, metric })
    }

    /// Kind of the index.
    pub fn kind(&self) -> IndexKind {
        self.kind
    }

    /// Metric of the index.
    pub fn metric(&self) -> Metric {
        self.metric
    }

    /// Writes the vectors of the index that are not deleted in the order of their ids to files in the folder `out`,
    /// which is created. The index is open meanwhile, within `ram_budget`.
    ///
    /// # Errors
    /// An index that cannot be opened or is damaged, a disk that is full, an interruption.
    pub fn write_rows(
        &self,
        out: &Path,
        ram_budget: Option<u64>,
        progress: &dyn Progress,
    ) -> Result<SourceRows> {
        let row_bytes = self.manifest.dim * self.dtype.size();
        if self.manifest.live_rows() == 0 {
            return Err(Error::bad_input(format!(
                "all vectors of {} are deleted; there is nothing to build from",
                self.folder.display()
            )));
        }
        check_disk(out.parent().unwrap_or(out), self.manifest.rows * (row_bytes as u64 + 8))?;
        let options = OpenOptions { ram_budget, head_budget: Some(0), ..OpenOptions::default() };
        let index = Index::open(&self.folder, options).map_err(of_input)?;
        let visited = external_ids(&index, progress).map_err(of_input)?;
        let (order, places) = self.sorted(&visited)?;
        let files = Files::create(out, bin_suffix(self.dtype))?;
        let is_numbered = order.iter().zip(0u64..).all(|(&at, row)| visited[at as usize] == row);
        if !is_numbered {
            let sorted: Vec<u64> = order.iter().map(|&at| visited[at as usize]).collect();
            self.put(&files.ids, 1, |file| file.write_all_at(bytemuck::cast_slice(&sorted), BIN_HEADER))?;
        }
        drop((visited, order));
        self.put(&files.rows, self.manifest.dim as u32, |_| Ok(()))?;
        write_vectors(&index, &files.rows, (row_bytes as u64, &places), progress).map_err(of_input)?;
        let ids = (!is_numbered).then(|| files.ids.clone());
        Ok(SourceRows { reader: Reader::open(&files.rows)?, ids, _files: files })
    }

    /// Visited members in the order of their ids, and the place of each member in that order.
    fn sorted(&self, visited: &[u64]) -> Result<(Vec<u32>, Vec<u32>)> {
        let mut order: Vec<u32> = (0..visited.len() as u32).collect();
        order.sort_unstable_by_key(|&at| visited[at as usize]);
        let is_doubled = order.windows(2).any(|pair| visited[pair[0] as usize] == visited[pair[1] as usize]);
        if is_doubled || visited.len() as u64 != self.manifest.live_rows() {
            return Err(Error::bad_input(format!(
                "{} does not hold each of its {} vectors once; check it with `stratann verify`",
                self.folder.display(),
                self.manifest.live_rows()
            )));
        }
        let mut places = vec![0u32; order.len()];
        order.iter().zip(0..).for_each(|(&at, place)| places[at as usize] = place);
        Ok((order, places))
    }

    /// Creates a file of as many rows as the index has that are not deleted, and fills it.
    fn put(&self, path: &Path, width: u32, fill: impl Fn(&File) -> std::io::Result<()>) -> Result<()> {
        let counts = [self.manifest.live_rows() as u32, width];
        let made = File::create(path)
            .and_then(|file| file.write_all_at(bytemuck::cast_slice(&counts), 0).and_then(|()| fill(&file)));
        made.map_err(|e| Error::io("writing", path, &e))
    }
}

/// The external ids of all members that are not deleted, in the order in which they are visited.
fn external_ids(index: &Index, progress: &dyn Progress) -> Result<Vec<u64>> {
    let mut ids = Vec::with_capacity(index.base.manifest.rows as usize);
    let (work, unit) = index.kind.scan_work(&index.base);
    progress.stage("reading ids", work, unit);
    index.kind.for_each_member(&index.base, progress, &mut |members| {
        let live = members.iter().filter(|member| index.base.is_live(member.id));
        ids.extend(live.map(|member| member.external_id));
    })?;
    Ok(ids)
}

/// Writes each vector at its place.
fn write_vectors(
    index: &Index,
    path: &Path,
    (row_bytes, places): (u64, &[u32]),
    progress: &dyn Progress,
) -> Result<()> {
    let failed = |e: std::io::Error| Error::io("writing", path, &e);
    let file = File::options().write(true).open(path).map_err(failed)?;
    let (work, unit) = index.kind.scan_work(&index.base);
    progress.stage("reading vectors", work, unit);
    let mut places = places.iter();
    let mut written = Ok(());
    index.kind.for_each_member(&index.base, progress, &mut |members| {
        let live = members.iter().filter(|member| index.base.is_live(member.id));
        for (member, &place) in live.zip(&mut places) {
            if written.is_ok() {
                written = file.write_all_at(member.vector, BIN_HEADER + u64::from(place) * row_bytes);
            }
        }
    })?;
    written.map_err(failed)
}

/// A damaged source is bad input of a build.
fn of_input(error: Error) -> Error {
    match error.kind {
        ErrorKind::Corrupt => Error::bad_input(error.message),
        _ => error,
    }
}

/// Files of vectors and ids, which a folder of an index may hold beside its own. They are removed with this value, and
/// so is the folder where nothing else came into it.
struct Files {
    folder: PathBuf,
    rows: PathBuf,
    ids: PathBuf,
}

impl Files {
    fn create(folder: &Path, suffix: &str) -> Result<Files> {
        std::fs::create_dir_all(folder).map_err(|e| Error::io("creating", folder, &e))?;
        Ok(Files {
            folder: folder.into(),
            rows: folder.join(format!(".base-input.{suffix}")),
            ids: folder.join(".ids-input.u64bin"),
        })
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // What is left behind is a temporary file, which the next build removes or replaces.
        let _ = std::fs::remove_file(&self.rows);
        let _ = std::fs::remove_file(&self.ids);
        let _ = std::fs::remove_dir(&self.folder);
    }
}
