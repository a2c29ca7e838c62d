//! The output folder of a build. It is empty, or holds an index or an unfinished build and nothing else.

use std::fs::DirEntry;
use std::path::Path;

use stratann_storage::{Error, Result, output};

use super::state::{FolderLock, lock as lock_folder};
use crate::files;
use crate::manifest::{self, PARTIAL};

/// Refuses a folder that an index cannot be built into. Changes nothing.
///
/// # Errors
/// A path that is no folder, a folder with files that are not of an index, an existing index unless `force`.
pub fn check_folder(out: &Path, force: bool) -> Result<()> {
    output::check_folder(out)?;
    if !out.exists() {
        return Ok(());
    }
    refuse_other_files(out)?;
    if manifest::newest(out)?.is_some() && !force {
        return Err(Error::bad_input(format!(
            "{} holds an index already; give --force to replace it, or another folder",
            out.display()
        )));
    }
    Ok(())
}

/// Creates and locks the folder. Returns the number of the version to publish.
pub(crate) fn claim_folder(out: &Path, force: bool) -> Result<(u64, FolderLock)> {
    prepare_folder(out, force)?;
    let lock = lock_folder(out)?;
    // Another writer may have published in between.
    Ok((prepare_folder(out, force)?, lock))
}

/// Creates the folder. Returns the number of the version to publish.
fn prepare_folder(out: &Path, force: bool) -> Result<u64> {
    check_folder(out, force)?;
    std::fs::create_dir_all(out).map_err(|e| Error::io("creating", out, &e))?;
    manifest::number_after(manifest::newest(out)?.unwrap_or(0), out)
}

/// Refuses an index folder that holds files of another origin.
pub(crate) fn refuse_other_files(folder: &Path) -> Result<()> {
    let entries = std::fs::read_dir(folder).map_err(|e| Error::io("opening", folder, &e))?;
    let others = entries.flatten().filter(|entry| !is_of_index(entry)).map(|entry| entry.file_name());
    match others.min() {
        None => Ok(()),
        Some(other) => Err(Error::bad_input(format!(
            "{} holds other files, such as {}; name a new folder, or an empty one",
            folder.display(),
            Path::new(&other).display()
        ))),
    }
}

/// Whether an entry of a folder belongs to an index or to an unfinished build.
fn is_of_index(entry: &DirEntry) -> bool {
    let name = entry.file_name();
    // A file that is gone was one of another writer.
    let Ok(meta) = entry.metadata() else { return true };
    let Some(name) = name.to_str() else { return false };
    match name {
        PARTIAL => meta.is_dir() && is_unfinished_build(&entry.path()),
        // A new file system has lost+found.
        "replan" | "lost+found" => meta.is_dir(),
        // The lock of an index is empty.
        "lock" => meta.is_file() && meta.len() == 0,
        _ => meta.is_file() && (is_data(name) || is_temporary(name)),
    }
}

fn is_data(name: &str) -> bool {
    let name = name.strip_suffix(".partial").unwrap_or(name);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let manifest = name.strip_prefix("manifest-").and_then(|rest| rest.strip_suffix(".json"));
    let version = name.strip_prefix('v').and_then(|rest| rest.split_once('-')).map(|(number, _)| number);
    let server = name.strip_prefix("learnt-").and_then(|rest| rest.strip_suffix(".bin"));
    name == files::LEARNT
        || server.is_some_and(is_number)
        || manifest.is_some_and(is_number)
        || version.is_some_and(is_number) && files::role(name).is_some()
}

/// Temporary files of a process that was killed: `.NAME.PID.N.tmp`, `.manifest-N.PID`, inputs of `stratann.ray`.
fn is_temporary(name: &str) -> bool {
    let Some(name) = name.strip_prefix('.') else { return false };
    name.ends_with(".tmp")
        || ["manifest-", "stratann-scratch-", "base-input.", "ids-input.", "payload-input."]
            .iter()
            .any(|p| name.starts_with(p))
}

/// Whether a folder named `partial` is that of a build, which is removed when the build ends.
fn is_unfinished_build(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    // A partition has no state: all its files are data files of the new version.
    names.iter().any(|name| name == "state.json" || name == "state.json.new")
        || names.iter().all(|name| name.to_str().is_some_and(|n| is_data(n) || n.ends_with(".tmp")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_an_index_are_known() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str| std::fs::write(folder.path().join(name), "").unwrap();
        for name in ["manifest-12.json", "v3-blocks.bin", "v3-blocks-04.bin", "v1-lists.bin.partial", "lock"]
        {
            put(name);
        }
        for name in
            [".manifest-2.77", ".learnt.bin.77.0.tmp", ".base-input.fbin", "learnt.bin", "learnt-07.bin"]
        {
            put(name);
        }
        std::fs::create_dir_all(folder.path().join("partial")).unwrap();
        put("partial/v3-map.bin");
        std::fs::create_dir(folder.path().join("replan")).unwrap();
        refuse_other_files(folder.path()).unwrap();
        for name in
            ["thesis.txt", "manifest-.json", "v-blocks.bin", "v1-blocks.txt", ".profile", "partial/mine"]
        {
            put(name);
            let error = refuse_other_files(folder.path()).unwrap_err();
            let shown = name.split('/').next().unwrap();
            assert!(error.message.contains(shown), "{error}");
            std::fs::remove_file(folder.path().join(name)).unwrap();
        }
        std::fs::write(folder.path().join("lock"), "mine").unwrap();
        assert!(refuse_other_files(folder.path()).is_err());
    }
}
