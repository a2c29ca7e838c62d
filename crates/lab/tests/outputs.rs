//! The plot of an ablation replaces nothing unasked, and what is no file is refused before any work.
#![allow(missing_docs)]

#[path = "../../cli/tests/common/mod.rs"]
mod common;

use std::os::unix::fs::symlink;

use common::*;

#[test]
fn a_plot_replaces_no_input_and_nothing_unasked() {
    let data = Data::new(300, 8, "f32");
    let (truth, new) = (data.truth("l2"), data.path("new"));
    let (base, queries) = (arg(&data.base), arg(&data.queries));
    let root = data.base.parent().unwrap();
    let path = |name: &str| arg(&root.join(name)).to_string();
    std::fs::write(root.join("thesis"), "years of work").unwrap();
    symlink(root.join("thesis"), root.join("link")).unwrap();
    symlink(root.join("nowhere"), root.join("dangling")).unwrap();
    symlink(&data.base, root.join("link-base")).unwrap();
    std::fs::hard_link(&truth, root.join("same-truth")).unwrap();
    std::fs::create_dir(root.join("folder")).unwrap();
    let fifo = path("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
    let command = ["ablation", base, queries, "--groundtruth", arg(&truth), "-o", arg(&new)];
    let device = "/dev/null".to_string();
    for (plot, word) in [
        (&path("link"), "symbolic link"),
        (&path("dangling"), "symbolic link"),
        (&path("folder"), "folder"),
        (&fifo, "FIFO"),
        (&path("socket"), "socket"),
        (&path("missing/file"), "no such folder"),
        (&path("new-name/"), "not a file name"),
        (&device, "device"),
        (&path("link-base"), ""),
        (&path("same-truth"), ""),
        (&base.to_string(), ""),
        (&queries.to_string(), ""),
        (&arg(&truth).to_string(), ""),
        (&arg(&new).to_string(), "the folder for the indexes"),
    ] {
        let said = refused(&[&command[..], &["--plot", plot, "--force"]].concat(), 2);
        assert!(said.contains(word), "{plot}: {said}");
    }
    assert!(refused(&[&command[..], &["--plot", &path("thesis")]].concat(), 2).contains("--force"));
    // What is read has to be a file, too.
    for wrong in [&fifo, &device] {
        refused(&["ablation", base, queries, "--groundtruth", wrong, "-o", arg(&new)], 2);
    }
    assert!(!new.exists(), "nothing was begun");
    assert_eq!(std::fs::read(root.join("thesis")).unwrap(), b"years of work");
}
