//! The rollout of a new build of an index on one server, which holds the old and the new build meanwhile.
//!
//! Clients' queries switch to the new build once it is ready on every server that they can reach
//! ([`Peer::is_ready`](super::Peer::is_ready)). The old build is dropped once it is drained
//! ([`Peer::is_drained`](super::Peer::is_drained)).

/// Progress of a rollout. Times are microseconds on one clock.
#[derive(Clone, Copy, Debug)]
pub struct Rollout {
    began_us: u64,
    switched_us: Option<u64>,
}

/// The next step of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolloutStep {
    /// Nothing yet.
    Wait,
    /// Give clients' queries to the new build.
    Switch,
    /// Drop the old build.
    Drop,
}

/// The old build is dropped this long after the switch even if some server still has queries in it: that server could
/// not switch.
pub const DRAIN_US_MAX: u64 = 600_000_000;
/// A new build that has not become ready for this long may be replaced by a newer one: some server may never get it.
pub const STUCK_US: u64 = 10_000_000;

impl Rollout {
    /// The new build has been opened beside the old one.
    pub fn new(now_us: u64) -> Rollout {
        Rollout { began_us: now_us, switched_us: None }
    }

    /// The next step, given whether the new build is ready and whether the old one is drained.
    pub fn step(&mut self, now_us: u64, is_ready: bool, is_drained: bool) -> RolloutStep {
        match self.switched_us {
            None if is_ready => {
                self.switched_us = Some(now_us);
                RolloutStep::Switch
            }
            None => RolloutStep::Wait,
            Some(at) if is_drained || now_us.saturating_sub(at) >= DRAIN_US_MAX => RolloutStep::Drop,
            Some(_) => RolloutStep::Wait,
        }
    }

    /// Whether the new build may be replaced by a newer one.
    pub fn is_stuck(&self, now_us: u64) -> bool {
        self.switched_us.is_none() && now_us.saturating_sub(self.began_us) >= STUCK_US
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollout_waits_until_the_new_build_is_ready_then_until_the_old_one_is_drained() {
        let mut rollout = Rollout::new(5);
        assert_eq!(rollout.step(10, false, true), RolloutStep::Wait);
        assert!(!rollout.is_stuck(STUCK_US) && rollout.is_stuck(STUCK_US + 5));
        assert_eq!(rollout.step(20, true, true), RolloutStep::Switch);
        assert!(!rollout.is_stuck(u64::MAX));
        assert_eq!(rollout.step(30, true, false), RolloutStep::Wait);
        assert_eq!(rollout.step(40, false, true), RolloutStep::Drop);
        assert_eq!(rollout.step(20 + DRAIN_US_MAX, true, false), RolloutStep::Drop);
    }
}
