//! A cluster of real processes: equal answers, deaths under load, strangers, stores.
#![allow(missing_docs)]

mod common;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use common::*;
use serde_json::Value;

#[test]
fn several_processes_answer_as_one_and_do_the_same_work() {
    let data = Data::new(3000, 16, "f32");
    let index = data.build("graph", &["--nodes-per-block", "8"]);
    // One process would move its index into memory, and search otherwise.
    let asked = ["--search-list", "30", "--width", "1", "--rerank", "0"];
    let (here, there) = (data.path("here"), data.path("there"));
    let local =
        [&["search", arg(&index), arg(&data.queries), "-o", arg(&here)], &COUNTED[..], &asked].concat();
    let local = json(&local);
    for (name, more) in [("one", &["--servers", "3"][..]), ("two", &["--servers", "4", "--replicas", "2"])] {
        let folder = spread(&data, &index, name, more);
        let up = Running::start(&["cluster", "up", arg(&folder), "--threads", "1", "--ram-budget", "96MiB"]);
        let all = addresses(&up).join(",");
        let remote = json(
            &[&["search", "--connect", &all, arg(&data.queries), "-o", arg(&there), "--force"], &asked[..]]
                .concat(),
        );
        assert_eq!(read_answers(&here), read_answers(&there));
        let (mine, theirs) = (&local["runs"][0]["per_query"], &remote["runs"][0]["per_query"]);
        for key in ["reads", "hops", "full_comparisons", "pages_read"] {
            assert_eq!(mine[key], theirs[key], "{key}");
        }
        let met = |run: &serde_json::Value| {
            run["code_comparisons"].as_f64().unwrap() + run["repeats"].as_f64().unwrap()
        };
        assert!((met(mine) - met(theirs)).abs() < 1e-6);
        assert!(
            theirs["hand_overs"].as_f64() > Some(0.5) && theirs["bytes_sent"].as_f64() > Some(50.0),
            "{theirs}"
        );
        let (code, status) = get(&addresses(&up)[1], "/v1/status");
        assert_eq!((code, &status["server"], &status["dropped_frames"]), (200, &1.into(), &0.into()));
    }
}

#[test]
fn with_two_homes_a_process_is_killed_under_load_and_nothing_is_lost() {
    let data = Data::new(3000, 16, "f32");
    let index = data.build("graph", &["--nodes-per-block", "8"]);
    let folder = spread(&data, &index, "spread", &["--servers", "4", "--replicas", "2"]);
    let up = Running::start(&["cluster", "up", arg(&folder), "--threads", "1"]);
    let all = addresses(&up);
    let (expected, got) = (data.path("expected"), data.path("got"));
    let ask = |servers: &[String], out: &Path| {
        let servers = servers.join(",");
        let found = json(&[
            "search",
            "--connect",
            &servers,
            arg(&data.queries),
            "--search-list",
            "30",
            "--width",
            "1",
            "-o",
            arg(out),
            "--force",
        ]);
        assert_eq!(found["runs"][0]["failed_queries"], 0, "{found}");
    };
    ask(&all, &expected);
    let victim = up.ready["servers"][3]["pid"].as_u64().unwrap() as u32;
    std::thread::scope(|scope| {
        // Clients go on while it dies; one of them has the victim among its servers.
        let (ask, all, data, expected) = (&ask, &all, &data, &expected);
        for (i, servers) in [&all[..3], &all[..]].into_iter().enumerate() {
            scope.spawn(move || {
                let got = data.path(&format!("got{i}"));
                for _ in 0..12 {
                    ask(servers, &got);
                    assert_eq!(read_answers(expected), read_answers(&got));
                }
            });
        }
        std::thread::sleep(Duration::from_millis(300));
        send_signal(victim, libc::SIGKILL);
    });
    wait_for("word of the death", || {
        get(&all[0], "/v1/status").1["live"] == serde_json::json!([true, true, true, false])
    });
    assert_eq!(get(&all[0], "/v1/health").0, 200, "every part has another home");
    ask(&all[..3], &got);
    assert_eq!(read_answers(&expected), read_answers(&got));
}

#[test]
fn a_frozen_server_does_not_hold_up_a_search() {
    let data = Data::new(2000, 16, "f32");
    let index = data.build("graph", &["--calibration-queries", "0"]);
    let http = ["--http", "127.0.0.1:0", "--threads", "1", "--until-eof"];
    let server = Running::start(&[&["serve", "--index", arg(&index)], &http[..]].concat());
    let frozen = freezes_after(2, get(server.address(), "/v1/status").1.to_string());
    let [here, there] = ["here", "there"].map(|name| data.path(name));
    let search = |to: &str, out: &Path| {
        let asked = [arg(&data.queries), "--search-list", "30", "--width", "1", "-o", arg(out), "--json"];
        run(&[&["search", "--connect", to], &asked[..]].concat())
    };
    search(server.address(), &here);
    let found = search(&format!("{frozen},{}", server.address()), &there);
    assert!(found.status.success(), "{}", stderr(&found));
    let said = stderr(&found);
    assert!(said.contains(&format!("{frozen} accepts requests and answers none")), "{said}");
    assert_eq!(read_answers(&here), read_answers(&there));
}

/// A server that answers so many requests with this text, and then none, though it accepts connections.
fn freezes_after(answers: usize, text: String) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            if number < answers {
                let mut head = [0; 4096];
                let _ = stream.read(&mut head).unwrap();
                let reply = format!(
                    "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{text}",
                    text.len()
                );
                stream.write_all(reply.as_bytes()).unwrap();
            } else {
                silent.push(stream);
            }
        }
    });
    address
}

#[test]
fn servers_fetch_their_parts_from_a_store_and_serve_them() {
    let data = Data::new(3000, 16, "f32");
    let index = data.build("graph", &["--nodes-per-block", "8"]);
    let folder = spread(&data, &index, "spread", &["--servers", "3"]);
    let store = data.path("store");
    let publish = ["cluster", "publish", arg(&folder), arg(&store)];
    let first = json(&publish);
    assert_eq!((&first["version"], &first["is_new"]), (&1.into(), &true.into()));
    assert_eq!(json(&publish)["is_new"], false);
    let files = configs(&data, "stored", 3, &|s| format!("store = \"store\"\ndata = \"data-{s}\""));
    let servers: Vec<Running> = files.iter().map(|f| start(f)).collect();
    let all: Vec<&str> = servers.iter().map(Running::address).collect();
    wait_for("the cluster", || all.iter().all(|a| get(a, "/v1/health").0 == 200));
    let (here, there) = (data.path("here"), data.path("there"));
    let asked = ["--search-list", "30", "--width", "1", "--rerank", "0"];
    json(&[&["search", arg(&index), arg(&data.queries), "-o", arg(&here)], &asked[..]].concat());
    json(
        &[&["search", "--connect", &all.join(","), arg(&data.queries), "-o", arg(&there)], &asked[..]]
            .concat(),
    );
    assert_eq!(read_answers(&here), read_answers(&there));
    // Each has its own blocks and no other's.
    let held = |s: usize| -> Vec<String> {
        let build =
            std::fs::read_dir(data.path(&format!("data-{s}"))).unwrap().next().unwrap().unwrap().path();
        let names = std::fs::read_dir(build).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        names.filter(|n| n.contains("-blocks-")).collect()
    };
    assert_eq!(
        [held(0), held(1), held(2)].concat(),
        ["v1-blocks-00.bin", "v1-blocks-01.bin", "v1-blocks-02.bin"]
    );
    for (text, said) in [
        ("store = \"store\"", "set data"),
        ("data = \"d\"", "collections are served; leave it out"),
        ("store = \"none\"\ndata = \"d\"", "holds no index"),
        ("store = \"store\"\ndata = \"d\"\netcd = [\"http://127.0.0.1:9\"]", "set both etcd and cluster"),
    ] {
        let path = data.path("bad.toml");
        std::fs::write(&path, format!("{text}\nserver = 0\n")).unwrap();
        let error = refused(&["serve", "--config", arg(&path)], 2);
        assert!(error.contains(said), "{text}: {error}");
    }
}

/// The best k of several answers to the same queries, by distance, then id.
fn merged(parts: &[(usize, Vec<u32>, Vec<f32>)]) -> (usize, Vec<u32>, Vec<f32>) {
    let k = parts[0].0;
    let (mut ids, mut distances) = (Vec::new(), Vec::new());
    for query in 0..parts[0].1.len() / k {
        let of = |part: &(usize, Vec<u32>, Vec<f32>)| -> Vec<(f32, u32)> {
            (query * k..(query + 1) * k).map(|i| (part.2[i], part.1[i])).collect()
        };
        let mut all: Vec<(f32, u32)> = parts.iter().flat_map(of).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        ids.extend(all[..k].iter().map(|a| a.1));
        distances.extend(all[..k].iter().map(|a| a.0));
    }
    (k, ids, distances)
}

#[test]
fn separate_indexes_are_served_together_and_all_are_asked() {
    let data = Data::new(3000, 16, "f32");
    let index = data.build("graph", &["--nodes-per-block", "8", "--calibration-queries", "0"]);
    let apart = spread(&data, &index, "apart", &["--servers", "3", "--scatter-gather"]);
    let asked = ["--search-list", "30", "--width", "1", "--rerank", "0"];
    let (here, there) = (data.path("here"), data.path("there"));
    let mut reads = 0.0;
    let parts: Vec<_> = (0..3)
        .map(|server| {
            let folder = apart.join(format!("server-{server:02}"));
            let args = ["search", arg(&folder), arg(&data.queries), "-o", arg(&here), "--force"];
            let found = json(&[&args[..], &asked, &COUNTED].concat());
            reads += found["runs"][0]["per_query"]["reads"].as_f64().unwrap();
            read_answers(&here)
        })
        .collect();
    let up = Running::start(&["cluster", "up", arg(&apart), "--threads", "1", "--ram-budget", "96MiB"]);
    let all = addresses(&up);
    let search = |servers: &str, more: &[&str]| {
        let args =
            ["search", "--connect", servers, arg(&data.queries), "-o", arg(&there), "--force", "--json"];
        run(&[&args[..], &asked, more].concat())
    };
    let output = search(&all.join(","), &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(read_answers(&there), merged(&parts));
    let remote = &found["runs"][0]["per_query"];
    assert!(
        (remote["reads"].as_f64().unwrap() - reads).abs() < 1e-9 && remote["hand_overs"] == 0.0,
        "{remote}"
    );
    // The simulator says the same of such a cluster.
    let simulated = json(
        &[
            &[
                "simulate",
                arg(&index),
                arg(&data.queries),
                "--servers",
                "3",
                "--mode",
                "scatter-gather",
                "--no-times",
            ],
            &asked[..2],
            &["--partitions", arg(&apart)],
        ]
        .concat(),
    );
    for key in ["reads", "code_comparisons", "full_comparisons", "hops", "hand_overs"] {
        assert_eq!(simulated["runs"][0]["per_query"][key], remote[key], "{key}");
    }
    let status = get(&all[2], "/v1/status").1;
    assert_eq!(
        (&status["rows"], &status["servers"], &status["hand_overs_out"]),
        (&3000.into(), &3.into(), &0.into())
    );

    // Without one of them its rows are missing: an error, or an answer that says so.
    send_signal(up.ready["servers"][1]["pid"].as_u64().unwrap() as u32, libc::SIGKILL);
    wait_for("word of the death", || {
        [0, 2].iter().all(|&s| get(&all[s], "/v1/status").1["live"] == serde_json::json!([true, false, true]))
    });
    assert_eq!(get(&all[0], "/v1/health").0, 503);
    let two = format!("{},{}", all[0], all[2]);
    let output = search(&two, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("no server that answers has part 1 of"), "{}", stderr(&output));
    let output = search(&two, &["--partial"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(read_answers(&there), merged(&[parts[0].clone(), parts[2].clone()]));
}

/// Two parts on two servers each, from a store: the answers are those of two separate indexes, also without a server.
#[test]
fn parts_of_several_servers_answer_as_separate_indexes_do() {
    let data = Data::new(3000, 16, "f32");
    let index = data.build("graph", &["--nodes-per-block", "8", "--calibration-queries", "0"]);
    let asked = ["--search-list", "30", "--width", "1", "--rerank", "0"];
    let (here, there) = (data.path("here"), data.path("there"));
    let apart = spread(&data, &index, "apart", &["--servers", "2", "--scatter-gather"]);
    let parts: Vec<_> = (0..2)
        .map(|part| {
            let folder = apart.join(format!("server-{part:02}"));
            let args = ["search", arg(&folder), arg(&data.queries), "-o", arg(&here), "--force"];
            json(&[&args[..], &asked].concat());
            read_answers(&here)
        })
        .collect();
    let store = data.path("store");
    for (name, replicas, servers) in [("split", "1", 4), ("copied", "2", 4)] {
        let more = ["--servers", "4", "--scatter-gather", "--parts", "2", "--replicas", replicas];
        let folder = spread(&data, &index, name, &more);
        assert_eq!(json(&["cluster", "publish", arg(&folder), arg(&store)])["is_new"], true);
        let source =
            |server: usize| format!("store = {store:?}\ndata = {:?}", data.path(&format!("{name}-{server}")));
        let files = configs(&data, name, servers, &source);
        let running: Vec<Running> = files.iter().map(|file| start(file)).collect();
        wait_for("all servers", || running.iter().all(|s| get(s.address(), "/v1/health").0 == 200));
        let search = |server: &Running, more: &[&str]| {
            let args = ["search", "--connect", server.address(), arg(&data.queries), "-o", arg(&there)];
            let found = json(&[&args[..], &asked, &["--force"], more].concat());
            (read_answers(&there), found["runs"][0]["per_query"]["hand_overs"].as_f64().unwrap())
        };
        for server in &running {
            let (found, hand_overs) = search(server, &[]);
            assert_eq!(found, merged(&parts), "{name}");
            assert_eq!(hand_overs > 0.0, replicas == "1", "{name}: {hand_overs} hand-overs");
        }
        if replicas == "2" {
            running[3].signal(libc::SIGKILL);
            let seen = |server: &Running| get(server.address(), "/v1/status").1["live"].clone();
            wait_for("word of the death", || {
                seen(&running[0]) == serde_json::json!([true, true, true, false])
            });
            assert_eq!(search(&running[0], &[]).0, merged(&parts), "server 2 has all of the part");
            running[2].signal(libc::SIGKILL);
            wait_for("word of the death", || {
                seen(&running[0]) == serde_json::json!([true, true, false, false])
            });
            assert_eq!(search(&running[0], &["--partial"]).0, parts[0], "a part is missing");
        }
    }
}

#[test]
fn another_version_of_the_index_is_no_peer_and_noise_does_no_harm() {
    let data = Data::new(3000, 16, "f32");
    let index = data.build("graph", &["--nodes-per-block", "8"]);
    let new = spread(&data, &index, "new", &["--servers", "2", "--replicas", "2"]);
    let old = spread(
        &data,
        &index,
        "old",
        &["--servers", "2", "--replicas", "2", "--seed", "5", "--method", "random"],
    );
    let build = |folder: &Path| json(&["info", arg(folder)])["build_id"].clone();
    // With all blocks on both servers the placement is the same; the manifest is not.
    assert_ne!(build(&new), build(&old));
    let folders: BTreeMap<usize, &Path> = BTreeMap::from([(0, new.as_path()), (1, old.as_path())]);
    let files = configs(&data, "mixed", 2, &|s| format!("index = {:?}", folders[&s]));
    let servers: Vec<Running> = files.iter().map(|f| start(f)).collect();
    let listen = servers[0].ready["listen"].as_str().unwrap().to_string();
    for noise in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xFF; 100_000], &[0; 10], b"STRATANN"] {
        let mut stream = TcpStream::connect(&listen).unwrap();
        // It may close before all is written.
        let _ = stream.write_all(noise);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    // Each answers alone, for it holds all blocks, and knows the other as dead.
    for server in &servers {
        let found =
            json(&["search", "--connect", server.address(), arg(&data.queries), "--search-list", "30"]);
        assert_eq!(found["runs"][0]["failed_queries"], 0);
        let live = get(server.address(), "/v1/status").1["live"].clone();
        assert_eq!(live.as_array().unwrap().iter().filter(|l| **l == true).count(), 1, "{live}");
    }
    for server in servers {
        server.signal(libc::SIGTERM);
        let (code, said) = server.end();
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("another build of the index"), "{said}");
    }
}
