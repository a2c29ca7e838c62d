//! `stratann memory-node load` of an index that was published in a store: a folder, and an S3-compatible server where
//! the program `versitygw` is installed.
#![allow(missing_docs)]

mod common;
#[path = "../../cluster/tests/gateway/mod.rs"]
mod gateway;

use std::path::{Path, PathBuf};
use std::process::Output;

use common::*;
use gateway::Gateway;
use serde_json::Value;
use stratann_testing::{Need, leave_out};

/// An index in a folder, and a memory node.
struct Place {
    data: Data,
    key: PathBuf,
    index: PathBuf,
    node: Running,
    gateway: Option<Gateway>,
}

impl Place {
    fn new(gateway: Option<Gateway>) -> Place {
        let data = Data::new(1000, 16, "f32");
        let (index, key) = (data.path("remote"), data.path("key"));
        std::fs::write(&key, "0123456789abcdef".repeat(4) + "\n").unwrap();
        build(&data.base, &index, "remote-hnsw");
        let node = ["memory-node", "--size", "8MiB", "--listen", "127.0.0.1:0", "--key-file", arg(&key)];
        let node = Running::start(&[&node[..], &["--until-eof"]].concat());
        std::fs::create_dir(data.path("tmp")).unwrap();
        Place { data, key, index, node, gateway }
    }

    /// Runs to the end, with access to the gateway and a folder of its own for temporary files.
    fn run(&self, args: &[&str]) -> Output {
        let mut command = command(&[args, &["--json"]].concat());
        command.envs(self.gateway.iter().flat_map(|gateway| gateway.variables.clone()));
        command.env("TMPDIR", self.data.path("tmp")).output().unwrap()
    }

    fn load(&self, place: &str, more: &[&str]) -> Output {
        let node = self.node.ready["listen"].as_str().unwrap();
        let load = ["memory-node", "load", place, "--nodes", node, "--key-file", arg(&self.key)];
        self.run(&[&load[..], more].concat())
    }

    fn publish(&self, index: &Path, store: &str) {
        let published = self.run(&["cluster", "publish", arg(index), store]);
        assert!(published.status.success(), "{}", stderr(&published));
    }

    /// Answers of the memory node, which must be those of the folder.
    fn check(&self) {
        let node = self.node.ready["listen"].as_str().unwrap();
        let (here, there) = (self.data.path("here"), self.data.path("there"));
        let queries = arg(&self.data.queries);
        let asked = ["-k", "5", "--nprobe", "4", "--force", "-o"];
        json(&[&["search", arg(&self.index), queries], &asked[..], &[arg(&here)]].concat());
        let memory = ["search", "--memory", node, "--key-file", arg(&self.key), queries];
        json(&[&memory[..], &asked[..], &[arg(&there)]].concat());
        assert_eq!(read_answers(&here), read_answers(&there));
    }

    fn temporary_files(&self) -> usize {
        std::fs::read_dir(self.data.path("tmp")).unwrap().count()
    }
}

fn build(base: &Path, index: &Path, kind: &str) {
    let args = [&["build", arg(base), "-o", arg(index), "--kind", kind][..], &calibrated(kind, "0")].concat();
    let own = ["--partitions", "12", "-M", "8", "--ef-construction", "60"];
    json(&[&args[..], if kind == "remote-hnsw" { &own } else { &[] }].concat());
}

fn loaded(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn load_from(place: &Place, store: &str) {
    place.publish(&place.index, store);
    let document = loaded(&place.load(store, &[]));
    assert_eq!((&document["version"], &document["groups"]), (&1.into(), &6.into()), "{document}");
    assert_eq!(place.temporary_files(), 0);
    place.check();
    // With a folder of its own, files are kept, and not fetched again.
    let kept = place.data.path("kept");
    loaded(&place.load(store, &["--data", arg(&kept)]));
    let build = kept.join(document["build_id"].as_str().unwrap());
    let times = || files(&build).keys().map(|name| modified(&build.join(name))).collect::<Vec<_>>();
    let before = times();
    assert!(!before.is_empty());
    loaded(&place.load(store, &["--data", arg(&kept)]));
    assert_eq!(times(), before);
    place.check();
}

fn modified(path: &Path) -> std::time::SystemTime {
    std::fs::metadata(path).unwrap().modified().unwrap()
}

#[test]
fn an_index_is_loaded_from_a_folder_that_is_a_store() {
    let place = Place::new(None);
    let store = arg(&place.data.path("store")).to_string();
    load_from(&place, &store);
}

#[test]
fn an_index_is_loaded_from_an_object_store() {
    let Some(gateway) = Gateway::start() else {
        leave_out(Need::S3Server, "the program versitygw is not installed");
        return;
    };
    let bucket = gateway.bucket.clone();
    let place = Place::new(Some(gateway));
    load_from(&place, &format!("s3://{bucket}/remote"));
    let empty = place.load(&format!("s3://{bucket}/nothing"), &[]);
    assert!(!empty.status.success() && stderr(&empty).contains("cluster publish"), "{}", stderr(&empty));
}

#[test]
fn what_a_store_lacks_is_named() {
    let place = Place::new(None);
    let (store, other) = (place.data.path("store"), place.data.path("flat"));
    place.publish(&place.index, arg(&store));
    loaded(&place.load(arg(&store), &[]));
    let failed = |place: &Place, from: &Path, more: &[&str], expected: &str| {
        let output = place.load(arg(from), more);
        assert!(!output.status.success() && stderr(&output).contains(expected), "{}", stderr(&output));
        assert_eq!(place.temporary_files(), 0);
    };
    // A version of another kind is not fetched.
    build(&place.data.base, &other, "flat");
    place.publish(&other, arg(&store));
    failed(&place, &store, &[], "is a flat");
    std::fs::remove_file(store.join("manifest-2.json")).unwrap();
    // A file of the version is missing, and then the whole index.
    let entries = std::fs::read_dir(&store).unwrap().map(|entry| entry.unwrap().path());
    let data = entries.filter(|path| path.is_dir()).flat_map(|dir| {
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    });
    let meta = data.into_iter().find(|path| arg(path).ends_with("meta.bin")).unwrap();
    std::fs::remove_file(&meta).unwrap();
    failed(&place, &store, &[], meta.file_name().unwrap().to_str().unwrap());
    failed(&place, &place.index, &["--data", "x"], "--data is for");
    // What was loaded before is still whole.
    place.check();
}
