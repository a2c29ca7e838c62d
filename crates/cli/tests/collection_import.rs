//! `stratann collection import` and `export`: what is exported comes back, interruptions, and mistakes.
#![allow(missing_docs)]

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};

use common::*;
use serde_json::{Value, json as value};

const UUID: &str = "f47ac10b-58cc-4372-a567-0e02b2c3d479";

struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Place {
        Place { folder: folder() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Lines of points with these ids, whose vectors and payloads follow from their rows.
    fn lines(&self, name: &str, ids: impl Iterator<Item = u64>) -> PathBuf {
        let line = |(row, id): (usize, u64)| {
            value!({ "id": id, "vector": [row, 1, 2, 3], "payload": { "row": row } }).to_string()
        };
        let lines: Vec<String> = ids.enumerate().map(line).collect();
        self.file(name, &(lines.join("\n") + "\n"))
    }

    fn args<'a>(&self, data: &'a Path, args: &[&'a str]) -> Vec<&'a str> {
        [&["collection", args[0], "--data", arg(data)], &args[1..]].concat()
    }

    fn json(&self, args: &[&str]) -> Value {
        json(&self.args(&self.path("data"), args))
    }

    fn refused(&self, args: &[&str]) -> String {
        refused(&self.args(&self.path("data"), args), 2)
    }

    fn run(&self, args: &[&str]) -> Output {
        run(&self.args(&self.path("data"), args))
    }

    fn start(&self, args: &[&str]) -> Child {
        let mut command = command(&self.args(&self.path("data"), args));
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    fn has_cursor(&self) -> bool {
        let folders = std::fs::read_dir(self.path("data").join("s")).into_iter().flatten().flatten();
        folders.into_iter().any(|folder| folder.path().join("import.json").exists())
    }

    fn exported(&self, name: &str) -> Vec<Value> {
        let output = self.run(&["export", name, "-o", "-"]);
        assert!(output.status.success(), "{}", stderr(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

#[test]
fn exported_points_come_back() {
    let numbers = [
        r#"{"id": 0, "vector": [0.1, 3e-45]}"#,
        r#"{"id": 18446744073709551615, "vector": [-0.0, 2.5], "payload": {"a": [1, null, {"b": 1e300}], "e": ""}}"#,
    ];
    let texts = [
        format!(
            r#"{{"id": "{UUID}", "vector": [7, 8], "payload": {{"t": "\u0000é\u001b", "d": -9223372036854775808}}}}"#
        ),
        r#"{"id": "7", "vector": [1, 2], "payload": {"a.b": {"c": [[], {}]}, "f": false}}"#.to_string(),
        r#"{"id": "a, \"b\"", "vector": [3, 4]}"#.to_string(),
    ];
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    for dtype in ["f32", "f16"] {
        for (at, points) in
            [&numbers[..], &texts, &[&numbers[..], &texts].concat(), &[]].into_iter().enumerate()
        {
            let place = Place::new();
            let file = place.file("points.jsonl", &points.join("\n"));
            place.json(&["create", "a", "--dim", "2", "--dtype", dtype]);
            let done = place.json(&["import", "a", arg(&file)]);
            assert_eq!((&done["new"], &done["rows"]), (&points.len().into(), &points.len().into()), "{at}");
            if at == 2 {
                place.json(&["compact", "a"]);
            }
            let wanted = place.exported("a");
            for (name, suffix) in [("b", "parquet"), ("c", "jsonl")] {
                let out = place.path(&format!("out.{suffix}"));
                assert_eq!(place.json(&["export", "a", "-o", arg(&out)])["points"], points.len());
                place.json(&["create", name, "--dim", "2", "--dtype", dtype]);
                place.json(&["import", name, arg(&out)]);
                assert_eq!(place.exported(name), wanted, "{suffix} {at}");
                place.json(&["verify", name]);
            }
            assert!(!place.has_cursor());
        }
    }
}

#[test]
fn a_filter_chooses_what_is_exported() {
    let place = Place::new();
    let file = place.lines("points.jsonl", 0..50);
    place.json(&["import", "c", arg(&file), "--create"]);
    let out = place.path("few.jsonl");
    assert_eq!(place.json(&["export", "c", "-o", arg(&out), "--where", "row >= 48"])["points"], 2);
    let text = std::fs::read_to_string(&out).unwrap();
    assert_eq!(text.lines().count(), 2);
    assert!(text.starts_with(r#"{"id":48,"vector":[48.0,1.0,2.0,3.0],"payload":{"row":48}}"#), "{text}");
}

#[test]
fn a_collection_is_made_as_its_first_file_is() {
    let place = Place::new();
    let (bytes, file) = (place.path("base.u8bin"), place.lines("points.jsonl", 0..3));
    write(&bytes, &[vec![1.0, 2.0, 3.0, 255.0], vec![4.0; 4]], "u8");
    let done = place.json(&["import", "c", arg(&bytes), "--create", "--first-id", "9"]);
    assert_eq!((&done["new"], &done["files"]), (&2.into(), &1.into()));
    let info = place.json(&["info", "c"]);
    assert_eq!((&info["dim"], &info["dtype"], &info["metric"]), (&4.into(), &"u8".into(), &"l2".into()));
    assert_eq!(place.exported("c")[0], value!({ "id": 9, "vector": [1, 2, 3, 255], "payload": null }));
    // Whole numbers fit; rows of several files have numbers one after another.
    place.json(&["import", "c", arg(&file), "--create", "--dtype", "u8"]);
    assert_eq!(place.json(&["info", "c"])["points"], 5);
    place.json(&["import", "d", arg(&bytes), arg(&bytes), "--create", "--metric", "ip", "--dtype", "f16"]);
    let info = place.json(&["info", "d"]);
    assert_eq!((&info["points"], &info["dtype"], &info["metric"]), (&4.into(), &"f16".into(), &"ip".into()));
    for (args, why) in [
        (&["import", "c", arg(&file), "--create", "--metric", "ip"][..], "is there, with metric l2"),
        (&["import", "none", arg(&file)], "there is no collection \"none\""),
        (&["import", "c", arg(&bytes), "--ids", "id"], "leave --ids out"),
        (&["import", "c", arg(&file), "--vectors", "v"], "no column \"v\" for --vectors"),
        (&["import", "c", arg(&file), "--payload", "row,,x"], "--payload has an empty name"),
        (&["import", "c", arg(&place.path("none.jsonl"))], "none.jsonl"),
        (&["export", "c", "-o", arg(&place.path("out.csv"))], "use .parquet or .jsonl"),
        (&["export", "c", "-o", arg(&file)], "exists already"),
        (&["export", "c", "-o", "-", "--json"], "both print on stdout"),
    ] {
        let error = place.refused(args);
        assert!(error.contains(why), "{args:?}: {error}");
    }
}

#[test]
fn the_last_of_equal_ids_counts_however_far_they_are_apart() {
    let place = Place::new();
    // More than one batch: row 9,000 has the id of row 5, and row 9,001 that of row 9,000.
    let ids = (0..10_000).map(|row| if row == 9000 || row == 9001 { 5 } else { row });
    let done = place.json(&["import", "c", arg(&place.lines("points.jsonl", ids)), "--create"]);
    assert_eq!((&done["repeated"], &done["replaced"]), (&2.into(), &0.into()), "{done}");
    let point = place.json(&["get", "c", "--id", "5"]);
    assert_eq!(point["points"][0]["payload"], value!({ "row": 9001 }));
    assert_eq!(place.json(&["verify", "c"])["points"], 9998);
    // Another import replaces what is there, and repeats nothing.
    let again = place.json(&["import", "c", arg(&place.lines("again.jsonl", 0..10))]);
    assert_eq!((&again["repeated"], &again["replaced"]), (&0.into(), &10.into()), "{again}");
}

#[test]
fn the_same_command_goes_on_where_an_error_ended_it() {
    let place = Place::new();
    let (one, two) = (place.lines("one.jsonl", 0..6000), place.path("two.jsonl"));
    let bad = r#"{"id": 8000, "vector": [1, 2, 3]}"#;
    let good: Vec<String> =
        (0..5000).map(|row| value!({ "id": 10_000 + row, "vector": [row, 0, 0, 0] }).to_string()).collect();
    std::fs::write(&two, good.join("\n") + "\n" + bad).unwrap();
    let both = ["import", "c", arg(&one), arg(&two), "--create"];
    let error = place.refused(&both);
    assert!(error.contains("two.jsonl, line 5001") && error.contains("the first 4,096 rows of"), "{error}");
    assert!(place.has_cursor());
    assert_eq!(place.json(&["verify", "c"])["points"], 10_096);
    let note = stderr(&place.run(&both));
    assert!(note.contains("6,000 rows of") && note.contains("4,096 rows of"), "{note}");
    // Another choice of columns is another import, and so is one with --restart.
    let other = stderr(&place.run(&[&both[..], &["--payload", "none"]].concat()));
    assert!(!other.contains("were imported before"), "{other}");
    place.refused(&both);
    let restarted = stderr(&place.run(&[&both[..], &["--restart"]].concat()));
    assert!(!restarted.contains("were imported before"), "{restarted}");
    // The corrected file is read from its first row on.
    std::fs::write(&two, good.join("\n")).unwrap();
    let done = place.json(&both);
    assert_eq!((&done["resumed_rows"], &done["rows"]), (&6000.into(), &5000.into()), "{done}");
    assert_eq!(place.json(&["verify", "c"])["points"], 11_000);
    assert!(!place.has_cursor());
    assert_eq!(place.json(&both)["resumed_rows"], 0);
    // A dropped collection takes its cursor along.
    std::fs::write(&two, bad).unwrap();
    place.refused(&both);
    place.json(&["drop", "c"]);
    let note = stderr(&place.run(&both));
    assert!(!note.contains("were imported before"), "{note}");
    assert_eq!(place.json(&["info", "c"])["points"], 6000);
}

#[test]
fn an_import_that_is_stopped_leaves_whole_batches_and_goes_on() {
    let place = Place::new();
    let file = place.lines("many.jsonl", 0..60_000);
    place.json(&["create", "c", "--dim", "4"]);
    for signal in [libc::SIGINT, libc::SIGKILL] {
        let mut child = place.start(&["import", "c", arg(&file), "--restart"]);
        // It ends early, or is waited for until a batch is durable.
        while child.try_wait().unwrap().is_none() && !place.has_cursor() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        // SAFETY: the process is a child of this one that was not waited for yet, or has ended: then the call fails.
        unsafe { libc::kill(child.id() as i32, signal) };
        let status = child.wait().unwrap();
        let ended = status.code().is_none_or(|code| code == 0 || code == 130);
        assert!(ended, "{status:?}");
        let points = place.json(&["verify", "c"])["points"].as_u64().unwrap();
        assert!(points == 60_000 || points.is_multiple_of(4096), "{points}");
        if place.has_cursor() {
            let note = stderr(&place.run(&["import", "c", arg(&file)]));
            assert!(note.contains("were imported before"), "{note}");
            assert_eq!(place.json(&["verify", "c"])["points"], 60_000);
        }
        place.json(&["delete", "c", "--where", "row >= 0"]);
    }
    let done = place.json(&["import", "c", arg(&file)]);
    assert_eq!((&done["new"], &done["repeated"]), (&60_000.into(), &0.into()));
    let all = place.exported("c");
    assert_eq!((all.len(), &all[59_999]["payload"]), (60_000, &value!({ "row": 59_999 })));
}

/// Creates a collection whose vectors have two names.
fn create_named(place: &Place, name: &str) {
    place.json(&["create", name, "--vectors", "image=2,u8", "--vectors", "title=3,cosine,f16"]);
}

#[test]
fn exported_vectors_by_name_come_back() {
    let place = Place::new();
    // Every third point lacks the one, every fifth the other, and every fifteenth both.
    let line = |row: u64| {
        let image = (!row.is_multiple_of(3)).then_some(value!([row % 251, 7]));
        let title = (!row.is_multiple_of(5)).then_some(value!([0.5, row, -1]));
        value!({ "id": row, "vectors": { "image": image, "title": title }, "payload": { "row": row } })
            .to_string()
    };
    let file = place.file("points.jsonl", &(0..1500).map(line).collect::<Vec<_>>().join("\n"));
    create_named(&place, "a");
    let done = place.json(&["import", "a", arg(&file)]);
    assert_eq!((&done["new"], done.get("names_without")), (&1500.into(), None), "{done}");
    let count = |name: &str, text: &str| place.json(&["count", name, "--where", text])["count"].clone();
    let wanted = place.exported("a");
    assert_eq!(
        wanted[4],
        value!({ "id": 4, "vectors": { "image": [4, 7], "title": [0.5, 4.0, -1.0] }, "payload": { "row": 4 } })
    );
    assert_eq!(wanted[15], value!({ "id": 15, "vectors": {}, "payload": { "row": 15 } }));
    for (name, suffix) in [("b", "parquet"), ("c", "jsonl")] {
        let out = place.path(&format!("out.{suffix}"));
        place.json(&["export", "a", "-o", arg(&out)]);
        create_named(&place, name);
        place.json(&["import", name, arg(&out)]);
        assert_eq!(place.exported(name), wanted, "{suffix}");
        assert_eq!(count(name, "has_vector('image')"), count("a", "has_vector('image')"));
        place.json(&["compact", name]);
        assert_eq!(place.exported(name), wanted, "{suffix}");
        place.json(&["verify", name]);
    }
    // A collection is made with the vectors that columns are named for.
    let out = place.path("out.parquet");
    let columns = ["--vectors", "image=image", "--vectors", "text=title"];
    let made = [&["import", "d", arg(&out), "--create", "--metric", "ip"][..], &columns].concat();
    place.json(&made);
    let info = place.json(&["info", "d"]);
    assert_eq!(
        info["vectors"]["text"],
        value!({ "dim": 3, "metric": "ip", "dtype": "f16", "kind": "auto" }),
        "{info}"
    );
    assert_eq!(count("d", "has_vector('text')"), count("a", "has_vector('title')"));
    assert_eq!(place.json(&made)["replaced"], 1500);
    // One column alone is a name, too, where there is a =.
    place.json(&["import", "e", arg(&out), "--create", "--vectors", "t=title", "--payload", "none"]);
    assert_eq!(count("e", "has_vector('t')"), count("a", "has_vector('title')"));
}

#[test]
fn an_import_says_which_vectors_by_name_it_does_not_find() {
    let place = Place::new();
    create_named(&place, "n");
    let file = place.file("points.jsonl", r#"{"id": 1, "title": [1, 2, 3], "x": "y"}"#);
    let output = place.run(&["import", "n", arg(&file), "--json"]);
    let note = stderr(&output);
    assert!(note.contains("points.jsonl has no vectors for \"image\""), "{note}");
    let done: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(done["names_without"], value!(["image"]), "{done}");
    assert_eq!(
        place.exported("n")[0],
        value!({ "id": 1, "vectors": { "title": [1.0, 2.0, 3.0] }, "payload": { "x": "y" } })
    );
    let one = place.lines("one.jsonl", 0..3);
    place.json(&["import", "one", arg(&one), "--create"]);
    let parquet = place.path("one.parquet");
    place.json(&["export", "one", "-o", arg(&parquet)]);
    for (args, why) in [
        (
            &["import", "n", arg(&parquet)][..],
            "no column of lists of numbers for the vectors \"image\", \"title\"",
        ),
        (&["import", "n", arg(&parquet), "--vectors", "title=none"], "no column \"none\" for --vectors"),
        (&["import", "n", arg(&parquet), "--vectors", "titel=vector"], "unknown vector name \"titel\""),
        (&["import", "n", arg(&parquet), "--vectors", "vector"], "give NAME=COLUMN"),
        (
            &["import", "n", arg(&parquet), "--vectors", "title=vector"],
            "column \"vector\": the vector has 4 dimensions",
        ),
        (&["import", "n", arg(&file), "--vectors", "title=x"], "line 1: the field \"x\": it is no list"),
        (&["import", "one", arg(&one), "--vectors", "a", "--vectors", "b"], "given several times"),
        (
            &["import", "m", arg(&one), "--create", "--vectors", "a=vector", "--vectors", "a=x"],
            "two columns for \"a\"",
        ),
        (&["import", "m", arg(&one), "--create", "--vectors", "a=none"], "no row with a vector of \"a\""),
    ] {
        let error = place.refused(args);
        assert!(error.contains(why), "{args:?}: {error}");
    }
}

#[test]
fn an_import_waits_for_room_until_it_is_stopped_and_goes_on_once_there_is_some() {
    let place = Place::new();
    let file = place.lines("many.jsonl", 0..12_000);
    place.json(&["create", "c", "--dim", "4", "--kind", "flat", "--memory-quota", "2MiB"]);
    let data = place.path("data");
    let mut command = command(&place.args(&data, &["import", "c", arg(&file)]));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // It ends where it gives up, and says before that it waits.
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let note = lines.by_ref().map_while(Result::ok).find(|line| line.contains("waiting")).unwrap();
    assert!(note.contains("its memory quota of 2.0 MiB"), "{note}");
    // SAFETY: the process is a child of this one that was not waited for yet, or has ended: then the call fails.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
    assert!(rest.iter().any(|line| line.contains("the same command goes on")), "{rest:?}");
    let written = place.json(&["verify", "c"])["points"].as_u64().unwrap();
    assert!(written < 12_000 && place.has_cursor(), "{written}");
    place.json(&["limit", "c", "--memory-quota", "none"]);
    let done = place.json(&["import", "c", arg(&file)]);
    assert_eq!((&done["resumed_rows"], &done["waits"]), (&written.into(), &0.into()), "{done}");
    assert_eq!(place.json(&["verify", "c"])["points"], 12_000);
}

#[test]
fn a_dataset_of_hdf5_is_imported() {
    let place = Place::new();
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/src/dataset/hdf5/files");
    let named = format!("{}#train", files.join("plain.hdf5").display());
    assert_eq!(place.json(&["import", "c", &named, "--create"])["new"], 20);
    assert_eq!(place.exported("c")[1]["vector"], value!([-17.0, -16.0, -15.0]));
    let chunks = format!("{}#|u1", files.join("chunks.hdf5").display());
    place.json(&["import", "bytes", &chunks, "--create"]);
    assert_eq!(place.json(&["info", "bytes"])["dtype"], "u8");
    for (args, why) in [
        (&["import", "c", arg(&files.join("plain.hdf5"))][..], "several datasets of rows"),
        (&["import", "c", &named, "--vectors", "train"], "leave --vectors out"),
        (&["import", "c", &chunks.replace("|u1", "none")], "has no dataset \"none\""),
    ] {
        let error = place.refused(args);
        assert!(error.contains(why), "{args:?}: {error}");
    }
}
