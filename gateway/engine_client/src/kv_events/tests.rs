use super::*;

fn block(hash: i64, tokens: &[u32]) -> wire::KvBlock {
    wire::KvBlock {
        block_hash: hash,
        token_ids: tokens.to_vec(),
        block_size: tokens.len() as i32,
        ..wire::KvBlock::default()
    }
}

fn event(data: Data) -> wire::KvCacheEvent {
    wire::KvCacheEvent {
        event_id: 0,
        data: Some(data),
    }
}

fn of(events: Vec<wire::KvCacheEvent>) -> Option<Vec<KvChange>> {
    let message = wire::KvEventBatch {
        events,
        ..wire::KvEventBatch::default()
    };
    batch(message).changes
}

fn stored_pages() -> wire::KvBlocksStored {
    wire::KvBlocksStored {
        blocks: vec![block(-5, &[1, 2]), block(6, &[3, 4])],
        parent_block_hash: Some(4),
        tier: Some(wire::KvCacheTier::Host as i32),
        lora_name: Some("sql".to_owned()),
        cache_salt: Some("tenant".to_owned()),
        ..wire::KvBlocksStored::default()
    }
}

#[test]
fn stored_pages_come_in_a_row() {
    let expected = KvStored {
        tier: KvTier::Host,
        parent: Some(4),
        adapter: "sql".to_owned(),
        cache_salt: Some("tenant".to_owned()),
        page_tokens: 2,
        hashes: vec![-5, 6],
        token_ids: vec![1, 2, 3, 4],
    };
    let changes = of(vec![event(Data::Stored(stored_pages()))]);
    assert_eq!(changes, Some(vec![KvChange::Stored(expected)]));
}

#[test]
fn pages_elsewhere_of_other_layers_and_of_windows_do_not_count() {
    let remote = Some(wire::KvCacheLocality::Remote as i32);
    let left_out = [
        wire::KvBlocksStored {
            locality: remote,
            ..stored_pages()
        },
        wire::KvBlocksStored {
            group_idx: Some(1),
            ..stored_pages()
        },
        wire::KvBlocksStored {
            kv_cache_spec_sliding_window: Some(512),
            ..stored_pages()
        },
    ];
    let mut events: Vec<_> = left_out
        .into_iter()
        .map(|stored| event(Data::Stored(stored)))
        .collect();
    events.push(event(Data::Removed(wire::KvBlocksRemoved {
        block_hashes: vec![1],
        locality: remote,
        ..wire::KvBlocksRemoved::default()
    })));
    events.push(event(Data::Cleared(wire::KvCacheCleared::default())));
    assert_eq!(of(events), Some(vec![KvChange::Cleared]));
}

#[test]
fn a_removal_without_a_tier_is_from_all() {
    for (tier, expected) in [
        (None, None),
        (Some(wire::KvCacheTier::Unspecified), Some(KvTier::Device)),
        (Some(wire::KvCacheTier::Disk), Some(KvTier::Storage)),
        (Some(wire::KvCacheTier::External), Some(KvTier::Storage)),
    ] {
        let removed = wire::KvBlocksRemoved {
            block_hashes: vec![7],
            tier: tier.map(|tier| tier as i32),
            ..wire::KvBlocksRemoved::default()
        };
        let expected = KvChange::Removed {
            tier: expected,
            hashes: vec![7],
        };
        assert_eq!(of(vec![event(Data::Removed(removed))]), Some(vec![expected]));
    }
}

#[test]
fn a_message_may_only_tell_the_load() {
    let message = wire::KvEventBatch {
        sequence_number: 9,
        dp_rank: Some(2),
        load: Some(wire::EngineLoad {
            running_requests: 3,
            waiting_uncached_tokens: Some(0),
            token_usage: 0.5,
            max_total_num_tokens: Some(4096),
            load_only: true,
            ..wire::EngineLoad::default()
        }),
        ..wire::KvEventBatch::default()
    };
    let batch = batch(message);
    assert_eq!((batch.number, batch.rank, batch.changes), (9, 2, None));
    let load = batch.load.unwrap();
    assert_eq!(
        (load.running_requests, load.waiting_uncached_tokens),
        (3, Some(0))
    );
    assert_eq!((load.token_usage, load.max_total_num_tokens), (0.5, Some(4096)));
    assert_eq!(load.prefill_pending_tokens, None);
}
