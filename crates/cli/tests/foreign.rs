//! Options of other kinds and places, given to the program: each is refused by its name, with exit status 2, for every
//! kind of index and every row of the table that partitions, servers and simulations have.
#![allow(missing_docs)]

mod common;
use std::path::PathBuf;

use common::*;
use stratann_params::{GroupInfo, IndexKind, Param, Place, Stage, Surface, Type, named, rows};

/// A small index of each kind.
fn indexes(data: &Data) -> Vec<(IndexKind, PathBuf)> {
    let build = |kind: IndexKind| {
        let folder = data.path(kind.name());
        let plain = ["build", arg(&data.base), "-o", arg(&folder), "--kind", kind.name()];
        json(
            &[&plain[..], if kind == IndexKind::Flat { &[] } else { &["--calibration-queries", "0"] }]
                .concat(),
        );
        (kind, folder)
    };
    IndexKind::ALL.into_iter().map(build).collect()
}

/// A value that a row accepts, as text.
fn value(param: &Param) -> Option<String> {
    let least = Some(*param.range.start()).filter(|least| least.is_finite()).unwrap_or(1.0);
    match param.of {
        Type::Flag => None,
        Type::Whole | Type::AutoOrWhole => Some((least.max(4.0).min(*param.range.end()) as u64).to_string()),
        Type::Real => Some(least.max(1.0).min(*param.range.end()).to_string()),
        Type::Path | Type::Text => Some("file".into()),
        Type::Choice(choices) => Some(choices[0].name.into()),
    }
}

/// The kinds that have a parameter of this name at all.
fn kinds(stages: &[Stage], name: &str) -> Vec<IndexKind> {
    named(stages, name).flat_map(|(group, param)| group.kinds_of(param).iter().copied()).collect()
}

/// The option of a row and its value, as arguments.
fn arguments(group: &GroupInfo, param: &Param) -> Option<Vec<String>> {
    let option = group.option(param)?;
    Some([format!("--{option}")].into_iter().chain(value(param)).collect())
}

#[test]
fn every_foreign_option_of_partitions_servers_and_simulations_is_refused() {
    let data = Data::new(300, 8, "f32");
    let spread = data.path("spread");
    let indexes = indexes(&data);
    let mut refusals = 0;
    for (kind, folder) in &indexes {
        let commands: [(Stage, Vec<&str>); 3] = [
            (
                Stage::Partition,
                vec!["cluster", "partition", arg(folder), "-o", arg(&spread), "--servers", "2"],
            ),
            (Stage::Serve, vec!["serve", "--index", arg(folder), "--http", "127.0.0.1:0"]),
            (Stage::Simulate, vec!["simulate", arg(folder), arg(&data.queries)]),
        ];
        for (stage, command) in &commands {
            // What cannot be divided over servers is refused whatever is asked.
            let is_divided = ["disk-graph", "hybrid-ivf", "grid-ivf"].contains(&kind.name());
            let is_simulated = is_divided || *kind == IndexKind::RemoteHnsw;
            if *stage == Stage::Partition && !is_divided || *stage == Stage::Simulate && !is_simulated {
                continue;
            }
            for (group, param) in rows(&[*stage]).filter(|(_, param)| !param.is_of_lab) {
                let is_here = *stage != Stage::Serve || param.places.contains(&Place::Folder);
                let has = kinds(&[*stage], param.name);
                if has.contains(kind) && is_here || param.places == [Place::MemoryNodes] {
                    continue;
                }
                let Some(more) = arguments(group, param) else { continue };
                let more: Vec<&str> = more.iter().map(String::as_str).collect();
                let line = refused(&[&command[..], &more].concat(), 2);
                let shown = group.name_on(Surface::CommandLine, param);
                assert!(line.contains(&shown), "{command:?} {more:?}: {line}");
                if !has.contains(kind) {
                    has.iter().for_each(|kind| assert!(line.contains(kind.name()), "{more:?}: {line}"));
                }
                assert!(line.contains("leave it out") || line.contains("instead"), "{more:?}: {line}");
                refusals += 1;
            }
        }
    }
    assert!(!spread.exists(), "nothing is written");
    assert!(refusals > 100, "{refusals}");
}

#[test]
fn a_kind_names_what_it_has_instead() {
    let data = Data::new(300, 8, "f32");
    let indexes = indexes(&data);
    let of = |kind: IndexKind| arg(&indexes.iter().find(|index| index.0 == kind).unwrap().1).to_string();
    let spread = data.path("spread");
    let partition = |kind, more: &[&str]| {
        let index = of(kind);
        let plain = ["cluster", "partition", &index, "-o", arg(&spread), "--servers", "2"];
        refused(&[&plain[..], more].concat(), 2)
    };
    for (kind, more, said) in [
        (IndexKind::GridIvf, &["--method", "random"][..], "give --mode instead"),
        (
            IndexKind::GridIvf,
            &["--traffic", "x"],
            "--traffic is for hybrid-ivf, and this index is a grid-ivf",
        ),
        (IndexKind::GridIvf, &["--scatter-gather"], "--scatter-gather is for disk-graph"),
        (IndexKind::HybridIvf, &["--overlap", "0.2"], "give --replicas instead"),
        (IndexKind::HybridIvf, &["--queries", "x"], "give --traffic instead"),
        (IndexKind::DiskGraph, &["--mode", "vector"], "give --method instead"),
        (IndexKind::DiskGraph, &["--no-traffic"], "--no-traffic is for hybrid-ivf"),
    ] {
        let line = partition(kind, more);
        assert!(line.contains(said), "{more:?}: {line}");
    }
    let (graph, queries) = (of(IndexKind::DiskGraph), arg(&data.queries));
    for (command, said) in [
        (&["serve", "--index", &graph, "--carry", "ids"][..], "this index is not partitioned; leave it out"),
        (
            &["serve", "--index", &graph, "--frozen"],
            "--frozen is for hybrid-ivf, and this index is a disk-graph",
        ),
        (&["serve", "--index", &graph, "--scorer", "cpu"], "--scorer is for gpu-ivf"),
        (&["serve", "--index", &graph, "--batch", "9"], "--batch is for remote-hnsw"),
        (&["cluster", "up", &graph, "--results", "origin"], "this index is not partitioned"),
        (&["simulate", &graph, queries, "--compute-nodes", "2"], "give --servers instead"),
        (&["simulate", &graph, queries, "--servers", "2", "--nprobe", "3"], "give --search-list instead"),
    ] {
        let line = refused(command, 2);
        assert!(line.contains(said), "{command:?}: {line}");
    }
}

#[test]
fn a_misspelt_option_gets_one_of_its_kind() {
    let data = Data::new(300, 8, "f32");
    let indexes = indexes(&data);
    let of = |kind: IndexKind| arg(&indexes.iter().find(|index| index.0 == kind).unwrap().1).to_string();
    let (graph, grid, queries, spread) =
        (of(IndexKind::DiskGraph), of(IndexKind::GridIvf), arg(&data.queries), data.path("spread"));
    let (base, spread) = (arg(&data.base), arg(&spread));
    for (command, said) in [
        (&["search", &graph, queries, "--serch-list", "9"][..], "no option --serch-list; use --search-list"),
        (&["search", &grid, queries, "--nprob", "9"], "no option --nprob; use --nprobe"),
        // A graph has no --nprobe, and no bounds.
        (&["search", &graph, queries, "--nprob", "9"], "no option --nprob; see --help"),
        (&["search", &graph, queries, "--no-bound"], "no option --no-bound; see --help"),
        (
            &["build", base, "-o", spread, "--kind", "grid-ivf", "--list", "9"],
            "no option --list; use --lists",
        ),
        (&["build", base, "-o", spread, "--kind", "flat", "--degre", "9"], "no option --degre; see --help"),
        (&["build", base, "-o", spread, "--degre", "9"], "no option --degre; use --degree"),
        (&["cluster", "partition", &grid, "-o", spread, "--servers", "2", "--mod", "vector"], "use --mode"),
        (
            &["cluster", "partition", &graph, "-o", spread, "--servers", "2", "--mod", "x"],
            "--mod; see --help",
        ),
        (&["serve", "--index", &graph, "--frozn"], "no option --frozn; see --help"),
        (&["--json", "serve", "--index", &graph, "--queu", "9"], "no option --queu; use --queue"),
        (&["tune", &graph, "--thread", "9"], "no option --thread; use --threads"),
    ] {
        let line = refused(command, 2);
        assert!(line.contains(said), "{command:?}: {line}");
    }
}
