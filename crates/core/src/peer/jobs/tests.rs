use super::*;
use crate::kinds::KindState;
use crate::kinds::hybrid_ivf::Job;
use crate::peer::message::Refused;
use crate::peer::tests::{VECTOR_BYTES, frames, receive, served};
use crate::peer::{BufferPool, Limits, Served};
use crate::query::wire::{self, Carry, Results};
use crate::query::{Budget, IndexSize, Params, Step};
use alloc::vec;

const HYBRID_IVF: u8 = 2;

fn peer(server: u8, hosted: usize) -> Peer {
    let size = IndexSize { nodes: 1000, units: 100, clusters: 10 };
    let served = Served { kind: HYBRID_IVF, size, ..served(Carry::Distances, Results::Along) };
    let limits = Limits { hosted, origins: 1, patience_us: 100, attempts: 3, ..Limits::default() };
    Peer::new(server, 1, served, 0b11, limits)
}

/// The state of a job for these lists.
fn state(lists: &[u32]) -> Vec<u8> {
    let mut state = QueryState::new(Params::hybrid_ivf(3, 4), Budget::default());
    state.q.started = true;
    if let KindState::HybridIvf(own) = &mut state.own {
        own.batch.job = Job::Lists;
        own.batch.lists.extend_from_slice(lists);
    }
    let mut bytes = vec![];
    wire::encode(&state, Carry::Distances, &mut bytes);
    bytes
}

/// Server 0 with a query that runs.
fn asker() -> (Peer, Run) {
    let (mut peer, mut out) = (peer(0, 10), vec![]);
    let what = (Params::hybrid_ivf(3, 4), Budget::default());
    let query = peer.codec().new_query(5, what, (&[7; VECTOR_BYTES], None), 1_000_000);
    peer.submit(0, query, &mut out);
    let Some(Action::Start { run, .. }) = out.pop() else { panic!("it starts") };
    assert!(peer.begin(0, &run).is_some());
    (peer, run)
}

fn ask(peer: &mut Peer, run: Run, tag: u32, to: u8) -> Vec<Action> {
    let mut out = vec![];
    peer.ask(0, AskedJob { run, tag, to, is_forwarded: false, state: state(&[7, 99]) }, &mut out);
    out
}

/// The job that starts among the actions of a scorer.
fn started(out: &[Action]) -> Option<Run> {
    out.iter().find_map(|action| match action {
        Action::Start { run, .. } => Some(*run),
        _ => None,
    })
}

/// Ends a job at a scorer. Returns the reply.
fn reply(scorer: &mut Peer, run: Run) -> Vec<u8> {
    let (mut out, mut pool) = (vec![], BufferPool::default());
    let mut ended = QueryState::new(Params::hybrid_ivf(3, 4), Budget::default());
    ended.q.finish(crate::query::Outcome::Complete);
    let departure = scorer.codec().departure(run, Step::Done, &ended, &mut pool).expect("it has ended");
    scorer.stepped(0, departure, &mut out);
    frames(scorer, out).remove(0).1
}

/// The scored jobs among actions: the tag of each, and whether it has scores.
fn scored_jobs(out: &[Action]) -> Vec<(u32, Result<(), Loss>)> {
    let scored_jobs = |action: &Action| match action {
        Action::Scored { tag, scores, .. } => Some((tag.0, scores.as_ref().map(|_| ()).map_err(|&l| l))),
        _ => None,
    };
    out.iter().filter_map(scored_jobs).collect()
}

#[test]
fn a_job_runs_once_and_its_first_reply_counts() {
    let ((mut asker, run), mut scorer) = (asker(), peer(1, 10));
    let out = ask(&mut asker, run, 3, 1);
    let sent = frames(&asker, out);
    let job = started(&receive(&mut scorer, 0, &sent[0].1).unwrap()).expect("it runs");
    assert_eq!(job.job, Some(JobId { asker: 0, tag: 3, sends: 0 }));
    assert!(scorer.begin(0, &job).is_some() && scorer.is_wanted(0, &job));
    // Twice on its way, and sent again while it runs.
    assert_eq!(started(&receive(&mut scorer, 0, &sent[0].1).unwrap()), None);
    let mut out = vec![];
    asker.tick(100, &mut out);
    let again = frames(&asker, out);
    assert_eq!(started(&receive(&mut scorer, 0, &again[0].1).unwrap()), None);

    let first = reply(&mut scorer, job);
    // Its reply may be lost: only what was sent later runs again.
    assert_eq!(started(&receive(&mut scorer, 0, &sent[0].1).unwrap()), None);
    assert_eq!(started(&receive(&mut scorer, 0, &again[0].1).unwrap()), None, "it ran when this came");
    assert_eq!(scored_jobs(&receive(&mut asker, 1, &first).unwrap()), [(3, Ok(()))]);
    assert_eq!(scored_jobs(&receive(&mut asker, 1, &first).unwrap()), [], "twice");
    let mut other = Run { attempt: 1, ..job };
    let late = reply(&mut scorer, other);
    assert_eq!(scored_jobs(&receive(&mut asker, 1, &late).unwrap()), [], "of another attempt");
    other = Run { job: Some(JobId { asker: 1, tag: 3, sends: 0 }), ..job };
    let mut out = vec![];
    asker.scored(other, 0, vec![], &mut out);
    assert!(out.is_empty(), "another server asked");
}

#[test]
fn a_scorer_without_the_vector_gets_it() {
    let ((mut asker, run), mut scorer) = (asker(), peer(1, 10));
    let first = ask(&mut asker, run, 0, 1);
    drop(first);
    // The frame with the vector is lost; the next job goes without.
    let out = ask(&mut asker, run, 1, 1);
    let sent = frames(&asker, out);
    let out = receive(&mut scorer, 0, &sent[0].1).unwrap();
    assert_eq!(started(&out), None);
    let missing = frames(&scorer, out);
    let out = receive(&mut asker, 1, &missing[0].1).unwrap();
    let sent = frames(&asker, out);
    let job = started(&receive(&mut scorer, 0, &sent[0].1).unwrap()).expect("it runs");
    assert_eq!(job.job, Some(JobId { asker: 0, tag: 1, sends: 1 }));
    assert_eq!(scorer.begin(0, &job).map(|begun| begun.vector.len()), Some(VECTOR_BYTES));
}

#[test]
fn scores_that_never_come_are_lost() {
    let (mut asker, run) = asker();
    assert_eq!(scored_jobs(&ask(&mut asker, run, 0, 0)), [(0, Err(Loss::Failed))], "itself");
    drop(ask(&mut asker, run, 1, 1));
    let (mut out, mut sends) = (vec![], 0);
    for now_us in [99, 100, 299, 300, 699] {
        asker.tick(now_us, &mut out);
        assert_eq!(scored_jobs(&out), [], "{now_us}");
        sends += frames(&asker, core::mem::take(&mut out)).len();
    }
    assert_eq!(sends, 2);
    asker.tick(700, &mut out);
    assert_eq!(scored_jobs(&out), [(1, Err(Loss::Expired))]);
    drop(ask(&mut asker, run, 2, 1));
    out.clear();
    asker.down(700, 1, &mut out);
    assert_eq!(scored_jobs(&out), [(2, Err(Loss::Failed))]);
    assert_eq!(scored_jobs(&ask(&mut asker, run, 3, 1)), [(3, Err(Loss::Failed))], "it is down");
    // A query that has ended waits for nothing.
    asker.up(1, &mut out);
    drop(ask(&mut asker, run, 4, 1));
    asker.cancel(5, &mut out);
    out.clear();
    asker.tick(100_000, &mut out);
    assert!(out.is_empty() && asker.held() == (0, 0), "{out:?}");
}

#[test]
fn a_scorer_that_is_full_is_asked_later() {
    let ((mut asker, run), mut scorer) = (asker(), peer(1, 0));
    let filler = JobId { asker: 0, tag: 0, sends: 0 };
    let other = Run { query: QueryId { number: 77, ..run.query }, attempt: 0, job: Some(filler) };
    let boxed = || Box::new(wire::decode(&state(&[1])).unwrap());
    let mut out = vec![];
    scorer.accept_job(other, boxed(), HostedQuery::new(vec![1; VECTOR_BYTES], 500, 1), &mut out);
    assert_eq!(started(&out), Some(other));
    let asked = ask(&mut asker, run, 1, 1);
    let sent = frames(&asker, asked);
    let busy = receive(&mut scorer, 0, &sent[0].1).unwrap();
    assert_eq!(started(&busy), None);
    let busy = frames(&scorer, busy);
    assert!(receive(&mut asker, 1, &busy[0].1).unwrap().is_empty());
    let mut out = vec![];
    asker.tick(25, &mut out);
    let sent = frames(&asker, out);
    let mut dropped = vec![];
    scorer.tick(500, &mut dropped);
    assert!(started(&receive(&mut scorer, 0, &sent[0].1).unwrap()).is_some(), "the other has expired");
}

#[test]
fn jobs_beyond_the_credits_of_a_scorer_wait_for_replies() {
    let ((mut asker, run), mut scorer) = (asker(), peer(1, 10));
    // As much as two of these jobs, and a little more.
    let bytes = FRAME_BYTES + (VECTOR_BYTES + state(&[7, 99]).len()) as u64;
    for peer in [&mut asker, &mut scorer] {
        peer.jobs.credits = Credits::new(2 * bytes + bytes / 2);
    }
    let sent: Vec<_> = (0..5).flat_map(|tag| ask(&mut asker, run, tag, 1)).collect();
    let sent = frames(&asker, sent);
    assert_eq!((sent.len(), asker.delayed_jobs()), (2, 3));
    assert!(sent.iter().all(|frame| frame.1.len() as u64 <= bytes));
    let jobs: Vec<Run> =
        sent.iter().filter_map(|frame| started(&receive(&mut scorer, 0, &frame.1).unwrap())).collect();
    assert_eq!(jobs.len(), 2);
    // A reply makes room for the job that has waited longest.
    let scores = reply(&mut scorer, jobs[0]);
    let out = receive(&mut asker, 1, &scores).unwrap();
    assert_eq!(scored_jobs(&out), [(0, Ok(()))]);
    let next = frames(&asker, out);
    let next = started(&receive(&mut scorer, 0, &next[0].1).unwrap()).expect("it runs");
    assert_eq!(next.job.map(|id| id.tag), Some(2));
    // One that is asked for now waits behind the others, although it would fit.
    asker.jobs.credits = Credits::new(100 * bytes);
    assert!(ask(&mut asker, run, 1000, 1).is_empty());
    // Other servers have credits of their own, and what is lost gives its own back.
    asker.live = 0b111;
    assert_eq!(ask(&mut asker, run, 9, 2).len(), 1);
    let mut out = vec![];
    asker.down(0, 1, &mut out);
    let lost: Vec<u32> = scored_jobs(&out).iter().map(|scored| scored.0).collect();
    assert_eq!(lost, [1, 2, 3, 4, 1000]);
    assert!(asker.jobs.waiting.is_empty());
    asker.live = 0b111;
    assert_eq!(ask(&mut asker, run, 10, 1).len(), 1);
}

/// An asker that does not keep to its credits takes no more than they are, and others have theirs.
#[test]
fn a_scorer_refuses_jobs_beyond_the_credits_of_their_asker() {
    let ((mut asker, run), mut scorer) = (asker(), peer(1, 10));
    let bytes = FRAME_BYTES + (VECTOR_BYTES + state(&[7, 99]).len()) as u64;
    scorer.jobs.credits = Credits::new(bytes);
    let sent: Vec<_> = (0..2).flat_map(|tag| ask(&mut asker, run, tag, 1)).collect();
    let sent = frames(&asker, sent);
    let first = started(&receive(&mut scorer, 0, &sent[0].1).unwrap()).expect("it runs");
    let busy = receive(&mut scorer, 0, &sent[1].1).unwrap();
    assert_eq!(started(&busy), None);
    assert_eq!(frames(&scorer, busy).len(), 1, "it says so");
    let other = Run { query: QueryId { origin: 2, ..run.query }, attempt: 0, job: first.job };
    let other = Run { job: other.job.map(|id| JobId { asker: 2, ..id }), ..other };
    let boxed = || Box::new(wire::decode(&state(&[1])).unwrap());
    let (arrived, mut out) = (|| HostedQuery::new(vec![1; VECTOR_BYTES], 500, 1), vec![]);
    scorer.accept_job(other, boxed(), HostedQuery { bytes, ..arrived() }, &mut out);
    assert_eq!(started(&out), Some(other));
    // A refused job leaves nothing behind, so its query has no vector here.
    let third = Run { query: QueryId { number: 8, ..other.query }, ..other };
    scorer.accept_job(third, boxed(), HostedQuery { bytes, ..arrived() }, &mut out);
    assert!(!scorer.hosted.contains_key(&third.query));
    // Time and an end give credits back.
    scorer.tick(500, &mut out);
    out.clear();
    scorer.accept_job(third, boxed(), HostedQuery { bytes, ..arrived() }, &mut out);
    assert_eq!(started(&out), Some(third));
    drop(reply(&mut scorer, first));
    assert!(started(&receive(&mut scorer, 0, &sent[1].1).unwrap()).is_some());
}

#[test]
fn jobs_that_cannot_be_are_refused() {
    let (_, run) = asker();
    let refused = |run: Run, state: &[u8]| {
        let mut frame = vec![];
        let vector = &[0; VECTOR_BYTES][..];
        Message::Baton { run, visited: 1, left_us: 9, vector, state }.encode(7, 0, &mut frame);
        receive(&mut peer(1, 10), 0, &frame).map(|out| started(&out).is_some())
    };
    let of_job = |asker| Run { job: Some(JobId { asker, tag: 0, sends: 0 }), ..run };
    assert_eq!(refused(of_job(0), &state(&[7, 99])), Ok(true));
    assert_eq!(refused(of_job(0), &state(&[100])), Err(Refused::Content), "no such list");
    assert_eq!(refused(of_job(64), &state(&[7])), Err(Refused::Content), "no such server");
    assert_eq!(refused(run, &state(&[7])), Err(Refused::Content), "a job as a query");
    let query = QueryState::new(Params::hybrid_ivf(3, 4), Budget::default());
    let mut bytes = vec![];
    wire::encode(&query, Carry::Distances, &mut bytes);
    assert_eq!(refused(of_job(0), &bytes), Err(Refused::Content), "a query as a job");
}

/// A server hands a job on that it runs. Returns the frame.
fn forward(peer: &mut Peer, run: Run, forwards: u64, to: u8) -> Vec<u8> {
    let mut state = wire::decode(&state(&[7, 99])).unwrap();
    state.q.stats.hand_overs = forwards;
    let (mut out, mut pool) = (vec![], BufferPool::default());
    let departure = peer.codec().departure(run, Step::HandOver(to), &state, &mut pool).expect("it leaves");
    peer.stepped(0, departure, &mut out);
    let [(sent_to, frame)] = frames(peer, out).try_into().expect("one frame");
    assert_eq!(sent_to, to);
    frame
}

#[test]
fn a_forwarded_job_runs_once_on_each_server_and_the_last_replies() {
    let ((mut asker, run), mut first, mut last) = (asker(), peer(1, 10), peer(2, 10));
    [&mut asker, &mut first, &mut last].into_iter().for_each(|peer| peer.live = 0b111);
    let mut out = vec![];
    let job = AskedJob { run, tag: 3, to: 1, is_forwarded: true, state: state(&[7, 99]) };
    asker.ask(0, job, &mut out);
    let sent = frames(&asker, out).remove(0).1;
    let job = started(&receive(&mut first, 0, &sent).unwrap()).expect("it runs");
    let onward = forward(&mut first, job, 1, 2);
    assert_eq!(started(&receive(&mut first, 0, &sent).unwrap()), None, "it was here");
    let at_last = started(&receive(&mut last, 1, &onward).unwrap()).expect("the vector came with it");
    assert_eq!(started(&receive(&mut last, 1, &onward).unwrap()), None, "twice on its way");

    // The last server loses its memory: the job is sent again, and its vector along the whole way.
    let mut last = peer(2, 10);
    last.live = 0b111;
    let mut out = vec![];
    asker.down(0, 2, &mut out);
    // A status goes first.
    let again = frames(&asker, out).into_iter().rfind(|sent| sent.0 == 1).expect("sent again").1;
    let job = started(&receive(&mut first, 0, &again).unwrap()).expect("it runs again");
    assert_eq!(job.job.map(|id| id.sends), Some(1));
    let onward = forward(&mut first, job, 1, 2);
    let run = started(&receive(&mut last, 1, &onward).unwrap()).expect("the vector came again");
    assert!(run.job != at_last.job);
    let scores = reply(&mut last, run);
    assert_eq!(scored_jobs(&receive(&mut asker, 2, &scores).unwrap()), [(3, Ok(()))]);
    // It may come back to a server, by another way than before.
    let back = forward(&mut last, run, 2, 1);
    assert!(started(&receive(&mut first, 2, &back).unwrap()).is_some());
    assert_eq!(started(&receive(&mut first, 1, &onward).unwrap()), None, "an older one");
}
