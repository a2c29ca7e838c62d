//! Memory nodes in one process: operations take several steps, so that reads and writes of others fall between them.

use std::collections::VecDeque;

use stratann_core::format::region::Address;
use stratann_core::remote_protocol::{Answer, Op};

/// Random numbers from a seed.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        stratann_core::hash::hash(0x57EB, self.0, 11) % n.max(1)
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

pub(crate) struct Memory {
    pub(crate) nodes: Vec<Vec<u8>>,
    pub(crate) is_dead: Vec<bool>,
}

impl Memory {
    pub(crate) fn word(&mut self, at: Address) -> &mut [u8] {
        let offset = at.offset() as usize;
        assert_eq!(offset % 8, 0, "an atomic operation at {offset}");
        &mut self.nodes[usize::from(at.node())][offset..offset + 8]
    }
}

/// An operation under way: the parts that are left, and what was read.
struct Running {
    index: usize,
    op: Op,
    parts: Vec<(usize, usize)>,
    read: Vec<u8>,
}

/// One request.
#[derive(Default)]
pub(crate) struct Request {
    running: Vec<VecDeque<Running>>,
    answers: Vec<Answer>,
    left: usize,
}

impl Request {
    /// Cuts operations into parts. Words are read whole; writes tear at any byte.
    pub(crate) fn new(ops: Vec<Op>, dice: &mut Dice) -> Request {
        let mut own =
            Request { answers: vec![Answer::Written; ops.len()], left: ops.len(), ..Request::default() };
        own.running.resize_with(8, VecDeque::new);
        for (index, op) in ops.into_iter().enumerate() {
            let (length, unit) = match &op {
                Op::Read { bytes, .. } => (*bytes as usize, 8),
                Op::Write { bytes, .. } => (bytes.len(), 1),
                _ => (8, 8),
            };
            let mut parts = Vec::new();
            let mut from = 0;
            while from < length {
                let most = (length - from).div_ceil(unit) as u64;
                let units = if dice.one_in(3) { most } else { 1 + dice.below(most) };
                let until = (from + units as usize * unit).min(length);
                parts.push((from, until));
                from = until;
            }
            for i in (1..parts.len()).rev() {
                parts.swap(i, dice.below(i as u64 + 1) as usize);
            }
            let node = usize::from(op.at().node());
            own.running[node].push_back(Running { index, op, parts, read: vec![0; length] });
        }
        own
    }

    /// Takes one step; returns all answers after the last one.
    pub(crate) fn step(&mut self, memory: &mut Memory, dice: &mut Dice) -> Option<Vec<Answer>> {
        let busy: Vec<usize> =
            (0..self.running.len()).filter(|&node| !self.running[node].is_empty()).collect();
        if let Some(&node) = busy.get(dice.below(busy.len() as u64) as usize) {
            let queue = &mut self.running[node];
            if memory.is_dead[node] {
                // Its connection broke: nothing more of the request is executed.
                self.left -= queue.len();
                queue.drain(..).for_each(|lost| self.answers[lost.index] = Answer::Lost(node as u8));
            } else if let Some(answer) = queue.front_mut().expect("a busy node").step(memory) {
                self.answers[queue.pop_front().expect("a busy node").index] = answer;
                self.left -= 1;
            }
        }
        (self.left == 0).then(|| std::mem::take(&mut self.answers))
    }
}

impl Running {
    fn step(&mut self, memory: &mut Memory) -> Option<Answer> {
        let at = self.op.at();
        let part = self.parts.pop();
        match (&self.op, part) {
            (Op::Read { .. }, Some((from, until))) => {
                let start = at.offset() as usize;
                let node = &memory.nodes[usize::from(at.node())];
                self.read[from..until].copy_from_slice(&node[start + from..start + until]);
            }
            (Op::Write { bytes, .. }, Some((from, until))) => {
                let start = at.offset() as usize;
                let node = &mut memory.nodes[usize::from(at.node())];
                node[start + from..start + until].copy_from_slice(&bytes[from..until]);
            }
            (Op::Read { .. } | Op::Write { .. }, None) => {}
            (Op::FetchAdd { add, .. }, _) => {
                let word = memory.word(at);
                let was = u64::from_le_bytes(word.try_into().expect("a word"));
                word.copy_from_slice(&was.wrapping_add(*add).to_le_bytes());
                return Some(Answer::Word(was));
            }
            (Op::CompareSwap { expect, new, .. }, _) => {
                let word = memory.word(at);
                let was = u64::from_le_bytes(word.try_into().expect("a word"));
                if was == *expect {
                    word.copy_from_slice(&new.to_le_bytes());
                }
                return Some(Answer::Word(was));
            }
        }
        self.parts.is_empty().then(|| match &self.op {
            Op::Read { .. } => Answer::Bytes(std::mem::take(&mut self.read)),
            _ => Answer::Written,
        })
    }
}
