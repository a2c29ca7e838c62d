//! Hops of a query, and those that leave their server (figures 3 to 5).

use stratann_storage::Result;

use super::super::chart::Chart;
use super::super::item::{Found, Row, one};
use super::super::sets::Set;
use super::super::study::{Study, number, over, percent};
use super::{BATON, FEWER, Runs, WIDTH, index, simulate};

const HOPS: &str = "/per_query/hops";
const HAND_OVERS: &str = "/per_query/hand_overs";
const SHARE: &str = "/hand_over_share";

/// Figure 3.
pub(super) fn by_servers(study: &mut Study, set: &Set) -> Result<Found> {
    const WHY: &str =
        "a hop reads a block of several vectors: steps within it, which never leave, are no hops";
    const ONE_VECTOR: &str = "a hop of the paper expands one vector, so this is what it counts";
    let runs = simulate(study, set, "3,5,7,10", &["--width", "1"])?;
    let arrived = simulate(study, set, "10", &["--width", "1", "--entry", "nearest"])?;
    let claims = [(3, 11.6), (5, 17.34), (7, 21.22), (10, 24.3)];
    let mut rows: Vec<Row> = claims
        .into_iter()
        .map(|(servers, claim)| {
            let ours = percent(runs.of(servers, BATON, SHARE));
            Row::new(format!("hops that leave, {servers} servers"), "%", one(claim), ours, WHY)
        })
        .collect();
    let first = "the way to the server of the entry is a hand-over, unless the client knows it";
    let expanded = over(runs.of(10, BATON, HAND_OVERS), runs.of(10, BATON, "/per_query/expanded"));
    rows.extend([
        Row::new(
            "hand-overs over expanded vectors, 10 servers",
            "%",
            one(24.3),
            percent(expanded),
            ONE_VECTOR,
        ),
        Row::new("hops, 10 servers", "", None, runs.of(10, BATON, HOPS), FEWER),
        Row::new("hand-overs, 10 servers", "", None, runs.of(10, BATON, HAND_OVERS), first),
        Row::new("the same, asked at the entry's server", "", None, arrived.of(10, BATON, HAND_OVERS), first),
    ]);
    let line = |name: &str, pointer| (name.to_string(), runs.points(BATON, "/servers", pointer));
    let lines = vec![line("hops", HOPS), line("hand-overs", HAND_OVERS)];
    Ok(Found {
        rows,
        charts: vec![Chart { title: "width 1".into(), x: "servers", y: "hops of a query", lines }],
    })
}

/// Ten servers at widths 1 and 8.
pub(super) fn widths(study: &mut Study, set: &Set) -> Result<[Runs; 2]> {
    Ok([simulate(study, set, "10", &["--width", "1"])?, simulate(study, set, "10", &["--width", WIDTH])?])
}

/// Figure 4.
pub(super) fn by_width(study: &mut Study, set: &Set) -> Result<Found> {
    const FIGURE_3: &str = "as in figure 3";
    let [narrow, wide] = widths(study, set)?;
    let of = |pointer| [narrow.of(10, BATON, pointer), wide.of(10, BATON, pointer)];
    let ([hops, hops_wide], [shares, shares_wide], [hand_overs, hand_overs_wide]) =
        (of(HOPS), of(SHARE), of(HAND_OVERS));
    let rows = vec![
        Row::new("hops, width 1", "", one(138.1), hops, FEWER),
        Row::new("hops, width 8", "", one(32.6), hops_wide, FEWER),
        Row::new("hops, width 1 over width 8", "times", one(138.1 / 32.6), over(hops, hops_wide), FEWER),
        Row::new("hops that leave, width 1", "%", one(21.9), percent(shares), FIGURE_3),
        Row::new("hops that leave, width 8", "%", one(18.8), percent(shares_wide), FIGURE_3),
        Row::new(
            "hand-overs, width 1 over width 8",
            "times",
            one(4.0),
            over(hand_overs, hand_overs_wide),
            FEWER,
        ),
    ];
    Ok(Found { rows, charts: Vec::new() })
}

/// Figure 5.
pub(super) fn work_by_width(study: &mut Study, set: &Set) -> Result<Found> {
    const WHY: &str = "of few hops, eight reads at a time are a larger share, and more of them bring nothing";
    let [narrow, wide] = widths(study, set)?;
    let ratio = |pointer| over(wide.of(10, BATON, pointer), narrow.of(10, BATON, pointer));
    let row = |what: &str, pointer| {
        Row::new(format!("{what}, width 8 over width 1"), "times", one(1.0), ratio(pointer), WHY)
    };
    let rows = vec![row("comparisons", "/per_query/code_comparisons"), row("reads", "/per_query/reads")];
    Ok(Found { rows, charts: Vec::new() })
}

/// The division of the index against METIS on whole graphs.
pub(super) fn limits(study: &mut Study, set: &Set) -> Result<Found> {
    const DIVISION: &str = "without the way to the entry; the paper has no such limit";
    const BLOCKS: &str = "above 1, more cells or refinement would help";
    const NODES: &str =
        "above 1, the packing of vectors into blocks forces hops; the paper reads single vectors";
    let index = index(study, set)?;
    let cut = study.run(&["cut", &index, &set.queries, "--servers", "10"])?;
    let share = |pointer| percent(number(&cut, pointer));
    let rows = vec![
        Row::new("hops that leave, this division", "%", None, share("/division"), DIVISION),
        Row::new(
            "hops that leave, cut of the graph of all blocks",
            "%",
            None,
            share("/limit_blocks"),
            DIVISION,
        ),
        Row::new(
            "hops that leave, cut of the graph of all vectors",
            "%",
            None,
            share("/limit_nodes"),
            DIVISION,
        ),
        Row::new(
            "division over the cut of blocks",
            "times",
            None,
            number(&cut, "/division_over_limit_blocks"),
            BLOCKS,
        ),
        Row::new(
            "division over the cut of vectors",
            "times",
            None,
            number(&cut, "/division_over_limit_nodes"),
            NODES,
        ),
    ];
    Ok(Found { rows, charts: Vec::new() })
}
