//! Progress reports of long work, and its interruption.

/// Receives progress from several threads, and is polled for an interruption.
pub trait Progress: Sync {
    /// Starts a stage of `total` units.
    fn stage(&self, name: &str, total: u64, unit: &str);
    /// Tells what the present stages are expected to take together, and what comes after them, in seconds.
    fn expect(&self, _now_s: f64, _later_s: f64) {}
    /// Reports that `count` more units of the stage are done.
    fn advance(&self, count: u64);
    /// Reports a note.
    fn note(&self, line: &str);
    /// Returns true once the user asked to stop: the work then ends with `ErrorKind::Interrupted` and publishes
    /// nothing.
    fn interrupted(&self) -> bool;
}

/// Ignores progress and never interrupts.
pub struct Quiet;

impl Progress for Quiet {
    fn stage(&self, _: &str, _: u64, _: &str) {}
    fn advance(&self, _: u64) {}
    fn note(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        false
    }
}
