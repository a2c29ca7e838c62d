//! Numbers of clusters (figure 7).

use stratann_storage::Result;

use super::super::chart::Chart;
use super::super::item::{Found, Row, one};
use super::super::sets::Set;
use super::super::study::{Study, over};
use super::breakdown::THREADS;
use super::{FLEET, MODEL, OWN, RDMA, index_of, simulate};

/// Figure 7.
pub(super) fn measure(study: &mut Study, set: &Set) -> Result<Found> {
    let counts = ["70", "80", "90", "100"];
    let mut lines = ["network", "sub-HNSW", "meta-HNSW"].map(|name| (name.to_string(), Vec::new()));
    let mut totals = Vec::new();
    for count in counts {
        let index = index_of(study, set, &format!("clusters-{count}.idx"), count)?;
        let costs = format!("costs-{count}.json");
        let runs = simulate(study, set, (&index, &costs), (FLEET, RDMA), &["-k", "1", "--threads", THREADS])?;
        let parts = ["/network_us", "/sub_hnsw_us", "/meta_hnsw_us"].map(|pointer| runs.of(OWN, pointer));
        totals.push(parts.iter().flatten().sum::<f64>());
        for (line, us) in lines.iter_mut().zip(parts) {
            line.1.extend(count.parse().ok().zip(us));
        }
    }
    let network = &lines[0].1;
    let end = |point: Option<&(f64, f64)>| point.map(|point| point.1);
    let (most, least) =
        (totals.iter().copied().max_by(f64::total_cmp), totals.iter().copied().min_by(f64::total_cmp));
    let rows = vec![
        Row::new(
            "time of a query, longest over shortest",
            "times",
            one(771.0 / 742.0),
            over(most, least),
            MODEL,
        ),
        Row::new("network time, 70 clusters", "us", one(402.0), end(network.first()), MODEL),
        Row::new("network time, 100 clusters", "us", one(466.0), end(network.last()), MODEL),
        Row::new(
            "network time, 100 clusters over 70",
            "times",
            one(466.0 / 402.0),
            over(end(network.last()), end(network.first())),
            "a batch of 2,000 queries loads all clusters that are not cached, whatever their number",
        ),
    ];
    let chart = Chart { title: "top 1".into(), x: "clusters", y: "us", lines: lines.into() };
    Ok(Found { rows, charts: vec![chart] })
}
