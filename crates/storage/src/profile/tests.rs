use super::*;
use crate::{ErrorKind, Quiet};

const SMALL: ProfileOptions =
    ProfileOptions { seconds: 0.05, scratch_bytes: SCRATCH_BYTES_MIN, io: IoChoice::Pread };

pub(super) fn measured() -> Profile {
    let folder = tempfile::tempdir().unwrap();
    let profile = Profile::measure(folder.path(), &SMALL, &Quiet).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the scratch file is gone");
    profile
}

/// A path that may be written over.
fn to(path: &Path) -> OutputPath {
    OutputPath::check(path, true, &[]).unwrap()
}

#[test]
fn everything_is_measured() {
    let profile = measured();
    let disk = &profile.disk;
    assert!(disk.is_consistent() && profile.compute.is_consistent(), "{profile:?}");
    assert_eq!((profile.origin.io_backend.as_str(), profile.local), ("pread", None));
    assert!(disk.file_bytes > 0 && disk.file_bytes <= SMALL.scratch_bytes);
    for (bytes, depth) in
        DEPTHS.map(|d| (SIZES[0], d)).into_iter().chain(SIZES.iter().flat_map(|&s| [(s, ALONE), (s, LOADED)]))
    {
        let found: Vec<_> = disk.random.iter().filter(|r| (r.bytes, r.depth) == (bytes, depth)).collect();
        assert_eq!(found.len(), 1, "{bytes} {depth}");
        assert!(found[0].reads >= u64::from(depth) && found[0].median_us > 0.0);
        assert!(disk.read_us(u64::from(bytes), depth) > 0.0);
    }
    assert!(disk.read_us(1 << 20, 1000) >= disk.read_us(4096, 1000));
}

#[test]
fn a_profile_survives_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE_NAME);
    let mut profile = measured();
    profile.write(&to(&path)).unwrap();
    assert_eq!(Profile::read(&path).unwrap(), profile);
    profile.local = Some(LocalCosts {
        alpha_flat: 1.1,
        hops_a: 2.0,
        hops_b: -3.5,
        beta_scan: 1.3,
        lists_a: 1.0,
        lists_b: 0.0,
    });
    profile.write(&to(&path)).unwrap();
    assert_eq!(Profile::read(&path).unwrap(), profile);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn damage_is_told_apart_from_other_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE_NAME);
    measured().write(&to(&path)).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let refused = |text: &str| {
        std::fs::write(&path, text).unwrap();
        Profile::read(&path).unwrap_err()
    };
    let found = refused(&text.replacen("\"reads\": ", "\"reads\": 1", 1));
    assert!(found.kind == ErrorKind::Corrupt && found.message.contains("checksum"), "{found}");
    assert!(may_write(&to(&path)).is_ok(), "a damaged profile may be replaced");
    assert_eq!(refused(&text[..text.len() / 2]).kind, ErrorKind::Corrupt);
    let newer = refused(&text.replace("\"format_version\": 1", "\"format_version\": 2"));
    assert!(newer.kind == ErrorKind::BadInput && newer.message.contains("newer"), "{newer}");
    for other in ["{}", "[1, 2]", "\"stratann-profile\"", "{\"format\": \"another\"}"] {
        let found = refused(other);
        assert!(found.kind == ErrorKind::BadInput && found.message.contains("no profile"), "{found}");
    }
    assert_eq!(Profile::read(&folder.path().join("nowhere")).unwrap_err().kind, ErrorKind::BadInput);
    assert_eq!(Profile::read(folder.path()).unwrap_err().kind, ErrorKind::BadInput);
}

#[test]
fn costs_that_nobody_measured_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE_NAME);
    let mut profile = measured();
    profile.disk.loaded.ns_per_byte = -1.0;
    profile.write(&to(&path)).unwrap();
    assert_eq!(Profile::read(&path).unwrap_err().kind, ErrorKind::Corrupt);
}

#[test]
fn nothing_but_a_profile_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("thesis.txt");
    std::fs::write(&path, "years of work").unwrap();
    let profile = measured();
    let error = profile.write(&to(&path)).unwrap_err();
    assert!(error.kind == ErrorKind::BadInput && error.message.contains("is no profile"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "years of work");
    assert!(OutputPath::check(&path, false, &[]).is_err());
}

#[test]
fn a_profile_knows_where_it_is_from() {
    let folder = tempfile::tempdir().unwrap();
    let mut profile = measured();
    profile.origin = Origin::of_searches(folder.path());
    assert_eq!(profile.differs_from_here(folder.path()), None);
    profile.origin.cores += 1;
    let words = profile.differs_from_here(folder.path()).unwrap();
    assert!(words.contains("cores"), "{words}");
}

#[test]
fn options_out_of_range_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |options: ProfileOptions| {
        let error = Profile::measure(folder.path(), &options, &Quiet).unwrap_err();
        assert_eq!(error.kind, ErrorKind::BadInput, "{error}");
    };
    for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e6] {
        refused(ProfileOptions { seconds, ..SMALL });
    }
    refused(ProfileOptions { scratch_bytes: 1 << 20, ..SMALL });
    let nowhere = Profile::measure(&folder.path().join("nowhere"), &SMALL, &Quiet).unwrap_err();
    assert_eq!(nowhere.kind, ErrorKind::BadInput, "{nowhere}");
}

/// Stops after some units of progress.
struct Impatient(std::sync::atomic::AtomicI64);

impl Progress for Impatient {
    fn stage(&self, _: &str, _: u64, _: &str) {}
    fn advance(&self, _: u64) {
        self.0.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
    }
    fn note(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        self.0.load(std::sync::atomic::Ordering::Relaxed) < 0
    }
}

#[test]
fn an_interruption_leaves_nothing() {
    // Among 1 to 4 pieces, five passes of 21 settings of reads, 15 of distances.
    for after in [-1, 0, 5, 40, 112] {
        let folder = tempfile::tempdir().unwrap();
        let impatient = Impatient(after.into());
        let error = Profile::measure(folder.path(), &SMALL, &impatient).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Interrupted, "{after}: {error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
