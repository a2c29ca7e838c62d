//! Running servers that change to a new version of their index, alone and together, under load.
#![allow(missing_docs)]

mod common;
#[path = "../../cluster/tests/gateway/mod.rs"]
mod gateway;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;

use common::*;
use gateway::Gateway;
use serde_json::Value;
use stratann_testing::{Need, leave_out};

/// Two sets of vectors without a row in common, and an index of each.
struct Two {
    data: Data,
    indexes: [std::path::PathBuf; 2],
    /// Ids, 10 for each query.
    answers: [Vec<u32>; 2],
}

const QUERIES: usize = 50;
const ASKED: [&str; 6] = ["--search-list", "30", "--width", "1", "--rerank", "20"];

fn two() -> Two {
    let data = Data::new(2000, 16, "f32");
    let first = data.build("first", &["--nodes-per-block", "8"]);
    write(&data.base, &rows(2300, 16, "f32", 9), "f32");
    let second = data.build("second", &["--nodes-per-block", "8"]);
    let out = data.path("answers");
    let ids = |index: &Path| {
        json(&[&["search", arg(index), arg(&data.queries), "-o", arg(&out), "--force"], &ASKED[..]].concat());
        read_answers(&out).1
    };
    let answers = [ids(&first), ids(&second)];
    assert!((0..QUERIES).all(|q| answers[0][q * 10..][..10] != answers[1][q * 10..][..10]));
    Two { indexes: [first, second], answers, data }
}

/// Reply of a server to one query: ids, or why there are none.
fn ask(address: &str, row: &[f64]) -> Result<Vec<u32>, String> {
    let body: Vec<u8> = row.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect();
    let (status, reply) =
        post(address, "/v1/search?search_list=30&width=1&rerank=20&k=10&timeout_ms=20000", &body);
    let answer = &reply["answers"][0];
    match answer["ids"].as_array() {
        Some(ids) if status == 200 && answer["partial"] == false => {
            Ok(ids.iter().map(|id| id.as_str().unwrap().parse().unwrap()).collect())
        }
        _ => Err(format!("{address}: {status} {reply}")),
    }
}

/// Asks servers in turn until it is stopped; every answer must be whole, and that of one of the versions. Counts the
/// answers of each.
fn keep_asking(two: &Two, servers: &[String], stop: &AtomicBool, counts: &[AtomicUsize; 2]) {
    for turn in 0.. {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let query = turn * 7 % QUERIES;
        let got = ask(&servers[turn % servers.len()], &two.data.query_rows[query]).unwrap();
        let version = (0..2).find(|&v| got == two.answers[v][query * 10..][..10]);
        let version =
            version.unwrap_or_else(|| panic!("query {query}: {got:?} is the answer of neither version"));
        counts[version].fetch_add(1, Ordering::SeqCst);
    }
}

fn status(address: &str) -> Value {
    get(address, "/v1/status").1
}

fn folders(home: &Path) -> BTreeSet<String> {
    std::fs::read_dir(home).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_cluster_changes_under_load_and_no_answer_is_lost_or_mixed() {
    let two = two();
    let gateway = Gateway::start();
    if gateway.is_none() {
        leave_out(Need::S3Server, "the program versitygw is not installed");
    }
    let far = gateway.as_ref().map(|g| ("far", "1", format!("s3://{}/indexes", g.bucket)));
    let near = |name| arg(&two.data.path(&format!("store-{name}"))).to_string();
    for (name, replicas, store) in
        [("one", "1", near("one")), ("two", "2", near("two"))].into_iter().chain(far)
    {
        let with_access = |args: &[&str]| {
            let mut command = command(&[args, &["--json"]].concat());
            command.envs(gateway.iter().flat_map(|g| g.variables.clone()));
            command
        };
        let publish = |spread: &Path| {
            let output = with_access(&["cluster", "publish", arg(spread), &store]).output().unwrap();
            assert!(output.status.success(), "{}", stderr(&output));
        };
        let spread = |v: usize| {
            let more = ["--servers", "3", "--replicas", replicas];
            spread(&two.data, &two.indexes[v], &format!("spread-{name}-{v}"), &more)
        };
        let (first, second) = (spread(0), spread(1));
        publish(&first);
        let source = |s: usize| format!("store = {store:?}\ndata = \"{name}-{s}\"\npoll_s = 1");
        let servers: Vec<Running> = configs(&two.data, name, 3, &source)
            .iter()
            .map(|config| Running::of(with_access(&["serve", "--config", arg(config), "--until-eof"])))
            .collect();
        let all: Vec<String> = servers.iter().map(|s| s.address().to_string()).collect();
        wait_for("the cluster", || all.iter().all(|a| get(a, "/v1/health").0 == 200));
        let (stop, counts) = (AtomicBool::new(false), [AtomicUsize::new(0), AtomicUsize::new(0)]);
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..6)
                .map(|c| {
                    let mut turned = all.clone();
                    turned.rotate_left(c % 3);
                    let (two, stop, counts) = (&two, &stop, &counts);
                    scope.spawn(move || keep_asking(two, &turned, stop, counts))
                })
                .collect();
            let ended =
                |clients: &[std::thread::ScopedJoinHandle<'_, ()>]| clients.iter().any(|c| c.is_finished());
            wait_for("the first answers", || counts[0].load(Ordering::SeqCst) > 100 || ended(&clients));
            publish(&second);
            wait_for("the change", || {
                ended(&clients)
                    || all.iter().all(|a| {
                        let status = status(a);
                        status["version"] == 2 && status["builds"].as_array().unwrap().len() == 1
                    })
            });
            let so_far = counts[1].load(Ordering::SeqCst);
            wait_for("answers of the new version", || {
                counts[1].load(Ordering::SeqCst) > so_far + 100 || ended(&clients)
            });
            stop.store(true, Ordering::SeqCst);
            clients.into_iter().for_each(|c| c.join().unwrap());
        });
        // From now on it is the new version alone, and the files of the old one are gone.
        for (query, row) in two.data.query_rows.iter().enumerate() {
            assert_eq!(ask(&all[query % 3], row).unwrap(), two.answers[1][query * 10..][..10]);
        }
        let build = json(&["info", arg(&second)])["build_id"].as_str().unwrap().to_string();
        let only: BTreeSet<String> = [build].into();
        wait_for("the end of the old files", || {
            (0..3).all(|s| folders(&two.data.path(&format!("{name}-{s}"))) == only)
        });
        for (server, address) in servers.into_iter().zip(&all) {
            let counted = status(address);
            assert_eq!(counted["refused"], 0, "{counted}");
            assert!(counted["queries"].as_u64() > Some(60), "the counters go on: {counted}");
            server.signal(libc::SIGTERM);
            let (code, said) = server.end();
            assert_eq!(code, Some(0), "{said}");
            assert!(
                said.contains("version 2 is served from now on")
                    && said.contains("version 1 is no longer used"),
                "{said}"
            );
        }
    }
}

/// Waits for a line with this word.
fn until(lines: &Receiver<String>, word: &str) -> String {
    loop {
        let line = lines.recv_timeout(PATIENCE).unwrap_or_else(|e| panic!("no line with {word:?}: {e}"));
        if line.contains(word) {
            return line;
        }
    }
}

#[test]
fn what_cannot_be_changed_to_is_said_and_the_old_version_is_served() {
    let two = two();
    let store = two.data.path("store");
    json(&["cluster", "publish", arg(&two.indexes[0]), arg(&store)]);
    let config = |name: &str, more: &str| {
        let path = two.data.path(name);
        let text = format!(
            "store = \"store\"\ndata = \"data-{name}\"\nhttp = \"127.0.0.1:0\"\nthreads = 1\npoll_s = 1\n{more}\n"
        );
        std::fs::write(&path, text).unwrap();
        path
    };
    // Enough for one version, not for two; none that looks; and one that changes, alone.
    let mut wide = start(&config("wide", ""));
    let memory = status(wide.address())["memory"].clone();
    let bytes = |what: &str| memory[what].as_u64().unwrap();
    // An eighth is for HTTP; two versions take some 6 MiB more than one.
    let budget = (bytes("total_bytes") - bytes("HTTP_bytes")) * 8 / 7 + (2 << 20);
    let mut tight = start(&config("tight", &format!("ram_budget = {budget}")));
    let fixed = start(&config("fixed", "poll_s = 0").tap(|path| {
        let text = std::fs::read_to_string(path).unwrap().replace("poll_s = 1\n", "");
        std::fs::write(path, text).unwrap();
    }));
    let (wide_says, tight_says) = (wide.lines(), tight.lines());
    json(&["cluster", "publish", arg(&two.indexes[1]), arg(&store)]);
    let said = until(&tight_says, "no change to a new version");
    assert!(said.contains("version 2 does not fit beside") && said.contains("--ram-budget"), "{said}");
    until(&wide_says, "version 1 is no longer used");
    let answered = |server: &Running, v: usize| {
        let got = ask(server.address(), &two.data.query_rows[3]).unwrap();
        assert_eq!(got, two.answers[v][30..40]);
        assert_eq!(status(server.address())["version"], v + 1);
    };
    answered(&wide, 1);
    answered(&tight, 0);
    answered(&fixed, 0);

    // Vectors of another kind, and a version that is damaged: neither is served, and the next good one is.
    let other = Data::new(600, 12, "f32");
    let narrow = other.build("narrow", &[]);
    json(&["cluster", "publish", arg(&narrow), arg(&store)]);
    let said = until(&wide_says, "no change to a new version");
    assert!(said.contains("12 × f32") && said.contains("restart"), "{said}");
    answered(&wide, 1);
    json(&["cluster", "publish", arg(&two.indexes[0]), arg(&store)]);
    until(&wide_says, "version 4 is served from now on");
    assert_eq!(ask(wide.address(), &two.data.query_rows[3]).unwrap(), two.answers[0][30..40]);
}

#[test]
fn a_server_whose_files_are_here_starts_without_its_store_and_catches_up() {
    let two = two();
    let (store, away) = (two.data.path("store"), two.data.path("away"));
    json(&["cluster", "publish", arg(&two.indexes[0]), arg(&store)]);
    let config = two.data.path("config");
    let text = "store = \"store\"\ndata = \"data\"\nhttp = \"127.0.0.1:0\"\nthreads = 1\npoll_s = 1\n";
    std::fs::write(&config, text).unwrap();
    let answered = |server: &Running, v: usize| {
        let got = ask(server.address(), &two.data.query_rows[3]).unwrap();
        assert_eq!(got, two.answers[v][30..40]);
        assert_eq!(status(server.address())["version"], v + 1);
    };
    answered(&start(&config), 0);
    // A file in the place of the folder: the store cannot be opened.
    std::fs::rename(&store, &away).unwrap();
    std::fs::write(&store, "").unwrap();
    let mut server = start(&config);
    let says = server.lines();
    answered(&server, 0);
    std::fs::remove_file(&store).unwrap();
    std::fs::rename(&away, &store).unwrap();
    json(&["cluster", "publish", arg(&two.indexes[1]), arg(&store)]);
    until(&says, "version 2 is served from now on");
    answered(&server, 1);
    drop(server);

    // The newest manifest of the store is damaged: the one before is served, by a server with and one without files.
    json(&["cluster", "publish", arg(&two.indexes[0]), arg(&store)]);
    let newest = store.join("manifest-3.json");
    let good = std::fs::read(&newest).unwrap();
    std::fs::write(&newest, &good[..good.len() / 2]).unwrap();
    let mut server = start(&config);
    let says = server.lines();
    answered(&server, 1);
    std::fs::remove_dir_all(two.data.path("data")).unwrap();
    answered(&start(&config), 1);
    std::fs::write(&newest, good).unwrap();
    until(&says, "version 3 is served from now on");
}

#[test]
fn an_empty_place_without_a_store_is_refused() {
    let data = Data::new(50, 4, "f32");
    let config = data.path("config");
    std::fs::write(&config, "store = \"store\"\ndata = \"data\"\nhttp = \"127.0.0.1:0\"\n").unwrap();
    std::fs::write(data.path("store"), "").unwrap();
    let output = run(&["serve", "--config", arg(&config)]);
    assert!(!output.status.success());
    assert!(stderr(&output).contains("store"), "{}", stderr(&output));
}

/// Something done to a value on its way.
trait Tap: Sized {
    fn tap(self, change: impl FnOnce(&Self)) -> Self {
        change(&self);
        self
    }
}

impl<T> Tap for T {}
