//! Builds that are killed or interrupted, and what threads do not change.
#![allow(missing_docs)]

mod common;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::*;

/// Starts a build and signals it after `delay`; gives the exit code when it ended by itself.
fn build_signalled(args: &[&str], signal: i32, delay: Duration) -> (Option<i32>, String) {
    let child = command(args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(delay);
    // SAFETY: a signal to a child that has not been waited for, so its number cannot be another's.
    unsafe { libc::kill(child.id() as i32, signal) };
    let output = child.wait_with_output().unwrap();
    (output.status.code(), stderr(&output))
}

fn has_manifest(index: &Path) -> bool {
    index.join("manifest-1.json").exists()
}

#[test]
fn a_killed_build_resumes_to_the_same_bytes() {
    let data = Data::new(4000, 32, "f32");
    let whole = data.path("whole");
    let started = Instant::now();
    json(&data.build_args(&whole));
    let takes = started.elapsed();
    let mut noise = Noise(std::process::id().into());
    let seed = noise.0;
    for attempt in 0..3 {
        let index = data.path(&format!("killed-{attempt}"));
        let args = data.build_args(&index);
        let resume = [&args[..], &["--resume"]].concat();
        build_signalled(&args, libc::SIGKILL, takes.mul_f64(noise.share()));
        // Killed once more on the way.
        if !has_manifest(&index) {
            build_signalled(&resume, libc::SIGKILL, takes.mul_f64(noise.share() * 0.7));
        }
        if !has_manifest(&index) {
            refused(&["search", arg(&index), arg(&data.queries)], 2);
            json(&resume);
            assert!(!index.join("partial").exists(), "seed {seed}");
        }
        assert_same_files(&whole, &index);
    }
}

#[test]
fn an_interrupted_build_says_so_and_resumes() {
    let data = Data::new(6000, 48, "f32");
    let (whole, index) = (data.path("whole"), data.path("stopped"));
    let args = data.build_args(&index);
    let (code, text) = build_signalled(&args, libc::SIGINT, Duration::from_millis(400));
    assert_eq!(code, Some(130), "{text}");
    assert!(text.contains("stratann: interrupted") && text.contains("--resume"), "{text}");
    assert!(!has_manifest(&index));
    json(&[&args[..], &["--resume"]].concat());
    json(&data.build_args(&whole));
    assert_same_files(&whole, &index);
}

#[test]
fn resuming_with_other_options_is_refused() {
    let data = Data::new(6000, 48, "f32");
    let index = data.path("stopped");
    let args = data.build_args(&index);
    build_signalled(&args, libc::SIGKILL, Duration::from_millis(400));
    assert!(index.join("partial/state.json").exists());
    let error = refused(&[&args[..], &["--resume", "--seed", "5"]].concat(), 2);
    assert!(error.contains("another seed"), "{error}");
}

/// Writes the folder of an unfinished build as a program of before left it, with a codebook that it trained.
fn foreign_partial(index: &Path, state: &str) -> std::path::PathBuf {
    let partial = index.join("partial");
    std::fs::create_dir_all(&partial).unwrap();
    std::fs::write(partial.join("state.json"), state).unwrap();
    std::fs::write(partial.join("v1-codebook.bin"), [7; 64]).unwrap();
    partial
}

#[test]
fn an_unfinished_build_of_another_version_is_refused_and_kept() {
    let data = Data::new(600, 16, "f32");
    let (index, whole) = (data.path("foreign"), data.build("whole", &[]));
    let args = data.build_args(&index);
    let resume = [&args[..], &["--resume"]].concat();
    let older = r#"{
        "made_with": {"base": "600 rows of 16 f32", "kind": "disk-graph", "metric": "l2", "code_kind": "residualopq",
            "code_bytes": 16, "degree": 24, "build_list": 48, "seed": 1, "version": 1, "format_version": 4},
        "finished": {"scan": {"skipped": [], "max_squared_norm": 40.0, "largest_id": 600, "drawn": [], "content": 1},
            "codebook": 16}
    }"#;
    for state in [older, r#"{"stage": "training"}"#, "", "no state"] {
        let partial = foreign_partial(&index, state);
        let error = refused(&resume, 2);
        assert!(error.contains("was left by another version of stratann"), "{error}");
        assert!(error.contains("delete it and build without --resume"), "{error}");
        assert_eq!(std::fs::read_to_string(partial.join("state.json")).unwrap(), state);
        assert_eq!(std::fs::read(partial.join("v1-codebook.bin")).unwrap(), [7; 64]);
    }
    // A new build takes nothing of it.
    json(&args);
    assert_same_files(&whole, &index);
}

#[test]
fn two_builds_do_not_share_a_folder() {
    let data = Data::new(6000, 48, "f32");
    let index = data.path("shared");
    let args = data.build_args(&index);
    let mut first = command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while !index.join("partial/state.json").exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let error = refused(&args, 2);
    assert!(error.contains("another process"), "{error}");
    assert!(first.wait().unwrap().success());
    assert!(run(&["verify", arg(&index)]).status.success());
}

#[test]
fn threads_do_not_change_a_byte() {
    let data = Data::new(3000, 32, "f16");
    for metric in METRICS {
        let (one, two) = (data.path(&format!("one-{metric}")), data.path(&format!("two-{metric}")));
        for (index, threads) in [(&one, "1"), (&two, "2")] {
            json(&[&data.build_args(index)[..], &["--threads", threads, "--metric", metric]].concat());
        }
        assert_same_files(&one, &two);
    }
}
