//! The reference loop: steps one query with reads that answer at once.

use alloc::vec::Vec;

use super::{QueryState, Scratch};
use crate::kinds::IndexView;
use crate::score::Ranking;
use crate::search::{Arrival, Arrived, Extent, Loss, Read, Step, Tag};

/// Steps `state` until it hands over or is done. `read` returns the bytes of an extent; they are verified here. The
/// state must not ask other servers for scores: nothing replies here.
pub fn run<B: Into<Vec<u8>>>(
    state: &mut QueryState,
    view: &IndexView<'_>,
    scratch: &mut Scratch,
    mut read: impl FnMut(Extent) -> Result<B, Loss>,
) -> Step {
    let mut arrived: Vec<(Tag, Result<Vec<u8>, Loss>)> = Vec::new();
    let mut ranked: Vec<(Tag, Ranking)> = Vec::new();
    loop {
        let reads = arrived.iter().map(|(tag, read)| Arrival { tag: *tag, what: outcome(read) });
        let scores = ranked
            .iter()
            .map(|(tag, ranking)| Arrival { tag: *tag, what: Arrived::Ranked(ranking.ranked()) });
        let arrivals: Vec<Arrival<'_>> = reads.chain(scores).collect();
        let step = state.step(view, scratch, &arrivals);
        if step != Step::Wait {
            return step;
        }
        arrived.clear();
        ranked.clear();
        for tag in state.code_wants() {
            ranked.push((tag, scratch.rank_codes(view)));
        }
        for (tag, at) in state.fetches() {
            let what = state.read_of(tag);
            let bytes = read(at).and_then(|bytes| taken_in(view, what, bytes.into()));
            arrived.push((tag, bytes));
        }
    }
}

/// Bytes of a read as a step takes them.
fn taken_in(view: &IndexView<'_>, read: Option<Read>, mut bytes: Vec<u8>) -> Result<Vec<u8>, Loss> {
    let read = read.ok_or(Loss::Failed)?;
    view.check_read(&read, &bytes)?;
    view.mask_unwritten(&read, &mut bytes);
    Ok(bytes)
}

/// A read as an arrival.
pub fn outcome<B: AsRef<[u8]>>(read: &Result<B, Loss>) -> Arrived<'_> {
    match read {
        Ok(bytes) => Arrived::Bytes(bytes.as_ref()),
        Err(loss) => Arrived::Lost(*loss),
    }
}
