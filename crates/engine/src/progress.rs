//! How long work tells how far it is, and learns that it should stop.

/// Receives progress; asked now and then whether to stop. Called from several threads.
pub trait Progress: Sync {
    /// A stage begins: its name, and how many `unit`s it will take.
    fn stage(&self, name: &str, total: u64, unit: &str);
    /// `count` more units of the current stage are done.
    fn advance(&self, count: u64);
    /// A line worth telling.
    fn note(&self, line: &str);
    /// True once the user asked to stop: the work then ends with `Kind::Interrupted`, leaving nothing half-done.
    fn interrupted(&self) -> bool;
}

/// Says nothing, never interrupts.
pub struct Quiet;

impl Progress for Quiet {
    fn stage(&self, _: &str, _: u64, _: &str) {}
    fn advance(&self, _: u64) {}
    fn note(&self, _: &str) {}
    fn interrupted(&self) -> bool {
        false
    }
}
