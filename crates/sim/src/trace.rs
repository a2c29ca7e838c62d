//! The trace of a query: a graph of tasks (work of a thread, reads, messages) and of their dependencies.
//!
//! In `Barrier` mode and without faults, the tasks of a query do not depend on time. So a query is run once for real,
//! and its trace is replayed ([`crate::replay()`]) under any load and any costs.

use stratann_core::PAGE;
use stratann_core::query::{Extent, QueryStats};

/// Work of a thread, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Preparations of a query: computing its tables from its vector.
    pub prepared: u32,
    /// Steps of a state.
    pub steps: u32,
    /// Distances of codes in the first step of a query, which finds where to begin: in the head graph, or to centroids
    /// and members of the navigation graph.
    pub route_comparisons: u32,
    /// All other distances of codes, including those of batons without distances.
    pub code_comparisons: u32,
    /// Codes that a scorer ranked: a GPU where costs have one, otherwise the thread.
    pub scored: u32,
    /// Distances of full vectors.
    pub full_comparisons: u32,
    /// Components that were compared, in lists that are scanned component by component.
    pub components: u64,
    /// Completed reads.
    pub reads: u32,
    /// Messages that were sent or received.
    pub messages: u32,
    /// Bytes of these messages.
    pub message_bytes: u32,
    /// Requests of clients.
    pub requests: u32,
}

impl Work {
    /// One step, from the counters before and after it.
    pub(crate) fn step(before: &QueryStats, after: &QueryStats, (is_first, blocks): (bool, usize)) -> Work {
        let codes = |s: &QueryStats| s.code_comparisons + s.rescored;
        let compared = codes(after).saturating_sub(codes(before)) as u32;
        Work {
            steps: 1,
            route_comparisons: if is_first { compared } else { 0 },
            code_comparisons: if is_first { 0 } else { compared },
            full_comparisons: after.full_comparisons.saturating_sub(before.full_comparisons) as u32,
            components: after.components.saturating_sub(before.components),
            reads: blocks as u32,
            ..Work::default()
        }
    }

    /// Work on messages only.
    pub(crate) fn messages(count: u32, bytes: u32) -> Work {
        Work { messages: count, message_bytes: bytes, ..Work::default() }
    }

    /// Adds other work.
    pub fn add(&mut self, other: &Work) {
        self.prepared += other.prepared;
        self.steps += other.steps;
        self.route_comparisons += other.route_comparisons;
        self.code_comparisons += other.code_comparisons;
        self.scored += other.scored;
        self.full_comparisons += other.full_comparisons;
        self.components += other.components;
        self.reads += other.reads;
        self.messages += other.messages;
        self.message_bytes += other.message_bytes;
        self.requests += other.requests;
    }
}

/// Work that was done, and the time that it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// Counts of the work. Reads count where a step uses their bytes; the read itself is not in the time.
    pub work: Work,
    /// Nanoseconds.
    pub ns: u64,
}

/// A unit of time on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Work of a thread.
    Think(Work),
    /// A read of the disk.
    Read {
        /// Bytes of the pages that it covers.
        bytes: u32,
    },
    /// A job of the scorer of codes, after the work of a thread that made it. It takes no time where the thread ranks
    /// codes itself.
    Score {
        /// Codes that are ranked.
        codes: u32,
    },
    /// A message to another server.
    Send {
        /// Length of the message, bytes.
        bytes: u32,
    },
}

impl Task {
    pub(crate) fn read(at: &Extent) -> Task {
        Task::Read { bytes: u32::try_from(at.pages() * PAGE as u64).unwrap_or(u32::MAX) }
    }
}

/// Number of a task in a [`Draft`] or a [`Trace`].
pub type TaskId = u32;

/// A trace under construction.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    tasks: Vec<(u8, Task)>,
    // (earlier, later)
    edges: Vec<(TaskId, TaskId)>,
}

impl Draft {
    /// Adds a task on `server` that waits for all of `after`, which were added before it.
    pub fn add(&mut self, server: u8, task: Task, after: &[TaskId]) -> TaskId {
        let id = self.tasks.len() as TaskId;
        self.tasks.push((server, task));
        self.edges.extend(after.iter().filter(|&&earlier| earlier < id).map(|&earlier| (earlier, id)));
        id
    }

    /// Adds work of a thread on `server`, and the job of a scorer that it makes. Returns the last of the two.
    pub fn think(&mut self, server: u8, work: Work, after: &[TaskId]) -> TaskId {
        let thought = self.add(server, Task::Think(work), after);
        match work.scored {
            0 => thought,
            codes => self.add(server, Task::Score { codes }, &[thought]),
        }
    }

    /// Number of tasks so far.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether there is no task yet.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Finishes the trace. Its client has the answer when the task `answered` ends.
    pub fn finish(mut self, answered: TaskId) -> Trace {
        self.edges.sort_unstable();
        let mut waits = vec![0u32; self.tasks.len()];
        let mut starts = vec![0u32; self.tasks.len() + 1];
        for &(earlier, later) in &self.edges {
            starts[earlier as usize + 1] += 1;
            waits[later as usize] += 1;
        }
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        let next = self.edges.iter().map(|e| e.1).collect();
        Trace { tasks: self.tasks, starts, next, waits, answered }
    }
}

/// The tasks of one query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    tasks: Vec<(u8, Task)>,
    // The tasks that wait for task t are next[starts[t]..starts[t + 1]].
    starts: Vec<u32>,
    next: Vec<TaskId>,
    waits: Vec<u32>,
    answered: TaskId,
}

impl Trace {
    /// The tasks, each with its server.
    pub fn tasks(&self) -> &[(u8, Task)] {
        &self.tasks
    }

    /// Tasks that wait for a task.
    pub(crate) fn next(&self, task: TaskId) -> &[TaskId] {
        let at = task as usize;
        &self.next[self.starts[at] as usize..self.starts[at + 1] as usize]
    }

    /// Number of tasks that each task waits for.
    pub(crate) fn waits(&self) -> &[u32] {
        &self.waits
    }

    /// The task at whose end the client has its answer.
    pub(crate) fn answered(&self) -> TaskId {
        self.answered
    }

    /// Work of all threads.
    pub fn work(&self) -> Work {
        let mut sum = Work::default();
        for (_, task) in &self.tasks {
            if let Task::Think(work) = task {
                sum.add(work);
            }
        }
        sum
    }
}
