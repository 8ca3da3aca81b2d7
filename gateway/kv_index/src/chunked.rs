//! A vector that grows without moving what it holds.

use std::ops::{Index, IndexMut};

const CHUNK: usize = 256;

pub(crate) struct Chunked<T> {
    chunks: Vec<Vec<T>>,
    len: usize,
}

impl<T> Default for Chunked<T> {
    fn default() -> Self {
        Self {
            chunks: Vec::new(),
            len: 0,
        }
    }
}

impl<T> Chunked<T> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn bytes(&self) -> usize {
        self.chunks.capacity() * size_of::<Vec<T>>() + self.chunks.len() * CHUNK * size_of::<T>()
    }

    pub fn push(&mut self, item: T) {
        if self.len == self.chunks.len() * CHUNK {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        self.chunks[self.len / CHUNK].push(item);
        self.len += 1;
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.chunks.iter_mut().flatten()
    }

    pub fn into_iter(self) -> impl Iterator<Item = T> {
        self.chunks.into_iter().flatten()
    }
}

impl<T> Index<usize> for Chunked<T> {
    type Output = T;

    fn index(&self, place: usize) -> &T {
        &self.chunks[place / CHUNK][place % CHUNK]
    }
}

impl<T> IndexMut<usize> for Chunked<T> {
    fn index_mut(&mut self, place: usize) -> &mut T {
        &mut self.chunks[place / CHUNK][place % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_stay_where_they_are() {
        let mut numbers = Chunked::default();
        numbers.push(0);
        let first = std::ptr::from_ref(&numbers[0]);
        for number in 1..1000 {
            numbers.push(number);
        }
        assert_eq!(std::ptr::from_ref(&numbers[0]), first);
        numbers[700] += 1;
        assert_eq!((numbers[700], numbers[999], numbers.len()), (701, 999, 1000));
        assert!(numbers.bytes() >= 1000 * size_of::<i32>());
        assert_eq!(numbers.iter().count(), numbers.into_iter().count());
    }
}
