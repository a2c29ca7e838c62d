//! A `hybrid-ivf` on several processes: equal answers, deaths, stores, changed placements, wrong files.
#![allow(missing_docs)]

mod common;

use std::path::{Path, PathBuf};

use common::*;
use serde_json::Value;

/// Builds an index whose clusters have local indexes of this plan.
fn lists(data: &Data, plan: &str) -> PathBuf {
    let index = data.path(plan);
    let args = ["build", arg(&data.base), "-o", arg(&index), "--kind", "hybrid-ivf", "--clusters", "40"];
    json(&[&args[..], &["--plan", plan, "--calibration-queries", "0", "--threads", "2"]].concat());
    index
}

/// Options with which every server reads the same lists: no early stop, a fixed width.
const ASKED: [&str; 4] = ["--nprobe", "12", "--width", "1"];

fn alone(data: &Data, index: &Path, out: &Path) -> Value {
    let args = ["search", arg(index), arg(&data.queries), "-o", arg(out), "--force", "--no-learning"];
    json(&[&args[..], &COUNTED, &ASKED].concat())["runs"][0]["per_query"].clone()
}

fn together(data: &Data, servers: &[String], out: &Path, more: &[&str]) -> Value {
    let servers = servers.join(",");
    let args = ["search", "--connect", &servers, arg(&data.queries), "-o", arg(out), "--force"];
    json(&[&args[..], &ASKED, more].concat())["runs"][0].clone()
}

#[test]
fn several_processes_answer_as_one() {
    let data = Data::new(3000, 16, "f32");
    let (here, there) = (data.path("here"), data.path("there"));
    for (plan, name, more, up_with) in [
        ("uniform-flat", "one", &["--servers", "1"][..], &[][..]),
        ("uniform-flat", "three", &["--servers", "3"], &["--ram-budget", "160MiB"]),
        ("uniform-graph", "four", &["--servers", "4", "--replicas", "2"], &["--ram-budget", "160MiB"]),
        ("uniform-ivf", "divided", &["--servers", "3"], &["--no-merge"]),
    ] {
        let index = data.path(plan);
        if !index.exists() {
            lists(&data, plan);
        }
        let mine = alone(&data, &index, &here);
        let folder = spread(&data, &index, name, more);
        // The second time what the first left is used, or nothing was left.
        for remote in ["hand-over", "score", "forward"] {
            let up = ["cluster", "up", arg(&folder), "--threads", "1", "--remote", remote];
            let up = Running::start(&[&up[..], up_with].concat());
            let all = addresses(&up);
            let theirs = together(&data, &all, &there, &[])["per_query"].clone();
            assert_eq!(read_answers(&here), read_answers(&there), "{name}");
            assert_eq!(mine["lists"], theirs["lists"], "{name}");
            let count = |what: &str| theirs[what].as_f64().unwrap();
            let is_several = all.len() > 1;
            // A cluster that is a graph is searched by the query itself; its vectors are scored.
            let scores = is_several && remote != "hand-over";
            // Jobs are forwarded where two other servers hold what is missing.
            let travels = remote == "hand-over" || plan == "uniform-graph" || remote == "forward";
            let least = if remote == "forward" { 0.1 } else { 0.5 };
            assert_eq!(count("hand_overs") > least, is_several && travels, "{theirs}");
            assert_eq!(count("score_jobs") > 0.5, scores, "{theirs}");
            let status = get(&all[0], "/v1/status").1;
            let jobs = |server: &String| get(server, "/v1/status").1["jobs_in"].as_u64().unwrap();
            let scored = all.iter().map(jobs).sum::<u64>();
            assert_eq!(scored > 5, scores, "{scored}");
            assert_eq!((&status["dropped_frames"], &status["lost_reads"]), (&0.into(), &0.into()));
            // With a budget its lists and their vectors are in RAM.
            if up_with.first() == Some(&"--ram-budget") {
                let memory = &status["memory"];
                let bytes = |what: &str| memory[what].as_u64().unwrap();
                assert!(
                    bytes("codes_in_RAM_bytes") > 1000 && bytes("vectors_in_RAM_bytes") > 1000,
                    "{memory}"
                );
                assert!(theirs["resident_hits"].as_f64() > Some(1.0), "{theirs}");
            }
        }
    }
}

/// Queries that come again find their vectors in RAM, on whichever server holds them.
#[test]
fn each_server_learns_from_its_own_clients_and_keeps_what_it_learned() {
    let data = Data::new(3000, 16, "f32");
    let index = lists(&data, "uniform-flat");
    let (here, there) = (data.path("here"), data.path("there"));
    alone(&data, &index, &here);
    for remote in ["hand-over", "score", "forward"] {
        let folder = spread(&data, &index, remote, &["--servers", "3"]);
        let ask = |option: &[&str], times: usize| {
            let up = ["cluster", "up", arg(&folder), "--threads", "1", "--remote", remote];
            let up = Running::start(&[&up[..], option].concat());
            let all = addresses(&up);
            let mut last = Value::Null;
            for _ in 0..times {
                last = together(&data, &all, &there, &[])["per_query"].clone();
            }
            up.signal(libc::SIGTERM);
            assert_eq!(up.end().0, Some(0));
            ["reads", "pinned_hits"].map(|counter| last[counter].as_f64().unwrap())
        };
        let before = ask(&["--no-learning"], 1);
        let learned = ask(&["--epoch-queries", "8", "--always-learn"], 30);
        let frozen = ask(&["--frozen"], 1);
        let what = format!("{remote}: {before:?}, {learned:?}, {frozen:?}");
        // What is learned depends on which server each query asks first, so only the direction is certain.
        assert!(before[1] == 0.0 && learned[1] > 0.0 && frozen[1] > 0.0, "{what}");
        assert!(learned[0] <= before[0] && frozen[0] <= before[0], "{what}");
        assert_eq!(ask(&["--no-learning"], 1), before, "{remote}");
        for server in 0..3 {
            assert!(folder.join(format!("learnt-{server:02}.bin")).exists(), "{remote}, {server}");
        }
        // Lists are dealt by what the servers have learnt.
        let dealt = data.path("dealt");
        let again = ["cluster", "partition", arg(&index), "-o", arg(&dealt), "--servers", "3", "--force"];
        let by_traffic = json(&[&again[..], &["--traffic", arg(&folder)]].concat());
        let by_bytes = json(&[&again[..], &["--no-traffic"]].concat());
        assert!(by_traffic["busiest_over_mean"].as_f64() < Some(1.2), "{by_traffic}");
        assert!(by_bytes["busiest_over_mean"].is_null() && by_bytes["build_id"] != by_traffic["build_id"]);
        let error = refused(&[&again[..], &["--traffic", arg(&data.path("nothing"))]].concat(), 2);
        assert!(error.contains("nothing"), "{error}");
        // What was learned may order the lists in another way, and changes few answers.
        let (mine, theirs) = (read_answers(&here).1, read_answers(&there).1);
        let equal = mine.iter().zip(&theirs).filter(|(a, b)| a == b).count();
        assert!(equal * 100 >= mine.len() * 95, "{remote}: {equal} of {}", mine.len());
        std::fs::write(folder.join("learnt-01.bin"), b"damaged").unwrap();
        let verified = run(&["verify", arg(&folder)]);
        let said = String::from_utf8_lossy(&verified.stdout).into_owned() + &stderr(&verified);
        assert!(!verified.status.success() && said.contains("learnt-01.bin"), "{said}");
    }
}

/// With little memory lists are worth more than learning. What is resident stays so when learning ends.
#[test]
fn a_server_with_little_memory_keeps_lists_and_does_not_learn() {
    let data = Data::new(3000, 16, "f32");
    let index = lists(&data, "uniform-flat");
    let folder = spread(&data, &index, "tight", &["--servers", "2"]);
    let up = ["cluster", "up", arg(&folder), "--threads", "1", "--ram-budget"];
    let error = refused(&[&up[..], &["30MiB"]].concat(), 1);
    let least = error.split("give --ram-budget ").nth(1).and_then(|rest| rest.split("MiB").next());
    let least: u64 = least.and_then(|mib| mib.parse().ok()).unwrap_or_else(|| panic!("{error}"));
    // What HTTP takes besides depends on the machine.
    let start = |mib: u64| {
        let budget = format!("{mib}MiB");
        let start = || Running::start(&[&up[..], &[&budget]].concat());
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(start)).ok()
    };
    let tight = (least..least + 60).find_map(start).expect("one of these is enough");
    let (mut is_on, mut resident) = (Vec::new(), Vec::new());
    for running in [tight, start(least + 200).expect("this is enough")] {
        let theirs = together(&data, &addresses(&running), &data.path("tight-answers"), &[]);
        resident.push(theirs["per_query"]["resident_hits"].as_f64().unwrap());
        running.signal(libc::SIGTERM);
        let (code, said) = running.end();
        assert_eq!(code, Some(0), "{said}");
        is_on.push(!said.contains("learning from queries would take"));
    }
    assert_eq!(is_on, [false, true]);
    assert!(resident.iter().all(|&hits| hits > 1.0), "{resident:?}");
}

#[test]
fn options_of_learning_are_passed_on_or_refused() {
    let data = Data::new(1500, 16, "f32");
    let index = lists(&data, "uniform-flat");
    let folder = spread(&data, &index, "spread", &["--servers", "2"]);
    for (index, option) in [(&folder, "--no-learning"), (&folder, "--frozen"), (&index, "--frozen")] {
        let up = Running::start(&["cluster", "up", arg(index), "--threads", "1", option]);
        together(&data, &addresses(&up), &data.path("answers"), &[]);
        up.signal(libc::SIGTERM);
        let (code, said) = up.end();
        assert_eq!(code, Some(0), "{said}");
        assert!(!index.join("learnt.bin").exists() && !index.join("learnt-00.bin").exists());
    }
    let graph = data.build("graph", &[]);
    let line = refused(&["serve", "--index", arg(&graph), "--no-learning"], 2);
    assert!(line.contains("--no-learning is for hybrid-ivf, and this index is a disk-graph"), "{line}");
}

#[test]
fn with_two_replicas_a_killed_process_changes_no_answer() {
    let data = Data::new(3000, 16, "f32");
    let index = lists(&data, "uniform-flat");
    let folder = spread(&data, &index, "spread", &["--servers", "4", "--replicas", "2"]);
    for (remote, counter) in [("hand-over", "hand_overs_in"), ("score", "jobs_in"), ("forward", "jobs_in")] {
        kill_one(&data, (&index, &folder), remote, counter);
    }
}

/// Kills one of four servers while queries run, once `counter` shows that others asked it.
fn kill_one(data: &Data, (index, folder): (&Path, &Path), remote: &str, counter: &str) {
    let up = Running::start(&["cluster", "up", arg(folder), "--threads", "1", "--remote", remote]);
    let all = addresses(&up);
    let (expected, got) = (data.path("expected"), data.path("got"));
    alone(data, index, &expected);
    std::thread::scope(|scope| {
        let (all, expected) = (&all, &expected);
        let clients: Vec<_> = [&all[..3], &all[..]]
            .into_iter()
            .enumerate()
            .map(|(i, servers)| {
                scope.spawn(move || {
                    let got = data.path(&format!("got{i}"));
                    for _ in 0..12 {
                        assert_eq!(together(data, servers, &got, &[])["failed_queries"], 0);
                        assert_eq!(read_answers(expected), read_answers(&got));
                    }
                })
            })
            .collect();
        wait_for("queries on the victim", || {
            get(&all[3], "/v1/status").1[counter].as_u64() > Some(20)
                || clients.iter().any(|client| client.is_finished())
        });
        send_signal(up.ready["servers"][3]["pid"].as_u64().unwrap() as u32, libc::SIGKILL);
    });
    wait_for("word of the death", || {
        get(&all[0], "/v1/status").1["live"] == serde_json::json!([true, true, true, false])
    });
    assert_eq!(get(&all[0], "/v1/health").0, 200, "every list has another home");
    together(data, &all[..3], &got, &[]);
    assert_eq!(read_answers(&expected), read_answers(&got));
}

#[test]
fn without_replicas_a_dead_process_makes_answers_partial_and_they_say_so() {
    let data = Data::new(3000, 16, "f32");
    let index = lists(&data, "uniform-flat");
    let folder = spread(&data, &index, "spread", &["--servers", "3"]);
    let up = Running::start(&["cluster", "up", arg(&folder), "--threads", "1"]);
    let all = addresses(&up);
    send_signal(up.ready["servers"][1]["pid"].as_u64().unwrap() as u32, libc::SIGKILL);
    wait_for("word of the death", || {
        [0, 2].iter().all(|&s| get(&all[s], "/v1/status").1["live"] == serde_json::json!([true, false, true]))
    });
    assert_eq!(get(&all[0], "/v1/health").0, 503);
    let two = [all[0].clone(), all[2].clone()];
    let servers = two.join(",");
    let args = ["search", "--connect", &servers, arg(&data.queries), "--json"];
    let output = run(&[&args[..], &ASKED].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("no server that answers holds"), "{}", stderr(&output));
    let run = together(&data, &two, &data.path("partial"), &["--partial"]);
    assert_eq!(run["failed_queries"], 0);
    assert!(run["per_query"]["unreachable"].as_f64() > Some(0.1), "{run}");
}

/// Content of the file of the index's version that this server has fetched, and its words about fetching.
fn fetched(said: &str, version: u64) -> (u64, u64) {
    let line = said
        .lines()
        .find(|line| line.contains(&format!("version {version} of")) && line.contains("downloaded"))
        .unwrap_or_else(|| panic!("no word of version {version}: {said}"));
    let before = |word: &str| {
        let text = line.split(word).next()?.split_whitespace().last()?;
        text.parse().ok()
    };
    (before(" bytes downloaded").unwrap(), before(" copied from").unwrap_or(0))
}

#[test]
fn servers_change_to_another_placement_and_fetch_only_what_moved() {
    let data = Data::new(3000, 16, "f32");
    let graph = data.build("graph", &["--nodes-per-block", "8", "--calibration-queries", "0"]);
    let (here, there) = (data.path("here"), data.path("there"));
    for (kind, index, asked) in [
        ("lists", lists(&data, "uniform-graph"), ASKED),
        ("blocks", graph, ["--search-list", "30", "--width", "1"]),
    ] {
        let first = spread(&data, &index, &format!("{kind}-1"), &["--servers", "3"]);
        let second = spread(&data, &index, &format!("{kind}-2"), &["--servers", "3", "--replicas", "2"]);
        let store = data.path(&format!("store-{kind}"));
        json(&["cluster", "publish", arg(&first), arg(&store)]);
        let source = |s: usize| format!("store = {store:?}\ndata = \"data-{kind}-{s}\"\npoll_s = 1");
        let files = configs(&data, kind, 3, &source);
        let servers: Vec<Running> = files.iter().map(|f| start(f)).collect();
        let all: Vec<String> = servers.iter().map(|s| s.address().to_string()).collect();
        wait_for("the cluster", || all.iter().all(|a| get(a, "/v1/health").0 == 200));
        let local = ["search", arg(&index), arg(&data.queries), "-o", arg(&here), "--force"];
        json(&[&local[..], &asked].concat());
        let same = || {
            let servers = all.join(",");
            let args = ["search", "--connect", &servers, arg(&data.queries), "-o", arg(&there), "--force"];
            json(&[&args[..], &asked].concat());
            assert_eq!(read_answers(&here), read_answers(&there), "{kind}");
        };
        same();
        json(&["cluster", "publish", arg(&second), arg(&store)]);
        wait_for("the change", || {
            all.iter().all(|a| {
                let status = get(a, "/v1/status").1;
                status["version"] == 2 && status["builds"].as_array().unwrap().len() == 1
            })
        });
        same();
        for (server, running) in servers.into_iter().enumerate() {
            running.signal(libc::SIGTERM);
            let (code, said) = running.end();
            assert_eq!(code, Some(0), "{said}");
            let (_, (downloaded, copied)) = (fetched(&said, 1), fetched(&said, 2));
            let part = file_of(&second, &format!("-{kind}-{server:02}.bin")).metadata().unwrap().len();
            let old = file_of(&first, &format!("-{kind}-{server:02}.bin")).metadata().unwrap().len();
            // Its first units are copied, their second replicas are fetched, and so is the placement.
            assert!(copied >= old - 4096 && downloaded < part - old + 4096 + 1000, "{copied} {downloaded}");
            assert!(downloaded > (part - old) / 2, "{downloaded} of {part}, {old}");
        }
    }
}

#[test]
fn files_of_another_server_or_build_are_refused_in_one_line() {
    let data = Data::new(1500, 16, "f32");
    let index = lists(&data, "uniform-flat");
    let folder = spread(&data, &index, "spread", &["--servers", "3"]);
    let other = spread(&data, &index, "other", &["--servers", "3", "--method", "random"]);
    let config = &configs(&data, "wrong", 3, &|_| format!("index = {folder:?}"))[0];
    let part = file_of(&folder, "lists-00.bin");
    let good = std::fs::read(&part).unwrap();
    let placement = file_of(&folder, "placement.bin");
    let placed = std::fs::read(&placement).unwrap();
    let serve = ["serve", "--config", arg(config)];
    let mut others = std::fs::read(file_of(&folder, "lists-01.bin")).unwrap();
    others.resize(good.len(), 0);
    for bytes in [&others[..], &good[..good.len() - 4096], &good[..100]] {
        std::fs::write(&part, bytes).unwrap();
        let error = refused(&serve, 1);
        assert!(error.contains("v1-lists-00.bin"), "{error}");
    }
    std::fs::write(&part, &good).unwrap();
    std::fs::copy(file_of(&other, "placement.bin"), &placement).unwrap();
    let error = refused(&serve, 1);
    assert!(error.contains("v1-placement.bin") && error.contains("checksum"), "{error}");
    std::fs::write(&placement, &placed).unwrap();
    let error = refused(&["cluster", "up", arg(&folder), "--ram-budget", "1MiB"], 1);
    assert!(error.contains("server ") && error.contains("--ram-budget"), "{error}");
    start(config);
}
