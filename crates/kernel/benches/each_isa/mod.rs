//! A table of times for every instruction set that this machine has, one process each.

use std::process::Command;
use stratann_kernel::isa;

const CHILD: &str = "STRATANN_BENCH_CHILD";

/// Prints a line for each case, begun by its label, with the nanoseconds that `measure` finds for the case of a number.
pub(crate) fn compare(head: &str, unit: &str, labels: &[String], measure: impl Fn(usize) -> f64) {
    if std::env::var_os(CHILD).is_some() {
        println!("{}", isa::current().name());
        return (0..labels.len()).for_each(|case| println!("{}", measure(case)));
    }
    let names = ["scalar", "neon", "avx2", "avx512"];
    let runs: Vec<(&str, Vec<f64>)> =
        names.into_iter().filter_map(|name| run(name).map(|times| (name, times))).collect();
    print!("{head}");
    runs.iter().for_each(|(name, _)| print!(" {name:>9}"));
    println!("   {unit}");
    for (case, label) in labels.iter().enumerate() {
        print!("{label}");
        runs.iter().for_each(|(_, times)| print!(" {:>9.2}", times[case]));
        println!();
    }
}

/// The times of one instruction set, or none where this machine lacks it.
fn run(name: &str) -> Option<Vec<f64>> {
    let exe = std::env::current_exe().ok()?;
    let output = Command::new(exe).env(CHILD, "1").env("STRATANN_ISA", name).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (used, times) = text.split_once('\n')?;
    (used == name).then(|| times.lines().filter_map(|line| line.parse().ok()).collect())
}
