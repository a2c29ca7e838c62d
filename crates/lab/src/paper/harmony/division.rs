//! Building, dividing, memory and processor time of servers (figure 10, tables 4 and 5).

use stratann_storage::Result;

use super::super::item::{Found, Row, range};
use super::super::sets::Set;
use super::super::study::{Study, number, over, percent};
use super::{Ablation, FOUR, PLANNED, SLICES, STRIPED, WHOLE, ablation};

/// A number of a division over four servers.
fn of(found: &Ablation, name: &str, pointer: &str) -> Option<f64> {
    found.of("divisions", &[("mode", name.into()), ("servers", FOUR.into())], pointer)
}

/// Figure 10.
pub(super) fn build(study: &mut Study, set: &Set) -> Result<Found> {
    const BARS: &str = "the figure has bars without numbers";
    const SAMPLE: &str = "most of it is the sample of queries that the planner searches for, in all modes";
    let found = ablation(study, set)?;
    let stage = |name| number(&found.0, &format!("/build/{name}"));
    let seconds = |name| of(&found, name, "/seconds");
    let build = stage("train").zip(stage("add")).map(|(train, add)| train + add);
    let rows = vec![
        Row::new("train", "s", None, stage("train"), BARS),
        Row::new("add", "s", None, stage("add"), BARS),
        Row::new("pre-assign, planner's choice", "s", None, seconds(PLANNED), BARS),
        Row::new("pre-assign over train and add", "%", None, percent(over(seconds(PLANNED), build)), SAMPLE),
        Row::new(
            "pre-assign, slices over whole lists",
            "times",
            range(1.0, f64::MAX),
            over(seconds(SLICES), seconds(WHOLE)),
            SAMPLE,
        ),
    ];
    Ok(Found { rows, charts: Vec::new() })
}

/// Table 4.
pub(super) fn memory(study: &mut Study, set: &Set) -> Result<Found> {
    const COPIES: &str = "each server has the axes, the centroids and a hundredth of all vectors besides";
    let found = ablation(study, set)?;
    let largest = |name| of(&found, name, "/largest_bytes");
    let vectors = over(of(&found, WHOLE, "/all_bytes"), of(&found, WHOLE, "/over_vectors"));
    let rows = vec![
        Row::new(
            "fullest of four servers over all vectors, planner's choice",
            "times",
            range(0.2325, 0.2744),
            over(largest(PLANNED), vectors),
            format!("the paper divides by the memory of Faiss; {COPIES}"),
        ),
        Row::new(
            "planner's choice over whole lists",
            "times",
            range(1.005, 1.081),
            over(largest(PLANNED), largest(WHOLE)),
            COPIES,
        ),
        Row::new(
            "slices over whole lists",
            "times",
            range(1.017, 1.143),
            over(largest(SLICES), largest(WHOLE)),
            COPIES,
        ),
    ];
    Ok(Found { rows, charts: Vec::new() })
}

/// Table 5.
pub(super) fn peak_memory(study: &mut Study, set: &Set) -> Result<Found> {
    const PROGRAM: &str = "15 MiB of a server are the program, in all modes";
    let found = ablation(study, set)?;
    let peak = |name| of(&found, name, "/peak_bytes");
    let rows = vec![
        Row::new(
            "planner's choice over whole lists",
            "times",
            range(1.012, 1.309),
            over(peak(PLANNED), peak(WHOLE)),
            PROGRAM,
        ),
        Row::new(
            "slices over whole lists",
            "times",
            range(1.024, 1.528),
            over(peak(SLICES), peak(WHOLE)),
            PROGRAM,
        ),
        Row::new(
            "a server of whole lists",
            "MiB",
            None,
            peak(WHOLE).map(|bytes| bytes / f64::from(1 << 20)),
            "other sets",
        ),
    ];
    Ok(Found { rows, charts: Vec::new() })
}

/// Four real servers beside one process.
pub(super) fn processes(study: &mut Study, set: &Set) -> Result<Found> {
    const WHY: &str = "the paper has no such comparison; clients send requests of 32 queries over HTTP";
    let found = ablation(study, set)?;
    let one = number(&found.0, "/one_process_cpu_us");
    let row = |name: &str| {
        let each = over(one, of(&found, name, "/cpu_us"));
        Row::new(
            format!("queries per processor time of four servers over one process, {name}"),
            "times",
            None,
            each,
            WHY,
        )
    };
    let mut rows: Vec<Row> = [WHOLE, SLICES, STRIPED, PLANNED].map(row).into();
    rows.push(Row::new("processor time of a query in one process", "us", None, one, WHY));
    Ok(Found { rows, charts: Vec::new() })
}
