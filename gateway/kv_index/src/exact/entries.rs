//! What the tables of the index hold.

use crate::holders::mix;
use crate::tables::Hashed;

/// Where a page is: the run, and its distance in pages from the prompt's start.
pub(crate) struct PageEntry {
    pub low: u64,
    pub run: u32,
    pub depth: u32,
}

impl Hashed for PageEntry {
    fn hash(&self) -> u64 {
        self.low
    }
}

/// A worker's hash of a page, and what the index calls the page.
pub(crate) struct HeldEntry {
    pub hash: i64,
    pub low: u64,
}

impl Hashed for HeldEntry {
    fn hash(&self) -> u64 {
        spread(self.hash)
    }
}

/// A worker's hashes may be any numbers, consecutive ones too.
pub(crate) fn spread(hash: i64) -> u64 {
    mix(hash.cast_unsigned(), 0x2545_f491_4f6c_dd1d)
}
