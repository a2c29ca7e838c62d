//! Queries under load: their traces over busy threads, disks and links.
//!
//! A server has some threads and one outgoing link; a host has some cores and one disk, for one server or several. Each
//! is a queue, served in the order in which tasks become ready. Work of a search needs a thread and a core, an exchange
//! of messages a core alone. Time is in whole nanoseconds; equal traces, costs, load and seed give equal times.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use stratann_core::hash::hash;

use crate::costs::Costs;
use crate::queue::Queue;
use crate::trace::{Task, TaskId, Trace};

/// Arrival of queries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// A fixed number in flight: an answered query is replaced at once. With enough of them this finds the largest
    /// throughput.
    Closed {
        /// Queries in flight in the whole cluster.
        in_flight: usize,
    },
    /// A Poisson process.
    Open {
        /// Mean queries per second.
        per_second: f64,
    },
}

/// Utilisation of a server and its host, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Utilisation {
    /// Cores of the host.
    pub cpu: f64,
    /// The disk of the host.
    pub disk: f64,
    /// The outgoing link.
    pub network: f64,
}

impl Utilisation {
    /// Name of the busiest resource.
    pub fn bottleneck(&self) -> &'static str {
        let all = [(self.cpu, "cpu"), (self.disk, "disk"), (self.network, "network")];
        all.into_iter().fold(all[0], |most, next| if next.0 > most.0 { next } else { most }).1
    }

    fn most(self, other: Utilisation) -> Utilisation {
        Utilisation {
            cpu: self.cpu.max(other.cpu),
            disk: self.disk.max(other.disk),
            network: self.network.max(other.network),
        }
    }
}

/// Result of a replay, without the first queries, which find the cluster empty.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// Answered queries per second.
    pub qps: f64,
    /// Latency of each query in order of submission, nanoseconds.
    pub latency_ns: Vec<u64>,
    /// Utilisation by server.
    pub servers: Vec<Utilisation>,
    /// Processor time for waking threads per query, nanoseconds. All other work does not depend on the load.
    pub wakes_ns: f64,
    /// End of the last task, nanoseconds.
    pub ended_ns: u64,
}

impl Timing {
    /// Highest utilisation of any server, for each resource.
    pub fn busiest(&self) -> Utilisation {
        self.servers.iter().fold(Utilisation::default(), |most, &u| most.most(u))
    }
}

#[derive(Clone, Debug)]
struct Server {
    // Tasks that wait for a thread: slot of the query, and number.
    waiting: VecDeque<(usize, TaskId)>,
    // Threads at work, and when the last one ended its work.
    running: usize,
    idle_since: u64,
    out: Queue,
}

#[derive(Clone, Debug)]
struct Host {
    cores: Queue,
    disk: Queue,
    scorer: Queue,
}

/// A query in flight.
struct Live {
    trace: usize,
    number: usize,
    submitted_ns: u64,
    waits: Vec<u32>,
    left: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Submit,
    Ended {
        slot: usize,
        task: TaskId,
    },
    /// A thread of a server has ended its work.
    Free {
        server: usize,
    },
}

/// Busy times of all servers at one time.
#[derive(Default)]
struct Mark {
    at_ns: u64,
    answered: usize,
    busy_ns: Vec<[u64; 3]>,
}

struct Replay<'a> {
    traces: &'a [Trace],
    costs: &'a Costs,
    load: Load,
    queries: usize,
    seed: u64,
    servers: Vec<Server>,
    hosts: Vec<Host>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    scheduled: u64,
    live: Vec<Live>,
    idle: Vec<usize>,
    submitted: usize,
    answered: usize,
    next_submit_ns: f64,
    // The queries whose submission begins and ends the measured time.
    window: (usize, usize),
    latency_ns: Vec<u64>,
    // Time of all wakings so far.
    wakes_ns: u64,
    marks: [Mark; 2],
}

/// Replays `queries` queries (the traces in turn, again and again) on `servers` servers.
///
/// Rates and utilisations are over the time between the submission of two queries: one in the middle (or after those in
/// flight, when they are more), and one of the last. Before that queues find their lengths. With a constant number in
/// flight the two are a multiple of it apart: queries that begin together may go on in waves, and a part of a wave
/// would distort the rate.
pub fn replay(
    traces: &[Trace],
    servers: usize,
    costs: &Costs,
    load: Load,
    queries: usize,
    seed: u64,
) -> Timing {
    let server = Server { waiting: VecDeque::new(), running: 0, idle_since: 0, out: Queue::new(1) };
    let host = Host { cores: Queue::new(costs.cores()), disk: Queue::new(1), scorer: Queue::new(1) };
    let hosts = servers.div_ceil(costs.servers_per_host.max(1));
    let in_flight = if let Load::Closed { in_flight } = load { in_flight } else { 0 };
    let end = queries.saturating_sub(1);
    let first = in_flight.max(queries / 2).min(end);
    let waves = (end - first).checked_div(in_flight).unwrap_or(0);
    let last = if waves > 0 { first + waves * in_flight } else { end };
    let mut replay = Replay {
        traces,
        costs,
        load,
        queries: if traces.is_empty() { 0 } else { queries },
        seed,
        servers: vec![server; servers],
        hosts: vec![host; hosts],
        events: BinaryHeap::new(),
        scheduled: 0,
        live: Vec::new(),
        idle: Vec::new(),
        submitted: 0,
        answered: 0,
        next_submit_ns: 0.0,
        window: (first, last),
        latency_ns: vec![0; queries],
        wakes_ns: 0,
        marks: [Mark::default(), Mark::default()],
    };
    let ended_ns = replay.run();
    replay.timing(ended_ns)
}

impl Replay<'_> {
    fn run(&mut self) -> u64 {
        let at_once = if let Load::Closed { in_flight } = self.load { in_flight.max(1) } else { 1 };
        (0..at_once.min(self.queries)).for_each(|_| self.schedule(0, Event::Submit));
        let mut now = 0;
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            now = at;
            match event {
                Event::Submit => self.submit(now),
                Event::Ended { slot, task } => self.ended(now, slot, task),
                Event::Free { server } => {
                    let freed = &mut self.servers[server];
                    (freed.running, freed.idle_since) = (freed.running - 1, now);
                    self.search(now, server);
                }
            }
        }
        now
    }

    fn schedule(&mut self, at_ns: u64, event: Event) {
        self.events.push(Reverse((at_ns, self.scheduled, event)));
        self.scheduled += 1;
    }

    fn submit(&mut self, now: u64) {
        let number = self.submitted;
        if number == self.queries {
            return;
        }
        self.submitted += 1;
        if number == self.window.0 {
            self.marks[0] = self.mark(now);
        }
        if number == self.window.1 {
            self.marks[1] = self.mark(now);
        }
        self.begin(now, number);
        if let Load::Open { per_second } = self.load {
            let draw = (hash(self.seed, 41, number as u64) >> 11) as f64 / (1u64 << 53) as f64;
            self.next_submit_ns += -(1.0 - draw).ln() * 1e9 / per_second;
            self.schedule((self.next_submit_ns as u64).max(now), Event::Submit);
        }
    }

    fn begin(&mut self, now: u64, number: usize) {
        let at = number % self.traces.len();
        let trace = &self.traces[at];
        let waits = trace.waits().to_vec();
        let live = Live { trace: at, number, submitted_ns: now, left: waits.len(), waits };
        let slot = match self.idle.pop() {
            Some(slot) => {
                self.live[slot] = live;
                slot
            }
            None => {
                self.live.push(live);
                self.live.len() - 1
            }
        };
        for task in (0..trace.tasks().len() as TaskId).filter(|&t| trace.waits()[t as usize] == 0) {
            self.start(now, slot, task);
        }
    }

    /// A task is ready: it enters a queue.
    fn start(&mut self, now: u64, slot: usize, task: TaskId) {
        let (number, what) = self.traces[self.live[slot].trace].tasks()[task as usize];
        let (costs, at) = (self.costs, usize::from(number));
        let Some(server) = self.servers.get_mut(at) else { return };
        let Some(host) = self.hosts.get_mut(at / costs.servers_per_host.max(1)) else { return };
        let ends = match what {
            Task::Think(work) if costs.search_ns(&work) > 0 => {
                server.waiting.push_back((slot, task));
                return self.search(now, at);
            }
            Task::Think(work) => host.cores.take(now, costs.work_ns(&work)),
            Task::Read { bytes } => {
                let gap = costs.read_gap_ns(bytes);
                host.disk.take(now, gap) - gap + costs.read_latency_ns(bytes)
            }
            Task::Score { codes } => host.scorer.take(now, costs.scorer_ns(codes)),
            Task::Send { bytes } => server.out.take(now, costs.sending_ns(bytes)) + costs.network_latency_ns,
        };
        self.schedule(ends, Event::Ended { slot, task });
    }

    /// Begins tasks that wait for a thread. A thread without a core waits for one, and keeps others waiting.
    fn search(&mut self, now: u64, at: usize) {
        let costs = self.costs;
        while self.servers[at].running < costs.threads.max(1)
            && let Some((slot, task)) = self.servers[at].waiting.pop_front()
        {
            let (_, what) = self.traces[self.live[slot].trace].tasks()[task as usize];
            let Task::Think(work) = what else { continue };
            let server = &mut self.servers[at];
            let has_waited = server.running == 0 && server.idle_since < now;
            let wake_ns = if has_waited { costs.wake_ns } else { 0 };
            server.running += 1;
            self.wakes_ns += wake_ns;
            let host = &mut self.hosts[at / costs.servers_per_host.max(1)];
            let (search_ns, all_ns) = (costs.search_ns(&work), costs.work_ns(&work));
            let ends = host.cores.take(now, all_ns + wake_ns);
            self.schedule(ends - (all_ns - search_ns), Event::Free { server: at });
            self.schedule(ends, Event::Ended { slot, task });
        }
    }

    fn ended(&mut self, now: u64, slot: usize, task: TaskId) {
        let trace = &self.traces[self.live[slot].trace];
        if task == trace.answered() {
            let live = &self.live[slot];
            self.latency_ns[live.number] = now - live.submitted_ns;
            self.answered += 1;
            if let Load::Closed { .. } = self.load {
                self.submit(now);
            }
        }
        for &next in trace.next(task) {
            let waits = &mut self.live[slot].waits[next as usize];
            *waits -= 1;
            if *waits == 0 {
                self.start(now, slot, next);
            }
        }
        let live = &mut self.live[slot];
        live.left -= 1;
        if live.left == 0 {
            self.idle.push(slot);
        }
    }

    fn host(&self, server: usize) -> &Host {
        &self.hosts[server / self.costs.servers_per_host.max(1)]
    }

    fn mark(&self, now: u64) -> Mark {
        let busy = |(i, s): (usize, &Server)| {
            let host = self.host(i);
            [host.cores.busy_ns(now), host.disk.busy_ns(now), s.out.busy_ns(now)]
        };
        let busy_ns = self.servers.iter().enumerate().map(busy).collect();
        Mark { at_ns: now, answered: self.answered, busy_ns }
    }

    fn timing(self, ended_ns: u64) -> Timing {
        let [from, to] = &self.marks;
        let spent_ns = to.at_ns.saturating_sub(from.at_ns);
        let answered = to.answered.saturating_sub(from.answered);
        let busy = from.busy_ns.iter().zip(&to.busy_ns);
        let shares = self.servers.iter().enumerate().zip(busy).map(|((i, server), (a, b))| {
            let host = self.host(i);
            let share = |queue: &Queue, i: usize| queue.share((from.at_ns, a[i]), (to.at_ns, b[i]));
            Utilisation {
                cpu: share(&host.cores, 0),
                disk: share(&host.disk, 1),
                network: share(&server.out, 2),
            }
        });
        Timing {
            qps: if spent_ns == 0 { 0.0 } else { answered as f64 * 1e9 / spent_ns as f64 },
            servers: shares.collect(),
            wakes_ns: self.wakes_ns as f64 / self.queries.max(1) as f64,
            latency_ns: self.latency_ns[self.window.0.min(self.latency_ns.len())..].to_vec(),
            ended_ns,
        }
    }
}
