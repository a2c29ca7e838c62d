//! The parameters of one query.

use crate::codec::{Reader, Refused, Writer};

/// Most lists that a query can visit.
pub const MAX_PROBES: u32 = 65_536;
/// Most candidates that are kept for re-ranking.
pub const MAX_CANDIDATES: u32 = 65_536;
/// Most candidates of a mini-batch.
pub const MAX_BATCH: u32 = 1024;

/// What ends re-ranking before the last candidate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Rule {
    /// Nothing: a fixed number of candidates is re-ranked.
    Static = 0,
    /// Mini-batches that change few of the results (FusionANNS §4.2, algorithm 1).
    Changes = 1,
    /// The code distance of the next candidate: it exceeds what is to be expected of a result by a margin.
    #[default]
    Margin = 2,
}

impl Rule {
    /// Every rule, in the order of its number.
    pub const ALL: [Rule; 3] = [Rule::Static, Rule::Changes, Rule::Margin];

    /// The name used on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Rule::Static => "static",
            Rule::Changes => "changes",
            Rule::Margin => "margin",
        }
    }

    /// The rule of this name.
    pub fn from_name(name: &str) -> Option<Rule> {
        Rule::ALL.into_iter().find(|rule| rule.name() == name)
    }
}

/// Where candidates come from. All but the first are for comparisons with other systems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Source {
    /// A scorer that has the codes of all vectors; only ids are sent to it.
    #[default]
    Codes = 0,
    /// Lists of vectors on disk, read whole: all members are results (SPANN).
    Lists = 1,
    /// Lists of codes on disk, read whole.
    CodeLists = 2,
    /// Lists of vectors in RAM: all members are results (RUMMY).
    ResidentLists = 3,
}

impl Source {
    const ALL: [Source; 4] = [Source::Codes, Source::Lists, Source::CodeLists, Source::ResidentLists];
}

/// The parameters of one query; plain data that travels with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// Lists whose members are candidates: m in FusionANNS.
    pub nprobe: u32,
    /// Candidates that may be re-ranked: n in FusionANNS.
    pub candidates: u32,
    /// Candidates of a mini-batch.
    pub batch: u32,
    /// What ends re-ranking.
    pub rule: Rule,
    /// Of [`Rule::Changes`]: the share of the results that a mini-batch without effect changes at most (ε).
    pub epsilon: f32,
    /// Of [`Rule::Changes`]: mini-batches without effect in a row that end re-ranking (β).
    pub beta: u32,
    /// Of [`Rule::Margin`]: the share of the distance to the k-th result by which the code distance of the next
    /// candidate must exceed its expectation.
    pub margin: f32,
    /// Whether candidates of a mini-batch share the read of a block.
    pub merge: bool,
    /// Whether candidates of later mini-batches are scored with the block that an earlier one reads.
    pub reuse: bool,
    /// Whether all vectors of a block that is read become results.
    pub whole_blocks: bool,
    /// Where candidates come from.
    pub source: Source,
    /// Whether vectors are read from a file in the order of rows, and not from blocks of near vectors.
    pub by_rows: bool,
    /// Whether what is scored is copied to a GPU for the query, and its bytes are counted.
    pub copies: bool,
    /// Whether every vector is read and scored, whatever else is given.
    pub exact: bool,
}

impl Params {
    /// The defaults of everything else for `k` results from `nprobe` lists.
    pub fn new(k: u32, nprobe: u32) -> Params {
        Params {
            nprobe: nprobe.clamp(1, MAX_PROBES),
            candidates: (16 * k + 128).min(MAX_CANDIDATES),
            batch: 16,
            rule: Rule::Margin,
            epsilon: 0.0,
            beta: 1,
            margin: 0.2,
            merge: true,
            reuse: true,
            whole_blocks: true,
            source: Source::Codes,
            by_rows: false,
            copies: false,
            exact: false,
        }
    }

    /// Whether every parameter is within its limit, for `k` results.
    pub fn is_valid(&self, k: u32) -> bool {
        (1..=MAX_PROBES).contains(&self.nprobe)
            && (k..=MAX_CANDIDATES).contains(&self.candidates)
            && (1..=MAX_BATCH).contains(&self.batch)
            && (0.0..=1.0).contains(&self.epsilon)
            && self.margin >= -1.0
    }

    fn flags(&self) -> [bool; 6] {
        [self.merge, self.reuse, self.whole_blocks, self.by_rows, self.copies, self.exact]
    }

    pub(super) fn encode(&self, w: &mut Writer<'_>) {
        [self.nprobe, self.candidates, self.batch, self.beta].into_iter().for_each(|x| w.u32(x));
        w.u32(self.epsilon.to_bits());
        w.u32(self.margin.to_bits());
        w.u8(self.rule as u8);
        w.u8(self.source as u8);
        w.u8((0..).zip(self.flags()).map(|(i, flag)| u8::from(flag) << i).sum());
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Params, Refused> {
        let [nprobe, candidates, batch, beta] = [r.u32()?, r.u32()?, r.u32()?, r.u32()?];
        let [epsilon, margin] = [f32::from_bits(r.u32()?), f32::from_bits(r.u32()?)];
        let rule = Rule::ALL.get(usize::from(r.u8()?)).copied().ok_or(Refused::Content)?;
        let source = Source::ALL.get(usize::from(r.u8()?)).copied().ok_or(Refused::Content)?;
        let flags = match r.u8()? {
            flags @ 0..64 => [0, 1, 2, 3, 4, 5].map(|i| flags >> i & 1 == 1),
            _ => return Err(Refused::Content),
        };
        let [merge, reuse, whole_blocks, by_rows, copies, exact] = flags;
        Ok(Params {
            nprobe,
            candidates,
            batch,
            rule,
            epsilon,
            beta,
            margin,
            merge,
            reuse,
            whole_blocks,
            source,
            by_rows,
            copies,
            exact,
        })
    }
}
