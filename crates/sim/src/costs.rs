//! Resources of a server, and prices of its work.

use crate::trace::Work;

/// Prices and capacities of every server. They are integers, so that a replay is the same on any machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Threads of a server. A ready task waits for a free one.
    pub threads: usize,
    /// Preparing a query on a server: the look-up tables of its codes.
    pub prepare_ns: u64,
    /// A step, besides its comparisons.
    pub step_ns: u64,
    /// A read: submission, completion and checksum of a block.
    pub read_ns: u64,
    /// A distance of codes, with its share of decoding adjacency lists and updating the beam. Picoseconds: it takes a
    /// few nanoseconds.
    pub code_comparison_ps: u64,
    /// A distance of full vectors. Picoseconds.
    pub full_comparison_ps: u64,
    /// A message, on the sender and again on the receiver: encoding or decoding, and its share of system calls.
    pub message_ns: u64,
    /// Shortest latency of a read.
    pub disk_latency_ns: u64,
    /// Reads per second that a server's disk begins; 0 for no limit.
    pub disk_iops: u64,
    /// Latency from the last byte sent to the received message.
    pub network_latency_ns: u64,
    /// Bits per second that a server sends; 0 for no limit.
    pub network_bits: u64,
}

const NS: u64 = 1_000_000_000;

impl Costs {
    /// Nanoseconds that a thread is busy with `work`.
    pub fn work_ns(&self, work: &Work) -> u64 {
        let times = |count: u32, each: u64| u64::from(count).saturating_mul(each);
        let comparisons = times(work.code_comparisons, self.code_comparison_ps)
            .saturating_add(times(work.full_comparisons, self.full_comparison_ps));
        [
            times(work.prepared, self.prepare_ns),
            times(work.steps, self.step_ns),
            times(work.reads, self.read_ns),
            times(work.messages, self.message_ns),
            comparisons / 1000,
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }

    /// Nanoseconds between the beginnings of two reads.
    pub(crate) fn read_gap_ns(&self) -> u64 {
        NS.checked_div(self.disk_iops).unwrap_or(0)
    }

    /// Nanoseconds until the last of `bytes` has left.
    pub(crate) fn sending_ns(&self, bytes: u32) -> u64 {
        (u64::from(bytes) * 8 * NS).checked_div(self.network_bits).unwrap_or(0)
    }
}
