//! The event loop, and the effect of each event.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use stratann_core::hash::hash;
use stratann_core::kinds::IndexView;
use stratann_core::peer::message::{Message, decode};
use stratann_core::peer::{Action, BufferPool, Outgoing, Peer, Run};
use stratann_core::query::wire;
use stratann_core::query::{Extent, QueryState, Step};

use crate::recorder::{Recorder, Sent};
use crate::runner::{Clock, Pending, Runner, Stepped, timed};
use crate::setting::{BUILD, Setting};
use crate::trace::{Timed, Trace, Work};
use crate::{FaultModel, Reply, Report, SubmittedQuery};

const EVENTS_MAX: u64 = 10_000_000;

/// Interval of the ticks of a server that holds queries, microseconds.
const TICK_US: u64 = 5000;

#[derive(Debug)]
enum Event {
    Submit(usize),
    Frame { from: u8, to: u8, bytes: Vec<u8> },
    Read { server: u8, incarnation: u32, run: Run, pending: Pending },
    Tick { server: u8, incarnation: u32 },
    Crash(u8),
    Restart(u8),
    Notice { server: u8, other: u8, is_up: bool },
    Link { between: (u8, u8), is_cut: bool },
}

struct Server {
    peer: Peer,
    incarnation: u32,
    is_up: bool,
    is_ticking: bool,
    running: BTreeMap<Run, Runner>,
    // Value of `Peer::abandoned` when runs were last looked through.
    abandoned: u64,
    pool: BufferPool,
    // The newest version of states that it reads.
    reads: u32,
    // Servers that have made a link to this incarnation.
    linked_by: u64,
}

pub(crate) struct World<'a> {
    setting: Setting<'a>,
    queries: &'a [SubmittedQuery<'a>],
    faults: &'a FaultModel,
    servers: Vec<Server>,
    // (time, order of scheduling) → event
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, Event>,
    scheduled: u64,
    drawn: u64,
    now_us: u64,
    recorder: Option<Recorder>,
    clock: Option<Clock<'a>>,
    timed: Vec<Timed>,
    // Time of encoding what the next frame carries.
    encoding_ns: u64,
    report: Report,
}

impl<'a> World<'a> {
    pub(crate) fn new(
        setting: Setting<'a>,
        queries: &'a [SubmittedQuery<'a>],
        faults: &'a FaultModel,
    ) -> World<'a> {
        let count = setting.servers();
        let server = |s: usize| Server {
            peer: Peer::new(s as u8, 0, setting.served(s, faults), setting.all(), faults.limits),
            incarnation: 0,
            is_up: true,
            is_ticking: false,
            running: BTreeMap::new(),
            abandoned: 0,
            pool: BufferPool::default(),
            reads: if faults.old_servers >> s & 1 == 1 { wire::OLDEST_VERSION } else { wire::VERSION },
            linked_by: u64::MAX,
        };
        let mut servers: Vec<Server> = (0..count).map(server).collect();
        let reads: Vec<u32> = servers.iter().map(|server| server.reads).collect();
        servers.iter_mut().for_each(|server| greet(&mut server.peer, server.reads, &reads));
        let mut world = World {
            setting,
            queries,
            faults,
            servers,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            scheduled: 0,
            drawn: 0,
            now_us: 0,
            recorder: None,
            clock: None,
            timed: Vec::new(),
            encoding_ns: 0,
            report: Report {
                replies: vec![Vec::new(); queries.len()],
                reads: vec![0; count],
                ..Report::default()
            },
        };
        if !faults.cuts.is_empty() {
            // Servers that have connected know whom the others reach.
            world.exchange_statuses();
        }
        queries.iter().enumerate().for_each(|(q, query)| world.schedule(query.at_us, Event::Submit(q)));
        for crash in &faults.crashes {
            world.schedule(crash.at_us, Event::Crash(crash.server));
            if let Some(at) = crash.back_at_us {
                world.schedule(at, Event::Restart(crash.server));
            }
        }
        for cut in &faults.cuts {
            world.schedule(cut.from_us, Event::Link { between: cut.between, is_cut: true });
            if let Some(at) = cut.until_us {
                world.schedule(at, Event::Link { between: cut.between, is_cut: false });
            }
        }
        world
    }

    fn exchange_statuses(&mut self) {
        let mut pool = BufferPool::default();
        for from in 0..self.servers.len() {
            let (mut sent, mut ignored) = (Vec::new(), Vec::new());
            self.servers[from].peer.send_status(&mut sent);
            for action in sent {
                let Action::Send { to, message } = action else { continue };
                let frame = self.servers[from].peer.codec().frame(message, &mut pool);
                let peer = &mut self.servers[usize::from(to)].peer;
                if let Ok(received) = peer.codec().decode(&frame, &mut pool) {
                    peer.received(0, from as u8, received, &mut ignored);
                }
            }
        }
    }

    /// As [`World::run`]. Also returns the traces of the queries. Attempts are not distinguished, so there must be no
    /// faults.
    pub(crate) fn record(mut self) -> (Report, Vec<Trace>) {
        self.recorder = Some(Recorder::new(self.queries.len()));
        self.play();
        let traces = self.recorder.take().map_or(Vec::new(), Recorder::finish);
        (self.report, traces)
    }

    /// As [`World::run`]. Takes the time of all work.
    pub(crate) fn time(mut self, clock: Clock<'a>) -> Vec<Timed> {
        self.clock = Some(clock);
        self.play();
        self.timed
    }

    fn took(&mut self, work: Work, ns: u64) {
        if self.clock.is_some() {
            self.timed.push(Timed { work, ns });
        }
    }

    pub(crate) fn run(mut self) -> Report {
        self.play();
        self.report
    }

    fn play(&mut self) {
        let mut count = 0;
        while let Some(Reverse((at, number))) = self.queue.pop() {
            count += 1;
            assert!(count < EVENTS_MAX, "seed {}: {EVENTS_MAX} events and no end", self.faults.seed);
            let Some(event) = self.events.remove(&number) else { continue };
            self.now_us = at;
            self.happen(event);
        }
        self.report.ended_us = self.now_us;
        for server in self.servers.iter().filter(|s| s.is_up) {
            let (origins, vectors) = server.peer.held();
            self.report.delayed_jobs += server.peer.delayed_jobs();
            let left = &mut self.report.left;
            left.queries += origins;
            left.vectors += vectors;
            left.states += server.running.len();
        }
    }

    fn schedule(&mut self, at_us: u64, event: Event) {
        self.queue.push(Reverse((at_us, self.scheduled)));
        self.events.insert(self.scheduled, event);
        self.scheduled += 1;
    }

    /// A number from 0 to 1, never 1.
    fn draw(&mut self) -> f64 {
        self.drawn += 1;
        (hash(self.faults.seed, 31, self.drawn) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn delay(&mut self, (least, most): (u64, u64)) -> u64 {
        least + (self.draw() * (most - least + 1) as f64) as u64
    }

    fn happen(&mut self, event: Event) {
        let mut actions = Vec::new();
        let now = self.now_us;
        let at = match event {
            Event::Submit(q) => {
                let query = &self.queries[q];
                let server = &mut self.servers[usize::from(query.origin)];
                if !server.is_up {
                    return;
                }
                let what = (query.params, query.budget);
                let codec = server.peer.codec();
                let new = codec.new_query(q as u64, what, (query.vector, None), query.time_us);
                server.peer.submit(now, new, &mut actions);
                if let (Some(recorder), Some(Action::Start { run, .. })) =
                    (&mut self.recorder, actions.first())
                {
                    recorder.submitted(run.query, q);
                }
                query.origin
            }
            Event::Frame { from, to, bytes } => return self.receive(from, to, &bytes),
            Event::Read { server, incarnation, run, pending } => {
                return self.read(server, incarnation, run, pending);
            }
            Event::Tick { server, incarnation } => {
                let s = &mut self.servers[usize::from(server)];
                if !s.is_up || s.incarnation != incarnation {
                    return;
                }
                s.is_ticking = false;
                s.peer.tick(now, &mut actions);
                server
            }
            Event::Crash(server) => return self.crash(server),
            Event::Restart(server) => return self.restart(server),
            Event::Link { between: (a, b), is_cut } => {
                // Without jitter: that a link is mended must be noticed after that it was cut.
                self.notice(a, b, !is_cut, 0);
                return self.notice(b, a, !is_cut, 0);
            }
            Event::Notice { server, other, is_up } => {
                // A connection is made again only where it can be.
                if is_up && (self.is_cut(server, other) || !self.servers[usize::from(other)].is_up) {
                    return;
                }
                let theirs = self.servers[usize::from(other)].reads;
                if is_up {
                    self.servers[usize::from(other)].linked_by |= 1 << server;
                }
                let s = &mut self.servers[usize::from(server)];
                match is_up {
                    true => {
                        s.peer.agree(other, theirs.min(s.reads));
                        s.peer.up(other, &mut actions);
                    }
                    false => s.peer.down(now, other, &mut actions),
                }
                server
            }
        };
        self.act(at, actions);
    }

    fn receive(&mut self, from: u8, to: u8, bytes: &[u8]) {
        if self.is_cut(from, to) {
            self.report.cut_frames += 1;
            return;
        }
        let (now_us, mut actions) = (self.now_us, Vec::new());
        let server = &mut self.servers[usize::from(to)];
        if !server.is_up || server.linked_by >> from & 1 == 0 {
            return;
        }
        let (is_taken, ns) = timed(self.clock, || {
            let received = server.peer.codec().decode(bytes, &mut server.pool);
            received.map(|received| server.peer.received(now_us, from, received, &mut actions)).is_ok()
        });
        self.report.refused += u64::from(!is_taken);
        self.took(Work::messages(1, bytes.len() as u32), ns);
        self.act(to, actions);
    }

    fn act(&mut self, server: u8, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send { to, message } => self.send(server, to, message),
                Action::Start { run, state } => self.start(server, run, state),
                Action::Scored { run, tag, mut scores } => {
                    if let Ok(bytes) = &mut scores {
                        self.spoil(bytes);
                    }
                    let runner = self.servers[usize::from(server)].running.get_mut(&run);
                    if runner.is_some_and(|runner| runner.score(tag, scores)) {
                        self.advance(server, run);
                    }
                }
                Action::Answer { number, state } => self.reply(server, number, Reply::Answer(state)),
                Action::Fail { number, why } => self.reply(server, number, Reply::Failed(why)),
            }
        }
        self.drop_unwanted(server);
        self.keep_ticking(server);
    }

    /// Drops the states that wait for what no longer comes: their queries have ended.
    fn drop_unwanted(&mut self, server: u8) {
        let s = &mut self.servers[usize::from(server)];
        if s.peer.abandoned() == s.abandoned {
            return;
        }
        s.abandoned = s.peer.abandoned();
        let (now_us, peer) = (self.now_us, &s.peer);
        let unwanted: Vec<Run> =
            s.running.keys().filter(|run| !peer.is_wanted(now_us, run)).copied().collect();
        for run in unwanted {
            let s = &mut self.servers[usize::from(server)];
            s.running.remove(&run);
            let mut actions = Vec::new();
            s.peer.dropped(now_us, &run, &mut actions);
            self.report.dropped_runs += 1;
            self.act(server, actions);
        }
    }

    /// Changes or cuts the scores of a faulty scorer.
    fn spoil(&mut self, scores: &mut Vec<u8>) {
        if self.faults.wrong_scores == 0.0 || self.draw() >= self.faults.wrong_scores || scores.is_empty() {
            return;
        }
        let at = (self.draw() * scores.len() as f64) as usize;
        match (self.draw() * 3.0) as u32 {
            0 => scores.truncate(at),
            1 => scores.push(scores[at]),
            _ => scores[at] = (self.draw() * 256.0) as u8,
        }
    }

    fn reply(&mut self, server: u8, number: u64, reply: Reply) {
        if let (Some(recorder), Reply::Answer(_)) = (&mut self.recorder, &reply) {
            recorder.answered(number as usize, server);
        }
        self.report.replies[number as usize].push((self.now_us, reply));
    }

    fn keep_ticking(&mut self, server: u8) {
        let s = &mut self.servers[usize::from(server)];
        if s.is_up && !s.is_ticking && s.peer.held() != (0, 0) {
            s.is_ticking = true;
            let incarnation = s.incarnation;
            self.schedule(self.now_us + TICK_US, Event::Tick { server, incarnation });
        }
    }

    fn send(&mut self, from: u8, to: u8, message: Outgoing) {
        let sender = &mut self.servers[usize::from(from)];
        let (frame, ns) = timed(self.clock, || sender.peer.codec().frame(message, &mut sender.pool));
        let encoding_ns = std::mem::take(&mut self.encoding_ns);
        self.took(Work::messages(1, frame.len() as u32), encoding_ns + ns);
        self.count_frame(from, to, &frame);
        let copies = match self.draw() {
            x if x < self.faults.drop => 0,
            x if x < self.faults.drop + self.faults.duplicate => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let at = self.now_us + self.delay(self.faults.link_us);
            self.schedule(at, Event::Frame { from, to, bytes: frame.clone() });
        }
    }

    fn count_frame(&mut self, from: u8, to: u8, frame: &[u8]) {
        let Ok((message, _)) = decode(frame, BUILD) else { return };
        let bytes = frame.len() as u64;
        let report = &mut self.report;
        let sent = match message {
            Message::Baton { run: run @ Run { job: Some(id), .. }, vector, .. } => {
                report.vector_bytes += vector.len() as u64;
                report.job_bytes += bytes - vector.len() as u64;
                let is_asked = id.asker == from;
                report.jobs += u64::from(is_asked);
                report.forwards += u64::from(!is_asked);
                Some((run, if is_asked { Sent::Job } else { Sent::State }))
            }
            Message::Scores { run, .. } => {
                report.score_bytes += bytes;
                Some((run, Sent::Scores))
            }
            Message::Baton { run, vector, .. } => {
                report.batons += 1;
                report.vector_bytes += vector.len() as u64;
                report.baton_bytes += bytes - vector.len() as u64;
                Some((run, Sent::State))
            }
            Message::PartialResults { run, .. } => {
                report.reports += 1;
                report.report_bytes += bytes;
                Some((run, Sent::Report))
            }
            Message::Answer { run, .. } => Some((run, Sent::State)),
            Message::Release { query } => {
                self.recorder.iter_mut().for_each(|recorder| recorder.released(&query, to, frame.len()));
                None
            }
            Message::Threshold { run, .. } => {
                report.thresholds += 1;
                Some((run, Sent::Threshold))
            }
            Message::Status(_) | Message::NoScores { .. } | Message::NoFilter { .. } => None,
        };
        let is_counted = matches!(message, Message::Baton { .. } | Message::PartialResults { .. });
        if !is_counted && !matches!(message, Message::Scores { .. }) {
            report.other_frames += 1;
            report.other_bytes += bytes;
        }
        if let (Some(recorder), Some((run, sent))) = (&mut self.recorder, sent) {
            recorder.sent(&run, from, to, sent, frame.len());
        }
    }

    fn start(&mut self, server: u8, run: Run, mut state: Box<QueryState>) {
        let view = self.view(server);
        let s = &mut self.servers[usize::from(server)];
        s.peer.set_load(s.running.len() + 1);
        let Some(begun) = s.peer.begin(self.now_us, &run) else { return };
        if let Some(threshold) = begun.threshold {
            state.lower_threshold(threshold);
        }
        let (runner, ns) = timed(self.clock, || Runner::new(state, &view, begun.vector));
        let work = Work { prepared: u32::from(runner.state.uses_codes()), ..Work::default() };
        if let Some(recorder) = &mut self.recorder {
            recorder.worked(&run, &work);
        }
        s.running.insert(run, runner);
        self.took(work, ns);
        self.advance(server, run);
    }

    fn view(&self, server: u8) -> IndexView<'a> {
        self.setting.view(server, &self.servers[usize::from(server)].peer)
    }

    /// Steps a state with its completed reads, or drops it when its answer is no longer wanted.
    fn advance(&mut self, server: u8, run: Run) {
        let view = self.view(server);
        let stores = self.setting.stores(server);
        let s = &mut self.servers[usize::from(server)];
        let mut actions = Vec::new();
        if !s.peer.is_wanted(self.now_us, &run) {
            s.running.remove(&run);
            s.peer.dropped(self.now_us, &run, &mut actions);
            self.report.dropped_runs += 1;
            return self.act(server, actions);
        }
        let Some(runner) = s.running.get_mut(&run) else { return };
        let Stepped { step, work, taken_ns: ns } = runner.step(&view, stores, self.clock);
        if let Some(recorder) = &mut self.recorder {
            recorder.worked(&run, &work);
        }
        self.took(work, ns);
        if step != Step::Wait {
            return self.depart(server, run, step);
        }
        let s = &mut self.servers[usize::from(server)];
        let Some(runner) = s.running.get_mut(&run) else { return };
        let incarnation = s.incarnation;
        let codec = s.peer.codec();
        let (wanted, jobs): (_, Vec<_>) = (runner.wanted(), runner.state.jobs().collect());
        let tells: Vec<_> = runner.state.tells().collect();
        if self.faults.reencodes {
            runner.reencode();
        }
        let (_, ns) = timed(self.clock, || {
            for job in jobs {
                let asked = codec.job(run, job, (&view, &runner.state), &mut s.pool);
                s.peer.ask(self.now_us, asked, &mut actions);
            }
            for (to, threshold) in tells {
                s.peer.tell(&run, (codec.in_cluster(to), threshold), &mut actions);
            }
        });
        self.encoding_ns += ns;
        if let Some(recorder) = &mut self.recorder {
            let extents: Vec<Extent> = wanted.iter().map(|pending| pending.read.at).collect();
            recorder.reads(&run, server, &extents);
        }
        for pending in wanted {
            let unit = pending.read.unit();
            let is_local = view.base.here.is_none_or(|shard| shard.holds(unit));
            assert!(is_local, "unit {unit} is not on server {server}");
            self.report.reads[usize::from(server)] += 1;
            let at = self.now_us + self.delay(self.faults.disk_us);
            self.schedule(at, Event::Read { server, incarnation, run, pending });
        }
        self.act(server, actions);
    }

    /// Takes the state of a run that can go no further here.
    fn depart(&mut self, server: u8, run: Run, step: Step) {
        let (now_us, mut actions) = (self.now_us, Vec::new());
        let s = &mut self.servers[usize::from(server)];
        let Some(runner) = s.running.remove(&run) else { return };
        let (_, ns) = timed(self.clock, || {
            if let Some(departure) = s.peer.codec().departure(run, step, &runner.state, &mut s.pool) {
                s.peer.stepped(now_us, departure, &mut actions);
            }
        });
        self.encoding_ns += ns;
        self.recorder.iter_mut().for_each(|recorder| recorder.departed(&run, server, &actions));
        self.act(server, actions);
    }

    fn read(&mut self, server: u8, incarnation: u32, run: Run, pending: Pending) {
        let fails = self.faults.failing_reads > 0.0 && self.draw() < self.faults.failing_reads;
        let fails = fails || self.is_bad(server, pending.read.unit());
        let s = &mut self.servers[usize::from(server)];
        if s.incarnation != incarnation || !s.is_up {
            return;
        }
        let Some(runner) = s.running.get_mut(&run) else { return };
        self.report.lost_reads += u64::from(fails);
        if runner.complete(pending, !fails) {
            self.advance(server, run);
        }
    }

    /// Whether a server can never read this unit.
    fn is_bad(&self, server: u8, unit: u32) -> bool {
        let drawn = hash(self.faults.seed, 32, u64::from(unit)) >> 11;
        let is_in = |share: f64| (drawn as f64) < share * (1u64 << 53) as f64;
        self.faults.bad_disks.iter().any(|&(bad, share)| bad == server && is_in(share))
    }

    fn crash(&mut self, server: u8) {
        let s = &mut self.servers[usize::from(server)];
        s.is_up = false;
        s.running.clear();
        self.announce(server, false);
    }

    fn restart(&mut self, server: u8) {
        // It comes back with the newest version of the program.
        self.servers[usize::from(server)].reads = wire::VERSION;
        let reads: Vec<u32> = self.servers.iter().map(|server| server.reads).collect();
        let s = &mut self.servers[usize::from(server)];
        s.incarnation += 1;
        s.is_up = true;
        s.linked_by = 0;
        s.is_ticking = false;
        s.running.clear();
        s.abandoned = 0;
        s.peer = Peer::new(
            server,
            s.incarnation,
            self.setting.served(usize::from(server), self.faults),
            1 << server,
            self.faults.limits,
        );
        greet(&mut s.peer, s.reads, &reads);
        self.announce(server, true);
    }

    /// Lets the others notice a change, each a little later. A server that starts finds the others one by one.
    fn announce(&mut self, server: u8, is_up: bool) {
        for other in (0..self.servers.len() as u8).filter(|&o| o != server) {
            let jitter_us = self.delay((0, 500));
            self.notice(other, server, is_up, jitter_us);
            if is_up {
                let jitter_us = self.delay((0, 500));
                self.notice(server, other, true, jitter_us);
            }
        }
    }

    /// Lets `server` notice later that it reaches `other`, or no longer does.
    fn notice(&mut self, server: u8, other: u8, is_up: bool, jitter_us: u64) {
        let at = self.now_us + self.faults.notice_us + jitter_us;
        self.schedule(at, Event::Notice { server, other, is_up });
    }

    /// Whether frames between two servers are lost now.
    fn is_cut(&self, a: u8, b: u8) -> bool {
        self.faults.cuts.iter().any(|cut| cut.is_between(a, b) && cut.is_open(self.now_us))
    }
}

/// Lets a server know which versions of states the others read.
fn greet(peer: &mut Peer, own: u32, reads: &[u32]) {
    peer.read_up_to(own);
    (0u8..).zip(reads).for_each(|(server, &theirs)| peer.agree(server, theirs.min(own)));
}
