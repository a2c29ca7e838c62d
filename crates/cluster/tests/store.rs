//! Publishing and fetching: in a folder, and on an S3-compatible server where the program `versitygw` is installed.

mod gateway;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};

use gateway::Gateway;
use serde_json::Value;
use stratann_cluster::store::{Store, drop_others, newest_fetched};
use stratann_engine::kinds::section::Section;
use stratann_engine::manifest::{BlockShape, FORMAT_WHOLE, Manifest, SpreadFacts};
use stratann_engine::spread::scatter::{DESCRIPTION, Description, describe};
use stratann_storage::data_file::FileEntry;
use stratann_storage::durable::hex;
use stratann_storage::names::{BuildId, FileName};
use stratann_storage::{ErrorKind, Progress, Quiet};
use stratann_testing::{Need, leave_out};
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_64;

const SERVERS: usize = 3;

/// A folder with the files of an index that is partitioned over three servers; their content is noise.
fn index(seed: u64) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let shared = ["codes.bin", "codebook.bin", "map.bin", "head.bin", "placement.bin"];
    let parts = ["blocks-00.bin", "blocks-01.bin", "blocks-02.bin"];
    let mut files = BTreeMap::new();
    for (i, role) in shared.into_iter().chain(parts).enumerate() {
        let length = if role.starts_with("blocks") { 9_000_000 + i } else { 5000 + i };
        let bytes: Vec<u8> = (0..length as u64).map(|x| (x.wrapping_mul(seed + 77) >> 7) as u8).collect();
        let name = format!("v1-{role}");
        std::fs::write(dir.path().join(&name), &bytes).unwrap();
        files.insert(
            FileName::parse(&name).unwrap(),
            FileEntry { bytes: length as u64, xxh3: hex(xxh3_64(&bytes)) },
        );
    }
    let mut manifest = Manifest {
        format_version: FORMAT_WHOLE,
        kind: "disk-graph".into(),
        metric: "l2".into(),
        dtype: "f32".into(),
        rows: 1000,
        dim: 24,
        blocks: BlockShape { count: 100, bytes: 4096, id_bytes: 4, code_bytes: 0, checksum_seed: 0 },
        code_error: 0.25,
        build: BTreeMap::new(),
        build_id: BuildId::default(),
        files,
        curves: Vec::new(),
        section: Section::None {},
        spread: Some(SpreadFacts {
            prices: None,
            servers: SERVERS,
            replicas: 1,
            overlap: 0.0,
            method: "cells".into(),
            seed,
            source: BuildId::default(),
            held: vec![40, 30, 30],
            cut_share: 0.1,
            slices: Vec::new(),
        }),
        deletes: None,
        points: None,
        curve_rows: None,
        damaged_newer: Vec::new(),
    };
    manifest.build_id = manifest.content_id();
    manifest.publish(dir.path(), 1).unwrap();
    dir
}

fn names(folder: &Path) -> Vec<String> {
    let mut all: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    all.sort();
    all
}

/// Runs all that a store promises against the one that `open` opens.
fn conforms(open: &(dyn Fn() -> Store + Sync)) {
    let store = open();
    let home = tempfile::tempdir().unwrap();
    let error = store.fetch(home.path(), Some(0), &Quiet).unwrap_err();
    assert!(error.kind == ErrorKind::BadInput && error.message.contains("holds no index"), "{error}");

    let (first, second) = (index(1), index(2));
    assert_eq!(store.publish(first.path(), &Quiet).unwrap(), 1);
    assert_eq!(store.publish(first.path(), &Quiet).unwrap(), 1, "the same build is one version");
    let got = store.fetch(home.path(), Some(1), &Quiet).unwrap();
    assert_eq!(got.number, 1);
    assert_eq!(
        names(&got.folder),
        [
            "manifest-1.json",
            "v1-blocks-01.bin",
            "v1-codebook.bin",
            "v1-codes.bin",
            "v1-head.bin",
            "v1-map.bin",
            "v1-placement.bin"
        ]
    );
    for name in names(&got.folder) {
        let (here, there) = (std::fs::read(got.folder.join(&name)), std::fs::read(first.path().join(&name)));
        assert_eq!(here.unwrap(), there.unwrap(), "{name}");
    }
    let again = store.fetch(home.path(), Some(1), &Quiet).unwrap();
    assert_eq!((again.downloaded_bytes, &again.folder), (0, &got.folder));
    // One file is damaged on the disk, another was never finished: these two are fetched again.
    std::fs::write(
        got.folder.join("v1-map.bin"),
        vec![0; std::fs::read(first.path().join("v1-map.bin")).unwrap().len()],
    )
    .unwrap();
    std::fs::remove_file(got.folder.join("v1-head.bin")).unwrap();
    std::fs::write(got.folder.join("v1-head.bin.partial"), b"half").unwrap();
    let mended = store.fetch(home.path(), Some(1), &Quiet).unwrap();
    assert_eq!(mended.downloaded_bytes, 5002 + 5003);

    assert_eq!(store.publish(second.path(), &Quiet).unwrap(), 2);
    let new = store.fetch(home.path(), None, &Quiet).unwrap();
    assert_eq!((new.number, names(&new.folder).len()), (2, 9));
    assert_ne!(new.folder, got.folder);
    assert_eq!(Manifest::read(&new.folder).unwrap().0, 2);
    std::fs::write(home.path().join("a note of mine"), "").unwrap();
    drop_others(home.path(), &new.folder).unwrap();
    assert_eq!(names(home.path()).len(), 2, "the old build has gone, what is not ours stays");
    let error = store.fetch(home.path(), Some(3), &Quiet).unwrap_err();
    assert!(error.message.contains("no server 3"), "{error}");

    assert_eq!(store.versions().unwrap(), [1, 2]);
    assert_eq!(store.drop_old(1).unwrap(), [1]);
    assert_eq!(store.versions().unwrap(), [2]);
    store.fetch(tempfile::tempdir().unwrap().path(), Some(2), &Quiet).unwrap();
    separate_indexes(open);
    race(open);
    interruptions(open);
}

/// A folder with an index for each of two parts, of three servers each.
fn apart(seeds: [u64; 2]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut description = Description {
        servers: 2 * SERVERS,
        parts: Some(2),
        replicas: None,
        method: "cells".into(),
        seed: 1,
        source: BuildId::default(),
        rows: vec![1000, 1000],
        builds: Vec::new(),
        version: None,
    };
    for (part, seed) in seeds.into_iter().enumerate() {
        let made = index(seed);
        let folder = description.folder(dir.path(), part);
        std::fs::create_dir(&folder).unwrap();
        for name in names(made.path()) {
            std::fs::rename(made.path().join(&name), folder.join(&name)).unwrap();
        }
        description.builds.push(Manifest::read(&folder).unwrap().1.build_id);
    }
    std::fs::write(dir.path().join(DESCRIPTION), description.to_text().unwrap()).unwrap();
    dir
}

/// Separate indexes are one version; each server gets the files of its part, and keeps what has not changed.
fn separate_indexes(open: &(dyn Fn() -> Store + Sync)) {
    let (store, home) = (open(), tempfile::tempdir().unwrap());
    let (first, second) = (apart([21, 22]), apart([21, 23]));
    let number = store.publish(first.path(), &Quiet).unwrap();
    assert_eq!(store.publish(first.path(), &Quiet).unwrap(), number, "the same indexes are one version");
    let (_, version) = store.newest().unwrap().unwrap();
    assert_eq!(
        (version.servers(), version.build_id()),
        (Some(6), describe(first.path()).unwrap().build_id())
    );

    // Server 4 is the second of the second part.
    let got = store.fetch(home.path(), Some(4), &Quiet).unwrap();
    assert_eq!(names(&got.folder), ["part-01", DESCRIPTION]);
    let own = got.folder.join("part-01");
    assert!(names(&own).contains(&"v1-blocks-01.bin".into()) && names(&own).len() == 7, "{:?}", names(&own));
    for name in names(&own) {
        let there = std::fs::read(first.path().join("part-01").join(&name)).unwrap();
        assert_eq!(std::fs::read(own.join(&name)).unwrap(), there, "{name}");
    }
    assert_eq!(store.fetch(home.path(), Some(4), &Quiet).unwrap().downloaded_bytes, 0);
    for asked in [Some(4), None] {
        let here = newest_fetched(home.path(), asked).unwrap().expect("it can be opened without the store");
        assert_eq!((here.number, here.servers, here.server), (number, Some(6), Some(4)));
    }
    assert_eq!(newest_fetched(home.path(), Some(3)).unwrap(), None);
    std::fs::remove_file(own.join("v1-map.bin")).unwrap();
    assert_eq!(newest_fetched(home.path(), Some(4)).unwrap(), None, "a file is missing");

    for (server, word) in [(Some(6), "no server 6"), (None, "set server")] {
        let error = store.fetch(home.path(), server, &Quiet).unwrap_err();
        assert!(error.kind == ErrorKind::BadInput && error.message.contains(word), "{error}");
    }
    // Of the next version the first part is the same: its servers download nothing.
    let home = tempfile::tempdir().unwrap();
    store.fetch(home.path(), Some(1), &Quiet).unwrap();
    assert_eq!(store.publish(second.path(), &Quiet).unwrap(), number + 1);
    let next = store.fetch(home.path(), Some(1), &Quiet).unwrap();
    assert!(next.downloaded_bytes == 0 && next.copied_bytes > 9_000_000, "{next:?}");
    // What the newest version needs is kept.
    store.drop_old(1).unwrap();
    let home = tempfile::tempdir().unwrap();
    store.fetch(home.path(), Some(0), &Quiet).unwrap();
    store.fetch(home.path(), Some(5), &Quiet).unwrap();
}

/// When many publish different builds at once, each version has one winner, and all versions are whole.
fn race(open: &(dyn Fn() -> Store + Sync)) {
    let before = *open().versions().unwrap().last().unwrap();
    let indexes: Vec<TempDir> = (10..14).map(index).collect();
    let won: Vec<bool> = std::thread::scope(|scope| {
        let publish = |dir: &TempDir| {
            let path = dir.path().to_path_buf();
            scope.spawn(move || open().publish(&path, &Quiet))
        };
        let all: Vec<_> = indexes.iter().map(publish).collect();
        all.into_iter()
            .map(|thread| match thread.join().unwrap() {
                Ok(_) => true,
                Err(e) => {
                    assert!(e.message.contains("somebody else"), "{e}");
                    false
                }
            })
            .collect()
    });
    let store = open();
    let winners = won.iter().filter(|&&w| w).count() as u64;
    assert!(winners >= 1);
    assert_eq!(store.newest().unwrap().unwrap().0, before + winners);
    store.fetch(tempfile::tempdir().unwrap().path(), None, &Quiet).unwrap();
}

struct Stop(AtomicI64);

impl Progress for Stop {
    fn stage(&self, _: &str, _: u64, _: &str) {}
    fn advance(&self, _: u64) {}
    fn note(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        self.0.fetch_sub(1, Ordering::Relaxed) <= 0
    }
}

fn interruptions(open: &(dyn Fn() -> Store + Sync)) {
    let store = open();
    let (dir, home) = (index(99), tempfile::tempdir().unwrap());
    let before = store.versions().unwrap();
    let mut stopped = 0;
    for patience in (0..).step_by(7) {
        match store.publish(dir.path(), &Stop(AtomicI64::new(patience))) {
            Ok(_) => break,
            Err(e) => assert_eq!(e.kind, ErrorKind::Interrupted),
        }
        assert_eq!(store.versions().unwrap(), before);
        stopped += 1;
    }
    for patience in (0..).step_by(300) {
        match store.fetch(home.path(), Some(0), &Stop(AtomicI64::new(patience))) {
            Ok(_) => break,
            Err(e) => assert_eq!(e.kind, ErrorKind::Interrupted),
        }
        stopped += 1;
    }
    assert!(stopped > 1, "{stopped}");
}

#[test]
fn a_folder_is_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("shared");
    conforms(&|| Store::open(place.to_str().unwrap()).unwrap());
}

#[test]
fn an_s3_server_is_a_store() {
    let Some(gateway) = Gateway::start() else {
        leave_out(Need::S3Server, "the program versitygw is not installed");
        return;
    };
    let at = |place: &str| Store::open_with(place, gateway.variables.clone()).unwrap();
    conforms(&|| at(&format!("s3://{}/indexes/one", gateway.bucket)));
    let gone = at("s3://no-such-bucket/x").newest().unwrap_err();
    assert!(gone.message.contains("no-such-bucket"), "{gone}");
}

#[test]
fn damaged_files_are_neither_published_nor_fetched() {
    let (dir, place) = (index(5), tempfile::tempdir().unwrap());
    let store = Store::open(place.path().to_str().unwrap()).unwrap();
    let path = dir.path().join("v1-codes.bin");
    let good = std::fs::read(&path).unwrap();
    let mut bad = good.clone();
    bad[1000] ^= 4;
    for damaged in [&bad[..], &good[..100], &[]] {
        std::fs::write(&path, damaged).unwrap();
        let error = store.publish(dir.path(), &Quiet).unwrap_err();
        assert!(error.kind == ErrorKind::Corrupt && error.message.contains("v1-codes.bin"), "{error}");
        assert!(store.newest().unwrap().is_none());
    }
    std::fs::write(&path, &good).unwrap();
    assert_eq!(store.publish(dir.path(), &Quiet).unwrap(), 1);
    let build = Manifest::read(dir.path()).unwrap().1.build_id;
    for (name, word) in
        [(format!("{build}/v1-codes.bin"), "arrived damaged"), ("manifest-1.json".into(), "damaged")]
    {
        let stored = place.path().join(name);
        let good = std::fs::read(&stored).unwrap();
        let mut bad = good.clone();
        bad[good.len() / 2] ^= 1;
        std::fs::write(&stored, &bad).unwrap();
        let home = tempfile::tempdir().unwrap();
        let error = store.fetch(home.path(), Some(0), &Quiet).unwrap_err();
        assert!(error.kind == ErrorKind::Corrupt && error.message.contains(word), "{error}");
        assert!(
            stratann_engine::manifest::newest(&home.path().join(build.to_string())).ok().flatten().is_none()
        );
        std::fs::write(&stored, &good).unwrap();
    }
    let error = Store::open("gopher://x/y").unwrap_err();
    assert!(error.message.contains("gopher"), "{error}");
}

#[test]
fn separate_indexes_that_do_not_fit_together_are_neither_published_nor_fetched() {
    let (dir, place) = (apart([31, 32]), tempfile::tempdir().unwrap());
    let store = Store::open(place.path().to_str().unwrap()).unwrap();
    // One index was replaced.
    let (own, aside) = (dir.path().join("part-01"), dir.path().join("aside"));
    std::fs::rename(&own, &aside).unwrap();
    let other = index(33);
    std::fs::create_dir(&own).unwrap();
    for name in names(other.path()) {
        std::fs::rename(other.path().join(&name), own.join(&name)).unwrap();
    }
    let error = store.publish(dir.path(), &Quiet).unwrap_err();
    assert!(error.message.contains("part-01 is not the index that"), "{error}");
    std::fs::remove_dir_all(&own).unwrap();
    assert!(store.publish(dir.path(), &Quiet).is_err() && store.newest().unwrap().is_none());
    std::fs::rename(&aside, &own).unwrap();
    assert_eq!(store.publish(dir.path(), &Quiet).unwrap(), 1);

    let builds = describe(dir.path()).unwrap().builds;
    let part = |part: usize| place.path().join(builds[part].to_string()).join("manifest.json");
    let damage = |path: &Path, change: &dyn Fn(&[u8]) -> Vec<u8>, word: &str| {
        let good = std::fs::read(path).unwrap();
        std::fs::write(path, change(&good)).unwrap();
        let error = store.fetch(tempfile::tempdir().unwrap().path(), Some(4), &Quiet).unwrap_err();
        assert!(error.kind == ErrorKind::Corrupt && error.message.contains(word), "{error}");
        std::fs::write(path, good).unwrap();
    };
    let first = std::fs::read(part(0)).unwrap();
    damage(&part(1), &|_| first.clone(), "the manifest of another build");
    damage(&part(1), &|good| good[..good.len() / 2].to_vec(), "damaged");
    let version = place.path().join("manifest-1.json");
    let text =
        |good: &[u8], from: &str, to: &str| String::from_utf8_lossy(good).replace(from, to).into_bytes();
    damage(&version, &|good| text(good, "\"servers\": 6", "\"servers\": 8"), "checksum");
    damage(&version, &|good| good[..good.len() / 2].to_vec(), "damaged");
    store.fetch(tempfile::tempdir().unwrap().path(), Some(4), &Quiet).unwrap();
}

/// The document of a version with another value at `pointer`, and the checksum that belongs to it.
fn forged(good: &[u8], change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut document: Value = serde_json::from_slice(good).unwrap();
    document.as_object_mut().unwrap().remove("checksum");
    change(&mut document);
    document["checksum"] = hex(xxh3_64(document.to_string().as_bytes())).into();
    (document.to_string() + "\n").into_bytes()
}

#[test]
fn builds_of_separate_indexes_are_no_paths() {
    let (dir, place, home) = (apart([31, 32]), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = Store::open(place.path().to_str().unwrap()).unwrap();
    store.publish(dir.path(), &Quiet).unwrap();
    let version = place.path().join("manifest-1.json");
    let good = std::fs::read(&version).unwrap();
    let data = home.path().join("data");
    for name in ["../../outside", "/outside", "..", "0123456789ABCDEF"] {
        std::fs::write(&version, forged(&good, |document| document["builds"][1] = name.into())).unwrap();
        let error = store.fetch(&data, Some(4), &Quiet).unwrap_err();
        assert!(error.kind == ErrorKind::Corrupt && error.message.contains("no id of a build"), "{error}");
        assert_eq!(names(home.path()), Vec::<String>::new());
    }
    std::fs::write(&version, good).unwrap();
    store.fetch(&data, Some(4), &Quiet).unwrap();
}
