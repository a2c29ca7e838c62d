//! Numbers as bytes: little-endian, varints, and fields of single bits. Shared by states and frames.

use alloc::vec::Vec;
use core::fmt;

/// Reason why bytes are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Written by another version.
    Version(u32),
    /// Shorter or longer than declared, or than the limit.
    Length,
    /// The checksum does not match.
    Checksum,
    /// The sender serves another build of the index.
    Build(u64),
    /// A state of another kind of index: its number.
    Kind(u8),
    /// A search that only the laboratory has.
    Laboratory,
    /// A field is outside of its limits.
    Content,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Version(version) => write!(
                f,
                "it is of version {version}, which this program does not read; run the same stratann everywhere"
            ),
            Refused::Length => write!(f, "its length is wrong"),
            Refused::Checksum => write!(f, "its checksum does not match"),
            Refused::Build(build) => write!(
                f,
                "it is of another build of the index ({build:016x}); give all servers the same index"
            ),
            Refused::Kind(kind) => {
                write!(f, "it is of another kind of index (number {kind}); give all servers the same index")
            }
            Refused::Laboratory => write!(
                f,
                "it searches as another system does, which only stratann-lab can; run that program on all servers"
            ),
            Refused::Content => write!(f, "a field is outside of its limits"),
        }
    }
}

/// Writes numbers of any length in bits, lowest bit first.
pub(crate) struct Packer<'a, 'b> {
    out: &'a mut Writer<'b>,
    held: u64,
    bits: u32,
}

impl<'a, 'b> Packer<'a, 'b> {
    pub(crate) fn new(out: &'a mut Writer<'b>) -> Packer<'a, 'b> {
        Packer { out, held: 0, bits: 0 }
    }

    pub(crate) fn put(&mut self, number: u32, bits: u32) {
        self.held |= u64::from(number) << self.bits;
        self.bits += bits;
        while self.bits >= 8 {
            self.out.u8(self.held as u8);
            self.held >>= 8;
            self.bits -= 8;
        }
    }

    pub(crate) fn finish(self) {
        if self.bits > 0 {
            self.out.u8(self.held as u8);
        }
    }
}

/// Reads what [`Packer`] wrote.
pub(crate) struct Unpacker<'a> {
    bytes: Reader<'a>,
    held: u64,
    bits: u32,
}

impl<'a> Unpacker<'a> {
    pub(crate) fn new(bytes: Reader<'a>) -> Unpacker<'a> {
        Unpacker { bytes, held: 0, bits: 0 }
    }

    pub(crate) fn take(&mut self, bits: u32) -> Result<u32, Refused> {
        while self.bits < bits {
            self.held |= u64::from(self.bytes.u8()?) << self.bits;
            self.bits += 8;
        }
        let number = self.held & ((1 << bits) - 1);
        self.held >>= bits;
        self.bits -= bits;
        Ok(number as u32)
    }

    /// The bytes after the last number. The unused bits of its byte must be zero.
    pub(crate) fn finish(self) -> Result<&'a [u8], Refused> {
        if self.held == 0 { Ok(self.bytes.0) } else { Err(Refused::Content) }
    }
}

pub(crate) struct Writer<'a>(pub(crate) &'a mut Vec<u8>);

impl Writer<'_> {
    pub(crate) fn u8(&mut self, x: u8) {
        self.0.push(x);
    }

    pub(crate) fn u32(&mut self, x: u32) {
        self.0.extend_from_slice(&x.to_le_bytes());
    }

    pub(crate) fn varint(&mut self, mut x: u64) {
        while x >= 0x80 {
            self.u8(x as u8 | 0x80);
            x >>= 7;
        }
        self.u8(x as u8);
    }
}

/// Bytes that [`Writer::varint`] takes for a number.
pub(crate) fn varint_bytes(x: u64) -> u64 {
    u64::from((64 - (x | 1).leading_zeros()).div_ceil(7))
}

/// Reads numbers from the front of bytes.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N], Refused> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Refused::Length)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Refused> {
        self.take::<1>().map(|b| b[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Refused> {
        self.take().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Refused> {
        self.take().map(u64::from_le_bytes)
    }

    pub(crate) fn slice(&mut self, length: usize) -> Result<&'a [u8], Refused> {
        let (head, rest) = self.0.split_at_checked(length).ok_or(Refused::Length)?;
        self.0 = rest;
        Ok(head)
    }

    /// Only the shortest form is accepted, so that each state has one encoding.
    pub(crate) fn varint(&mut self) -> Result<u64, Refused> {
        let mut x = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let part = u64::from(byte & 0x7F);
            if (part << shift) >> shift != part || (byte == 0 && shift > 0) {
                return Err(Refused::Content);
            }
            x |= part << shift;
            if byte < 0x80 {
                return Ok(x);
            }
        }
        Err(Refused::Content)
    }

    /// A varint that fits into 32 bits.
    pub(crate) fn varint_u32(&mut self) -> Result<u32, Refused> {
        u32::try_from(self.varint()?).map_err(|_| Refused::Content)
    }

    /// A counter; at most half of the range, so that further counting cannot overflow.
    pub(crate) fn counter(&mut self) -> Result<u64, Refused> {
        let count = self.varint()?;
        if count <= u64::MAX / 2 { Ok(count) } else { Err(Refused::Content) }
    }

    pub(crate) fn count(&mut self, limit: u32) -> Result<u32, Refused> {
        let count = u32::try_from(self.varint()?).map_err(|_| Refused::Content)?;
        if count <= limit { Ok(count) } else { Err(Refused::Content) }
    }
}
