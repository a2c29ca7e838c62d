//! Throughput for the money and for the RAM (tables 2 and 3).

use serde_json::Value;
use stratann_storage::Result;
use stratann_storage::output::OutputPath;

use super::super::item::{Claim, Found, Row, range};
use super::super::sets::{Set, text};
use super::super::study::{Study, number, over};
use super::{Ablation, NEEDS_GPU, usual_index};

/// Sizes of a billion vectors, and the throughput of the ablation at its lowest recall.
fn cost(study: &mut Study, set: &Set) -> Result<Value> {
    let ablation = Ablation::usual(study, set)?;
    let path = study.path("ablation.json");
    OutputPath::check(&path, true, &[])?.write(ablation.0.to_string().as_bytes())?;
    let index = usual_index(study, set)?;
    study.run(&["cost", &index, "--ablation", &text(&path)?])
}

/// Table 2.
pub(super) fn by_dollar(study: &mut Study, set: &Set) -> Result<Found> {
    compared(study, set, "QPS a dollar", "/qps_a_dollar", range(5.67, 8.78), range(2.25, 6.82))
}

/// Table 3.
pub(super) fn by_ram(study: &mut Study, set: &Set) -> Result<Found> {
    compared(study, set, "QPS a GB of RAM", "/qps_a_ram_gb", range(8.46, 13.1), range(3.74, 32.4))
}

fn compared(
    study: &mut Study,
    set: &Set,
    what: &str,
    pointer: &str,
    of_spann: Option<Claim>,
    of_rummy: Option<Claim>,
) -> Result<Found> {
    const WHY: &str = "sizes in proportion to this index; throughput of few vectors on this machine, whose processor \
                       ranks the codes while a GPU is paid for";
    let document = cost(study, set)?;
    let of = |name: &str| {
        let systems = document["systems"].as_array();
        let system = systems.and_then(|systems| systems.iter().find(|system| system["name"] == name))?;
        number(system, pointer)
    };
    let ratio = |name: &str| over(of(name), of("spann"));
    let rows = vec![
        Row::new(format!("{what}, ours over SPANN"), "times", of_spann, ratio("gpu-ivf"), WHY),
        Row::new(format!("{what}, ours without a GPU over SPANN"), "times", None, ratio("mi-cpu"), "mi-cpu"),
        Row::new(format!("{what}, ours over RUMMY"), "times", of_rummy, None, NEEDS_GPU),
    ];
    Ok(Found { rows, charts: Vec::new() })
}
