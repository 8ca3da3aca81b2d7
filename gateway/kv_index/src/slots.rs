//! Small numbers for targets, so that sets of them are bits.

use std::collections::HashMap;

use crate::Target;

/// Each target with what is kept for it. A number is given again once its target is removed.
pub(crate) struct Slots<T> {
    numbers: HashMap<Target, u32>,
    items: Vec<Option<(Target, T)>>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self {
            numbers: HashMap::new(),
            items: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slots<T> {
    pub fn number(&self, target: Target) -> Option<u32> {
        self.numbers.get(&target).copied()
    }

    pub fn number_or_insert(&mut self, target: Target, item: impl FnOnce() -> T) -> u32 {
        if let Some(number) = self.number(target) {
            return number;
        }
        let number = if let Some(number) = self.free.pop() {
            number
        } else {
            self.items.push(None);
            self.items.len() as u32 - 1
        };
        self.items[number as usize] = Some((target, item()));
        self.numbers.insert(target, number);
        number
    }

    pub fn remove(&mut self, number: u32) -> Option<T> {
        let (target, item) = self.items[number as usize].take()?;
        self.numbers.remove(&target);
        self.free.push(number);
        Some(item)
    }

    pub fn target(&self, number: u32) -> Option<Target> {
        self.items
            .get(number as usize)?
            .as_ref()
            .map(|(target, _)| *target)
    }

    pub fn get(&self, number: u32) -> Option<&T> {
        self.items.get(number as usize)?.as_ref().map(|(_, item)| item)
    }

    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.items
            .get_mut(number as usize)?
            .as_mut()
            .map(|(_, item)| item)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..)
            .zip(&self.items)
            .filter_map(|(number, item)| Some((number, &item.as_ref()?.1)))
    }

    /// Numbers given so far, free ones included.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn bytes(&self) -> usize {
        let entry = size_of::<(Target, u32)>() + 1;
        self.numbers.capacity() * entry * 8 / 7
            + self.items.capacity() * size_of::<Option<(Target, T)>>()
            + self.free.capacity() * 4
    }
}
