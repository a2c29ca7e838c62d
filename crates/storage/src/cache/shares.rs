//! Memory of the caches of a process: what one open index does not use, another one may.
//!
//! Each cache has a share: bytes that it is guaranteed. A cache that is full borrows from those that have room to
//! spare, and gives it back, evicting, as soon as a lender fills its own share. So all caches together never have more
//! than the sum of their shares, and none has less than it would have alone. A cache whose size was chosen for it
//! alone takes no part.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::Extents;
use crate::process::PerProcess;

/// Least and most bytes that change hands at once.
const STEP_BYTES_MIN: u64 = 256 << 10;
const STEP_BYTES_MAX: u64 = 64 << 20;

/// The caches of a process.
#[derive(Default)]
pub(super) struct Shares {
    members: Mutex<Vec<Member>>,
    numbers: AtomicU64,
}

struct Member {
    number: u64,
    extents: Arc<Extents>,
    guaranteed_bytes: u64,
    lends: bool,
}

impl Member {
    /// What it has beyond its guarantee.
    fn borrowed_bytes(&self) -> u64 {
        self.extents.capacity().saturating_sub(self.guaranteed_bytes)
    }

    /// What it may be asked for without losing an extent. A cache is full somewhat before its last byte is taken, and
    /// one that begins to fill should not ask at once: a part is left to it.
    fn spare_bytes(&self) -> u64 {
        let capacity = self.extents.capacity();
        let kept = self.extents.used_bytes() + (capacity / 4).max(self.guaranteed_bytes / 8);
        capacity.saturating_sub(kept)
    }

    fn change(&self, by: impl FnOnce(u64) -> u64) {
        self.extents.set_capacity(by(self.extents.capacity()));
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
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let guaranteed_bytes = extents.capacity();
        self.members().push(Member { number, extents, guaranteed_bytes, lends: false });
        number
    }

    /// A cache lends and borrows from now on.
    pub(super) fn lend(&self, number: u64) {
        if let Some(own) = self.members().iter_mut().find(|member| member.number == number) {
            own.lends = true;
        }
    }

    /// Removes a cache. What it had lent is taken back from those that have it.
    pub(super) fn leave(&self, number: u64) {
        let mut members = self.members();
        let Some(at) = members.iter().position(|member| member.number == number) else { return };
        let gone = members.swap_remove(at);
        if gone.lends {
            let (guaranteed, capacity) = sums(&members);
            take_borrowed(&members, capacity.saturating_sub(guaranteed));
        }
    }

    /// Gives a full cache more room: what nobody has, then what others have of its guarantee, then what others do not
    /// use.
    pub(super) fn extend(&self, number: u64) {
        let members = self.members();
        let Some(own) = members.iter().find(|member| member.number == number && member.lends) else { return };
        let capacity = own.extents.capacity();
        let own_lent = own.guaranteed_bytes.saturating_sub(capacity);
        // A table has no use for more than its guarantee.
        let most = if own.extents.is_table() { own_lent } else { u64::MAX };
        let wanted = (capacity / 4).clamp(STEP_BYTES_MIN, STEP_BYTES_MAX).min(most);
        let (guaranteed, given) = sums(&members);
        let mut got = wanted.min(guaranteed.saturating_sub(given));
        got += take_borrowed(&members, wanted.min(own_lent).saturating_sub(got));
        let mut lenders: Vec<&Member> =
            members.iter().filter(|member| member.lends && member.number != number).collect();
        lenders.sort_by_key(|lender| std::cmp::Reverse(lender.spare_bytes()));
        for lender in lenders {
            let lent = lender.spare_bytes().min(wanted - got);
            lender.change(|capacity| capacity - lent);
            got += lent;
        }
        own.change(|capacity| capacity + got);
    }

    /// Bytes that all caches may still take.
    pub(super) fn left_bytes(&self) -> u64 {
        let left = |member: &Member| member.extents.capacity().saturating_sub(member.extents.used_bytes());
        self.members().iter().map(left).sum()
    }

    fn members(&self) -> MutexGuard<'_, Vec<Member>> {
        self.members.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Guarantees and capacities of all that lend.
fn sums(members: &[Member]) -> (u64, u64) {
    let lending = members.iter().filter(|member| member.lends);
    lending.fold((0, 0), |(guaranteed, capacity), member| {
        (guaranteed + member.guaranteed_bytes, capacity + member.extents.capacity())
    })
}

/// Takes bytes from those that have most beyond their guarantees. Returns how many it took.
fn take_borrowed(members: &[Member], bytes: u64) -> u64 {
    let mut borrowers: Vec<&Member> = members.iter().filter(|member| member.lends).collect();
    borrowers.sort_by_key(|borrower| std::cmp::Reverse(borrower.borrowed_bytes()));
    let mut taken = 0;
    for borrower in borrowers {
        let part = borrower.borrowed_bytes().min(bytes - taken);
        if part > 0 {
            borrower.change(|capacity| capacity - part);
            taken += part;
        }
    }
    taken
}
