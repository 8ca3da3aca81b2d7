//! Places in a JSON document. A pointer is only written when an error needs it, so that places cost no memory of the
//! length of their path.

/// The root of every trail.
pub(super) const ROOT: usize = 0;

#[derive(Clone, Copy)]
pub(super) enum Segment<'a> {
    Key(&'a str),
    Index(usize),
    /// Where a reference leads: a pointer from the root.
    At(&'a str),
}

/// All places that were passed.
#[derive(Default)]
pub(super) struct Trail<'a>(Vec<(usize, Segment<'a>)>);

impl<'a> Trail<'a> {
    /// The number of a place, one step from another.
    pub(super) fn step(&mut self, parent: usize, to: Segment<'a>) -> usize {
        self.0.push((parent, to));
        self.0.len()
    }

    /// The JSON pointer of a place; empty for the root.
    pub(super) fn pointer(&self, mut place: usize) -> String {
        let mut segments = Vec::new();
        while let Some((parent, to)) = place.checked_sub(1).and_then(|index| self.0.get(index)) {
            place = *parent;
            match to {
                Segment::Key(key) => segments.push(key.replace('~', "~0").replace('/', "~1")),
                Segment::Index(index) => segments.push(index.to_string()),
                Segment::At(pointer) => {
                    segments.push(pointer.trim_start_matches('/').to_owned());
                    place = ROOT;
                }
            }
        }
        segments
            .iter()
            .rev()
            .fold(String::new(), |pointer, segment| pointer + "/" + segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_escaped_and_begin_where_a_reference_led() {
        let mut trail = Trail::default();
        let key = trail.step(ROOT, Segment::Key("a/b~c"));
        let item = trail.step(key, Segment::Index(3));
        let jump = trail.step(item, Segment::At("/$defs/x~1y"));
        let last = trail.step(jump, Segment::Key("items"));
        assert_eq!(trail.pointer(ROOT), "");
        assert_eq!(trail.pointer(item), "/a~1b~0c/3");
        assert_eq!(trail.pointer(last), "/$defs/x~1y/items");
    }
}
