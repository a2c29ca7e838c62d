//! Two writers that come to the last slot of an overflow, in every order of their requests.

use stratann_core::remote_protocol::{
    Answer, Groups, Headers, Insert, Inserted, Line, NewVector, Op, Places, Rebuild, RebuildLimits, Rebuilt,
    Step,
};

use crate::history::History;
use crate::memory::{Dice, Memory, Request};
use crate::world::{self, Settings, cluster_of, vector_of};

struct World {
    places: Places,
    memory: Memory,
    dice: Dice,
}

impl World {
    fn execute(&mut self, ops: Vec<Op>) -> Vec<Answer> {
        let mut request = Request::new(ops, &mut self.dice);
        loop {
            if let Some(answers) = request.step(&mut self.memory, &mut self.dice) {
                return answers;
            }
        }
    }

    fn run<T>(&mut self, mut step: impl FnMut(&Places, Vec<Answer>) -> Step<T>) -> T {
        let mut answers = Vec::new();
        loop {
            match step(&self.places, std::mem::take(&mut answers)) {
                Step::Ask(ops) => answers = self.execute(ops),
                Step::Pause => {}
                Step::Done(done) => return done,
            }
        }
    }

    fn seen(&mut self) -> Groups {
        let (mut headers, mut line) = (Headers::new(Groups::default()), Line::new(9));
        let seen = self.run(|places, answers| headers.step(places, &mut line, answers)).unwrap();
        let left = line.leave(&self.places);
        self.execute(left);
        seen.groups
    }

    fn rebuild(&mut self, group: u32, capacity: u32) {
        let limits = RebuildLimits { rebuilder: 3, patience: 4, group_bytes: 8192 };
        let mut rebuild = Rebuild::new(limits, group, &self.seen());
        loop {
            match self.run(|places, answers| rebuild.step(places, answers)).unwrap() {
                Rebuilt::Build(contents) => rebuild.built(world::build(group, &contents, capacity)),
                Rebuilt::Published { .. } => return,
                other => panic!("{other:?}"),
            }
        }
    }
}

/// A vector of this cluster.
fn new_vector(id: u64, cluster: u32, is_new: bool) -> NewVector {
    let value = (1000 * id..).find(|&value| cluster_of(value) == cluster).expect("a value");
    NewVector {
        id,
        cluster,
        group: cluster / 2,
        side: cluster as usize % 2,
        inverse_norm: 1.0,
        vector: vector_of(id, value),
        is_new,
    }
}

/// Runs both until they end; bit `n` of the order says whose request is the `n`-th.
fn race(world: &mut World, inserts: &mut [Insert; 2], order: u32) -> [Inserted; 2] {
    let mut answers = [Vec::new(), Vec::new()];
    let mut done = [None, None];
    for turn in 0.. {
        let wanted = (order >> (turn % 32)) as usize & 1;
        let own = if done[wanted].is_none() { wanted } else { 1 - wanted };
        match inserts[own].step(&world.places, std::mem::take(&mut answers[own])) {
            Step::Ask(ops) => answers[own] = world.execute(ops),
            Step::Pause => {}
            Step::Done(inserted) => done[own] = Some(inserted.expect("no fault")),
        }
        if let [Some(one), Some(other)] = done {
            return [one, other];
        }
    }
    unreachable!("two inserts end")
}

#[test]
fn one_of_two_writers_gets_the_last_slot_and_the_other_goes_on_in_the_rebuilt_group() {
    let settings = Settings { capacity: 1, tombstones: 48, spare_pages: 40, data_nodes: 1, members: 4 };
    for order in 0..1 << 9 {
        for (sides, is_new) in [([0, 0], true), ([0, 1], true), ([1, 0], false)] {
            let mut dice = Dice::new(u64::from(order));
            let (places, memory) = world::load(&settings, &mut History::default(), &mut dice);
            let mut world = World { places, memory, dice };
            let seen = world.seen();
            let mut inserts =
                [0, 1].map(|at| Insert::new(new_vector(500 + at as u64, sides[at], is_new), &seen));
            let ended = race(&mut world, &mut inserts, order);
            let full = match ended {
                [Inserted::Done { .. }, Inserted::Full { .. }] => 1,
                [Inserted::Full { .. }, Inserted::Done { .. }] => 0,
                other => panic!("order {order:b}: {other:?}"),
            };
            world.rebuild(0, settings.capacity);
            let insert = &mut inserts[full];
            let last = world.run(|places, answers| insert.step(places, answers));
            assert!(matches!(last, Ok(Inserted::Done { .. })), "order {order:b}: {last:?}");
            let seen = world.seen();
            let loaded = world.execute(world::loads(&world.places, &seen));
            let (found, is_suspect) = world::found(&seen, loaded);
            assert!(!is_suspect && found[&500].len() == 1 && found[&501].len() == 1, "{order:b}: {found:?}");
            assert_eq!(found.len(), 6);
        }
    }
}
