//! Byte credits: the jobs that one server may have asked of another without a reply.
//!
//! Every server sets aside the same number of bytes for each other one. An asker keeps the jobs that exceed them until
//! replies have come. A scorer refuses jobs that exceed them, with [`Busy`](super::message::NoScores::Busy), so no
//! asker takes the memory that is set aside for the others. A forwarded job counts for its asker at each server that it
//! visits; there it may exceed the bytes once more, since its asker does not know where it is.

use crate::place::SERVERS_MAX;

/// Most bytes that a frame has beside its vector and its state.
pub(super) const FRAME_BYTES: u64 = 64;

/// Bytes under way between this server and each other one.
pub(super) struct Credits {
    limit: u64,
    // Of jobs that others score, and of jobs for others that are here.
    asked: [u64; SERVERS_MAX],
    accepted: [u64; SERVERS_MAX],
}

impl Credits {
    pub(super) fn new(limit: u64) -> Credits {
        Credits { limit, asked: [0; SERVERS_MAX], accepted: [0; SERVERS_MAX] }
    }

    /// Spends bytes at a scorer. Returns false where they exceed what is left; a job that is alone never does.
    pub(super) fn spend(&mut self, to: u8, bytes: u64) -> bool {
        take(&mut self.asked, to, bytes, self.limit)
    }

    /// A reply has come, or is no longer awaited.
    pub(super) fn regain(&mut self, to: u8, bytes: u64) {
        give_back(&mut self.asked, to, bytes);
    }

    /// Accepts bytes of an asker. Returns false where they exceed what it may have here.
    pub(super) fn accept(&mut self, asker: u8, bytes: u64, is_forwarded: bool) -> bool {
        let limit = if is_forwarded { self.limit.saturating_mul(2) } else { self.limit };
        take(&mut self.accepted, asker, bytes, limit)
    }

    /// A job of an asker has ended here.
    pub(super) fn end(&mut self, asker: u8, bytes: u64) {
        give_back(&mut self.accepted, asker, bytes);
    }
}

fn take(of: &mut [u64; SERVERS_MAX], server: u8, bytes: u64, limit: u64) -> bool {
    let Some(used) = of.get_mut(usize::from(server)) else { return false };
    let fits = *used == 0 || used.saturating_add(bytes) <= limit;
    *used += if fits { bytes } else { 0 };
    fits
}

fn give_back(of: &mut [u64; SERVERS_MAX], server: u8, bytes: u64) {
    if let Some(used) = of.get_mut(usize::from(server)) {
        *used = used.saturating_sub(bytes);
    }
}
