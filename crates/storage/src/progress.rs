//! Progress reports of long work, and its interruption.

use crate::error::{Error, Result};

/// Receives progress from several threads, and is polled for an interruption.
pub trait Progress: Sync {
    /// Starts a stage of `total` units.
    fn stage(&self, name: &str, total: u64, unit: &str);
    /// Tells what the next stages are expected to take.
    fn expect(&self, _work: Expected) {}
    /// Reports that `count` more units of the stage are done.
    fn advance(&self, count: u64);
    /// Reports a note.
    fn note(&self, line: &str);
    /// Returns true once the user asked to stop: the work then ends with `ErrorKind::Interrupted` and publishes
    /// nothing.
    fn interrupted(&self) -> bool;

    /// Ends work that the user asked to stop.
    ///
    /// # Errors
    /// `ErrorKind::Interrupted` once the user has.
    fn check_interrupted(&self) -> Result<()> {
        if self.interrupted() { Err(Error::interrupted()) } else { Ok(()) }
    }
}

/// Forecast of the time of work.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Expected {
    /// Seconds of the next stage, or of the next stages together.
    pub now_s: f64,
    /// Whether several stages share `now_s`, so that the rate of one of them says little about it.
    pub in_parts: bool,
    /// Seconds of all that comes after.
    pub later_s: f64,
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
