//! Closes the gap between the relaxation and the best known assignment, by dynamic programming.

use alloc::vec;
use alloc::vec::Vec;

use super::{FrontItem, ParetoFronts, Selection};

/// Most states that the program keeps from one class to the next.
const STATES_MAX: usize = 1 << 11;
/// Most states that it tries in all, which takes a fraction of a second.
const TRIED_MAX: usize = 1 << 22;
/// Relative difference of costs that rounding can cause.
const ROUNDING: f64 = 1e-12;

/// The gap between the lower bound and the best known assignment.
pub(super) struct Gap<'a> {
    pub(super) fronts: &'a ParetoFronts,
    /// The relaxation without its fractional step.
    pub(super) relaxed: &'a Selection,
    /// Price of a byte.
    pub(super) price: f64,
    pub(super) bound: f64,
    pub(super) budget: u64,
}

/// A class whose item may differ from that of the relaxation.
struct OpenClass {
    class: usize,
    /// Least reduced cost of its other items.
    reduced: f64,
    /// Most cost that a further byte saves, in this class and all that are opened after it.
    up: f64,
    /// Least cost of giving a byte back, in the same classes.
    down: f64,
}

/// A partial assignment: some classes are decided, the others keep their item of the relaxation. It may exceed the
/// budget as long as later classes can give bytes back.
#[derive(Clone, Copy)]
struct State {
    bytes: u64,
    cost: f64,
    /// Lower bound of the cost of all completions.
    low: f64,
    /// Number of the last stored decision.
    decision: u32,
    /// The decision for the present class, before it is stored.
    position: Option<u8>,
}

/// A decision against the relaxation, linked to the previous one.
struct Decision {
    previous: u32,
    class: usize,
    position: u8,
}

const NO_DECISION: u32 = u32::MAX;

impl Gap<'_> {
    /// Computes the reduced cost of an item: its loss against the item of the relaxation, at the price of a byte.
    fn reduced(&self, from: &FrontItem, to: &FrontItem) -> f64 {
        let more = to.bytes.abs_diff(from.bytes) as f64 * self.price;
        let paid = if to.bytes >= from.bytes { more } else { -more };
        (to.cost - from.cost + paid).max(0.0)
    }

    /// Returns the classes in which an assignment below `cost` may differ from the relaxation, by rising reduced cost.
    fn opened(&self, cost: f64) -> Vec<OpenClass> {
        let mut opened: Vec<OpenClass> = Vec::new();
        for (class, &at) in self.relaxed.positions.iter().enumerate() {
            let (front, at) = (self.fronts.of_class(class), usize::from(at));
            let others = front.iter().enumerate().filter(|(j, _)| *j != at);
            let reduced = others.map(|(_, k)| self.reduced(&front[at], k)).fold(f64::INFINITY, f64::min);
            if reduced < cost - self.bound {
                let above = front[at + 1..].iter().find(|k| k.is_on_hull);
                let below = front[..at].iter().rfind(|k| k.is_on_hull);
                let up = above.map_or(0.0, |k| front[at].saved_per_byte(k));
                let down = below.map_or(f64::INFINITY, |k| k.saved_per_byte(&front[at]));
                opened.push(OpenClass { class, reduced, up, down });
            }
        }
        opened.sort_unstable_by(|a, b| a.reduced.total_cmp(&b.reduced).then(a.class.cmp(&b.class)));
        let (mut up, mut down) = (0.0, f64::INFINITY);
        for o in opened.iter_mut().rev() {
            (up, down) = (f64::max(up, o.up), f64::min(down, o.down));
            (o.up, o.down) = (up, down);
        }
        opened
    }

    /// Improves `best`. Returns whether the result is proven optimal.
    pub(super) fn close(&self, best: &mut Selection) -> bool {
        let opened = self.opened(best.cost);
        let (mut least, mut found) = (best.cost, None);
        let start = (self.relaxed.bytes, self.relaxed.cost);
        let mut states = vec![State {
            bytes: start.0,
            cost: start.1,
            low: self.bound,
            decision: NO_DECISION,
            position: None,
        }];
        let (mut decisions, mut next): (Vec<Decision>, Vec<State>) = (Vec::new(), Vec::new());
        let (mut tried, mut is_whole) = (0, true);
        for (i, o) in opened.iter().enumerate() {
            if o.reduced >= least - self.bound - ROUNDING * least.abs() || states.is_empty() {
                break;
            }
            if tried > TRIED_MAX {
                is_whole = false;
                break;
            }
            let (up, down) = opened.get(i + 1).map_or((0.0, f64::INFINITY), |after| (after.up, after.down));
            next.clear();
            for state in &states {
                for to in self.successors(state, o.class, least - self.bound) {
                    tried += 1;
                    if to.bytes <= self.budget && to.cost < least {
                        least = to.cost;
                        found = Some((to.decision, o.class, to.position));
                    }
                    let low = self.low(&to, up, down);
                    if low < least - ROUNDING * least.abs() {
                        next.push(State { low, ..to });
                    }
                }
            }
            is_whole &= keep_front(&mut next);
            for state in &mut next {
                if let Some(position) = state.position.take() {
                    decisions.push(Decision { previous: state.decision, class: o.class, position });
                    state.decision = decisions.len() as u32 - 1;
                }
            }
            core::mem::swap(&mut states, &mut next);
        }
        if let Some((decision, class, position)) = found {
            *best = self.apply(&decisions, decision, class, position);
        }
        is_whole
    }

    /// Returns the successors of a state: one for each item of a class whose reduced cost is below `gap`.
    fn successors(&self, state: &State, class: usize, gap: f64) -> impl Iterator<Item = State> {
        let (front, at) = (self.fronts.of_class(class), usize::from(self.relaxed.positions[class]));
        let (from, state) = (front[at], *state);
        front.iter().zip(0u8..=u8::MAX).filter_map(move |(to, position)| {
            let is_same = usize::from(position) == at;
            if !is_same && self.reduced(&from, to) >= gap {
                return None;
            }
            Some(State {
                // The bytes of a state include this class's item of the relaxation.
                bytes: (state.bytes - from.bytes).checked_add(to.bytes)?,
                cost: state.cost + (to.cost - from.cost),
                position: (!is_same).then_some(position),
                ..state
            })
        })
    }

    /// Computes the lower bound of a state's completions, if a further byte saves at most `up` and giving one back
    /// costs at least `down`.
    fn low(&self, state: &State, up: f64, down: f64) -> f64 {
        match self.budget.checked_sub(state.bytes) {
            Some(unused) => state.cost - up * unused as f64,
            None => state.cost + down * (state.bytes - self.budget) as f64,
        }
    }

    /// Returns the relaxation with the decisions of a state applied.
    fn apply(
        &self,
        decisions: &[Decision],
        mut decision: u32,
        class: usize,
        position: Option<u8>,
    ) -> Selection {
        let mut positions = self.relaxed.positions.clone();
        positions[class] = position.unwrap_or(positions[class]);
        while let Some(n) = decisions.get(decision as usize) {
            positions[n.class] = n.position;
            decision = n.previous;
        }
        let items = || positions.iter().enumerate().map(|(c, &at)| self.fronts.of_class(c)[usize::from(at)]);
        let (cost, bytes) = (items().map(|k| k.cost).sum(), items().map(|k| k.bytes).sum());
        Selection { positions, cost, bytes }
    }
}

/// Keeps the states on the Pareto front of bytes and cost, and at most [`STATES_MAX`] of them. Returns false when it
/// dropped states of the front.
fn keep_front(states: &mut Vec<State>) -> bool {
    states.sort_unstable_by(|a, b| {
        let tie = || (a.decision, a.position).cmp(&(b.decision, b.position));
        a.bytes.cmp(&b.bytes).then(a.cost.total_cmp(&b.cost)).then_with(tie)
    });
    let mut least = f64::INFINITY;
    states.retain(|s| {
        let is_better = s.cost < least;
        least = least.min(s.cost);
        is_better
    });
    if states.len() <= STATES_MAX {
        return true;
    }
    // Keeps one state per range of bytes, so that small and large selections both stay represented.
    let (first, last) = (states[0].bytes, states[states.len() - 1].bytes);
    let width = (last - first) / STATES_MAX as u64 + 1;
    states.dedup_by(|next, kept| {
        let is_near = (next.bytes - first) / width == (kept.bytes - first) / width;
        if is_near && next.low < kept.low {
            *kept = *next;
        }
        is_near
    });
    false
}
