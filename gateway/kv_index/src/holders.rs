//! Sets of targets with the tiers that each has, every set kept once.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::chunked::Chunked;
use crate::event::Tier;

/// Bits of 64 targets, one word for each tier.
pub(crate) type Group = [u64; 3];

/// Number of a set; of equal sets there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SetId(u32);

impl SetId {
    /// Its number after [`HolderSets::compact`].
    pub fn after(self, moved: &[Self]) -> Self {
        moved[self.0 as usize]
    }
}

impl SetId {
    pub const EMPTY: Self = Self(0);
}

/// A set: words from the group `first` on. The first and the last group are not empty.
#[derive(Default)]
pub(crate) struct Holders {
    pub first: usize,
    pub groups: Box<[Group]>,
    users: u32,
}

impl Holders {
    pub fn group(&self, index: usize) -> Group {
        let place = index.checked_sub(self.first);
        place
            .and_then(|place| self.groups.get(place))
            .copied()
            .unwrap_or_default()
    }

    pub fn has(&self, slot: u32, tier: Tier) -> bool {
        let (group, bit) = place_of(slot);
        self.group(group)[tier as usize] & bit != 0
    }

    pub fn has_any(&self, slot: u32) -> bool {
        let (group, bit) = place_of(slot);
        any(self.group(group)) & bit != 0
    }

    /// Numbers of the targets in the set.
    pub fn slots(&self) -> impl Iterator<Item = u32> {
        let words = (self.first..).zip(&self.groups);
        words.flat_map(|(index, group)| bits(any(*group)).map(move |bit| index as u32 * 64 + bit))
    }
}

/// Targets that have a page in some tier.
pub(crate) fn any(group: Group) -> u64 {
    group[0] | group[1] | group[2]
}

/// Positions of the set bits.
pub(crate) fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros());
        word &= word.wrapping_sub(1);
        bit
    })
}

fn place_of(slot: u32) -> (usize, u64) {
    (slot as usize / 64, 1 << (slot % 64))
}

/// A change of one target in a set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Add(u32, Tier),
    Remove(u32, Tier),
    RemoveAll(u32),
}

impl Change {
    fn slot(self) -> u32 {
        match self {
            Self::Add(slot, _) | Self::Remove(slot, _) | Self::RemoveAll(slot) => slot,
        }
    }
}

pub(crate) struct HolderSets {
    sets: Chunked<Holders>,
    numbers: HashTable<u32>,
    free: Vec<u32>,
    group_bytes: usize,
    /// The latest change and its result: pages of a run change alike, one after the other.
    latest: Option<(SetId, Change, SetId)>,
    scratch: Vec<Group>,
}

impl Default for HolderSets {
    fn default() -> Self {
        let mut sets = Chunked::default();
        sets.push(Holders::default());
        Self {
            sets,
            numbers: HashTable::new(),
            free: Vec::new(),
            group_bytes: 0,
            latest: None,
            scratch: Vec::new(),
        }
    }
}

impl HolderSets {
    pub fn get(&self, id: SetId) -> &Holders {
        &self.sets[id.0 as usize]
    }

    pub fn bytes(&self) -> usize {
        self.sets.bytes() + self.numbers.allocation_size() + self.free.capacity() * 4 + self.group_bytes
    }

    /// Sets that someone keeps.
    #[cfg(test)]
    pub fn live(&self) -> usize {
        self.sets.iter().filter(|set| set.users > 0).count()
    }

    /// The set after a change. It lives as long as someone [`keep`](Self::keep)s it, or until another is released.
    pub fn changed(&mut self, from: SetId, change: Change) -> SetId {
        if let Some((known, same, to)) = self.latest
            && known == from
            && same == change
        {
            return to;
        }
        let to = self.intern_changed(from, change);
        self.latest = Some((from, change, to));
        to
    }

    pub fn keep(&mut self, id: SetId) -> SetId {
        self.sets[id.0 as usize].users += 1;
        id
    }

    pub fn release(&mut self, id: SetId) {
        let set = &mut self.sets[id.0 as usize];
        set.users -= 1;
        if set.users > 0 || id == SetId::EMPTY {
            return;
        }
        let groups = std::mem::take(&mut set.groups);
        let hash = hash_of(set.first, &groups);
        self.group_bytes -= size_of_val(&*groups);
        if let Ok(entry) = self.numbers.find_entry(hash, |&number| number == id.0) {
            entry.remove();
        }
        self.free.push(id.0);
        self.latest = None;
    }

    /// Bytes of places that no set is in.
    pub fn waste(&self) -> usize {
        self.free.len() * size_of::<Holders>()
    }

    /// Closes the free places. Every number that is in use is to be replaced by what the answer has in its place.
    pub fn compact(&mut self) -> Vec<SetId> {
        let mut moved = vec![SetId::EMPTY; self.sets.len()];
        let mut sets = Chunked::default();
        for (number, set) in std::mem::take(&mut self.sets).into_iter().enumerate() {
            if number == 0 || !set.groups.is_empty() {
                moved[number] = SetId(sets.len() as u32);
                sets.push(set);
            }
        }
        self.sets = sets;
        self.free = Vec::new();
        self.latest = None;
        self.numbers = HashTable::with_capacity(self.sets.len());
        for (number, set) in (0..).zip(self.sets.iter()).skip(1) {
            let hash_again = |&number: &u32| {
                let set = &self.sets[number as usize];
                hash_of(set.first, &set.groups)
            };
            self.numbers
                .insert_unique(hash_of(set.first, &set.groups), number, hash_again);
        }
        moved
    }

    fn intern_changed(&mut self, from: SetId, change: Change) -> SetId {
        let (group, bit) = place_of(change.slot());
        let set = &self.sets[from.0 as usize];
        let mut first = if set.groups.is_empty() {
            group
        } else {
            set.first.min(group)
        };
        let end = (set.first + set.groups.len()).max(group + 1);
        self.scratch.clear();
        self.scratch.extend((first..end).map(|index| set.group(index)));
        let words = &mut self.scratch[group - first];
        match change {
            Change::Add(_, tier) => words[tier as usize] |= bit,
            Change::Remove(_, tier) => words[tier as usize] &= !bit,
            Change::RemoveAll(_) => words.iter_mut().for_each(|word| *word &= !bit),
        }
        while self.scratch.last().is_some_and(|words| any(*words) == 0) {
            self.scratch.pop();
        }
        let leading = self.scratch.iter().take_while(|words| any(**words) == 0).count();
        self.scratch.drain(..leading);
        first += leading;
        if self.scratch.is_empty() {
            return SetId::EMPTY;
        }
        self.intern_scratch(first)
    }

    fn intern_scratch(&mut self, first: usize) -> SetId {
        let (sets, scratch) = (&self.sets, &self.scratch);
        let same = |&number: &u32| {
            let set = &sets[number as usize];
            set.first == first && *set.groups == **scratch
        };
        let hash_again = |&number: &u32| {
            let set = &sets[number as usize];
            hash_of(set.first, &set.groups)
        };
        match self.numbers.entry(hash_of(first, scratch), same, hash_again) {
            Entry::Occupied(known) => SetId(*known.get()),
            Entry::Vacant(vacant) => {
                let new = Holders {
                    first,
                    groups: self.scratch.as_slice().into(),
                    users: 0,
                };
                self.group_bytes += size_of_val(&*new.groups);
                let number = self.free.pop().unwrap_or(self.sets.len() as u32);
                vacant.insert(number);
                if number as usize == self.sets.len() {
                    self.sets.push(new);
                } else {
                    self.sets[number as usize] = new;
                }
                SetId(number)
            }
        }
    }
}

fn hash_of(first: usize, groups: &[Group]) -> u64 {
    groups
        .as_flattened()
        .iter()
        .fold(first as u64, |hash, word| mix(hash, *word))
}

/// Both numbers in one, well spread.
pub(crate) fn mix(one: u64, other: u64) -> u64 {
    let product = u128::from(one ^ 0x9e37_79b9_7f4a_7c15) * u128::from(other ^ 0xa076_1d64_78bd_642f);
    (product as u64) ^ ((product >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sets_are_one_whatever_the_way_to_them() {
        let mut sets = HolderSets::default();
        let mut made = [SetId::EMPTY; 2];
        for (set, order) in made.iter_mut().zip([[3, 700], [700, 3]]) {
            for slot in order {
                *set = sets.changed(*set, Change::Add(slot, Tier::Host));
                sets.keep(*set);
            }
        }
        assert_eq!(made[0], made[1]);
        let holders = sets.get(made[0]);
        assert!(holders.has(700, Tier::Host) && !holders.has(700, Tier::Device) && !holders.has_any(4));
        assert_eq!(holders.slots().collect::<Vec<_>>(), [3, 700]);
        let one = sets.changed(made[0], Change::RemoveAll(3));
        assert_eq!(sets.get(one).groups.len(), 1);
        assert_eq!(sets.changed(one, Change::Remove(700, Tier::Host)), SetId::EMPTY);
    }

    #[test]
    fn a_released_set_gives_its_place_to_the_next() {
        let mut sets = HolderSets::default();
        for slot in 0..100 {
            let set = sets.changed(SetId::EMPTY, Change::Add(slot, Tier::Device));
            sets.keep(set);
            assert_eq!(sets.get(set).slots().collect::<Vec<_>>(), [slot]);
            sets.release(set);
        }
        assert_eq!(sets.sets.len(), 2);
        assert_eq!(sets.group_bytes, 0);
    }
}
