//! Memory of the caches of a process: what one open index does not use, another one may.
//!
//! Each cache has a guarantee and a capacity, equal at first. A full cache borrows capacity from those that have bytes
//! to spare. A lender that fills up gets its capacity back, up to its guarantee; the borrowers evict then. So the
//! capacities of all caches together never exceed the sum of their guarantees. A cache whose size was chosen for it
//! alone takes no part.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::Extents;
use crate::process::PerProcess;

/// Bytes that a borrower gets at once.
const STEP_BYTES_MIN: u64 = 256 << 10;
const STEP_BYTES_MAX: u64 = 64 << 20;

/// The caches of a process.
#[derive(Default)]
pub(super) struct Shares {
    members: Mutex<Vec<Member>>,
}

struct Member {
    number: u64,
    extents: Arc<Extents>,
    guaranteed_bytes: u64,
    // All that there is to cache.
    usable_bytes: u64,
    lends: bool,
}

impl Member {
    fn borrowed_bytes(&self) -> u64 {
        self.extents.capacity().saturating_sub(self.guaranteed_bytes)
    }

    /// Bytes that it can lend without losing an extent. A cache evicts somewhat before its last byte is taken, and
    /// needs capacity to begin with when its index is searched again, so it keeps a part. It lends nothing rather than
    /// little: with each change of capacity it forgets some extents that it evicted.
    fn spare_bytes(&self) -> u64 {
        let capacity = self.extents.capacity();
        let kept = self.extents.used_bytes() + capacity.max(self.guaranteed_bytes) / 4;
        let spare = capacity.saturating_sub(kept);
        if spare >= self.guaranteed_bytes / 16 { spare } else { 0 }
    }
}

impl Shares {
    /// Those of this process.
    pub(super) fn of_process() -> &'static Shares {
        static OWN: PerProcess<Shares> = PerProcess::new();
        OWN.get(Shares::default)
    }

    /// Adds a cache with its capacity as guarantee. Returns its number.
    pub(super) fn join(&self, extents: Arc<Extents>) -> u64 {
        // Not of the process: a forked child must not give a number of its parent again.
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let guaranteed_bytes = extents.capacity();
        let usable_bytes = u64::MAX;
        self.members().push(Member { number, extents, guaranteed_bytes, usable_bytes, lends: false });
        number
    }

    /// Lets a cache lend and borrow from now on.
    pub(super) fn lend(&self, number: u64) {
        self.change(number, |member| member.lends = true);
    }

    /// Notes how many bytes there are to cache.
    pub(super) fn set_usable(&self, number: u64, bytes: u64) {
        self.change(number, |member| member.usable_bytes = bytes);
    }

    fn change(&self, number: u64, change: impl FnOnce(&mut Member)) {
        if let Some(own) = self.members().iter_mut().find(|member| member.number == number) {
            change(own);
        }
    }

    /// Removes a cache. What it had lent is taken back.
    pub(super) fn leave(&self, number: u64) {
        let mut members = self.members();
        let Some(at) = members.iter().position(|member| member.number == number) else { return };
        let gone = members.swap_remove(at);
        if gone.lends {
            let (guaranteed, capacity) = sums(&members);
            take(&members, capacity.saturating_sub(guaranteed), Member::borrowed_bytes);
        }
    }

    /// Gives a full cache more capacity. Below its guarantee it gets twice what it has, from those that borrow. Then it
    /// borrows from those that have bytes to spare.
    pub(super) fn extend(&self, number: u64) {
        let members = self.members();
        let Some(own) = members.iter().find(|member| member.number == number && member.lends) else { return };
        let capacity = own.extents.capacity();
        let (guaranteed, given) = sums(&members);
        // What an index that was closed had borrowed, and the roundings of shares.
        let unassigned = guaranteed.saturating_sub(given);
        let lent = own.guaranteed_bytes.saturating_sub(capacity);
        let got = if lent > 0 {
            let wanted = lent.min(capacity.max(STEP_BYTES_MIN));
            let got = wanted.min(unassigned);
            got + take(&members, wanted - got, Member::borrowed_bytes)
        } else if own.extents.is_table() {
            0
        } else {
            let wanted = (capacity / 4).clamp(STEP_BYTES_MIN, STEP_BYTES_MAX);
            let got = wanted.min(unassigned);
            let spare = |member: &Member| if member.number == number { 0 } else { member.spare_bytes() };
            got + take(&members, wanted - got, spare)
        };
        if got > 0 {
            own.extents.set_capacity(capacity + got);
        }
    }

    /// Bytes that all caches may still take.
    pub(super) fn left_bytes(&self) -> u64 {
        let left = |member: &Member| {
            let most = member.extents.capacity().min(member.usable_bytes);
            most.saturating_sub(member.extents.used_bytes())
        };
        self.members().iter().map(left).fold(0, u64::saturating_add)
    }

    fn members(&self) -> MutexGuard<'_, Vec<Member>> {
        self.members.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Guarantees and capacities of all caches that lend.
    #[cfg(test)]
    pub(super) fn sums(&self) -> (u64, u64) {
        sums(&self.members())
    }
}

/// Guarantees and capacities of all caches that lend.
fn sums(members: &[Member]) -> (u64, u64) {
    let lending = members.iter().filter(|member| member.lends);
    lending.fold((0, 0), |(guaranteed, capacity), member| {
        (guaranteed + member.guaranteed_bytes, capacity + member.extents.capacity())
    })
}

/// Takes bytes from caches that lend, most from those that can give most. Returns how many it took.
fn take(members: &[Member], bytes: u64, available: impl Fn(&Member) -> u64) -> u64 {
    if bytes == 0 {
        return 0;
    }
    // What is available is asked once: other threads use the caches meanwhile.
    let lending = members.iter().filter(|member| member.lends);
    let mut from: Vec<(u64, &Member)> = lending.map(|member| (available(member), member)).collect();
    from.sort_by_key(|&(most, _)| std::cmp::Reverse(most));
    let mut taken = 0;
    for (most, member) in from {
        let part = most.min(bytes - taken);
        if part == 0 {
            break;
        }
        member.extents.set_capacity(member.extents.capacity() - part);
        taken += part;
    }
    taken
}
