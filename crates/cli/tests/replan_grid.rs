//! A partitioned `grid-ivf` whose plan follows its queries, while they go on.
#![allow(missing_docs)]

mod common;
#[path = "../../cluster/tests/gateway/mod.rs"]
mod gateway;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use common::*;
use gateway::Gateway;
use serde_json::Value;
use stratann_testing::{Need, leave_out};

const SERVERS: usize = 3;
/// The price of messages, so that nothing is timed in what decides.
const PRICES: [&str; 4] = ["--message-us", "1", "--byte-ns", "0"];

/// The ids that a server answers.
fn ask(address: &str, row: &[f64], nprobe: u32) -> Vec<u32> {
    let body: Vec<u8> = row.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect();
    let (status, reply) = post(address, &format!("/v1/search?nprobe={nprobe}&k=10&timeout_ms=20000"), &body);
    let answer = &reply["answers"][0];
    assert!(status == 200 && answer["partial"] == false, "{reply}");
    answer["ids"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().parse().unwrap()).collect()
}

fn status(address: &str) -> Value {
    get(address, "/v1/status").1
}

/// The only manifest of a folder.
fn manifest(folder: &Path) -> Value {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let of_name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("manifest-");
    serde_json::from_slice(&std::fs::read(files.into_iter().find(of_name).unwrap()).unwrap()).unwrap()
}

/// Components that each server has compared.
fn components(servers: &[String]) -> Vec<u64> {
    servers.iter().map(|address| status(address)["components"].as_u64().unwrap()).collect()
}

/// The queries that one server does most of the work of.
fn crowd(data: &Data, servers: &[String]) -> Vec<usize> {
    let mut by_server: Vec<Vec<usize>> = vec![vec![]; SERVERS];
    for (query, row) in data.query_rows.iter().enumerate() {
        let before = components(servers);
        ask(&servers[query % SERVERS], row, 2);
        let after = components(servers);
        let most = (0..SERVERS).max_by_key(|&server| after[server] - before[server]).unwrap();
        by_server[most].push(query);
    }
    by_server.into_iter().max_by_key(Vec::len).unwrap()
}

/// The busiest server's share of the work, over the mean.
fn busiest(data: &Data, crowd: &[usize], servers: &[String]) -> f64 {
    let before = components(servers);
    for turn in 0..600 {
        ask(&servers[turn % SERVERS], &data.query_rows[crowd[turn % crowd.len()]], 2);
    }
    let work: Vec<u64> =
        components(servers).iter().zip(before).map(|(after, before)| after - before).collect();
    let mean = work.iter().sum::<u64>() as f64 / SERVERS as f64;
    *work.iter().max().unwrap() as f64 / mean
}

#[test]
fn lists_move_off_a_crowded_server_while_queries_go_on() {
    lists_move(None);
}

#[test]
fn lists_move_where_versions_are_in_an_object_store() {
    match Gateway::start() {
        Some(gateway) => lists_move(Some(&gateway)),
        None => leave_out(Need::S3Server, "the program versitygw is not installed"),
    }
}

/// The store is a folder, or that of a gateway.
/// Ends the clients, also where an assertion fails: a scope waits for its threads.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn lists_move(gateway: Option<&Gateway>) {
    let data = Data::new(4000, 64, "f32");
    let near = arg(&data.path("store")).to_string();
    let store = gateway.map_or(near, |gateway| format!("s3://{}/grids", gateway.bucket));
    let with_access = |args: &[&str]| {
        let mut command = command(args);
        command.envs(gateway.iter().flat_map(|gateway| gateway.variables.clone()));
        command
    };
    let index = data.path("grid");
    let build = ["build", arg(&data.base), "-o", arg(&index), "--kind", "grid-ivf", "--lists", "90"];
    json(&[&build[..], &["--calibration-queries", "0", "--threads", "2"]].concat());
    let folder = spread(&data, &index, "spread", &["--servers", "3", "--mode", "vector"]);
    let published = with_access(&["cluster", "publish", arg(&folder), &store]).output().unwrap();
    assert!(published.status.success(), "{}", stderr(&published));
    let source = |s: usize| format!("store = {store:?}\ndata = \"data-{s}\"\npoll_s = 1");
    let mut servers: Vec<Running> = configs(&data, "server", SERVERS, &source)
        .iter()
        .map(|config| Running::of(with_access(&["serve", "--config", arg(config), "--until-eof", "--json"])))
        .collect();
    let all: Vec<String> = servers.iter().map(|server| server.address().to_string()).collect();
    wait_for("the cluster", || all.iter().all(|a| get(a, "/v1/health").0 == 200));
    let connect = all.join(",");
    let replan = |prices: &[&str], more: &[&str]| {
        let args = ["cluster", "replan", arg(&index), "-o", arg(&folder), "--connect", &connect];
        with_access(&[&args[..], &["--store", &store, "--json"], prices, more].concat()).output().unwrap()
    };
    let report_of = |prices: &[&str], more: &[&str]| -> Value {
        let done = replan(prices, more);
        assert!(done.status.success(), "{}", stderr(&done));
        serde_json::from_slice(&done.stdout).unwrap()
    };
    let run_replan = |more: &[&str]| report_of(&PRICES, more);
    let few = replan(&PRICES, &[]);
    assert!(few.status.code() == Some(2) && stderr(&few).contains("100 or more"), "{}", stderr(&few));

    let hot = crowd(&data, &all);
    let wanted: Vec<Vec<u32>> = data.query_rows.iter().map(|row| ask(&all[0], row, 2)).collect();
    let before = busiest(&data, &hot, &all);
    let visits = get(&all[1], "/v1/visits").1;
    assert!(visits["queries"].as_array().unwrap().len() > 100);
    // A change that must save more than it can.
    let idle = run_replan(&["--margin", "0.99"]);
    assert_eq!((&idle["is_published"], &idle["version"]), (&false.into(), &Value::Null), "{idle}");
    assert_eq!((&idle["priced_by"], &idle["prices"]["message_ns"]), (&"given".into(), &1e3.into()), "{idle}");

    // Without prices, those of the links between the servers count, or those of the plan where they are near.
    wait_for("the links to be measured", || {
        all.iter().all(|a| status(a)["links"].as_array().is_some_and(|links| links.len() == SERVERS - 1))
    });
    let measured = report_of(&[], &["--margin", "0.99"]);
    let planned = manifest(&folder)["cluster"]["prices"].clone();
    let price = |of: &Value| of["message_ns"].as_f64().unwrap();
    assert!(price(&measured["measured"]) > 0.0 && price(&planned) > 0.0, "{measured} {planned}");
    match measured["priced_by"].as_str() {
        Some("plan") => assert_eq!(measured["prices"], planned, "{measured}"),
        Some("servers") => assert_ne!(measured["prices"], planned, "{measured}"),
        _ => panic!("{measured}"),
    }

    let said = servers[0].lines();
    let (stop, mut after) = (AtomicBool::new(false), before);
    std::thread::scope(|scope| {
        let (stop, hot, all, data, wanted) = (&stop, &hot, &all, &data, &wanted);
        let stops = Stops(stop);
        let clients: Vec<_> = (0..SERVERS)
            .map(|client| {
                scope.spawn(move || {
                    for turn in client.. {
                        if stop.load(Ordering::SeqCst) {
                            return;
                        }
                        let query = hot[turn % hot.len()];
                        assert_eq!(ask(&all[turn % SERVERS], &data.query_rows[query], 2), wanted[query]);
                    }
                })
            })
            .collect();
        let has_failed = || clients.iter().any(|client| client.is_finished());
        let mut version = 1;
        for _ in 0..4 {
            let report = run_replan(&[]);
            let share = |what: &str| report[what]["largest_share"].as_f64().unwrap_or(0.0);
            if report["is_published"] == false {
                break;
            }
            version += 1;
            assert!(share("step") < share("current") && report["version"] == version, "{report}");
            wait_for("the change", || {
                has_failed()
                    || all.iter().all(|a| {
                        let status = status(a);
                        status["version"] == version && status["builds"].as_array().unwrap().len() == 1
                    })
            });
        }
        assert!(version > 1, "nothing was moved");
        drop(stops);
        clients.into_iter().for_each(|client| client.join().unwrap());
        after = busiest(data, hot, all);
    });
    assert!(after < 0.8 * before, "{after} after {before}");
    // What a server has of both versions is in memory once.
    let shares = |line: String| line.contains("in memory already").then_some(line);
    assert!(said.try_iter().find_map(shares).is_some());
    for (query, row) in data.query_rows.iter().enumerate() {
        assert_eq!(ask(&all[query % SERVERS], row, 2), wanted[query], "query {query}");
    }
    assert!(run(&["verify", arg(&folder)]).status.success());

    // What cannot be planned again is refused, and nothing is harmed.
    let graph = data.path("graph");
    json(&[
        "build",
        arg(&data.base),
        "-o",
        arg(&graph),
        "--kind",
        "disk-graph",
        "--calibration-queries",
        "0",
    ]);
    let other = ["cluster", "replan", arg(&graph), "-o", arg(&folder), "--connect", &connect];
    assert!(refused(&other, 2).contains("is not a partition of"));
    assert!(
        refused(&["cluster", "replan", arg(&index), "-o", arg(&index), "--connect", &connect], 2)
            .contains("serves the build")
    );
    let nobody = nobody();
    let silent = ["cluster", "replan", arg(&index), "-o", arg(&folder), "--connect", &nobody];
    assert!(refused(&silent, 1).contains("no server answers"));
}
