//! Quotas and minima of the memory of collections, and what each of them uses.

use std::collections::BTreeMap;

use stratann_storage::budget::size;

use super::error::{Error, Result};

/// Limits of the memory of a collection: its points in memory, and tables and caches of its open segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryLimits {
    /// The most that it may use, bytes; `None` for no limit but the budget.
    pub quota_bytes: Option<u64>,
    /// What other collections never take, bytes, also while it is closed.
    pub minimum_bytes: u64,
}

impl MemoryLimits {
    /// Checks that a quota admits something, and the minimum.
    ///
    /// # Errors
    /// `BadInput`.
    pub(super) fn check(&self) -> Result<()> {
        match self.quota_bytes {
            Some(0) => {
                Err(Error::bad_input("a memory quota of 0; give one byte or more, or none for no quota"))
            }
            Some(quota) if quota < self.minimum_bytes => Err(Error::bad_input(format!(
                "a memory minimum of {} is more than the quota of {}; give a larger quota or a smaller minimum",
                size(self.minimum_bytes),
                size(quota)
            ))),
            _ => Ok(()),
        }
    }

    /// The row of the limits: quota and minimum as `u64`, little-endian; a quota of 0 is none.
    pub(super) fn encode(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        let (quota, minimum) = bytes.split_at_mut(8);
        quota.copy_from_slice(&self.quota_bytes.unwrap_or(0).to_le_bytes());
        minimum.copy_from_slice(&self.minimum_bytes.to_le_bytes());
        bytes
    }

    /// Reads the row of the limits; `None` for one that cannot be.
    pub(super) fn decode(bytes: &[u8]) -> Option<MemoryLimits> {
        let ([quota, minimum], []) = bytes.as_chunks::<8>() else { return None };
        let quota = u64::from_le_bytes(*quota);
        let limits = MemoryLimits {
            quota_bytes: (quota > 0).then_some(quota),
            minimum_bytes: u64::from_le_bytes(*minimum),
        };
        limits.check().ok().map(|()| limits)
    }
}

/// Limits and use of a collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) limits: MemoryLimits,
    /// Bytes that it uses.
    pub(super) used: u64,
    /// Whether its last request was refused whatever others use: for its quota, or since there is never that much.
    pub(super) is_at_limit: bool,
}

impl Account {
    /// Bytes of the minimum that are not used.
    pub(super) fn unused(&self) -> u64 {
        self.limits.minimum_bytes.saturating_sub(self.used)
    }
}

/// The accounts of all collections, by their numbers.
#[derive(Default)]
pub(super) struct Accounts {
    accounts: BTreeMap<u64, Account>,
    /// Sum of all minima, and of what is unused of them.
    minima: u128,
    unused: u128,
}

impl Accounts {
    /// The account of a collection.
    pub(super) fn of(&self, collection: u64) -> Account {
        self.accounts.get(&collection).copied().unwrap_or_default()
    }

    /// Changes an account. One that is as that of a new collection is forgotten.
    pub(super) fn change(&mut self, collection: u64, change: impl FnOnce(&mut Account)) {
        let account = self.accounts.entry(collection).or_default();
        self.minima -= u128::from(account.limits.minimum_bytes);
        self.unused -= u128::from(account.unused());
        change(account);
        self.minima += u128::from(account.limits.minimum_bytes);
        self.unused += u128::from(account.unused());
        if *account == Account::default() {
            self.accounts.remove(&collection);
        }
    }

    /// Sum of all minima but one.
    pub(super) fn other_minima(&self, collection: u64) -> u128 {
        self.minima - u128::from(self.of(collection).limits.minimum_bytes)
    }

    /// Whether a memory of this size has room for all minima. Where it has not, none is kept.
    pub(super) fn fit(&self, capacity: u64) -> bool {
        self.minima <= u128::from(capacity)
    }

    /// What is unused of all minima, where they are kept.
    pub(super) fn kept(&self, capacity: u64) -> u64 {
        if self.fit(capacity) { self.unused as u64 } else { 0 }
    }

    /// What others keep from a collection: what is unused of their minima.
    pub(super) fn kept_from(&self, collection: u64, capacity: u64) -> u64 {
        self.kept(capacity).saturating_sub(self.of(collection).unused())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_they_were_written() {
        for (quota_bytes, minimum_bytes) in [(None, 0), (Some(1), 1), (None, u64::MAX), (Some(u64::MAX), 7)] {
            let limits = MemoryLimits { quota_bytes, minimum_bytes };
            assert_eq!(MemoryLimits::decode(&limits.encode()), Some(limits));
        }
        assert_eq!(MemoryLimits::decode(&[0; 15]), None);
        assert_eq!(MemoryLimits::decode(&[0; 17]), None);
        let wrong = MemoryLimits { quota_bytes: Some(5), minimum_bytes: 6 };
        assert_eq!(MemoryLimits::decode(&wrong.encode()), None);
        assert!(MemoryLimits { quota_bytes: Some(0), minimum_bytes: 0 }.check().is_err());
    }

    #[test]
    fn sums_follow_the_accounts() {
        let mut all = Accounts::default();
        let minimum = |minimum_bytes| MemoryLimits { quota_bytes: None, minimum_bytes };
        all.change(1, |own| own.limits = minimum(100));
        all.change(2, |own| own.limits = minimum(50));
        all.change(1, |own| own.used = 30);
        all.change(3, |own| own.used = 1000);
        assert_eq!((all.kept_from(1, 150), all.kept_from(2, 150), all.kept_from(3, 150)), (50, 70, 120));
        assert_eq!((all.other_minima(1), all.kept_from(3, 149)), (50, 0), "they have no room");
        all.change(1, |own| own.used = 300);
        assert_eq!(all.kept_from(3, 150), 50);
        all.change(2, |own| own.limits = MemoryLimits::default());
        all.change(1, |own| *own = Account::default());
        assert_eq!((all.accounts.len(), all.kept(u64::MAX)), (1, 0));
        all.change(1, |own| own.limits = minimum(u64::MAX));
        all.change(2, |own| own.limits = minimum(u64::MAX));
        assert!(!all.fit(u64::MAX));
    }
}
