//! `stratann simulate` of compute nodes that share the link of a memory node. The laboratory runs the same test with
//! the baselines.
#![allow(missing_docs)]

mod common;

use common::*;
use serde_json::Value;

fn number(run: &Value, path: &str) -> f64 {
    run.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path}: {run}"))
}

const LOAD_COSTS: &str = r#"{"threads": 2, "meta_comparison_ps": 20000, "comparison_ps": 15000, "load_byte_ps": 200,
    "range_ns": 50, "network_latency_us": 2, "network_gbps": 100}"#;

/// Compute nodes of a remote-hnsw: counters are those of a search, and times depend on costs alone.
#[test]
fn compute_nodes_share_the_link_of_a_memory_node() {
    let data = Data::new(2000, 16, "f32");
    let more = ["--kind", "remote-hnsw", "--partitions", "40", "--calibration-queries", "0"];
    let index = data.build("remote", &more);
    let (truth, costs) = (data.truth("l2"), data.path("loads.json"));
    std::fs::write(&costs, LOAD_COSTS).unwrap();
    let queries = arg(&data.queries);
    let asked = ["simulate", arg(&index), queries, "--nprobe", "4", "--costs", arg(&costs), "--batch", "25"];
    let document = |more: &[&str]| json(&[&asked[..], more].concat());
    let schemes = if LAB { &["--baseline", "none,naive,no-doorbell,no-overlap"][..] } else { &[] };
    let all = [&["--compute-nodes", "1,2,4,8"], schemes, &["--groundtruth", arg(&truth)]].concat();
    let found = document(&all);
    assert_eq!(found, document(&all));
    let runs = found["runs"].as_array().unwrap();
    let of = |scheme: &str| -> Vec<&Value> { runs.iter().filter(|run| run["scheme"] == scheme).collect() };
    let [own, naive, no_doorbell, no_overlap] = ["remote-hnsw", "naive", "no-doorbell", "no-overlap"].map(of);
    for rows in [&own, &naive, &no_doorbell, &no_overlap].into_iter().filter(|rows| !rows.is_empty()) {
        assert_eq!(
            rows.iter().map(|row| row["compute_nodes"].as_u64().unwrap()).collect::<Vec<_>>(),
            [1, 2, 4, 8]
        );
        let qps: Vec<f64> = rows.iter().map(|row| number(row, "/qps")).collect();
        assert!(qps.windows(2).all(|two| two[1] > 0.99 * two[0]) && qps[3] > 1.5 * qps[0], "{qps:?}");
        for row in rows {
            assert_eq!(number(row, "/per_query/needs"), 4.0);
            assert!(
                number(row, "/utilisation/cpu") <= 1.0 && number(row, "/utilisation/memory_links/0") <= 1.0
            );
            assert!(number(row, "/latency_us/p99") <= number(row, "/batch_latency_us/p99"), "{row}");
            assert!(number(row, "/recall") > 0.5 && row["bottleneck"].is_string());
        }
    }
    if LAB {
        check_schemes(&found, [own[0], naive[0], no_doorbell[0], no_overlap[0]]);
    } else {
        assert!(found["against_naive"].as_array().unwrap().is_empty() && runs.len() == 4, "{found}");
    }

    // What one batch loads without a cache is what a search loads.
    let one = ["--compute-nodes", "1", "--cache-share", "0", "--batch", "2000"];
    let alone = &document(&one)["runs"][0];
    let search = ["search", arg(&index), queries, "--nprobe", "4", "--cache-budget", "0"];
    let searched = &json(&search)["runs"][0]["per_query"];
    assert_eq!(number(alone, "/per_query/loads"), number(searched, "/reads"));
    let headers = number(alone, "/per_query/bytes") - number(searched, "/bytes_read");
    assert!(headers > 0.0 && headers < 100.0, "{alone} {searched}");
    let slow = &document(&["--compute-nodes", "8", "--network-gbps", "0.5"])["runs"][0];
    assert_eq!(slow["bottleneck"], "link of memory node 0");
    let halves =
        &document(&["--compute-nodes", "8", "--network-gbps", "0.5", "--memory-nodes", "2"])["runs"][0];
    assert!(number(halves, "/qps") > 1.5 * number(slow, "/qps"), "{halves} {slow}");
    let text = String::from_utf8(run(&[&asked[..], &all].concat()).stdout).unwrap();
    assert!(text.contains("times are simulated") && text.contains("is simulated too") == LAB, "{text}");
    for (more, said) in [
        (&["--servers", "2"][..], "--servers is for disk-graph"),
        (&["--compute-nodes", "0"], "--compute-nodes is 0"),
        (&["--compute-nodes", "1", "--memory-nodes", "300"], "--memory-nodes is 300"),
        (&["--compute-nodes", "1", "--clients", "0"], "--clients is 0"),
        (&["--compute-nodes", "1", "--cache-share", "2"], "--cache-share is 2"),
        (&["--compute-nodes", "1", "--batches-at-once", "3"], "has 2 threads"),
        (&["--compute-nodes", "1", "--replicas", "2"], "--replicas is for disk-graph"),
        (&["--compute-nodes", "1", "--disk-iops", "5"], "--disk-iops is for disk-graph"),
        (&["--compute-nodes", "1", "--network-gbps", "0"], "network Gbit/s is 0"),
        (&["--compute-nodes", "1", "--baseline", "spann"], "spann"),
    ] {
        let error = refused(&[&asked[..], more].concat(), 2);
        assert!(error.contains(said), "{more:?}: {error}");
    }
    if !LAB {
        let naive = refused(&[&asked[..], &["--compute-nodes", "1", "--baseline", "none,naive"]].concat(), 2);
        assert!(naive.contains("stratann-lab simulate") && naive.contains("none,naive"), "{naive}");
    }
}

fn check_schemes(found: &Value, [own, naive, no_doorbell, no_overlap]: [&Value; 4]) {
    assert_eq!((number(naive, "/per_query/round_trips"), number(naive, "/per_query/cache_hits")), (4.0, 0.0));
    assert!(number(no_doorbell, "/per_query/round_trips") > number(own, "/per_query/round_trips"));
    for key in ["/recall", "/per_query/bytes", "/per_query/loads", "/per_query/comparisons"] {
        assert_eq!(number(no_overlap, key), number(own, key), "{key}");
    }
    assert_eq!(number(no_overlap, "/hidden"), 0.0);
    let against = found["against_naive"].as_array().unwrap();
    assert_eq!(against.len(), 12);
    assert!(number(&against[0], "/bytes") > 2.0 && number(&against[0], "/network") > 2.0, "{}", against[0]);
}
