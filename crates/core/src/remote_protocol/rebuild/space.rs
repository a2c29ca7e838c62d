//! Free space for a group: a run of pages whose bits are not set. Bits are set by compare-and-swap, so that each page
//! has one claimer, and cleared by subtraction. Spaces that lie side by side join by themselves.
//!
//! Pages of a replaced group stay set until no reader can be in them. Whoever looks for space clears them then.

use alloc::vec;
use alloc::vec::Vec;
use core::mem;

use crate::format::region::{
    Address, CONTROL_BYTES, ControlWords, GROUP_ALIGN, GROUP_WORDS_BYTES, GroupWords, READER_BYTES,
    READERS_MAX, Span,
};
use crate::remote_protocol::announce::Lines;
use crate::remote_protocol::{Answers, GroupState, Groups, Op, Places, Step, first_word, read, swap};

enum Phase {
    Start,
    Looking,
    /// Words of spaces that are free now, and the run of pages that is claimed.
    Claiming(Vec<(Span, u64)>, Option<Run>),
    Clearing(Option<Span>),
}

/// A word with bits of pages.
struct PageBits {
    at: Address,
    /// Content as it was read.
    expect: u64,
    /// Content once the pages are claimed.
    new: u64,
}

/// Pages that are free as far as is known, and the words with their bits.
struct Run {
    space: Span,
    words: Vec<PageBits>,
}

/// Finds space for a group on its node. A dead claimer's space is lost, because it may only have stopped.
pub(crate) struct Allocate {
    bytes: u64,
    /// Bytes that must be free besides, so that other groups can still be replaced by versions of their sizes.
    reserve: u64,
    node: u8,
    /// Whether the free spans of each group are on this node.
    is_near: Vec<bool>,
    lines: Lines,
    rounds: u32,
    phase: Phase,
}

impl Allocate {
    /// Space of at least so many bytes for the next version of a group.
    pub(crate) fn new(bytes: u64, old: &GroupState, seen: &Groups) -> Allocate {
        let node = old.descriptor.at.node();
        let is_near: Vec<bool> = seen.groups.iter().map(|group| group.descriptor.at.node() == node).collect();
        let bytes = bytes.next_multiple_of(GROUP_ALIGN);
        let near = seen.groups.iter().zip(&is_near).filter(|(_, is_near)| **is_near);
        let largest = near.map(|(group, _)| group.descriptor.space + GROUP_ALIGN).max().unwrap_or(0);
        let reserve = if bytes > old.version.space(&old.descriptor).bytes { largest } else { 0 };
        Allocate { bytes, reserve, node, is_near, lines: Lines::default(), rounds: 0, phase: Phase::Start }
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
        match mem::replace(&mut self.phase, Phase::Start) {
            Phase::Start => self.look(places),
            Phase::Looking => self.choose(places, patience, answers),
            Phase::Claiming(free_spans, run) => self.claimed(places, free_spans, run, answers),
            Phase::Clearing(Some(space)) => Step::Done(Some(space)),
            Phase::Clearing(None) => self.look(places),
        }
    }

    fn look(&mut self, places: &Places) -> Step<Option<Span>> {
        self.phase = Phase::Looking;
        let own = places.nodes.get(usize::from(self.node)).copied().unwrap_or_default();
        // Lines are read after the words: who takes a line later sees these words or newer ones.
        Step::Ask(vec![
            read(places.control(0), places.first().headers_bytes()),
            read(Address::new(0, places.first().readers_at), READERS_MAX * READER_BYTES),
            read(Address::new(self.node, own.end), own.page_bits_bytes()),
        ])
    }

    fn choose(&mut self, places: &Places, patience: u32, answers: &mut Answers) -> Step<Option<Span>> {
        let headers = answers.bytes();
        let epoch = ControlWords::decode(&headers).unwrap_or_default().epoch;
        let (earliest, stopped) = self.lines.observe(&answers.bytes(), epoch, patience);
        let bits: Vec<u64> = answers.bytes().chunks_exact(8).map(first_word).collect();
        let groups =
            headers.get(CONTROL_BYTES as usize..).unwrap_or(&[]).chunks_exact(GROUP_WORDS_BYTES as usize);
        let (mut ops, mut freed, mut has_word, mut is_blocked) = (Vec::new(), Vec::new(), false, false);
        for ((words, group), _) in groups.zip(0..).zip(&self.is_near).filter(|(_, is_near)| **is_near) {
            let free_spans = GroupWords::decode(words).unwrap_or_default().free_spans;
            for (free_span, at) in
                free_spans.into_iter().zip([GroupWords::FREE_SPANS, GroupWords::FREE_SPANS + 8])
            {
                let is_used = free_span.space().bytes > 0;
                let is_free = is_used && free_span.epoch(epoch) <= earliest;
                has_word |= !is_used || is_free;
                is_blocked |= is_used && !is_free;
                if is_free {
                    ops.push(swap(places.word(group, at), free_span.0, 0));
                    freed.push((free_span.space(), free_span.0));
                }
            }
        }
        let run = if has_word { self.run(places, &bits) } else { None };
        if run.is_some() || !freed.is_empty() {
            let claims = run.iter().flat_map(|run| &run.words);
            ops.extend(claims.map(|bits| swap(bits.at, bits.expect, bits.new)));
            self.phase = Phase::Claiming(freed, run);
            return Step::Ask(ops);
        }
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

    /// The smallest run of free pages that is long enough.
    fn run(&self, places: &Places, bits: &[u64]) -> Option<Run> {
        let own = places.nodes.get(usize::from(self.node))?;
        let (pages, wanted) = (own.end / GROUP_ALIGN, self.bytes / GROUP_ALIGN);
        let (mut free, mut best, mut at) = (0, None, 0);
        while at < pages {
            let word = bits.get((at / 64) as usize)? >> (at % 64);
            // Bits that are alike are passed at once.
            let is_free = word & 1 == 0;
            let alike = if is_free { word.trailing_zeros() } else { (!word).trailing_zeros() };
            let mut length = u64::from(alike).min(64 - at % 64).min(pages - at);
            while is_free && (at + length) % 64 == 0 && at + length < pages {
                let next = *bits.get(((at + length) / 64) as usize)?;
                let more = u64::from(next.trailing_zeros()).min(pages - at - length);
                length += more;
                if more == 0 {
                    break;
                }
            }
            if is_free {
                free += length;
                if length >= wanted && best.is_none_or(|(_, best)| length < best) {
                    best = Some((at, length));
                }
            }
            at += length;
        }
        let (page, _) = best.filter(|_| free * GROUP_ALIGN >= self.bytes + self.reserve)?;
        let space = Span { offset: page * GROUP_ALIGN, bytes: self.bytes };
        let word = |(at, mask): (u64, u64)| {
            let held = bits.get(at as usize).copied().unwrap_or(u64::MAX);
            PageBits { at: Address::new(self.node, own.end + 8 * at), expect: held, new: held | mask }
        };
        Some(Run { space, words: masks(space).map(word).collect() })
    }

    fn claimed(
        &mut self,
        places: &Places,
        freed: Vec<(Span, u64)>,
        run: Option<Run>,
        answers: &mut Answers,
    ) -> Step<Option<Span>> {
        // Who has swapped the word frees the space.
        let own = freed.into_iter().filter(|(_, word)| answers.word() == *word);
        let mut ops: Vec<Op> = own.flat_map(|(space, _)| free(places, self.node, space)).collect();
        let mut space = None;
        if let Some(run) = run {
            let won: Vec<&PageBits> = run.words.iter().filter(|bits| answers.word() == bits.expect).collect();
            if won.len() == run.words.len() {
                space = Some(run.space);
            } else {
                // Others were faster.
                let back = won
                    .into_iter()
                    .map(|bits| Op::FetchAdd { at: bits.at, add: bits.expect.wrapping_sub(bits.new) });
                ops.extend(back);
            }
        }
        if ops.is_empty() {
            return space.map_or_else(|| self.look(places), |space| Step::Done(Some(space)));
        }
        self.phase = Phase::Clearing(space);
        Step::Ask(ops)
    }
}

/// The words with the bits of the pages of a space: their numbers, and the bits in each.
fn masks(space: Span) -> impl Iterator<Item = (u64, u64)> {
    let (from, until) = (space.offset / GROUP_ALIGN, (space.offset + space.bytes) / GROUP_ALIGN);
    (from / 64..until.div_ceil(64)).map(move |word| {
        let (first, last) = (from.max(64 * word) - 64 * word, until.min(64 * word + 64) - 64 * word);
        (word, (u64::MAX >> (64 - (last - first))) << first)
    })
}

/// Clears the bits of pages that are the caller's.
pub(crate) fn free(places: &Places, node: u8, space: Span) -> Vec<Op> {
    let end = places.nodes.get(usize::from(node)).map_or(0, |own| own.end);
    let clear = |(word, mask): (u64, u64)| Op::FetchAdd {
        at: Address::new(node, end + 8 * word),
        add: mask.wrapping_neg(),
    };
    let words = (space.bytes > 0).then(|| masks(space).map(clear));
    words.into_iter().flatten().collect()
}
