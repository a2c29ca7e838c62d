//! Errors of a device and of loads, and failures of single jobs.

/// Reason why a device cannot be opened, or codes cannot be loaded.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// A library that is not installed, cannot be loaded or is too old.
    #[error("{what}; {remedy}")]
    Missing {
        /// The library and what happened.
        what: String,
        /// Remedy: a library to install or a variable to set.
        remedy: &'static str,
    },
    /// A device number that does not exist.
    #[error("there is no GPU number {device}: the driver lists {count}; choose a number below that")]
    NoDevice {
        /// The number asked for.
        device: u32,
        /// Devices that the driver lists.
        count: u32,
    },
    /// An option out of its limits.
    #[error("the GPU option {option} is {given}; it must be from {low} to {high}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Value of the option.
        given: u64,
        /// Smallest value that works.
        low: u64,
        /// Largest value that works.
        high: u64,
    },
    /// Codes that the kernels cannot score.
    #[error("the GPU cannot score these codes: {0}; score them on the CPU")]
    Codes(String),
    /// A budget below the smallest one that works.
    #[error("a GPU budget of {given} bytes is too small; the smallest that works is {needed} bytes")]
    Budget {
        /// The smallest budget that works.
        needed: u64,
        /// The budget given, or a share of the free memory of the device where none was given.
        given: u64,
    },
    /// Memory that the device did not give.
    #[error(
        "{bytes} bytes for {what} cannot be allocated ({reason}); lower the GPU budget or free memory there"
    )]
    Memory {
        /// Purpose of the memory.
        what: &'static str,
        /// Size of the memory.
        bytes: u64,
        /// Reason that the driver gave.
        reason: String,
    },
    /// Kernels that do not compile.
    #[error(
        "the GPU kernels do not compile for {architecture}: {log}; install an NVRTC that supports this GPU"
    )]
    Compile {
        /// Architecture of the device.
        architecture: String,
        /// Log of the compiler.
        log: String,
    },
    /// A call that failed.
    #[error("the GPU failed: {0}; `nvidia-smi` shows whether the GPU and its driver work")]
    Call(String),
    /// A device that was lost before the codes were loaded, by them or by others.
    #[error("{0}; open the GPU again, or score these codes on the CPU")]
    Lost(Failure),
    /// A thread that cannot be started.
    #[error("a thread for the GPU cannot be started: {0}; raise the limit of threads")]
    Thread(String),
}

/// Reason why a job has no answer. The same job can be scored on the CPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A job that does not fit a block.
    #[error("a job with {what} {given} does not fit the GPU, which takes {limit}; score it on the CPU")]
    TooLarge {
        /// Field that is too large: `ids` or `keep`.
        what: &'static str,
        /// Size of the field in the job.
        given: u64,
        /// The most that fits.
        limit: u64,
    },
    /// A query that was prepared for other codes, or vectors of another dimension.
    #[error("the GPU cannot score this query: {what}")]
    Query {
        /// Reason why it cannot be scored.
        what: String,
    },
    /// A launch or a copy that failed. The device is lost.
    #[error("the GPU failed: {what}")]
    Failed {
        /// The call and its error.
        what: String,
    },
    /// A batch that did not end in time. The device is lost.
    #[error("the GPU did not answer in time")]
    TimedOut,
    /// A device that was lost before, or by a batch of others.
    #[error("the GPU was lost")]
    Lost,
}
