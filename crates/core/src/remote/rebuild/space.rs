//! Free space for a group: a free span that no reader can be in, or space that was never used.

use alloc::vec;
use alloc::vec::Vec;

use crate::format::region::{
    Address, CONTROL_BYTES, ControlWords, GROUP_ALIGN, GROUP_WORDS_BYTES, GroupWords, READER_BYTES,
    READERS_MAX, Span,
};
use crate::remote::announce::Lines;
use crate::remote::{Answers, Groups, Op, Places, Step, first_word, read, swap};

enum Phase {
    Start,
    Looking,
    Claiming { space: Span, expect: u64 },
}

/// Finds space for a group on its node. A dead claimer's space is lost, because it may only have stopped.
pub(crate) struct Allocate {
    bytes: u64,
    node: u8,
    /// Whether the free spans of each group are on this node.
    is_near: Vec<bool>,
    lines: Lines,
    rounds: u32,
    phase: Phase,
}

impl Allocate {
    /// Space of at least so many bytes.
    pub(crate) fn new(bytes: u64, node: u8, seen: &Groups) -> Allocate {
        let is_near = seen.groups.iter().map(|group| group.descriptor.at.node() == node).collect();
        let bytes = bytes.next_multiple_of(GROUP_ALIGN);
        Allocate { bytes, node, is_near, lines: Lines::default(), rounds: 0, phase: Phase::Start }
    }

    /// Whether the free spans of a group are on the node.
    pub(crate) fn is_near(&self, group: u32) -> bool {
        self.is_near.get(group as usize).copied().unwrap_or(false)
    }

    /// The next step; `Done(None)` where there is no space.
    pub(crate) fn step(
        &mut self,
        places: &Places,
        patience: u32,
        answers: &mut Answers,
    ) -> Step<Option<Span>> {
        match self.phase {
            Phase::Start => self.look(places),
            Phase::Looking => self.choose(places, patience, answers),
            Phase::Claiming { space, expect } if answers.word() == expect => Step::Done(Some(space)),
            Phase::Claiming { .. } => self.look(places),
        }
    }

    fn look(&mut self, places: &Places) -> Step<Option<Span>> {
        self.phase = Phase::Looking;
        // Lines are read after the words: who takes a line later sees these words or newer ones.
        Step::Ask(vec![
            read(places.control(0), places.first().headers_bytes()),
            read(Address::new(0, places.first().readers_at), READERS_MAX * READER_BYTES),
            read(places.control_of(self.node, ControlWords::USED), 8),
        ])
    }

    fn choose(&mut self, places: &Places, patience: u32, answers: &mut Answers) -> Step<Option<Span>> {
        let headers = answers.bytes();
        let era = ControlWords::decode(&headers).unwrap_or_default().era;
        let (earliest, stopped) = self.lines.observe(&answers.bytes(), era, patience);
        let used = first_word(&answers.bytes());
        let groups =
            headers.get(CONTROL_BYTES as usize..).unwrap_or(&[]).chunks_exact(GROUP_WORDS_BYTES as usize);
        let mut best = None;
        let mut is_blocked = false;
        for ((words, group), _) in groups.zip(0..).zip(&self.is_near).filter(|(_, is_near)| **is_near) {
            let free_spans = GroupWords::decode(words).unwrap_or_default().free_spans;
            for (free_span, at) in
                free_spans.into_iter().zip([GroupWords::FREE_SPANS, GroupWords::FREE_SPANS + 8])
            {
                let fits = free_span.space().bytes >= self.bytes;
                let is_free = free_span.era(era) <= earliest;
                is_blocked |= fits && !is_free;
                let is_better =
                    best.is_none_or(|(space, ..): (Span, _, _)| free_span.space().bytes < space.bytes);
                if fits && is_free && is_better {
                    best = Some((free_span.space(), places.word(group, at), free_span.0));
                }
            }
        }
        if let Some((space, at, word)) = best {
            return self.claim(space, swap(at, word, 0), word);
        }
        let space = Span { offset: used.next_multiple_of(GROUP_ALIGN), bytes: self.bytes };
        let end = places.nodes.get(usize::from(self.node)).map_or(0, |own| own.end);
        if space.offset + space.bytes <= end {
            let at = places.control_of(self.node, ControlWords::USED);
            return self.claim(space, swap(at, used, space.offset + space.bytes), used);
        }
        self.phase = Phase::Start;
        self.rounds += 1;
        if !is_blocked || self.rounds > patience.saturating_mul(4).saturating_add(4) {
            return Step::Done(None);
        }
        if stopped.is_empty() {
            return Step::Pause;
        }
        // Readers that stopped lose their lines, and find out when they go on.
        let line = |(line, word)| swap(Address::new(0, places.first().reader_at(line)), word, 0);
        Step::Ask(stopped.into_iter().map(line).collect())
    }

    fn claim(&mut self, space: Span, op: Op, expect: u64) -> Step<Option<Span>> {
        self.phase = Phase::Claiming { space, expect };
        Step::Ask(vec![op])
    }
}
