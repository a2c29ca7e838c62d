//! Units that could not be read, and the servers that tried.

use alloc::vec::Vec;

use super::Loss;
use crate::place::bit;

/// A unit that could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LostUnit {
    pub(crate) unit: u32,
    /// A bit for each server that tried; all bits once the unit is given up.
    pub(crate) tried: u64,
    /// Failure of the last try.
    pub(crate) loss: Loss,
}

/// Most units that a query reads again at another replica. With more, the whole cluster is at fault.
pub(crate) const LOST_UNITS_MAX: usize = 1024;

/// The units that one query could not read so far; seldom any.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LostUnits(pub(crate) Vec<LostUnit>);

impl LostUnits {
    /// A bit for each server that could not read this unit.
    pub(crate) fn tried(&self, unit: u32) -> u64 {
        self.0.iter().find(|u| u.unit == unit).map_or(0, |u| u.tried)
    }

    /// Notes that `server` could not read a unit. Returns false when too many are lost already.
    pub(crate) fn add(&mut self, unit: u32, server: u8, loss: Loss) -> bool {
        let is_full = self.0.len() >= LOST_UNITS_MAX;
        match self.0.iter_mut().find(|u| u.unit == unit) {
            Some(lost) => (lost.tried, lost.loss) = (lost.tried | bit(server), loss),
            None if is_full => return false,
            None => self.0.push(LostUnit { unit, tried: bit(server), loss }),
        }
        true
    }

    /// No replica is left that could read this unit: it is not asked for again.
    pub(crate) fn give_up(&mut self, unit: u32) {
        self.0.iter_mut().filter(|u| u.unit == unit).for_each(|u| u.tried = u64::MAX);
    }

    /// A unit that was given up.
    pub(crate) fn given_up(&self) -> Option<&LostUnit> {
        self.0.iter().find(|u| u.tried == u64::MAX)
    }
}
