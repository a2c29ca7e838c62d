//! The mistakes of a new user. Each gives one line that says what, where and what to do, exit code 2, and no change on
//! disk.
#![allow(missing_docs)]

mod common;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::*;

/// All that a folder and its folders hold.
fn content(folder: &Path) -> BTreeMap<String, Option<Vec<u8>>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let name = entry.path().to_str().unwrap().to_string();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            all.extend(content(&entry.path()));
        }
        all.insert(name, kind.is_file().then(|| std::fs::read(entry.path()).unwrap_or_default()));
    }
    all
}

/// A folder with vectors, an index, ground truth and broken copies of them.
struct Place {
    data: Data,
}

impl Place {
    fn new() -> Place {
        let data = Data::new(400, 16, "f32");
        let place = Place { data };
        let index = place.data.build("index", &[]);
        place.data.truth("l2");
        let to = |name: &str| place.data.path(name);
        write(&to("wide.fbin"), &rows(5, 17, "f32", 3), "f32");
        write(&to("bytes.u8bin"), &rows(5, 16, "u8", 3), "u8");
        std::fs::write(to("empty.fbin"), b"").unwrap();
        let whole = std::fs::read(&place.data.base).unwrap();
        std::fs::write(to("cut.fbin"), &whole[..whole.len() - 7]).unwrap();
        std::fs::write(to("notes.txt"), "hello").unwrap();
        std::fs::write(to("taken.ibin"), "mine").unwrap();
        std::fs::create_dir(to("folder")).unwrap();
        std::fs::write(to("folder/letter"), "mine").unwrap();
        std::fs::create_dir(to("broken")).unwrap();
        for (name, bytes) in files(&index) {
            let bytes = if name.starts_with("manifest") { &bytes[..bytes.len() - 2] } else { &bytes[..] };
            std::fs::write(to("broken").join(name), bytes).unwrap();
        }
        std::fs::write(to("secret.fbin"), &whole).unwrap();
        std::fs::set_permissions(to("secret.fbin"), std::fs::Permissions::from_mode(0o000)).unwrap();
        place
    }

    /// Replaces the names of files, which begin with `@`, by their paths.
    fn args(&self, line: &str) -> Vec<String> {
        let word = |word: &str| match word.strip_prefix('@') {
            Some(name) => self.data.path(name).to_str().unwrap().to_string(),
            None => word.to_string(),
        };
        line.split_whitespace().map(word).collect()
    }
}

/// A command line, and what its error contains: where, and what to do.
const MISTAKES: [(&str, &[&str]); 56] = [
    // Files.
    ("build @nothing.fbin -o @new", &["nothing.fbin", "No such file"]),
    ("build @notes.txt -o @new", &["notes.txt", ".fbin"]),
    ("build @empty.fbin -o @new", &["empty.fbin"]),
    ("build @cut.fbin -o @new", &["cut.fbin", "truncated", "copy"]),
    ("build @folder -o @new", &["folder", "name a file"]),
    ("build @index -o @new", &["index", "name a file"]),
    ("build @base.fbin", &["--output"]),
    ("build @base.fbin -o @folder", &["folder", "other"]),
    ("build @base.fbin -o @index", &["index", "--force"]),
    ("build @base.fbin -o @base.fbin", &["base.fbin", "folder"]),
    ("search @query.fbin @index", &["query.fbin", "stratann build"]),
    ("search @base.fbin @query.fbin", &["base.fbin", "stratann build"]),
    ("search @index", &["index", "a file of queries"]),
    ("search @index @index", &["index"]),
    ("search @nothing @query.fbin", &["nothing", "stratann build"]),
    ("search @folder @query.fbin", &["folder", "stratann build"]),
    ("search @index @nothing.fbin", &["nothing.fbin", "No such file"]),
    ("search @index @wide.fbin", &["wide.fbin", "17", "16"]),
    ("search @index @bytes.u8bin", &["bytes.u8bin", "u8", "f32"]),
    ("search @index @empty.fbin", &["empty.fbin"]),
    ("search @index @notes.txt", &["notes.txt", ".fbin"]),
    ("search @index @cut.fbin", &["cut.fbin", "truncated"]),
    // Numbers.
    ("search @index @query.fbin -k 0", &["k is 0", "1 to"]),
    ("search @index @query.fbin -k ten", &["ten", "-k"]),
    ("search @index @query.fbin --recall 2", &["2", "up to 1"]),
    ("search @index @query.fbin --recall 95", &["95", "0.95"]),
    ("search @index @query.fbin --recall 0", &["recall is 0"]),
    ("search @index @query.fbin --threads 0", &["--threads", "1 to"]),
    ("search @index @query.fbin --ram-budget -1", &["--ram-budget"]),
    ("search @index @query.fbin --ram-budget 512", &["512", "MiB"]),
    ("search @index @query.fbin --ram-budget 1MiB", &["MiB or more"]),
    ("search @index @query.fbin --ram-budget lots", &["lots", "MiB"]),
    ("build @base.fbin -o @new --ram-budget 1MiB", &["--ram-budget", "MiB or more"]),
    ("build @base.fbin -o @new --degree 2", &["--degree", "4 to 250"]),
    // Options.
    ("build @base.fbin -o @new --kind graph", &["graph", "disk-graph"]),
    ("build @base.fbin -o @new --metric euclid", &["euclid", "l2"]),
    ("search @index @query.fbin --recal 0.9", &["--recal", "--recall"]),
    ("serach @index @query.fbin", &["serach", "search"]),
    ("search @index @query.fbin --nprobe 10", &["--nprobe", "--search-list"]),
    // Options of other kinds and places.
    (
        "search @index @query.fbin --no-bounds",
        &["--no-bounds is for hybrid-ivf", "a disk-graph; leave it out"],
    ),
    ("search @index @query.fbin --ef 30", &["--ef is for remote-hnsw"]),
    ("search @index @query.fbin --hot 9", &["--hot is for hybrid-ivf"]),
    ("search @index @query.fbin --fan-out 2", &["--fan-out is for grid-ivf"]),
    ("search @index @query.fbin --blocking", &["--blocking is for a search on servers"]),
    ("explain @index @query.fbin --votes 9", &["--votes is for hybrid-ivf"]),
    ("bench @index @query.fbin --nprobe 9", &["give --search-list instead"]),
    (
        "build @base.fbin -o @new --kind grid-ivf --clusters 9",
        &["--clusters is for hybrid-ivf", "give --lists instead"],
    ),
    ("build @base.fbin -o @new --kind flat --degree 9", &["--degree is for disk-graph", "the kind is flat"]),
    ("build @base.fbin -o @new --lists 9", &["--lists is for grid-ivf", "give the kind"]),
    (
        "build @base.fbin -o @new --degree 9 --clusters 9",
        &["no kind of index has both --degree and --clusters"],
    ),
    // Outputs.
    ("search @index @query.fbin -o @nowhere/answers.ibin", &["nowhere", "no such folder", "create"]),
    ("search @index @query.fbin -o @answers.txt", &["answers.txt", ".ibin", ".csv"]),
    ("search @index @query.fbin -o @taken.ibin", &["taken.ibin", "--force"]),
    ("search @index @query.fbin -o @folder", &["folder", "name another file"]),
    // Ground truth.
    ("search @index @query.fbin --groundtruth @query.fbin", &["query.fbin", "stratann groundtruth"]),
    ("groundtruth @base.fbin @wide.fbin -o @truth.ibin", &["wide.fbin", "17", "16"]),
];

/// Runs a command; returns its only line of error and its exit code.
fn error_line(args: &[String], code: i32) -> String {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let output = run(&[&args[..], &["--quiet"]].concat());
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    assert_eq!(lines.len(), 1, "{args:?}: {text}");
    assert!(text.starts_with("stratann: ") && text.len() < 500, "{args:?}: {text}");
    assert!(output.stdout.is_empty(), "{args:?}");
    lines[0].to_string()
}

#[test]
fn each_mistake_has_a_message_of_one_line_and_changes_nothing() {
    let place = Place::new();
    let before = content(place.data.folder.path());
    let mut wrong = Vec::new();
    for (line, named) in MISTAKES {
        let args = place.args(line);
        let said = std::panic::catch_unwind(|| error_line(&args, 2));
        let after = content(place.data.folder.path());
        match said {
            Err(_) => wrong.push(format!("{line}: see above")),
            Ok(error) => {
                // The first word is where; it stands in the path of the folder too.
                let lacks: Vec<_> = named.iter().filter(|n| !error.contains(**n)).collect();
                if !lacks.is_empty() {
                    wrong.push(format!("{line}: lacks {lacks:?}: {error}"));
                }
            }
        }
        if after != before {
            let names = |c: &BTreeMap<String, _>| c.keys().cloned().collect::<Vec<_>>();
            panic!("{line} changed the folder: {:?} {:?}", names(&before), names(&after));
        }
    }
    assert!(wrong.is_empty(), "{} mistakes have a poor message:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn what_the_system_refuses_has_a_message_of_one_line() {
    let place = Place::new();
    let before = content(place.data.folder.path());
    // The superuser may read everything.
    if std::fs::read(place.data.path("secret.fbin")).is_err() {
        let error = error_line(&place.args("search @index @secret.fbin"), 1);
        assert!(error.contains("secret.fbin") && error.contains("permissions"), "{error}");
    }
    // Without its last bracket a manifest is damaged.
    let error_of_damage = error_line(&place.args("search @broken @query.fbin"), 1);
    assert!(error_of_damage.contains("manifest-1.json"), "{error_of_damage}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let line = format!("serve --index @index --http {address} --until-eof");
    let error_of_port = error_line(&place.args(&line), 1);
    assert!(error_of_port.contains(&address), "{error_of_port}");
    let error_of_nobody = error_line(&place.args(&format!("search --connect {} @query.fbin", nobody())), 1);
    assert!(error_of_nobody.contains("stratann serve"), "{error_of_nobody}");
    assert!(content(place.data.folder.path()) == before, "nothing changes");
}
