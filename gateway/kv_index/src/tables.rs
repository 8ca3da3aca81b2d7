//! Hash tables that say what they allocate before they do.

use hashbrown::HashTable;

/// A table grows by one shard at a time, so little memory is needed twice meanwhile.
const SHARDS: usize = 8;
/// Smaller shards are not made smaller, unless they are empty.
const SMALL: usize = 28;

pub(crate) trait Hashed {
    fn hash(&self) -> u64;
}

pub(crate) struct Sharded<T> {
    shards: [HashTable<T>; SHARDS],
    bytes: usize,
    len: usize,
}

impl<T> Default for Sharded<T> {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| HashTable::new()),
            bytes: 0,
            len: 0,
        }
    }
}

impl<T: Hashed> Sharded<T> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn find(&self, hash: u64, is: impl FnMut(&T) -> bool) -> Option<&T> {
        self.shards[shard_of(hash)].find(hash, is)
    }

    pub fn find_mut(&mut self, hash: u64, is: impl FnMut(&T) -> bool) -> Option<&mut T> {
        self.shards[shard_of(hash)].find_mut(hash, is)
    }

    /// Bytes that [`insert`](Self::insert) would allocate now, for a larger shard beside the present one.
    pub fn growth(&self, hash: u64) -> usize {
        let shard = &self.shards[shard_of(hash)];
        let is_due = shard.len() == shard.capacity() && !has_waste(shard);
        if is_due {
            (2 * shard.allocation_size()).max(128)
        } else {
            0
        }
    }

    /// The entry must be new.
    pub fn insert(&mut self, entry: T) {
        let hash = entry.hash();
        let shard = &mut self.shards[shard_of(hash)];
        if shard.len() == shard.capacity() {
            let full = full_capacity(shard);
            let capacity = if has_waste(shard) { full } else { (2 * full).max(3) };
            rebuild(shard, capacity, &mut self.bytes);
        }
        shard.insert_unique(hash, entry, T::hash);
        self.len += 1;
    }

    pub fn remove(&mut self, hash: u64, is: impl FnMut(&T) -> bool) -> Option<T> {
        let shard = &mut self.shards[shard_of(hash)];
        let (entry, _) = shard.find_entry(hash, is).ok()?.remove();
        self.len -= 1;
        let is_sparse = shard.len() * 4 < full_capacity(shard) && full_capacity(shard) > SMALL;
        if is_sparse || shard.is_empty() {
            let capacity = shard.len() * 2;
            rebuild(shard, capacity, &mut self.bytes);
        }
        Some(entry)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.shards.iter_mut().flatten()
    }

    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.shards.iter().flatten()
    }

    pub fn retain(&mut self, mut keeps: impl FnMut(&T) -> bool) {
        for shard in &mut self.shards {
            shard.retain(|entry| keeps(entry));
            let capacity = shard.len() + shard.len() / 4;
            rebuild(shard, capacity, &mut self.bytes);
        }
        self.len = self.shards.iter().map(HashTable::len).sum();
    }

    /// All entries of some shard; none when the table is empty.
    pub fn take_some(&mut self) -> Option<impl Iterator<Item = T> + use<T>> {
        let shard = self.shards.iter_mut().find(|shard| !shard.is_empty())?;
        let taken = std::mem::take(shard);
        self.bytes -= taken.allocation_size();
        self.len -= taken.len();
        Some(taken.into_iter())
    }
}

/// Neither the bits that choose the bucket, the lowest ones, nor those that tag it, the highest seven.
fn shard_of(hash: u64) -> usize {
    (hash >> 48) as usize % SHARDS
}

/// What a table of this size takes when it is new: places of removed entries are lost to it later.
fn full_capacity<T>(shard: &HashTable<T>) -> usize {
    match shard.num_buckets() {
        0 | 1 => 0,
        buckets @ 2..8 => buckets - 1,
        buckets => buckets / 8 * 7,
    }
}

/// Whether the same size would do again, once the lost places are won back.
fn has_waste<T>(shard: &HashTable<T>) -> bool {
    shard.len() * 8 < full_capacity(shard) * 7
}

fn rebuild<T: Hashed>(shard: &mut HashTable<T>, capacity: usize, bytes: &mut usize) {
    let old = std::mem::replace(shard, HashTable::with_capacity(capacity));
    *bytes = *bytes + shard.allocation_size() - old.allocation_size();
    for entry in old {
        shard.insert_unique(entry.hash(), entry, T::hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exact::entries::{HeldEntry, spread};

    #[test]
    fn a_table_predicts_what_it_allocates_and_gives_it_back() {
        let mut table = Sharded::default();
        for hash in 0..10_000 {
            let entry = HeldEntry { hash, low: 1 };
            let (before, growth) = (table.bytes(), table.growth(entry.hash()));
            table.insert(entry);
            assert!(table.bytes() <= before + growth, "{hash}: {growth}");
        }
        let full = table.bytes();
        for hash in 0..9_990 {
            assert!(table.remove(spread(hash), |entry| entry.hash == hash).is_some());
        }
        assert_eq!(table.len(), 10);
        assert!(table.bytes() < full / 20);
        assert!(table.find(spread(9_995), |entry| entry.hash == 9_995).is_some());
    }

    #[test]
    fn a_table_of_steady_size_stays_as_large_as_it_is() {
        let mut table = Sharded::default();
        for hash in 0..2_000 {
            table.insert(HeldEntry { hash, low: 1 });
        }
        let full = table.bytes();
        for hash in 2_000..50_000 {
            let old = hash - 2_000;
            table.remove(spread(old), |entry| entry.hash == old);
            table.insert(HeldEntry { hash, low: 1 });
        }
        assert!(table.bytes() <= 2 * full);
        assert_eq!(table.len(), 2_000);
    }
}
