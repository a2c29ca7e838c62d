//! Outputs replace nothing unasked: each mistake ends with exit code 2 and one line, and changes nothing on disk.
#![allow(missing_docs)]

mod common;
use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::*;

/// Type, inode, content and target of every entry below a folder.
type Snapshot = BTreeMap<PathBuf, (u32, u64, Vec<u8>, Option<PathBuf>)>;

fn snapshot(folder: &Path) -> Snapshot {
    let mut found = Snapshot::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let (path, meta) = (entry.path(), entry.metadata().unwrap());
            let bytes = if meta.is_file() { std::fs::read(&path).unwrap() } else { Vec::new() };
            if meta.is_dir() {
                folders.push(path.clone());
            }
            let target = std::fs::read_link(&path).ok();
            found.insert(path, (meta.mode(), meta.ino(), bytes, target));
        }
    }
    found
}

/// A folder with vectors, an index, and one entry of each kind that is no regular file.
struct Place {
    data: Data,
    index: PathBuf,
    truth: PathBuf,
    root: PathBuf,
    _socket: std::os::unix::net::UnixListener,
}

impl Place {
    fn new() -> Place {
        let data = Data::new(300, 8, "f32");
        let (index, truth) = (data.path("index"), data.truth("l2"));
        json(&["build", arg(&data.base), "-o", arg(&index), "--kind", "flat"]);
        let root = data.base.parent().unwrap().to_path_buf();
        for (name, input) in [("base", &data.base), ("queries", &data.queries), ("truth", &truth)] {
            symlink(input, root.join(format!("link-{name}"))).unwrap();
            std::fs::hard_link(input, root.join(format!("same-{name}"))).unwrap();
        }
        symlink(root.join("nowhere"), root.join("dangling")).unwrap();
        std::fs::write(root.join("thesis"), "years of work").unwrap();
        symlink(root.join("thesis"), root.join("link")).unwrap();
        std::fs::create_dir(root.join("folder")).unwrap();
        std::fs::write(root.join("folder/notes.txt"), "more work").unwrap();
        fifo(&root.join("fifo"));
        let socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
        Place { data, index, truth, root, _socket: socket }
    }

    fn path(&self, name: &str) -> String {
        arg(&self.root.join(name)).to_string()
    }

    /// Runs a command that must be refused at once, in one line that contains `words`, and change nothing.
    fn refused(&self, args: &[&str], words: &[&str]) {
        let before = snapshot(&self.root);
        let line = refused_in_time(args);
        for word in words {
            assert!(line.contains(word), "{args:?}: no {word:?} in {line}");
        }
        let after = snapshot(&self.root);
        let differs = |path: &&PathBuf| before.get(*path) != after.get(*path);
        let changed: Vec<&PathBuf> = before.keys().chain(after.keys()).filter(differs).collect();
        assert!(changed.is_empty(), "{args:?}: {changed:?} changed");
    }

    /// The commands that write a file, each up to the name of this file.
    fn commands(&self) -> Vec<Vec<String>> {
        let (base, queries, index) = (arg(&self.data.base), arg(&self.data.queries), arg(&self.index));
        let truth = arg(&self.truth);
        let strings = |args: &[&str]| args.iter().map(|a| (*a).to_string()).collect::<Vec<_>>();
        vec![
            strings(&["search", index, queries, "--groundtruth", truth, "-o"]),
            strings(&["search", "--connect", "127.0.0.1:9", queries, "--groundtruth", truth, "-o"]),
            strings(&["groundtruth", base, queries, "-k", "5", "-o"]),
            strings(&["profile", arg(&self.root), "--seconds", "0.2", "--scratch", "4MiB", "-o"]),
        ]
    }
}

fn fifo(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    assert!(std::fs::symlink_metadata(path).unwrap().file_type().is_fifo());
}

/// A null device of the test's own where the user may create one; others cannot replace that of the machine.
fn device(place: &Place) -> String {
    let own = place.path("null");
    let made = std::process::Command::new("mknod").args([&own, "c", "1", "3"]).output();
    if made.is_ok_and(|m| m.status.success()) { own } else { "/dev/null".to_string() }
}

/// Runs `stratann`, which must fail with exit code 2 and one line within a minute.
fn refused_in_time(args: &[&str]) -> String {
    let mut child = command(&[args, &["--quiet"]].concat())
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("{args:?} does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
    assert!(text.lines().count() == 1 && text.starts_with("stratann: "), "{args:?}: {text}");
    text
}

#[test]
fn outputs_that_are_never_replaced() {
    let place = Place::new();
    let table = [
        ("link", &["symbolic link", "another file"][..]),
        ("dangling", &["symbolic link", "another file"]),
        ("folder", &["folder", "another file"]),
        ("fifo", &["FIFO", "another file"]),
        ("socket", &["socket", "another file"]),
        ("missing/file", &["no such folder"]),
        ("new-name/", &["not a file name"]),
    ];
    let device = device(&place);
    for command in place.commands() {
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        for (name, words) in table {
            for force in [&[][..], &["--force"]] {
                place.refused(&[&command[..], &[&place.path(name)], force].concat(), words);
            }
        }
        place.refused(&[&command[..], &[&place.path("thesis")]].concat(), &["thesis", "--force"]);
        place.refused(&[&command[..], &[&device, "--force"]].concat(), &["device"]);
    }
}

#[test]
fn inputs_are_never_replaced() {
    let place = Place::new();
    let read = |command: &[String]| match command[0].as_str() {
        "search" => &["queries", "truth"][..],
        "groundtruth" => &["base", "queries"],
        _ => &[],
    };
    for command in place.commands() {
        let inputs = read(&command);
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        for input in inputs {
            let own = match *input {
                "base" => &place.data.base,
                "queries" => &place.data.queries,
                _ => &place.truth,
            };
            let name = own.file_name().unwrap().to_str().unwrap();
            let around = place.path(&format!("folder/../{name}"));
            for path in [
                arg(own),
                &around,
                &place.path(&format!("link-{input}")),
                &place.path(&format!("same-{input}")),
            ] {
                for force in [&[][..], &["--force"]] {
                    place.refused(&[&command[..], &[path], force].concat(), &["input of this command"]);
                }
            }
        }
    }
    // Files of the index that is searched, and new ones beside them.
    let (index, queries) = (arg(&place.index), arg(&place.data.queries));
    std::fs::hard_link(place.index.join("v1-blocks.bin"), place.path("blocks")).unwrap();
    for path in ["index/v1-blocks.bin", "index/answers.ibin", "blocks"] {
        let to = place.path(path);
        place.refused(&["search", index, queries, "-o", &to, "--force"], &["belongs to the index"]);
    }
}

#[test]
fn force_replaces_a_file_atomically() {
    let place = Place::new();
    let (queries, base) = (arg(&place.data.queries), arg(&place.data.base));
    let to = place.path("thesis");
    json(&["search", arg(&place.index), queries, "-o", &to, "--force"]);
    assert_eq!(read_answers(Path::new(&to)).0, 10);
    assert_eq!(std::fs::read(place.path("link")).unwrap(), std::fs::read(&to).unwrap());
    json(&["groundtruth", base, queries, "-k", "7", "-o", &to, "--force"]);
    assert_eq!(read_answers(Path::new(&to)).0, 7);
    let profile = place.path("profile.json");
    let measure = ["profile", arg(&place.root), "--seconds", "0.2", "--scratch", "4MiB", "-o", &profile];
    json(&measure);
    place.refused(&measure, &["profile.json", "--force"]);
    json(&[&measure[..], &["--force"]].concat());
    place.refused(&["search", arg(&place.index), queries, "--force"], &["--output"]);

    // A failure after the search has begun leaves the file as it was.
    let mut broken = place.data.query_rows.clone();
    broken[3][2] = f64::NAN;
    let bad = place.root.join("bad.fbin");
    write(&bad, &broken, "f32");
    place.refused(&["search", arg(&place.index), arg(&bad), "-o", &to, "--force"], &["row 3"]);
    place.refused(&["groundtruth", base, arg(&bad), "-o", &to, "--force"], &["row 3"]);
}

#[test]
fn an_index_is_not_built_among_other_files() {
    let place = Place::new();
    let base = arg(&place.data.base);
    let build = |to: &str, more: &[&str], words: &[&str]| {
        let to = place.path(to);
        place.refused(&[&["build", base, "-o", &to, "--kind", "flat"], more].concat(), words);
    };
    for force in [&[][..], &["--force"], &["--resume"]] {
        build("", force, &["other files"]);
        build("folder", force, &["notes.txt", "new folder"]);
        build("thesis", force, &["is a file", "name a folder"]);
        build("fifo", force, &["FIFO", "name a folder"]);
        build("socket", force, &["socket", "name a folder"]);
        build("dangling", force, &["symbolic link", "name a folder"]);
    }
    std::fs::write(place.index.join("mine.txt"), "mine").unwrap();
    build("index", &["--force"], &["mine.txt"]);
    std::fs::remove_file(place.index.join("mine.txt")).unwrap();
    build("index", &[], &["--force"]);
    // A folder that only has the name of an unfinished build.
    std::fs::create_dir_all(place.root.join("half/partial")).unwrap();
    std::fs::write(place.root.join("half/partial/mine.txt"), "mine").unwrap();
    build("half", &["--force"], &["partial"]);
    std::fs::remove_file(place.root.join("half/partial/mine.txt")).unwrap();
    for to in ["half", "index"] {
        json(&["build", base, "-o", &place.path(to), "--kind", "flat", "--force"]);
    }

    let graph = place.data.build("graph", &["--nodes-per-block", "8"]);
    for more in [&[][..], &["--scatter-gather"]] {
        for (to, words) in [("folder", "name a"), ("thesis", "is a file"), ("fifo", "FIFO")] {
            let to = place.path(to);
            let args = ["cluster", "partition", arg(&graph), "-o", &to, "--servers", "2", "--force"];
            place.refused(&[&args[..], more].concat(), &[words]);
        }
    }
    let apart = place.path("apart");
    let args = ["cluster", "partition", arg(&graph), "-o", &apart, "--servers", "2", "--scatter-gather"];
    json(&args);
    std::fs::write(place.root.join("apart/mine.txt"), "mine").unwrap();
    place.refused(&[&args[..], &["--force"]].concat(), &["mine.txt"]);
}

#[test]
fn inputs_that_are_no_regular_files() {
    let place = Place::new();
    let (base, queries, index) = (arg(&place.data.base), arg(&place.data.queries), arg(&place.index));
    // The suffix of a vector file decides how it is read.
    for suffix in ["fbin", "npy", "parquet", "fvecs", "u64bin"] {
        fifo(&place.root.join(format!("fifo.{suffix}")));
    }
    let [pipe, npy, parquet, vecs, ids] =
        ["fbin", "npy", "parquet", "fvecs", "u64bin"].map(|suffix| place.path(&format!("fifo.{suffix}")));
    let (new, plain, device) = (place.path("new"), place.path("fifo"), "/dev/zero");
    let table: Vec<Vec<&str>> = vec![
        vec!["build", &pipe, "-o", &new, "--kind", "flat"],
        vec!["build", &npy, "-o", &new, "--kind", "flat"],
        vec!["build", &parquet, "-o", &new, "--kind", "flat"],
        vec!["build", &vecs, "-o", &new, "--kind", "auto"],
        vec!["build", base, "-o", &new, "--kind", "flat", "--ids", &ids],
        vec!["build", base, "-o", &new, "--kind", "hybrid-ivf", "--profile", &plain],
        vec!["search", index, &pipe],
        vec!["search", index, queries, "--groundtruth", &plain],
        vec!["search", index, queries, "--groundtruth", device],
        vec!["groundtruth", &pipe, queries, "-o", &new],
        vec!["groundtruth", base, &pipe, "-o", &new],
        vec!["tune", index, "--queries", &pipe],
        vec!["explain", index, &pipe],
        vec!["bench", index, queries, "--groundtruth", &plain],
        vec!["profile", "--show", &plain],
        vec!["serve", "--config", &plain],
        vec!["serve", "--config", device],
    ];
    for args in table {
        place.refused(&args, &[]);
    }
    // Files that a configuration names.
    for (name, line) in [
        ("secret.toml", "secret_file = \"fifo\""),
        ("tls.toml", "tls_certificate = \"fifo\"\ntls_key = \"fifo\"\ntls_authority = \"fifo\""),
    ] {
        std::fs::write(place.root.join(name), format!("index = \"index\"\n{line}\n")).unwrap();
        place.refused(&["serve", "--config", &place.path(name), "--http", "127.0.0.1:0"], &["FIFO"]);
    }
    let graph = place.data.build("graph", &[]);
    let simulate =
        ["simulate", arg(&graph), queries, "--servers", "1", "--search-list", "20", "--costs", &plain];
    place.refused(&simulate, &["FIFO"]);
    let socket = place.path("socket");
    place.refused(&["search", index, queries, "--groundtruth", &socket], &["socket", "not a regular file"]);
    place.refused(&["search", index, &pipe], &["FIFO", "not a regular file", "read at offsets"]);
    // As a shell names the output of a command.
    let unnamed = place.path("63");
    fifo(Path::new(&unnamed));
    place.refused(&["search", index, &unnamed], &["FIFO", "not a regular file"]);
}

#[test]
fn a_full_device_is_an_error() {
    let place = Place::new();
    let (index, queries) = (place.path("index"), arg(&place.data.queries));
    let search = ["search", &index, queries];
    let asked: [&[&str]; 7] = [
        &["info", &index],
        &["info", &index, "--json"],
        &search,
        &[&search[..], &["--json"]].concat(),
        &["completions", "bash"],
        &["--help"],
        &["--version"],
    ];
    for args in asked {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = command(args).stdout(full).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains("standard output") && said.contains("No space"), "{args:?}: {said}");
    }
    place.refused(&[&search[..], &["-o", "/dev/full", "--force"]].concat(), &["/dev/full", "device"]);
}

#[test]
fn an_interruption_leaves_the_file_as_it_was() {
    let place = Place::new();
    let many = place.root.join("many.fbin");
    write(&many, &rows(60_000, 8, "f32", 5), "f32");
    let to = place.path("thesis");
    let args = ["groundtruth", arg(&many), arg(&many), "-k", "10", "--threads", "1", "-o", &to, "--force"];
    let before = snapshot(&place.root);
    let child = command(&args).stderr(std::process::Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    // SAFETY: a signal to a child that has not been waited for, so its number cannot be another's.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(snapshot(&place.root) == before);
}

#[test]
fn results_are_written_in_the_layout_of_the_suffix() {
    let data = Data::new(300, 8, "f32");
    let index = data.path("index");
    let mut ids = [300u32, 1].map(u32::to_le_bytes).concat();
    let id = |row: u64| (1 << 40) + row;
    (0..300).for_each(|row| ids.extend(id(row).to_le_bytes()));
    std::fs::write(data.path("ids.u64bin"), ids).unwrap();
    let ids = data.path("ids.u64bin");
    json(&["build", arg(&data.base), "-o", arg(&index), "--kind", "flat", "--ids", arg(&ids)]);
    let search = |name: &str| {
        let to = data.path(name);
        json(&["search", arg(&index), arg(&data.queries), "-k", "3", "-o", arg(&to)]);
        std::fs::read(to).unwrap()
    };
    let right: Vec<(f64, usize)> = nearest(&data.base_rows, &data.query_rows, "l2", 3).concat();
    let expected: Vec<(u64, f32)> = right.iter().map(|n| (id(n.1 as u64), n.0 as f32)).collect();
    let check = |name: &str, found: Vec<(u64, f32)>| {
        assert_eq!(found.len(), expected.len(), "{name}");
        for (found, right) in found.iter().zip(&expected) {
            assert!(
                found.0 == right.0 && (found.1 - right.1).abs() < 1e-3 * right.1,
                "{name}: {found:?} {right:?}"
            );
        }
    };
    let words = |bytes: &[u8]| -> Vec<u64> {
        bytes.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect()
    };
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
    };
    let pairs = |ids: &[u8], distances: &[u8]| words(ids).into_iter().zip(floats(distances)).collect();
    let bytes = search("a.i64bin");
    assert_eq!(bytes[..8], [50u32, 3].map(u32::to_le_bytes).concat());
    check("i64bin", pairs(&bytes[8..8 + 1200], &bytes[8 + 1200..]));
    let bytes = search("a.npy");
    let distances = std::fs::read(data.path("a.distances.npy")).unwrap();
    let header = |bytes: &[u8]| String::from_utf8_lossy(&bytes[10..128]).trim_end().to_string();
    assert_eq!(header(&bytes), "{'descr': '<u8', 'fortran_order': False, 'shape': (50, 3), }");
    assert_eq!(header(&distances), "{'descr': '<f4', 'fortran_order': False, 'shape': (50, 3), }");
    check("npy", pairs(&bytes[128..], &distances[128..]));
    let text = String::from_utf8(search("a.jsonl")).unwrap();
    let mut found = Vec::new();
    for (query, line) in text.lines().enumerate() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["query"], query);
        let of = |name: &str| line[name].as_array().unwrap().clone();
        let pair = |(id, d): (_, serde_json::Value)| {
            let id: serde_json::Value = id;
            (id.as_u64().unwrap(), d.as_f64().unwrap() as f32)
        };
        found.extend(of("ids").into_iter().zip(of("distances")).map(pair));
    }
    check("jsonl", found);
    let text = String::from_utf8(search("a.csv")).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("query,rank,id,distance"));
    let fields = lines.map(|line| line.split(',').collect::<Vec<_>>());
    check("csv", fields.map(|f| (f[2].parse().unwrap(), f[3].parse().unwrap())).collect());
}

#[test]
fn results_that_cannot_be_written_are_refused_before_the_search() {
    let data = Data::new(300, 8, "f32");
    let index = data.path("index");
    let mut ids = [300u32, 1].map(u32::to_le_bytes).concat();
    (0..300u64).for_each(|row| ids.extend(((1 << 40) + row).to_le_bytes()));
    std::fs::write(data.path("ids.u64bin"), ids).unwrap();
    let ids = data.path("ids.u64bin");
    json(&["build", arg(&data.base), "-o", arg(&index), "--kind", "flat", "--ids", arg(&ids)]);
    let refused = |name: &str| {
        let to = data.path(name);
        let error = refused(&["search", arg(&index), arg(&data.queries), "-o", arg(&to)], 2);
        assert!(error.contains(name) && !to.exists(), "{error}");
        error
    };
    assert!(refused("a.ibin").contains("a.i64bin"));
    assert!(refused("a").contains(".i64bin"));
    assert!(refused("a.parquet").contains(".ibin, .i64bin, .npy, .jsonl or .csv"));
    // The file of distances is an output as well.
    std::fs::write(data.path("b.distances.npy"), "mine").unwrap();
    let to = data.path("b.npy");
    let error = common::refused(&["search", arg(&index), arg(&data.queries), "-o", arg(&to)], 2);
    assert!(error.contains("b.distances.npy") && error.contains("--force"), "{error}");
    assert_eq!(std::fs::read(data.path("b.distances.npy")).unwrap(), b"mine");
}
