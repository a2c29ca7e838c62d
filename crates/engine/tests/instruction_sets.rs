//! Builds give equal bytes whatever instruction set the kernels use.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Set, clustered, quick};
use stratann_engine::build::{BuildOptions, IndexKind, build};
use stratann_engine::{DType, Metric};
use stratann_kernel::isa::{Isa, is_available};
use stratann_storage::Quiet;

/// Folder in which a child process builds.
const FOLDER: &str = "STRATANN_TEST_FOLDER";
const ISAS: [Isa; 4] = [Isa::Scalar, Isa::Neon, Isa::Avx2, Isa::Avx512];

fn build_all(folder: &Path) {
    let rows = clustered(1200, 20, 12, 1);
    let kinds = [
        (IndexKind::DiskGraph, Metric::L2),
        (IndexKind::DiskGraph, Metric::Ip),
        (IndexKind::HybridIvf, Metric::Cosine),
        (IndexKind::HybridIvf, Metric::Ip),
    ];
    for (number, (kind, metric)) in kinds.into_iter().enumerate() {
        let options = BuildOptions { calibration_queries: 40, ..quick(kind, metric) };
        let set = Set::new(DType::F32, 20, &rows);
        build(&set.reader(), &folder.join(number.to_string()), &options, &Quiet).unwrap();
    }
}

fn files(folder: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        if entry.path().is_dir() {
            files(&entry.path(), found);
        } else {
            found.insert(entry.path(), std::fs::read(entry.path()).unwrap());
        }
    }
}

#[test]
fn every_instruction_set_builds_the_same_bytes() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return build_all(Path::new(&folder));
    }
    let mut first: Option<BTreeMap<PathBuf, Vec<u8>>> = None;
    for isa in ISAS.into_iter().filter(|&isa| is_available(isa)) {
        let folder = tempfile::tempdir().unwrap();
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "every_instruction_set_builds_the_same_bytes"])
            .env(FOLDER, folder.path())
            .env("STRATANN_ISA", isa.name())
            .status()
            .unwrap();
        assert!(status.success(), "{}", isa.name());
        let mut found = BTreeMap::new();
        files(folder.path(), &mut found);
        let found: BTreeMap<PathBuf, Vec<u8>> = found
            .into_iter()
            .map(|(p, b)| (p.strip_prefix(folder.path()).unwrap().to_path_buf(), b))
            .collect();
        let Some(first) = &first else {
            first = Some(found);
            continue;
        };
        assert!(first.keys().eq(found.keys()), "{}", isa.name());
        for (name, bytes) in first {
            assert!(found[name] == *bytes, "{}: {}", isa.name(), name.display());
        }
    }
}
