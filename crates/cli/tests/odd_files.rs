//! Files of another kind or length in the place of an index's file are refused before they are read, paths need not be
//! UTF-8, every number is an id, and no number of a version wraps.
#![allow(missing_docs)]

mod common;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::*;

const HUGE: u64 = 1 << 40;
const KINDS: [&str; 5] = ["flat", "disk-graph", "hybrid-ivf", "grid-ivf", "remote-hnsw"];

/// Runs a command that must end by itself, with memory for a small index.
fn ended(args: &[&OsStr]) -> Output {
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -v 4000000; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_stratann")]).args(args);
    let mut child = limited.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            child.kill().unwrap();
            panic!("{args:?} waits");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// Puts something else in the place of a file.
fn put(what: &str, path: &Path) {
    std::fs::remove_file(path).unwrap();
    match what {
        "fifo" => assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
        "sparse file" => File::create(path).unwrap().set_len(HUGE).unwrap(),
        "endless device" => symlink("/dev/zero", path).unwrap(),
        "folder" => std::fs::create_dir(path).unwrap(),
        "loop" => symlink(path, path).unwrap(),
        _ => unreachable!(),
    }
}

#[test]
fn odd_files_of_an_index_are_refused_by_every_command() {
    let data = Data::new(300, 8, "f32");
    for kind in KINDS {
        let index = data.path(kind);
        let build = ["build", arg(&data.base), "-o", arg(&index), "--kind", kind];
        json(&[&build[..], &calibrated(kind, "20")].concat());
        let names: Vec<String> = files(&index).into_keys().filter(|name| name != "lock").collect();
        for what in ["fifo", "sparse file", "endless device", "folder", "loop"] {
            for name in &names {
                let path = index.join(name);
                let bytes = std::fs::read(&path).unwrap();
                put(what, &path);
                for command in ["verify", "search", "info"] {
                    let mut args = vec![OsStr::new(command), index.as_os_str()];
                    if command == "search" {
                        args.extend([data.queries.as_os_str(), OsStr::new("-k"), OsStr::new("3")]);
                    }
                    let output = ended(&args);
                    let code = output.status.code().unwrap_or(-1);
                    assert!(matches!(code, 1 | 2), "{args:?}, {what} as {name}: {code}");
                }
                match what {
                    "folder" => std::fs::remove_dir(&path).unwrap(),
                    _ => std::fs::remove_file(&path).unwrap(),
                }
                std::fs::write(&path, bytes).unwrap();
            }
        }
        assert_eq!(run(&["verify", arg(&index)]).status.code(), Some(0), "{kind} is as it was");
    }
}

#[test]
fn a_path_that_is_not_utf_8_is_shown_in_json() {
    let data = Data::new(300, 8, "f32");
    let odd = |name: &[u8]| data.base.parent().unwrap().join(OsStr::from_bytes(name));
    let (base, queries, index) = (odd(b"b\xff.fbin"), odd(b"q\xff.fbin"), odd(b"i\xff"));
    std::fs::copy(&data.base, &base).unwrap();
    std::fs::copy(&data.queries, &queries).unwrap();
    let (profile, truth) = (odd(b"p\xff.json"), odd(b"t\xff"));
    let text = |words: &'static str| words.split(' ').map(OsStr::new).collect::<Vec<_>>();
    let all = [
        [text("build"), vec![base.as_ref(), OsStr::new("-o"), index.as_ref()], text("--kind disk-graph")]
            .concat(),
        [text("info"), vec![index.as_ref()]].concat(),
        [text("verify"), vec![index.as_ref()]].concat(),
        [text("tune"), vec![index.as_ref()], text("-k 3")].concat(),
        [text("search"), vec![index.as_ref(), queries.as_ref()], text("-k 3")].concat(),
        [text("bench"), vec![index.as_ref(), queries.as_ref()], text("-k 3 --rounds 1")].concat(),
        [text("explain"), vec![index.as_ref(), queries.as_ref()]].concat(),
        [text("groundtruth"), vec![base.as_ref(), queries.as_ref(), OsStr::new("-o"), truth.as_ref()]]
            .concat(),
        [text("bench generate gaussian --dim 4 --rows 20 --queries 2 -o"), vec![profile.as_ref()]].concat(),
    ];
    for mut args in all {
        args.push(OsStr::new("--json"));
        let output = ended(&args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr(&output));
        let _: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    }
}

#[test]
fn the_largest_id_comes_out_in_every_layout() {
    let data = Data::new(300, 8, "f32");
    let (ids, index) = (data.path("ids.u64bin"), data.path("index"));
    let own: Vec<u64> = (0..300).map(|row| u64::MAX - row).collect();
    let mut bytes = [300u32.to_le_bytes(), 1u32.to_le_bytes()].concat();
    bytes.extend(own.iter().flat_map(|id| id.to_le_bytes()));
    std::fs::write(&ids, bytes).unwrap();
    for kind in KINDS {
        let calibration = [calibrated(kind, "20"), vec!["--force"]].concat();
        json(
            &[
                &["build", arg(&data.base), "-o", arg(&index), "--kind", kind, "--ids", arg(&ids)],
                &calibration[..],
            ]
            .concat(),
        );
        let out = |name: &str| {
            let out = data.path(name);
            json(&[
                "search",
                arg(&index),
                arg(&data.base),
                "-k",
                "2",
                "--recall",
                "1",
                "-o",
                arg(&out),
                "--force",
            ]);
            std::fs::read(out).unwrap()
        };
        let csv = String::from_utf8(out("r.csv")).unwrap();
        assert_eq!(csv.lines().count(), 601, "{kind}");
        assert!(csv.contains(&format!("\n0,0,{},0\n", u64::MAX)), "{kind}");
        let lines = String::from_utf8(out("r.jsonl")).unwrap();
        for (line, id) in lines.lines().zip(&own) {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(
                (line["ids"][0].as_u64(), line["ids"].as_array().unwrap().len()),
                (Some(*id), 2),
                "{kind}"
            );
        }
        assert_eq!(out("r.npy")[128..136], u64::MAX.to_le_bytes(), "{kind}");
        let long = data.path("r.i64bin");
        let why =
            refused(&["search", arg(&index), arg(&data.base), "-k", "2", "-o", arg(&long), "--force"], 2);
        assert!(why.contains(".npy"), "{why}");
    }
}

#[test]
fn no_version_follows_the_largest_number() {
    let data = Data::new(300, 8, "f32");
    let index = data.build("index", &[]);
    let of = |number: u64| index.join(format!("manifest-{number}.json"));
    std::fs::rename(of(1), of(u64::MAX)).unwrap();
    for args in
        [&["tune", arg(&index), "-k", "3"][..], &["build", arg(&data.base), "-o", arg(&index), "--force"]]
    {
        let why = refused(args, 2);
        assert!(why.contains("18446744073709551615"), "{why}");
    }
    assert!(!of(0).exists() && of(u64::MAX).exists());
    assert_eq!(run(&["search", arg(&index), arg(&data.queries)]).status.code(), Some(0));
    // Names that are not as they are written are no versions.
    std::fs::rename(of(u64::MAX), of(u64::MAX - 1)).unwrap();
    std::fs::copy(of(u64::MAX - 1), index.join("manifest-018446744073709551615.json")).unwrap();
    json(&["tune", arg(&index), "-k", "3"]);
    assert!(of(u64::MAX).exists());
}
