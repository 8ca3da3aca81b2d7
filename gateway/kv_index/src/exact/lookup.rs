//! Who holds the beginning of a prompt.

use super::Inner;
use crate::PrefixMatch;
use crate::keys::PagedPrompt;
use crate::walk::Walk;

impl Inner {
    pub fn lookup(&self, prompt: &PagedPrompt, tick: u64, found: &mut Vec<PrefixMatch>) {
        let keys = prompt.keys();
        let mut depth = 0;
        let mut walk = Walk::new(self.targets.len());
        while let Some(place) = keys.get(depth).and_then(|key| self.pages.locate(*key)) {
            let run = self.pages.runs.get(place.run);
            run.touch(tick);
            if !walk.step(self.pages.sets.get(run.set), depth) {
                break;
            }
            let held = run.pages.range(place.offset..);
            depth += held
                .zip(&keys[depth..])
                .take_while(|(page, key)| page.key == **key)
                .count();
        }
        let target_of = |slot| self.targets.target(slot);
        found.extend(walk.end(depth, prompt.page_size(), target_of));
    }
}
