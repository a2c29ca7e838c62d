//! Sizes of lists, and which of them are visited (figures 1, 4 and 5).

use stratann_storage::Result;

use super::super::item::{Found, Row, one, range};
use super::super::sets::Set;
use super::super::study::{Study, number, over};
use super::{Sweep, ablation, built, searched};

/// Figure 1.
pub(super) fn sizes(study: &mut Study, set: &Set) -> Result<Found> {
    const WHY: &str = "the number of lists is not in the paper; ours are 4√n lists, found by k-means";
    let index = built(study, set, "auto")?;
    let info = study.run(&["info", &index])?;
    let of = |name| number(&info, &format!("/clusters/sizes/{name}"));
    let rows = vec![
        Row::new(
            "largest list over the smallest",
            "times",
            range(6.17, 3000.0),
            over(of("max"), of("min")),
            WHY,
        ),
        Row::new("largest list over the mean", "times", None, over(of("max"), of("mean")), WHY),
        Row::new("standard deviation over the mean", "times", None, over(of("std"), of("mean")), WHY),
        Row::new("Gini coefficient", "", None, of("gini"), WHY),
    ];
    Ok(Found { rows, charts: Vec::new() })
}

/// Figure 4.
pub(super) fn orders(study: &mut Study, set: &Set) -> Result<Found> {
    const WHY: &str = "lists are ranked by centroids and samples together, and codes in RAM make a list that is \
                       visited without a result cheap";
    let index = built(study, set, "auto")?;
    let probes = ["--nprobe", "1,2,4,8,16,32,64,128,256", "--no-early-stop"];
    let ways = [("centroid", "--no-learning"), ("votes", "--no-learning"), ("evidence", "--frozen")];
    let mut found = Vec::new();
    for (order, learning) in ways {
        found.push(searched(study, set, &index, &[&probes[..], &["--order", order, learning]].concat())?);
    }
    let at = |way: usize, pointer, recall| Sweep::of(Some(&found[way]), pointer).at(recall);
    let lists = "/per_query/clusters";
    let row = |what: &str, claim, way: usize, pointer, recall| {
        let what = format!("{what}, recall {recall}");
        Row::new(what, "times", claim, over(at(way, pointer, recall), at(2, pointer, recall)), WHY)
    };
    let qps = |way: usize, recall| over(at(2, "/qps", recall), at(way, "/qps", recall));
    let rows = vec![
        Row::new("QPS of what was learned over centroids, recall 0.7", "times", one(4.0), qps(0, 0.7), WHY),
        Row::new("QPS of what was learned over samples, recall 0.7", "times", one(2.0), qps(1, 0.7), WHY),
        row("visited lists, centroids over what was learned", None, 0, lists, 0.7),
        row("visited lists, samples over what was learned", None, 1, lists, 0.7),
        row("visited lists, centroids over what was learned", None, 0, lists, 0.95),
        row("visited lists, samples over what was learned", None, 1, lists, 0.95),
    ];
    Ok(Found { rows, charts: Vec::new() })
}

/// Figure 5.
pub(super) fn fruitless(study: &mut Study, set: &Set) -> Result<Found> {
    const WHY: &str = "a list counts where a result comes from it; the early stop leaves 64 lists at most";
    let found = ablation(study, set)?;
    let first = number(&found.0, "/learning/0/precision").map(|precision| 100.0 * (1.0 - precision));
    let rows = vec![Row::new("visited lists without a result", "%", range(25.0, 80.0), first, WHY)];
    Ok(Found { rows, charts: Vec::new() })
}
