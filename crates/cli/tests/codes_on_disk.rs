//! `--codes disk` on the command line: what is recorded, shown, answered and refused.
#![allow(missing_docs)]

mod common;

use common::*;

#[test]
fn codes_on_disk_are_told_searched_and_checked() {
    let data = Data::new(2000, 24, "f32");
    let (ram, disk) = (data.build("ram", &[]), data.build("disk", &["--codes", "disk"]));
    let info = |index| json(&["info", arg(index)]);
    let (of_ram, of_disk) = (info(&ram), info(&disk));
    assert!(of_ram["memory"]["codes_bytes"].as_u64() > Some(0) && of_ram["build"]["codes"].is_null());
    assert!(of_disk["memory"]["codes_bytes"].is_null(), "{of_disk:#}");
    assert!(of_disk["memory"]["head_codes_bytes"].as_u64() > Some(0), "{of_disk:#}");
    assert_eq!(
        (&of_disk["build"]["codes"], of_disk["blocks"]["code_bytes"].as_u64()),
        (&"disk".into(), Some(24))
    );
    let per_vector = |info: &serde_json::Value| info["ram_bytes_per_vector"].as_f64().unwrap();
    assert!(per_vector(&of_disk) < per_vector(&of_ram) - 20.0);
    let text = String::from_utf8(run(&["info", arg(&disk)]).stdout).unwrap();
    assert!(text.contains("codes of 24 bytes on disk"), "{text}");

    assert!(run(&["verify", arg(&disk)]).status.success());
    let truth = data.truth("l2");
    let asked = ["search", arg(&disk), arg(&data.queries), "--groundtruth", arg(&truth), "--recall", "0.9"];
    let found = json(&asked);
    assert!(found["runs"][0]["recall"].as_f64() > Some(0.85), "{found:#}");
    assert!(found["runs"][0]["memory"]["codes_bytes"].is_null());
    let trace = json(&["explain", arg(&disk), arg(&data.queries), "--search-list", "20"]);
    assert_eq!(trace["complete"], true);
}

#[test]
fn several_servers_carry_distances() {
    let data = Data::new(2000, 16, "f32");
    let index = data.build("disk", &["--codes", "disk", "--calibration-queries", "0"]);
    let asked = ["simulate", arg(&index), arg(&data.queries), "--servers", "3", "--search-list", "30"];
    let with =
        |more: &[&'static str]| json(&[&asked[..], &["--no-times", "--method", "random"], more].concat());
    let found = with(&[]);
    assert_eq!(found["params"]["carry"], "distances");
    assert_eq!(found, with(&["--carry", "distances"]));
    let run = &found["runs"][0];
    assert_eq!((run["failed_queries"].as_u64(), run["rescored_per_query"].as_f64()), (Some(0), Some(0.0)));
    let message = refused(&[&asked[..], &["--carry", "ids"]].concat(), 2);
    assert!(message.contains("--carry distances"), "{message}");

    let spread = data.path("spread");
    json(&["cluster", "partition", arg(&index), "-o", arg(&spread), "--servers", "3"]);
    assert!(run_sound(&["verify", arg(&spread)]));
    let info = json(&["info", arg(&spread)]);
    assert!(info["memory"]["codes_bytes"].is_null(), "{info:#}");
}

fn run_sound(args: &[&str]) -> bool {
    run(args).status.success()
}

#[test]
fn the_pages_of_a_block_can_be_chosen() {
    let data = Data::new(1500, 16, "f32");
    for (pages, codes) in [("2", "ram"), ("3", "disk")] {
        let index = data.build(codes, &["--pages-per-block", pages, "--codes", codes]);
        let info = json(&["info", arg(&index)]);
        assert_eq!(info["blocks"]["bytes"].as_u64(), pages.parse::<u64>().ok().map(|p| p * 4096));
        assert!(run_sound(&["verify", arg(&index)]));
    }
    let out = data.path("refused");
    let refusal = |more: &[&str]| {
        let args = [&["build", arg(&data.base), "-o", arg(&out), "--kind", "disk-graph"], more].concat();
        refused(&args, 2)
    };
    assert!(refusal(&["--pages-per-block", "17"]).contains("use 1 to 16"));
    refusal(&["--codes", "tape"]);
}
