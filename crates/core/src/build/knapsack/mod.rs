//! Multiple-choice knapsack: picks one item of each class, such that the bytes fit a budget and the cost is least.
//!
//! OrchANN (§5.1, "Global Optimization") chooses the local index of each inverted list so: a class is a list, its items
//! are the local indexes that it may have. Minimise Σ cost subject to Σ bytes ≤ budget. Three deterministic steps:
//!
//! 1. **Relax.** Only the lower convex hull of a class in (bytes, cost) matters to the linear relaxation. Its optimum
//!    takes steps along all hulls, by falling saved cost per byte, until a step does not fit (Sinha & Zoltners,
//!    Operations Research 1979). A fraction of that step gives the lower bound; its saved cost per byte is the price λ.
//! 2. **Round.** A first assignment takes the later steps that still fit. Others force one step that does not fit and
//!    undo cheaper ones.
//! 3. **Close the gap.** An assignment costs bound + Σ r + λ × unused bytes. The reduced cost r of an item is its loss
//!    against the best item of its class at price λ. A dynamic program over (bytes, cost) starts from the relaxation
//!    and opens the classes by their second smallest r (Pisinger, European Journal of Operational Research 1995). A
//!    class whose r exceeds the gap stays closed. The program keeps `STATES_MAX` states per class and tries `TRIED_MAX`
//!    in all; within these limits its result is optimal.

mod gap;

use alloc::vec;
use alloc::vec::Vec;

use gap::Gap;

/// Cost and size of one item.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Item {
    /// Cost in any unit, weighted by how often the class is used. An item whose cost is not finite is never picked.
    pub cost: f64,
    /// Bytes of the budget.
    pub bytes: u64,
}

/// Items of all classes.
#[derive(Clone, Debug, Default)]
pub struct Classes {
    items: Vec<Item>,
    // End of the items of each class.
    ends: Vec<usize>,
}

/// Most items of one class; later ones are ignored.
pub const ITEMS_MAX: usize = 256;

impl Classes {
    /// Appends a class with these items, at most [`ITEMS_MAX`].
    pub fn push(&mut self, items: &[Item]) {
        self.items.extend_from_slice(&items[..items.len().min(ITEMS_MAX)]);
        self.ends.push(self.items.len());
    }

    /// Number of classes.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True without a class.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Items of a class.
    ///
    /// # Panics
    /// When there is no such class.
    pub fn of(&self, class: usize) -> &[Item] {
        let start = if class == 0 { 0 } else { self.ends[class - 1] };
        &self.items[start..self.ends[class]]
    }
}

/// One item of each class.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    /// Number of the picked item of each class.
    pub picks: Vec<u8>,
    /// Sum over the picks.
    pub cost: f64,
    /// Sum over the picks, at most the budget.
    pub bytes: u64,
    /// Optimum of the linear relaxation: a lower bound of the cost, up to rounding.
    pub bound: f64,
    /// Whether the assignment is proven optimal, up to one part in 10¹².
    pub is_optimal: bool,
}

/// Number of steps that are forced when they do not fit, one at a time.
const FORCED_MAX: usize = 16;

/// Picks one item of each class, such that the bytes fit `budget` and the cost is least, or nearly so. Ties go to the
/// class with the smaller number.
///
/// Takes O(n log n) time and O(n) memory for n items. `None` when a class is empty, or when even the smallest items do
/// not fit.
pub fn solve(classes: &Classes, budget: u64) -> Option<Assignment> {
    let fronts = ParetoFronts::of(classes)?;
    let steps = fronts.steps();
    let mut relaxed = fronts.smallest(budget)?;
    let Some(critical) = relaxed.take_while_fitting(&fronts, &steps, budget) else {
        let bound = relaxed.cost;
        return Some(fronts.finish(&relaxed, bound, true));
    };
    let price = steps[critical].saved_per_byte;
    let bound = relaxed.cost - price * (budget - relaxed.bytes) as f64;
    let mut best = relaxed.clone();
    best.fill(&fronts, &steps[critical..], budget);
    for forced in critical..steps.len().min(critical + FORCED_MAX) {
        if let Some(other) = relaxed.forced(&fronts, &steps, forced, budget)
            && other.cost < best.cost
        {
            best = other;
        }
    }
    let gap = Gap { fronts: &fronts, relaxed: &relaxed, price, bound, budget };
    let is_optimal = gap.close(&mut best);
    // Classes that stayed closed may still use the bytes left.
    best.fill(&fronts, &steps, budget);
    Some(fronts.finish(&best, bound, is_optimal))
}

/// An item on the Pareto front of its class: no other item has both fewer bytes and less cost.
#[derive(Clone, Copy)]
struct FrontItem {
    cost: f64,
    bytes: u64,
    pick: u8,
    is_on_hull: bool,
}

impl FrontItem {
    /// Cost that `larger` saves per additional byte.
    fn saved_per_byte(&self, larger: &FrontItem) -> f64 {
        (self.cost - larger.cost) / (larger.bytes - self.bytes) as f64
    }
}

/// Pareto fronts of all classes: bytes rise, costs fall.
struct ParetoFronts {
    items: Vec<FrontItem>,
    ends: Vec<usize>,
}

/// A step along the hull of a class, between two positions of its front.
struct Step {
    saved_per_byte: f64,
    class: usize,
    from: u8,
    to: u8,
}

impl ParetoFronts {
    /// Computes the fronts. `None` when a class has no item of finite cost.
    fn of(classes: &Classes) -> Option<ParetoFronts> {
        let mut fronts = ParetoFronts { items: Vec::new(), ends: Vec::with_capacity(classes.len()) };
        let mut sorted: Vec<FrontItem> = Vec::new();
        for class in 0..classes.len() {
            let numbered = classes.of(class).iter().zip(0u8..=u8::MAX).filter(|(c, _)| c.cost.is_finite());
            sorted.clear();
            sorted.extend(numbered.map(|(c, pick)| FrontItem {
                cost: c.cost,
                bytes: c.bytes,
                pick,
                is_on_hull: false,
            }));
            sorted.sort_unstable_by(|a, b| {
                a.bytes.cmp(&b.bytes).then(a.cost.total_cmp(&b.cost)).then(a.pick.cmp(&b.pick))
            });
            let mut least = f64::INFINITY;
            sorted.retain(|k| {
                let is_better = k.cost < least;
                least = least.min(k.cost);
                is_better
            });
            if sorted.is_empty() {
                return None;
            }
            mark_hull(&mut sorted);
            fronts.items.extend_from_slice(&sorted);
            fronts.ends.push(fronts.items.len());
        }
        Some(fronts)
    }

    fn of_class(&self, class: usize) -> &[FrontItem] {
        let start = if class == 0 { 0 } else { self.ends[class - 1] };
        &self.items[start..self.ends[class]]
    }

    /// Returns all steps by falling saved cost per byte. Steps of one class keep their order, because a hull is convex.
    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for class in 0..self.ends.len() {
            let front = self.of_class(class);
            let mut hull = (0..front.len()).filter(|&at| front[at].is_on_hull);
            let Some(mut from) = hull.next() else { continue };
            for to in hull {
                let saved_per_byte = front[from].saved_per_byte(&front[to]);
                steps.push(Step { saved_per_byte, class, from: from as u8, to: to as u8 });
                from = to;
            }
        }
        let order = |a: &Step, b: &Step| {
            b.saved_per_byte.total_cmp(&a.saved_per_byte).then((a.class, a.to).cmp(&(b.class, b.to)))
        };
        steps.sort_unstable_by(order);
        steps
    }

    /// Returns the selection of the smallest items, if it fits.
    fn smallest(&self, budget: u64) -> Option<Selection> {
        let classes = 0..self.ends.len();
        let bytes = classes.clone().try_fold(0u64, |sum, c| sum.checked_add(self.of_class(c)[0].bytes));
        let bytes = bytes.filter(|&b| b <= budget)?;
        let cost = classes.map(|c| self.of_class(c)[0].cost).sum();
        Some(Selection { positions: vec![0; self.ends.len()], cost, bytes })
    }

    fn finish(&self, selection: &Selection, bound: f64, is_optimal: bool) -> Assignment {
        let items =
            || selection.positions.iter().enumerate().map(|(c, &at)| self.of_class(c)[usize::from(at)]);
        let cost = items().map(|k| k.cost).sum();
        Assignment {
            picks: items().map(|k| k.pick).collect(),
            cost,
            bytes: items().map(|k| k.bytes).sum(),
            // Rounding can put the bound above the cost.
            bound: bound.min(cost),
            is_optimal,
        }
    }
}

/// Marks the items on the lower convex hull of a sorted front.
fn mark_hull(front: &mut [FrontItem]) {
    let mut hull: Vec<usize> = Vec::with_capacity(front.len());
    for at in 0..front.len() {
        while let [.., a, b] = hull[..]
            && front[a].saved_per_byte(&front[b]) <= front[b].saved_per_byte(&front[at])
        {
            hull.pop();
        }
        hull.push(at);
    }
    hull.into_iter().for_each(|at| front[at].is_on_hull = true);
}

/// One item of each class, by its position on the front, with the sums.
#[derive(Clone)]
struct Selection {
    positions: Vec<u8>,
    cost: f64,
    bytes: u64,
}

impl Selection {
    fn set(&mut self, fronts: &ParetoFronts, class: usize, to: u8) {
        let front = fronts.of_class(class);
        let (old, new) = (front[usize::from(self.positions[class])], front[usize::from(to)]);
        self.positions[class] = to;
        // The sum includes `old`, so this does not fall below zero.
        self.bytes = self.bytes - old.bytes + new.bytes;
        self.cost += new.cost - old.cost;
    }

    /// Replaces the item of a class by a larger one, if it fits.
    fn take(&mut self, fronts: &ParetoFronts, class: usize, to: u8, budget: u64) -> bool {
        let front = fronts.of_class(class);
        let more = front[usize::from(to)].bytes - front[usize::from(self.positions[class])].bytes;
        let fits = more <= budget - self.bytes;
        if fits {
            self.set(fronts, class, to);
        }
        fits
    }

    /// Forces a step that does not fit and undoes earlier steps, those that save least per byte first, until it fits.
    /// `None` when it never fits.
    fn forced(&self, fronts: &ParetoFronts, steps: &[Step], forced: usize, budget: u64) -> Option<Selection> {
        let (class, to) = (steps[forced].class, steps[forced].to);
        let front = fronts.of_class(class);
        let more = front[usize::from(to)].bytes - front[usize::from(self.positions[class])].bytes;
        self.bytes.checked_add(more)?;
        let mut taken = self.clone();
        taken.set(fronts, class, to);
        let mut undone = steps[..forced].iter().rev();
        while taken.bytes > budget {
            let step = undone.next()?;
            if step.class != class && taken.positions[step.class] == step.to {
                taken.set(fronts, step.class, step.from);
            }
        }
        taken.fill(fronts, steps, budget);
        Some(taken)
    }

    /// Takes steps up to the first one that does not fit. Returns its number.
    fn take_while_fitting(&mut self, fronts: &ParetoFronts, steps: &[Step], budget: u64) -> Option<usize> {
        steps.iter().position(|step| !self.take(fronts, step.class, step.to, budget))
    }

    /// Takes all steps to larger items that fit.
    fn fill(&mut self, fronts: &ParetoFronts, steps: &[Step], budget: u64) {
        for step in steps {
            if step.to > self.positions[step.class] {
                self.take(fronts, step.class, step.to, budget);
            }
        }
    }
}

#[cfg(test)]
mod tests;
