//! Reads a whole index and reports everything that is wrong with it.

use std::path::{Path, PathBuf};

pub use crate::findings::{FINDINGS_MAX, Finding, Report};

use stratann_storage::{Error, ErrorKind, Progress, Result};

use crate::findings::Verification;
use crate::manifest::{self, Manifest};
use crate::{files as roles, kinds, spread};

/// Checks the newest version in `folder`: the manifest, every file against it, every block, and what must hold
/// between blocks. Takes three bytes of memory per block besides what opening takes, and four per vector where blocks
/// carry codes; of a `hybrid-ivf` one per vector, and twice 8 MiB or the vectors of its largest graph.
///
/// # Errors
/// When there is no index to check, or it is of a newer format. Damage is no error but a finding.
pub fn verify(folder: &Path, progress: &dyn Progress) -> Result<Report> {
    loop {
        let before = manifest::newest(folder)?;
        let report = verify_newest(folder, progress);
        let is_final = match &report {
            Ok(report) => report.violations.is_empty(),
            Err(e) => e.kind == ErrorKind::Interrupted,
        };
        // What is missing may be of a version that was replaced meanwhile.
        if is_final || manifest::newest(folder)? == before {
            return report;
        }
    }
}

fn verify_newest(folder: &Path, progress: &dyn Progress) -> Result<Report> {
    let mut report = Report::default();
    let (number, manifest) = match Manifest::read(folder) {
        Ok(read) => read,
        Err(e) if e.kind == ErrorKind::Corrupt => {
            let number = manifest::newest(folder)?.unwrap_or(0);
            report.version = number;
            report.found(Finding::of(&format!("manifest-{number}.json"), e.message));
            return Ok(report);
        }
        Err(e) => return Err(e),
    };
    report.version = number;
    let mut check = Verification { folder, number, manifest: &manifest, progress, report };
    for damaged in &manifest.damaged_newer {
        check.found(&format!("manifest-{}.json", damaged.number), damaged.why.clone());
    }
    // Lists are read once as files and once one by one.
    let is_lists = |name: &str| {
        manifest.section.lists().is_some() && matches!(roles::role(name), Some(roles::LISTS | roles::PARTS))
    };
    let lists = manifest.files.iter().filter(|(name, _)| is_lists(name));
    let again = lists.fold(0u64, |sum, (_, f)| sum.saturating_add(f.bytes));
    let total = manifest.files.values().fold(again, |sum, f| sum.saturating_add(f.bytes));
    progress.stage("verifying", total, "bytes");
    let is_blocks = |name: &str| matches!(roles::role(name), Some(roles::BLOCKS | roles::PARTS));
    for (name, entry) in manifest.files.iter().filter(|(name, _)| !is_blocks(name)) {
        check.file(name, entry, &mut |_| {})?;
    }
    match &manifest.spread {
        Some(spread) => spread::check::check(&mut check, spread)?,
        None => kinds::kind_of(&manifest).verify(&mut check)?,
    }
    Ok(check.report)
}

/// Files in the folder that the newest version does not need: what an interrupted build or a crash left.
pub fn left_over(folder: &Path, manifest: &Manifest, number: u64) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).map_err(|e| Error::io("opening index", folder, &e))?;
    let mut names: Vec<String> = entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort_unstable();
    let needed = |name: &String| {
        *name == format!("manifest-{number}.json")
            || manifest.files.contains_key(name.as_str())
            || name == "lock"
    };
    Ok(names.into_iter().filter(|n| !needed(n)).map(|n| folder.join(n)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::build;
    use crate::dataset::{Reader, Shape as Rows};
    use crate::stages::options::BuildOptions;
    use crate::{DType, Metric};
    use stratann_storage::Quiet;

    fn flat_index(folder: &Path) {
        let rows = Rows { rows: 300, dim: 8, dtype: DType::U8 };
        let base = Reader::from_memory(rows, (0..2400u32).map(|i| (i * 37 % 251) as u8).collect::<Vec<u8>>())
            .unwrap();
        build(&base, folder, &BuildOptions::new(stratann_params::IndexKind::Flat, Metric::L2), &Quiet)
            .unwrap();
    }

    #[test]
    fn a_sound_index_has_no_findings_and_a_flipped_bit_has_a_place() {
        let dir = tempfile::tempdir().unwrap();
        flat_index(dir.path());
        let report = verify(dir.path(), &Quiet).unwrap();
        assert_eq!((report.violations_found, report.nodes, report.files), (0, 300, 1));
        let path = dir.path().join("v1-blocks.bin");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[100] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let report = verify(dir.path(), &Quiet).unwrap();
        assert!(
            report
                .violations
                .iter()
                .any(|f| f.block == Some(0) && f.offset == Some(0) && f.file == "v1-blocks.bin")
        );
        std::fs::remove_file(&path).unwrap();
        assert!(verify(dir.path(), &Quiet).unwrap().violations_found > 0);
    }
}
