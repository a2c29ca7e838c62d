//! A changed placement: a server copies what it has, and fetches only what moved to it.

mod gateway;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};

use gateway::Gateway;
use stratann_cluster::store::{Fetched, Store, drop_others};
use stratann_engine::build::{BuildOptions, IndexKind, KindOptions, LocalPlan, build};
use stratann_engine::dataset::{Reader, Shape};
use stratann_engine::index::OpenOptions;
use stratann_engine::manifest::Manifest;
use stratann_engine::spread::moved::{Origin, PartOf, moved};
use stratann_engine::spread::{Method, PartitionOptions, Shard, partition};
use stratann_engine::{DType, Metric, verify};
use stratann_storage::{ErrorKind, Progress, Quiet};
use stratann_testing::{Need, leave_out};
use tempfile::TempDir;

const DIM: usize = 16;

/// An index of vectors that are spread evenly, and its folder.
fn index(kind: IndexKind) -> TempDir {
    let bytes: Vec<u8> =
        (0..4000 * DIM as u64).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A) >> 33) as u8).collect();
    let base = Reader::from_memory(Shape { rows: 4000, dim: DIM, dtype: DType::U8 }, bytes).unwrap();
    let mut options = BuildOptions::new(kind, Metric::L2);
    options.calibration_queries = 0;
    if let KindOptions::HybridIvf(own) = &mut options.kind {
        own.clusters = Some(60);
        own.plan = LocalPlan::Uniform(Default::default()).into();
    }
    let dir = tempfile::tempdir().unwrap();
    build(&base, dir.path(), &options, &Quiet).unwrap();
    dir
}

/// Partitions of one index, each in a folder of its own.
struct Partitions {
    source: TempDir,
    dir: TempDir,
}

impl Partitions {
    fn of(kind: IndexKind) -> Partitions {
        Partitions { source: index(kind), dir: tempfile::tempdir().unwrap() }
    }

    fn make(&self, name: &str, change: impl FnOnce(&mut PartitionOptions)) -> PathBuf {
        let out = self.dir.path().join(name);
        let mut options = PartitionOptions { method: Method::Random, threads: 2, ..PartitionOptions::new(3) };
        change(&mut options);
        partition(self.source.path(), &out, &options, &Quiet).unwrap();
        out
    }
}

fn part(folder: &Path, server: usize) -> (PathBuf, u64) {
    let manifest = Manifest::read(folder).unwrap().1;
    let path = folder.join(manifest.part_name(server).unwrap());
    let bytes = std::fs::metadata(&path).unwrap().len();
    (path, bytes)
}

/// Bytes of the units that a server holds in one partition and not in the other.
fn moved_bytes(kind: IndexKind, old: &Path, new: &Path, server: usize) -> u64 {
    let shards = [old, new].map(|folder| Shard::open(folder, server, OpenOptions::default()).unwrap());
    let holds = |s: usize, unit: u32| shards[s].placement().replicas(unit) >> server & 1 == 1;
    let manifest = shards[0].manifest();
    let count = (0..manifest.units()).filter(|&unit| holds(1, unit) && !holds(0, unit)).count();
    if kind == IndexKind::DiskGraph {
        return count as u64 * manifest.blocks.bytes as u64;
    }
    let of = |s: usize| PartOf { folder: [old, new][s], manifest: shards[s].manifest(), server };
    let moved = moved(of(0), of(1)).unwrap().unwrap();
    moved.pieces().filter(|piece| piece.origin == Origin::New).map(|piece| piece.bytes).sum()
}

fn fetch(store: &Store, home: &Path, server: u8) -> Fetched {
    store.fetch(home, Some(server), &Quiet).unwrap()
}

fn only_what_moved_is_fetched(store: &Store, kind: IndexKind) {
    let partitions = Partitions::of(kind);
    let first = partitions.make("first", |_| {});
    let second = partitions.make("second", |options| options.seed = 2);
    let more = partitions.make("more", |options| options.replicas = 2);
    let home = tempfile::tempdir().unwrap();
    store.publish(&first, &Quiet).unwrap();
    let mut before = (first, fetch(store, home.path(), 1));
    assert_eq!(before.1.copied_bytes, 0);
    // From the second replicas back to the first everything is here but the placement.
    for (new, has_moved) in [(&second, true), (&more, true), (&before.0.clone(), false)] {
        store.publish(new, &Quiet).unwrap();
        let got = fetch(store, home.path(), 1);
        assert_ne!(got.folder, before.1.folder);
        let (path, bytes) = part(new, 1);
        let here = std::fs::read(got.folder.join(path.file_name().unwrap())).unwrap();
        assert!(here == std::fs::read(&path).unwrap(), "the part is that of the store");
        // Shared files are the same; the placement and the moved units are not.
        let manifest = Manifest::read(new).unwrap().1;
        let placement = manifest.files.iter().find(|f| f.0.ends_with("placement.bin")).unwrap().1.bytes;
        let moved = moved_bytes(kind, &before.0, new, 1);
        assert_eq!((got.downloaded_bytes, moved > 0), (placement + moved, has_moved));
        assert!(moved < bytes * 9 / 10, "{moved} of {bytes}");
        let all: u64 = manifest.needed_by(Some(1)).unwrap().iter().map(|f| f.1.bytes).sum();
        let padding = all - got.copied_bytes - got.downloaded_bytes;
        assert!(padding < 4096, "{got:?} of {all}");
        assert!(got.text().contains("copied from the version before"), "{}", got.text());
        drop_others(home.path(), &got.folder).unwrap();
        Shard::open(&got.folder, 1, OpenOptions::default()).unwrap();
        before = (new.clone(), got);
    }
}

#[test]
fn a_server_fetches_only_what_moved_to_it() {
    for kind in [IndexKind::DiskGraph, IndexKind::HybridIvf] {
        let place = tempfile::tempdir().unwrap();
        only_what_moved_is_fetched(&Store::open(place.path().to_str().unwrap()).unwrap(), kind);
    }
}

#[test]
fn an_s3_server_gives_ranges_too() {
    let Some(gateway) = Gateway::start() else {
        leave_out(Need::S3Server, "the program versitygw is not installed");
        return;
    };
    let place = format!("s3://{}/indexes/moved", gateway.bucket);
    only_what_moved_is_fetched(
        &Store::open_with(&place, gateway.variables.clone()).unwrap(),
        IndexKind::HybridIvf,
    );
}

#[test]
fn what_was_changed_on_the_disk_is_fetched_as_a_whole() {
    let partitions = Partitions::of(IndexKind::HybridIvf);
    let (first, second) =
        (partitions.make("first", |_| {}), partitions.make("second", |options| options.seed = 2));
    let place = tempfile::tempdir().unwrap();
    let store = Store::open(place.path().to_str().unwrap()).unwrap();
    store.publish(&first, &Quiet).unwrap();
    let homes = [(); 4].map(|()| tempfile::tempdir().unwrap());
    let old = homes.each_ref().map(|home| fetch(&store, home.path(), 2).folder);
    store.publish(&second, &Quiet).unwrap();
    let (path, bytes) = part(&second, 2);
    let name = path.file_name().unwrap();
    // A byte of a unit that stays is wrong; the file is cut; it is gone; the placement is damaged.
    let damage: [&dyn Fn(&Path); 4] = [
        &|folder| {
            let path = part(folder, 2).0;
            let mut bytes = std::fs::read(&path).unwrap();
            bytes.iter_mut().step_by(50).for_each(|b| *b ^= 1);
            std::fs::write(path, bytes).unwrap();
        },
        &|folder| {
            let path = part(folder, 2).0;
            let bytes = std::fs::read(&path).unwrap();
            std::fs::write(path, &bytes[..5000]).unwrap();
        },
        &|folder| std::fs::remove_file(part(folder, 2).0).unwrap(),
        &|folder| std::fs::write(folder.join("v1-placement.bin"), [7; 68]).unwrap(),
    ];
    for ((home, folder), damage) in homes.iter().zip(&old).zip(damage) {
        damage(folder);
        let got = fetch(&store, home.path(), 2);
        assert!(got.downloaded_bytes >= bytes, "{got:?}");
        assert!(std::fs::read(got.folder.join(name)).unwrap() == std::fs::read(&path).unwrap());
        assert!(!got.folder.join(name).with_extension("bin.partial").exists());
    }
    // An index that was partitioned from another build shares nothing.
    let others = Partitions::of(IndexKind::DiskGraph);
    let other = others.make("other", |_| {});
    store.publish(&other, &Quiet).unwrap();
    let got = fetch(&store, homes[0].path(), 2);
    assert_eq!(got.copied_bytes, 0);
    assert_eq!(verify::verify(&second, &Quiet).unwrap().violations, []);
}

/// Asks to stop after so many questions.
struct Stop(AtomicI64);

impl Progress for Stop {
    fn stage(&self, _: &str, _: u64, _: &str) {}
    fn advance(&self, _: u64) {}
    fn note(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        self.0.fetch_sub(1, Ordering::Relaxed) <= 0
    }
}

#[test]
fn an_interruption_or_a_damaged_store_leaves_no_part_that_looks_whole() {
    let partitions = Partitions::of(IndexKind::HybridIvf);
    let (first, second) =
        (partitions.make("first", |_| {}), partitions.make("second", |options| options.seed = 2));
    let (place, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = Store::open(place.path().to_str().unwrap()).unwrap();
    store.publish(&first, &Quiet).unwrap();
    fetch(&store, home.path(), 0);
    store.publish(&second, &Quiet).unwrap();
    let build = Manifest::read(&second).unwrap().1.build_id;
    let (path, _) = part(&second, 0);
    let name = path.file_name().unwrap();
    let (stored, here) =
        (place.path().join(build.to_string()).join(name), home.path().join(build.to_string()).join(name));
    let good = std::fs::read(&path).unwrap();
    let mut bad = good.clone();
    bad.iter_mut().for_each(|byte| *byte ^= 1);
    std::fs::write(&stored, &bad).unwrap();
    let error = store.fetch(home.path(), Some(0), &Quiet).unwrap_err();
    assert!(error.kind == ErrorKind::Corrupt && error.message.contains("arrived damaged"), "{error}");
    assert!(!here.exists());
    std::fs::write(&stored, &good).unwrap();
    let mut stopped = 0;
    let got = (0..).find_map(|patience| match store.fetch(home.path(), Some(0), &Stop(patience.into())) {
        Ok(got) => Some(got),
        Err(e) => {
            assert_eq!(e.kind, ErrorKind::Interrupted);
            assert!(!here.exists());
            stopped += 1;
            None
        }
    });
    assert!(stopped > 3 && got.unwrap().copied_bytes > 0, "{stopped}");
    assert!(std::fs::read(&here).unwrap() == good);
}
