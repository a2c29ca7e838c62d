//! `stratann serve`, `search --connect` and `bench --connect`, with real processes.
#![allow(missing_docs)]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;

use common::*;
use serde_json::Value;

fn connected<'a>(server: &'a Running, queries: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["search", "--connect", server.address(), queries], more].concat()
}

#[test]
fn a_server_answers_as_the_index_does() {
    for (dtype, metric) in [("f32", "l2"), ("u8", "l2"), ("f16", "cosine"), ("i8", "ip")] {
        let data = Data::new(1500, 16, dtype);
        let index = data.build("graph", &["--metric", metric]);
        let server = Running::serve(&index, &["--threads", "2"]);
        assert_eq!((&server.ready["server"], &server.ready["listen"]), (&0.into(), &Value::Null));
        let truth = data.truth(metric);
        let asked = ["--search-list", "30", "--width", "1", "-k", "7", "--groundtruth", arg(&truth)];
        let (here, there) = (data.path("here"), data.path("there"));
        let local = json(
            &[&["search", arg(&index), arg(&data.queries), "-o", arg(&here)], &COUNTED[..], &asked].concat(),
        );
        for more in [&["--in-flight", "1", "--threads", "1"][..], &[], &["--in-flight", "5"]] {
            let args = connected(
                &server,
                arg(&data.queries),
                &[&asked, more, &["-o", arg(&there), "--force"]].concat(),
            );
            let remote = json(&args);
            assert_eq!(read_answers(&here), read_answers(&there), "{dtype} {metric}");
            let (mine, theirs) = (&local["runs"][0], &remote["runs"][0]);
            let keys = |v: &Value| v.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
            assert_eq!((keys(&local), keys(mine)), (keys(&remote), keys(theirs)));
            assert_eq!(exact_counters(mine), exact_counters(theirs));
            for key in ["recall", "queries", "failed_queries"] {
                assert_eq!(mine[key], theirs[key], "{key}");
            }
            for key in ["k", "recall", "search_list", "stop_slack", "patience", "width", "mode"] {
                assert_eq!(mine["params"][key], theirs["params"][key], "{key}");
            }
            assert!(theirs["stage_us"].is_null() && theirs["peak_rss_bytes"].as_u64() > Some(1 << 20));
            assert!(theirs["latency_us"]["p50"].as_f64() > Some(0.0) && theirs["cpu_us"].is_f64());
            assert!(theirs["memory"]["codes_bytes"].as_u64() > Some(0), "{theirs}");
        }
    }
}

#[test]
fn several_settings_and_a_recall() {
    let data = Data::new(1500, 16, "f32");
    let index = data.build("graph", &[]);
    let server = Running::serve(&index, &["--ram-budget", "64MiB"]);
    let runs = |more: &[&str]| json(&connected(&server, arg(&data.queries), more))["runs"].clone();
    let swept = runs(&["--search-list", "20,60", "--mode", "eager", "--patience", "0"]);
    let reads = |run: usize| swept[run]["per_query"]["reads"].as_f64().unwrap();
    assert!(reads(1) > reads(0), "{swept}");
    let local = ["search", arg(&index), arg(&data.queries), "--recall", "0.9", "--width", "1"];
    let local = json(&[&local[..], &COUNTED].concat());
    let remote = runs(&["--recall", "0.9", "--width", "1"]);
    assert_eq!(exact_counters(&local["runs"][0]), exact_counters(&remote[0]));
    assert_eq!(local["runs"][0]["params"]["patience"], remote[0]["params"]["patience"]);
    let error = refused(&connected(&server, arg(&data.queries), &["--recall", "1.5"]), 2);
    assert!(error.contains("--recall is 1.5"), "{error}");
    let output = run(&connected(&server, arg(&data.queries), &["--search-list", "5", "-k", "10"]));
    assert!(stderr(&output).contains("--search-list 5 is below k; 10 is used"), "{}", stderr(&output));
}

#[test]
fn what_cannot_apply_is_refused_by_name() {
    let data = Data::new(100, 8, "f32");
    let (queries, nobody) = (arg(&data.queries), nobody());
    let search = ["search", "--connect", &nobody, queries];
    for option in
        [["--cache-budget", "1MiB"], ["--ram-budget", "1GiB"], ["--io", "pread"], ["--admission", "one"]]
    {
        let error = refused(&[&search[..], &option].concat(), 2);
        assert!(error.contains(option[0]) && error.contains("--connect"), "{error}");
    }
    let bench = ["bench", "--connect", &nobody, queries, "--rate", "10"];
    for option in [["--rounds", "2"], ["--in-flight", "3"], ["--groundtruth", "gt"]] {
        assert!(refused(&[&bench[..], &option].concat(), 2).contains(option[0]));
    }
    assert!(refused(&["bench", "--connect", &nobody, queries], 2).contains("--rate"));
    assert!(refused(&["bench", "--rate", "5", "index", queries], 2).contains("--connect"));
    assert!(refused(&["search", "--partial", "index", queries], 2).contains("--connect"));
    let error = refused(&["search", queries], 2);
    assert!(error.contains("give an index and a file of queries"), "{error}");
    let error = refused(&[&search[..3], &["index", queries]].concat(), 2);
    assert!(error.contains("leave out index"), "{error}");
    assert!(refused(&["search", "--connect", "nowhere", queries], 2).contains("HOST:PORT"));
    let error = refused(&search, 1);
    assert!(error.contains(&nobody) && error.contains("stratann serve"), "{error}");
}

#[test]
fn queries_that_do_not_fit_never_leave() {
    let data = Data::new(300, 8, "f32");
    let flat = data.path("flat");
    json(&["build", arg(&data.base), "-o", arg(&flat), "--kind", "flat"]);
    let server = Running::serve(&flat, &[]);
    let other = Data::new(10, 9, "f32");
    let error = refused(&connected(&server, arg(&other.queries), &[]), 2);
    assert!(error.contains("has 9 dimensions, the index has 8"), "{error}");
    let bytes = Data::new(10, 8, "u8");
    assert!(refused(&connected(&server, arg(&bytes.queries), &[]), 2).contains("holds u8"));
    let short = data.path("short.ibin");
    std::fs::write(&short, [3u32, 1, 0, 0, 0, 0, 0, 0].map(u32::to_le_bytes).concat()).unwrap();
    let error = refused(&connected(&server, arg(&data.queries), &["--groundtruth", arg(&short)]), 2);
    assert!(error.contains("for 3 queries"), "{error}");
    let many = json(&connected(&server, arg(&data.queries), &["-k", "400"]));
    assert_eq!(many["runs"][0]["params"]["k"], 300);
}

#[test]
fn the_next_server_is_asked_when_one_is_down() {
    let data = Data::new(1500, 16, "f32");
    let index = data.build("graph", &[]);
    let (server, none) = (Running::serve(&index, &[]), nobody());
    let both = format!("{none},{}", server.address());
    let args = ["search", "--connect", &both, arg(&data.queries), "--search-list", "20", "--in-flight", "3"];
    let output = run(&[&args[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("1 servers do not respond"), "{}", stderr(&output));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["runs"][0]["failed_queries"], 0);

    let other = Data::new(1200, 16, "f32");
    let other_server = Running::serve(&other.build("graph", &[]), &[]);
    let both = format!("{},{}", server.address(), other_server.address());
    assert!(refused(&["search", "--connect", &both, arg(&data.queries)], 2).contains("different indexes"));
}

#[test]
fn a_full_queue_fails_queries_and_nothing_else() {
    let data = Data::new(1500, 16, "f32");
    let index = data.build("graph", &[]);
    let server = Running::serve(&index, &["--queue", "1"]);
    let out = data.path("out");
    let more = ["-o", arg(&out), "--search-list", "200", "--json"];
    let output = run(&connected(&server, arg(&data.queries), &more));
    assert_eq!(output.status.code(), Some(1));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let failed = found["runs"][0]["failed_queries"].as_u64().unwrap() as usize;
    assert!((1..50).contains(&failed), "{failed}");
    assert!(stderr(&output).contains("ask again later"), "{}", stderr(&output));
    let (k, ids, distances) = read_answers(&out);
    let rows = ids.chunks(k).zip(distances.chunks(k));
    assert_eq!(rows.filter(|(ids, d)| ids[0] == u32::MAX && d[0].is_infinite()).count(), failed);

    // All at once: what comes while a query is held is refused, and counted by its kind.
    let bench =
        ["bench", "--connect", server.address(), arg(&data.queries), "--rate", "100000", "--seconds", "0.01"];
    let output = run(&[&bench[..], &["--search-list", "200", "--json"]].concat());
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let number = |key: &Value| key.as_u64().unwrap();
    let run = &found["runs"][0];
    assert_eq!(number(&run["errors"]["overloaded"]) + number(&run["answered"]), number(&run["requests"]));
    assert_eq!(output.status.code(), Some(i32::from(run["answered"] != run["requests"])));
}

#[test]
fn queries_arrive_at_a_rate() {
    let data = Data::new(1500, 16, "f32");
    let index = data.build("graph", &[]);
    let server = Running::serve(&index, &[]);
    let more = ["--rate", "50,200", "--seconds", "0.5", "--clients", "4", "--search-list", "20,30"];
    let args = [&["bench", "--connect", server.address(), arg(&data.queries)], &more[..]].concat();
    let found = json(&args);
    let runs = found["runs"].as_array().unwrap();
    assert_eq!((runs.len(), &found["clients"], &found["seed"]), (4, &4.into(), &1.into()));
    for run in runs {
        let (requests, answered) = (run["requests"].as_u64().unwrap(), run["answered"].as_u64().unwrap());
        assert!(requests > 0 && answered == requests, "{run}");
        for key in ["mean", "p50", "p95", "p99", "max"] {
            assert!(run["latency_us"][key].as_f64() > Some(0.0), "{run}");
        }
        assert!(run["rate_reached"].as_f64() > Some(0.0) && run["late"].is_u64());
        assert_eq!(run["errors"].as_object().unwrap().len(), 4);
    }
    assert!(runs[1]["requests"].as_u64() > runs[0]["requests"].as_u64());
    assert_eq!(runs[2]["params"]["search_list"], 30);
    assert_eq!(runs[0]["requests"], json(&args)["runs"][0]["requests"], "equal seeds, equal arrivals");
    let text = String::from_utf8(run(&args).stdout).unwrap();
    assert!(text.contains("actual/s"), "{text}");
}

#[test]
fn a_config_file_is_read_and_held_against_what_it_may_say() {
    let data = Data::new(300, 8, "f32");
    json(&["build", arg(&data.base), "-o", arg(&data.path("flat")), "--kind", "flat"]);
    let config = data.path("server.toml");
    let write = |text: &str| std::fs::write(&config, text).unwrap();
    write(
        "index = \"flat\"  # beside this file\nhttp = \"127.0.0.1:0\"\nthreads = 1\nqueue = 900\nram_budget = \"64MiB\"\nio = \"pread\"\n",
    );
    let server = Running::start(&["serve", "--config", arg(&config), "--until-eof"]);
    json(&connected(&server, arg(&data.queries), &[]));

    std::fs::write(data.path("short"), "0123456789\n").unwrap();
    for (text, said) in [
        ("index = \"flat\"\ncolour = 1", "line 2: there is no parameter colour; leave it out"),
        ("index = \"flat\"\nlearnin = \"off\"", "line 2: there is no parameter learnin; leave it out"),
        ("index = \"flat\"\nthread = 1", "line 2: there is no parameter thread; use threads"),
        ("index = \"flat\"\nhttp = [\"a\", \"b\"]", "line 2: http is a list; give a text"),
        ("http = \"127.0.0.1:0\"", "has no index"),
        ("index = ", "line 1"),
        ("index = \"flat\"\nthreads = 0", "threads is 0"),
        ("index = \"flat\"\nqueue = 0", "queue is 0"),
        ("index = \"flat\"\ntls_key = \"key.pem\"", "go together"),
        ("index = \"flat\"\nserver = 0", "not partitioned"),
        ("index = \"flat\"\nram_budget = \"lots\"", "ram_budget"),
        ("index = \"flat\"\ncache_budget = true", "line 2: cache_budget is true; use auto, or a size"),
        ("index = \"flat\"\nram_budget = \"1MiB\"", "--ram-budget"),
        ("index = \"flat\"\nio = \"floppy\"", "floppy"),
        ("index = \"flat\"\nlearning = \"off\"", "learning is for hybrid-ivf, and this index is a flat"),
        ("index = \"flat\"\nresults = \"origin\"", "results is for a server of a partition"),
        ("index = \"flat\"\ncarry = \"all\"", "carry is \"all\"; use \"ids\" or \"distances\""),
        ("index = \"flat\"\nresults = \"home\"", "use \"along\" or \"origin\""),
        ("index = \"flat\"\nhttp = \"nonsense\"", "HOST:PORT"),
        ("index = \"flat\"\nlisten = \"0.0.0.0:1\"", "secret_file"),
        ("index = \"flat\"\nsecret_file = \"nowhere\"", "nowhere"),
        ("index = \"flat\"\nsecret_file = \"short\"", "has 10 bytes"),
        ("index = \"elsewhere\"", "elsewhere"),
    ] {
        write(text);
        let error = refused(&["serve", "--config", arg(&config)], 2);
        assert!(error.contains(said), "{text}: {error}");
    }
    assert!(refused(&["serve"], 2).contains("--config"));
    let taken = refused(&["serve", "--index", arg(&data.path("flat")), "--http", server.address()], 1);
    assert!(taken.contains("give another address"), "{taken}");
}

#[test]
fn signals_stop_a_server_in_order() {
    let data = Data::new(300, 8, "f32");
    let flat = data.path("flat");
    json(&["build", arg(&data.base), "-o", arg(&flat), "--kind", "flat"]);
    for (signal, code) in [(libc::SIGTERM, 0), (libc::SIGINT, 130)] {
        let server = Running::serve(&flat, &[]);
        // A connection that is kept does not keep the server.
        let mut kept = TcpStream::connect(server.address()).unwrap();
        kept.write_all(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        assert!(kept.read(&mut [0; 4096]).unwrap() > 0);
        server.signal(signal);
        let (found, said) = server.end();
        assert_eq!(found, Some(code), "{said}");
        assert!(said.lines().all(|l| l.starts_with("20") && l.contains("Z ")), "{said}");
        assert!(said.contains("serves 300 vectors of 8 × f32") && said.ends_with("stopped\n"), "{said}");
    }
    let mut server = Running::serve(&flat, &["--quiet"]);
    server.child.stdin = None;
    assert_eq!(server.end(), (Some(0), String::new()));
}
