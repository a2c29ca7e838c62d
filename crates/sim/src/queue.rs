//! Queues for resources that serve one task at a time, first come, first served.

/// A server of a queue: since when it is busy without a pause, and until when.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    from: u64,
    free_at: u64,
}

impl Run {
    fn take(&mut self, now: u64, busy_ns: u64) -> u64 {
        if now > self.free_at {
            *self = Run { from: now, free_at: now };
        }
        self.free_at += busy_ns;
        self.free_at
    }
}

/// A queue of tasks for equal servers of one resource.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    runs: Vec<Run>,
    assigned_ns: u64,
}

impl Queue {
    /// For so many servers, at least one.
    pub(crate) fn new(count: usize) -> Queue {
        Queue { runs: vec![Run::default(); count.max(1)], assigned_ns: 0 }
    }

    /// Adds a task that is ready at `now` and takes `busy_ns`. Returns its end.
    pub(crate) fn take(&mut self, now: u64, busy_ns: u64) -> u64 {
        self.assigned_ns += busy_ns;
        self.runs.iter_mut().min_by_key(|run| run.free_at).map_or(now, |run| run.take(now, busy_ns))
    }

    /// Adds a task for one of the servers. Returns its end.
    pub(crate) fn take_on(&mut self, server: usize, now: u64, busy_ns: u64) -> u64 {
        self.assigned_ns += busy_ns;
        self.runs.get_mut(server).map_or(now, |run| run.take(now, busy_ns))
    }

    /// Busy time of all together until `now`. Tasks that begin only after `now` are left out, but for those of a server
    /// that has a pause before its last ones.
    pub(crate) fn busy_ns(&self, now: u64) -> u64 {
        let scheduled: u64 = self.runs.iter().map(|run| run.free_at.saturating_sub(now.max(run.from))).sum();
        self.assigned_ns - scheduled
    }

    /// Share of the time between two marks (time, busy time) that was busy.
    pub(crate) fn share(&self, from: (u64, u64), to: (u64, u64)) -> f64 {
        share(self.runs.len(), from, to)
    }
}

/// Share of the time between two marks (time, busy time) that so many servers were busy.
pub(crate) fn share(servers: usize, from: (u64, u64), to: (u64, u64)) -> f64 {
    let spent = to.0.saturating_sub(from.0) * servers as u64;
    if spent == 0 { 0.0 } else { to.1.saturating_sub(from.1) as f64 / spent as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_wait_for_the_server_that_is_free_first_and_what_lies_ahead_is_not_busy_yet() {
        let mut queue = Queue::new(2);
        assert_eq!((queue.take(0, 10), queue.take(0, 4), queue.take(1, 3)), (10, 4, 7));
        assert_eq!((queue.busy_ns(5), queue.busy_ns(10)), (10, 17));
        // Ready at 100, known at 10.
        assert_eq!((queue.take_on(0, 100, 50), queue.busy_ns(10), queue.busy_ns(120)), (150, 17, 37));
        assert_eq!(queue.share((0, 0), (20, 17)), 17.0 / 40.0);
    }
}
