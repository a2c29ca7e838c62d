//! A profile that was not measured, so that plans of builds do not depend on what else runs.

use std::path::Path;

use stratann_storage::output::OutputPath;
use stratann_storage::profile::{
    ComputeCosts, DiskCosts, DistanceCost, LocalCosts, Origin, Profile, ReadLine,
};

/// A machine that never was, with constants fitted: builds measure nothing.
fn profile() -> Profile {
    let distance = |fixed_ns, ns_per_unit| DistanceCost { fixed_ns, ns_per_unit, measured: Vec::new() };
    let said = || "none".to_string();
    Profile {
        format_version: 1,
        origin: Origin {
            cpu: said(),
            cores: 2,
            isa: said(),
            file_system: said(),
            device: said(),
            io_backend: said(),
        },
        seconds: 0.0,
        measurement: None,
        disk: DiskCosts {
            direct: true,
            file_bytes: 1 << 30,
            sequential_bytes_per_s: 1.2e9,
            latency_us: 90.0,
            latency_mean_us: 95.0,
            random: Vec::new(),
            alone: ReadLine { depth: 1, fixed_us: 86.0, ns_per_byte: 1.0 },
            loaded: ReadLine { depth: 32, fixed_us: 384.0, ns_per_byte: 21.8 },
        },
        compute: ComputeCosts {
            full_f32: distance(4.0, 0.1),
            full_f16: distance(4.0, 0.2),
            full_u8: distance(4.0, 0.05),
            codes: distance(10.0, 0.4),
        },
        local: Some(LocalCosts {
            alpha_flat: 1.5,
            hops_a: 3.0,
            hops_b: 2.0,
            beta_scan: 1.4,
            lists_a: 2.0,
            lists_b: -2.0,
        }),
    }
}

/// Writes it to a new file.
pub(crate) fn write(path: &Path) {
    profile().write(&OutputPath::check(path, false, &[]).unwrap()).unwrap();
}
