use super::*;

const LARGE: usize = 1 << 30;

fn target(worker: u64) -> Target {
    Target { worker, rank: 0 }
}

fn index(page_size: u32, max_bytes: usize) -> ApproximateIndex {
    ApproximateIndex::new(NonZeroU32::new(page_size).unwrap(), max_bytes)
}

fn prompt(start: u32, len: usize) -> PromptKeys {
    PromptKeys::new((start..).take(len).collect::<Vec<u32>>(), "")
}

fn found(index: &ApproximateIndex, prompt: &PromptKeys) -> Vec<(u64, usize)> {
    let found = index.lookup(prompt);
    let mut found: Vec<_> = found
        .iter()
        .map(|one| (one.target.worker, one.device_tokens))
        .collect();
    found.sort_unstable();
    found
}

#[test]
fn each_target_has_its_own_match() {
    let index = index(16, LARGE);
    index.insert(target(1), &prompt(0, 16));
    index.insert(target(2), &prompt(0, 70));
    assert_eq!(found(&index, &prompt(0, 80)), [(1, 16), (2, 64)]);
    assert_eq!(found(&index, &prompt(1, 80)), []);
    index.forget(target(2));
    assert_eq!(found(&index, &prompt(0, 80)), [(1, 16)]);
    assert_eq!(index.held_pages(), 1);
}
