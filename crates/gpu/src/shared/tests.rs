//! Deadlines of batches and steps.

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn a_step_takes_no_time_from_batches() {
    let shared = Shared::new(2);
    let deadline = Instant::now() + HOUR;
    shared.state().running[1] = Some(Running { replies: Vec::new(), deadline, totals: Arc::default() });
    assert_eq!(shared.state().overdue(deadline - Duration::from_nanos(1)), None);
    assert_eq!(shared.state().overdue(deadline), Some(vec![1]));
    assert!(shared.begin_step(None, 2 * HOUR));
    // Only the step can be overdue now.
    assert_eq!(shared.state().overdue(deadline), None);
    assert_eq!(shared.state().overdue(deadline + 2 * HOUR), Some(vec![1]));
    shared.end_step(Ok(Outcome::Done));
    // The batch gets the time of the step.
    assert_eq!(shared.state().overdue(deadline), None);
    assert_eq!(shared.state().overdue(deadline + HOUR), Some(vec![1]));
}

#[test]
fn a_device_that_is_lost_answers_requests() {
    let shared = Shared::new(1);
    let waiting = shared.request(Action::EndWrites);
    let under_way = shared.request(Action::EndWrites);
    let request = shared.state().requests.pop_back().expect("a request");
    assert!(shared.begin_step(Some(request.reply), HOUR));
    shared.lose(&[], &Failure::TimedOut);
    for receiver in [waiting, under_way] {
        assert!(matches!(receiver.try_recv(), Ok(Err(Error::Lost(Failure::TimedOut)))));
    }
    assert!(!shared.begin_step(None, HOUR));
    assert!(shared.request(Action::EndWrites).recv().is_err());
    // The step that was taken ends, and nobody is answered twice.
    shared.end_step(Ok(Outcome::Done));
}
