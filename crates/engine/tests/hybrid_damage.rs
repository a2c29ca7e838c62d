//! Damage to a `hybrid-ivf`: a failed query or the same answer, an error at opening, a finding that names the place;
//! never a panic.

mod common;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use common::{Set, clustered, list_options, queries, quick, run_plain, with_lists};
use proptest::prelude::*;
use stratann_core::build::hash;
use stratann_core::exact::Bounds;
use stratann_core::format::directory::LocalKind;
use stratann_core::format::{checksum, seeded_checksum};
use stratann_core::query::{Budget, Outcome, Params};
use stratann_engine::build::{IndexKind, LocalPlan, build};
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{Effort, SearchOptions};
use stratann_engine::{DType, Metric, verify};
use stratann_storage::durable::hex;
use stratann_storage::{ErrorKind, Quiet};
use tempfile::TempDir;

const TABLES: [&str; 5] =
    ["v1-directory.bin", "v1-nav.bin", "v1-centroids.bin", "v1-sublists.bin", "v1-codebook.bin"];
const LISTS: &str = "v1-lists.bin";

struct Place {
    dir: TempDir,
    index: Index,
    bytes: Arc<Vec<u8>>,
}

fn place(kind: LocalKind) -> &'static Place {
    static PLACES: [OnceLock<Place>; 2] = [OnceLock::new(), OnceLock::new()];
    PLACES[usize::from(kind == LocalKind::Ivf)].get_or_init(|| {
        let set = Set::new(DType::F32, 24, &clustered(2000, 24, 12, 1));
        let dir = tempfile::tempdir().unwrap();
        let options = list_options(quick(IndexKind::HybridIvf, Metric::L2), |own| {
            (own.clusters, own.plan) = (Some(30), LocalPlan::Uniform(kind).into());
        });
        build(&set.reader(), dir.path(), &options, &Quiet).unwrap();
        let index = Index::open(dir.path(), OpenOptions::default()).unwrap();
        let bytes = Arc::new(std::fs::read(dir.path().join(LISTS)).unwrap());
        Place { dir, index, bytes }
    })
}

/// A copy that a test may damage.
fn copy(kind: LocalKind) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(place(kind).dir.path()).unwrap().flatten() {
        std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    dir
}

/// Changes a file of a copy.
fn change(folder: &Path, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let path = folder.join(name);
    let mut bytes = std::fs::read(&path).unwrap();
    change(&mut bytes);
    std::fs::write(&path, bytes).unwrap();
}

/// Publishes a manifest that takes a file for what it is now.
fn vouch_for(folder: &Path, name: &str) {
    let (number, mut manifest) = Manifest::read(folder).unwrap();
    let bytes = std::fs::read(folder.join(name)).unwrap();
    let entry = manifest.files.get_mut(name).unwrap();
    (entry.bytes, entry.xxh3) = (bytes.len() as u64, hex(checksum(&bytes)));
    manifest.build_id = manifest.content_id();
    manifest.publish(folder, number + 1).unwrap();
}

fn params(bounds: Bounds) -> Params {
    let params = Params { width: 2, approach_width: 2, ..Params::hybrid_ivf(10, 12) };
    with_lists(params, |own| (own.bounds, own.local_lists) = (bounds, 100))
}

#[test]
fn a_flipped_bit_fails_the_query_or_changes_nothing() {
    let asked = queries(3, 24);
    for kind in [LocalKind::Flat, LocalKind::Ivf] {
        let place = place(kind);
        let mut bytes = place.bytes.to_vec();
        let (mut failed, mut same) = (0, 0);
        for bounds in [Bounds::Off, Bounds::Both] {
            let ask = |bytes: &[u8], q: usize| {
                run_plain(&place.index.view(), bytes, asked.row(q), params(bounds), Budget::default(), 1)
            };
            let whole: Vec<_> = (0..asked.len()).map(|q| ask(&place.bytes, q)).collect();
            for i in 0..600 {
                let at = hash(3, 1, i) as usize % bytes.len();
                let bit = 1 << (hash(3, 2, i) % 8);
                bytes[at] ^= bit;
                for (q, whole) in whole.iter().enumerate() {
                    let state = ask(&bytes, q);
                    match state.outcome() {
                        Outcome::Lost { .. } => failed += 1,
                        other => {
                            assert_eq!(other, Outcome::Complete);
                            assert_eq!(state.results(), whole.results(), "byte {at}");
                            same += 1;
                        }
                    }
                }
                bytes[at] ^= bit;
            }
        }
        assert!(failed > 100 && same > 100, "{failed} failed, {same} were the same");
    }
}

fn search(folder: &Path, head_budget: u64) -> stratann_storage::Result<Vec<(usize, String)>> {
    let index =
        Index::open(folder, OpenOptions { head_budget: Some(head_budget), ..OpenOptions::default() })?;
    let options = SearchOptions { effort: Effort::Nprobe(30, None, None), ..SearchOptions::default() };
    index.search(&queries(5, 24).bytes, &options, &Quiet).map(|answers| answers.failed)
}

#[test]
fn a_damaged_list_is_named_by_those_who_read_it() {
    let dir = copy(LocalKind::Flat);
    let clusters = place(LocalKind::Flat).index.view().kind.hybrid_ivf().copied().unwrap();
    let list = 7;
    let at = clusters.directory.codes[list] as usize + 60;
    change(dir.path(), LISTS, |bytes| bytes[at] ^= 4);
    let failed = search(dir.path(), 0).unwrap();
    assert!(!failed.is_empty() && failed.iter().all(|f| f.1.contains(LISTS)), "{failed:?}");
    // With codes in RAM it is met when they are brought there.
    let error = search(dir.path(), 64 << 20).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt);
    assert!(error.message.contains("inverted list 7 ") && error.message.contains(LISTS), "{error}");
    let report = verify::verify(dir.path(), &Quiet).unwrap();
    let named = report.violations.iter().find(|f| f.list == Some(7)).unwrap();
    assert_eq!((named.file.as_str(), named.offset), (LISTS, Some(clusters.directory.codes[list])));

    // A record alone.
    change(dir.path(), LISTS, |bytes| bytes[at] ^= 4);
    assert_eq!(verify::verify(dir.path(), &Quiet).unwrap().violations, []);
    let id = clusters.directory.ids[list] + 3;
    let record = clusters.directory.record_at(&clusters.shape, id);
    change(dir.path(), LISTS, |bytes| bytes[record as usize + 1] ^= 64);
    let report = verify::verify(dir.path(), &Quiet).unwrap();
    let named = report.violations.iter().find(|f| f.list == Some(7)).unwrap();
    assert!(named.offset == Some(record) && named.what.contains(&format!("member {id} ")), "{named:?}");
    assert_eq!(report.violations_found, 2, "the file as a whole, and the record: {:?}", report.violations);
}

/// Changes a file's content.
type Lie = fn(&mut [u8]);

/// Damage that checksums cannot find, since they were computed again: false bounds that would discard the right
/// answers.
#[test]
fn a_head_that_lies_is_found() {
    let clusters = place(LocalKind::Flat).index.view().kind.hybrid_ivf().copied().unwrap();
    let (list, shape) = (5u32, clusters.shape);
    let at = clusters.directory.codes[list as usize] as usize;
    let members = clusters.directory.members(list) as usize;
    let length = shape.list_codes_bytes(members);
    let table = length - members * shape.member_bytes();
    let lies: [(&str, usize, Lie); 4] = [
        ("radius", 20, |step| step.copy_from_slice(&0f32.to_le_bytes())),
        ("distance", 24, |least| least.copy_from_slice(&1e6f32.to_le_bytes())),
        ("term", table, |term| term.copy_from_slice(&1e6f32.to_le_bytes())),
        ("centroid", 32, |half| half.copy_from_slice(&[0, 0x7b, 0, 0x7b])),
    ];
    for (word, offset, lie) in lies {
        let dir = copy(LocalKind::Flat);
        change(dir.path(), LISTS, |bytes| {
            let head = &mut bytes[at..at + length];
            lie(&mut head[offset..offset + 4]);
            let sum = seeded_checksum(shape.checksum_seed, &head[8..]);
            head[..8].copy_from_slice(&sum.to_le_bytes());
        });
        vouch_for(dir.path(), LISTS);
        let report = verify::verify(dir.path(), &Quiet).unwrap();
        assert!(report.violations.iter().all(|f| f.list == Some(list)), "{:?}", report.violations);
        assert!(report.violations.iter().any(|f| f.what.contains(word)), "{word}: {:?}", report.violations);
    }
}

#[test]
fn two_vectors_with_one_id_are_found() {
    let dir = copy(LocalKind::Flat);
    let clusters = place(LocalKind::Flat).index.view().kind.hybrid_ivf().copied().unwrap();
    let record = |id| {
        let at = clusters.directory.record_at(&clusters.shape, id) as usize;
        at..at + clusters.shape.record_bytes()
    };
    change(dir.path(), LISTS, |bytes| {
        let content = bytes[record(10)][..clusters.shape.vector_bytes].to_vec();
        let id = &bytes[record(11)][clusters.shape.vector_bytes..][..4];
        let id = u64::from(u32::from_le_bytes(id.try_into().unwrap()));
        let mut forged = Vec::new();
        stratann_core::format::inverted_list::write_record(
            &clusters.shape,
            10,
            &content,
            1.0,
            id,
            &mut forged,
        );
        bytes[record(10)].copy_from_slice(&forged);
    });
    vouch_for(dir.path(), LISTS);
    let report = verify::verify(dir.path(), &Quiet).unwrap();
    assert_eq!(report.violations_found, 1, "{:?}", report.violations);
    assert!(report.violations[0].what.contains("two vectors"));
}

#[test]
fn a_navigation_graph_that_is_another_is_found() {
    let dir = copy(LocalKind::Flat);
    change(dir.path(), "v1-nav.bin", |bytes| {
        let last = bytes.len() - 1;
        bytes[last] ^= 255;
    });
    vouch_for(dir.path(), "v1-nav.bin");
    let report = verify::verify(dir.path(), &Quiet).unwrap();
    assert!(report.violations.iter().any(|f| f.what.contains("navigation graph")), "{:?}", report.violations);
}

#[test]
fn damaged_tables_are_named_when_opened() {
    for name in TABLES {
        let dir = copy(LocalKind::Ivf);
        let whole = std::fs::read(dir.path().join(name)).unwrap();
        let lengths = [0, 1, 11, whole.len() / 2, whole.len() - 1];
        let cut = lengths.map(|length| whole[..length].to_vec());
        let flipped = [0, 5, whole.len() / 2, whole.len() - 1].map(|at| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            bytes
        });
        for bytes in cut.iter().chain(&flipped) {
            std::fs::write(dir.path().join(name), bytes).unwrap();
            let error = Index::open(dir.path(), OpenOptions::default()).unwrap_err();
            assert!(error.kind == ErrorKind::Corrupt && error.message.contains(name), "{error}");
            assert!(!error.message.contains('\n'));
            let report = verify::verify(dir.path(), &Quiet).unwrap();
            assert!(report.violations.iter().any(|f| f.file == name), "{:?}", report.violations);
        }
        std::fs::remove_file(dir.path().join(name)).unwrap();
        assert!(Index::open(dir.path(), OpenOptions::default()).is_err());
    }
    let dir = copy(LocalKind::Ivf);
    change(dir.path(), LISTS, |bytes| bytes.truncate(bytes.len() - 4096));
    let error = Index::open(dir.path(), OpenOptions::default()).unwrap_err();
    assert!(error.kind == ErrorKind::Corrupt && error.message.contains(LISTS), "{error}");
}

/// The file that is damaged, and how: `at` and `to` are drawn.
fn tamper(folder: &Path, name: &str, at: u64, to: u32, cut: bool) -> PathBuf {
    change(folder, name, |bytes| {
        if cut {
            bytes.truncate(at as usize % bytes.len());
        } else {
            // Whole words, so that counts, offsets and floats become others.
            let at = at as usize % (bytes.len() / 4) * 4;
            bytes[at..at + 4].copy_from_slice(&to.to_le_bytes());
        }
    });
    folder.join(name)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// Tables that a manifest vouches for: refused, or searched without a panic.
    #[test]
    fn senseless_tables_never_end_the_program(
        is_ivf in any::<bool>(),
        table in 0usize..TABLES.len(),
        at in prop_oneof![0u64..100, any::<u64>()],
        to in prop_oneof![any::<u32>(), 0u32..4000, Just(u32::MAX), Just(f32::NAN.to_bits()), Just(f32::INFINITY.to_bits())],
        cut in prop::bool::weighted(0.1),
    ) {
        let dir = copy(if is_ivf { LocalKind::Ivf } else { LocalKind::Flat });
        tamper(dir.path(), TABLES[table], at, to, cut);
        vouch_for(dir.path(), TABLES[table]);
        if let Err(error) = search(dir.path(), 0) {
            prop_assert!(!error.message.contains('\n'));
        }
        verify::verify(dir.path(), &Quiet).unwrap();
    }
}
