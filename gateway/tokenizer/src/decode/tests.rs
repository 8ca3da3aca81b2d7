use serde_json::json;

use super::*;
use crate::tokenizer::Tokenizer;
use crate::tokenizer::tests::{fixture, sentencepiece, with_decoder};

/// Texts of the single pushes, and of the flush as the last.
fn pieces(tokenizer: &Tokenizer, ids: &[u32], skip: bool) -> Vec<String> {
    let mut decoder = tokenizer.decoder(skip);
    let mut pieces: Vec<String> = ids.iter().map(|&id| decoder.push(id).unwrap()).collect();
    pieces.push(decoder.flush());
    pieces
}

fn assert_streams_like_decode(tokenizer: &Tokenizer, ids: &[u32]) {
    for skip in [true, false] {
        for end in 0..=ids.len() {
            let joined = pieces(tokenizer, &ids[..end], skip).concat();
            assert_eq!(
                joined,
                tokenizer.decode(&ids[..end], skip).unwrap(),
                "{:?}",
                &ids[..end]
            );
        }
    }
}

/// Ids without order, so that characters are broken and special tokens stand anywhere.
fn scrambled(tokenizer: &Tokenizer, seed: u32, len: u32) -> Vec<u32> {
    let size = tokenizer.vocab_size() as u32 + 2;
    (0..len)
        .map(|step| (seed * 7919 + step * step * 104_729 + step) % size)
        .collect()
}

#[test]
fn characters_come_whole() {
    let tokenizer = Tokenizer::new(fixture()).unwrap();
    let text = "a 日本語, 中文 🦙👩‍👩‍👧 é!";
    let ids = tokenizer.encode(text, false).unwrap();
    let pieces = pieces(&tokenizer, &ids, false);
    assert_eq!(pieces.concat(), text);
    assert!(
        pieces
            .iter()
            .all(|piece| !piece.contains(char::REPLACEMENT_CHARACTER)),
        "{pieces:?}"
    );
    assert!(
        pieces.iter().filter(|piece| piece.is_empty()).count() > 5,
        "{pieces:?}"
    );
    assert_streams_like_decode(&tokenizer, &ids);
}

#[test]
fn an_incomplete_character_is_replaced_at_the_flush() {
    let tokenizer = Tokenizer::new(fixture()).unwrap();
    let mut ids = tokenizer.encode("ok 🐙", false).unwrap();
    ids.pop();
    let pieces = pieces(&tokenizer, &ids, false);
    assert_eq!(pieces.concat(), "ok \u{fffd}");
    assert_eq!(pieces.last().unwrap(), "\u{fffd}");
}

#[test]
fn broken_bytes_are_replaced_as_soon_as_they_are_certain() {
    let tokenizer = Tokenizer::new(fixture()).unwrap();
    let byte = |c: &str| tokenizer.token_to_id(c).unwrap();
    // 0xF0 begins a character, a second 0xF0 breaks it; "a" breaks the second
    let ids = [byte("ð"), byte("ð"), byte("a")];
    assert_eq!(pieces(&tokenizer, &ids, false), ["", "\u{fffd}", "\u{fffd}a", ""]);
}

#[test]
fn any_ids_stream_like_decode() {
    let strip = json!({"type": "Sequence", "decoders": [
        {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
    let metaspace =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    let tokenizers = [
        Tokenizer::new(fixture()).unwrap(),
        Tokenizer::new(sentencepiece()).unwrap(),
        with_decoder(fixture(), strip),
        with_decoder(
            fixture(),
            json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        ),
        with_decoder(sentencepiece(), json!({"type": "BPEDecoder", "suffix": "</w>"})),
        with_decoder(fixture(), json!(null)),
        with_decoder(sentencepiece(), metaspace),
        with_decoder(
            sentencepiece(),
            json!({"type": "CTC", "pad_token": "a", "word_delimiter_token": "!", "cleanup": true}),
        ),
    ];
    for tokenizer in &tokenizers {
        for seed in 0..30 {
            assert_streams_like_decode(tokenizer, &scrambled(tokenizer, seed, 24));
        }
    }
}

#[test]
fn only_the_first_space_of_a_sentencepiece_text_is_stripped() {
    let tokenizer = Tokenizer::new(sentencepiece()).unwrap();
    let id = |token: &str| tokenizer.token_to_id(token).unwrap();
    let ids = [id("<s>"), id("▁Hello"), id("</s>"), id("▁world"), id("!")];
    assert_eq!(
        pieces(&tokenizer, &ids, true),
        ["", "Hello", "", " world", "!", ""]
    );
    let spaces = [id("▁"), id("▁"), id("▁▁"), id("▁Hello")];
    assert_eq!(pieces(&tokenizer, &spaces, true), ["", " ", "  ", " Hello", ""]);
    assert_streams_like_decode(&tokenizer, &spaces);
}

#[test]
fn a_run_of_fallback_bytes_is_given_out_when_it_ends() {
    let tokenizer = Tokenizer::new(sentencepiece()).unwrap();
    let id = |token: &str| tokenizer.token_to_id(token).unwrap();
    let character = [id("<0xE6>"), id("<0x97>"), id("<0xA5>")];
    let ids = [&[id("▁Hello")][..], &character, &[id("a"), id("▁"), id("a")]].concat();
    assert_eq!(
        pieces(&tokenizer, &ids, true),
        ["Hello", "", "", "", "日a", " ", "a", ""]
    );
    assert_streams_like_decode(&tokenizer, &ids);
    // One bad byte spoils the run in the reference, so nothing of it may be out before.
    let spoiled = [&character[..], &[id("<0xFF>"), id("a")]].concat();
    assert_eq!(
        pieces(&tokenizer, &spoiled, true).concat(),
        "\u{fffd}\u{fffd}\u{fffd}\u{fffd}a"
    );
    assert_eq!(pieces(&tokenizer, &character, true).last().unwrap(), "日");
    let ends_in_space = [&character[..], &[id("▁"), id("▁"), id("<0x41>"), id("▁")]].concat();
    assert_streams_like_decode(&tokenizer, &ends_in_space);
}

#[test]
fn the_state_stays_small() {
    let long = |tokenizer: &Tokenizer, id: u32| {
        let mut decoder = tokenizer.decoder(true);
        for _ in 0..5000 {
            decoder.push(id).unwrap();
        }
        match decoder.state {
            State::Bytes(state) => state.pending.len(),
            State::Window(state) => state.ids.len(),
            State::Whole(ids) => ids.len(),
        }
    };
    let byte_level = Tokenizer::new(fixture()).unwrap();
    assert!(long(&byte_level, byte_level.token_to_id("ð").unwrap()) <= 3);
    let pieces = Tokenizer::new(sentencepiece()).unwrap();
    for token in ["▁", "a", "</s>"] {
        assert!(long(&pieces, pieces.token_to_id(token).unwrap()) <= 2, "{token}");
    }
}

#[test]
fn a_flush_begins_a_new_sequence() {
    let tokenizer = Tokenizer::new(sentencepiece()).unwrap();
    let hello = tokenizer.token_to_id("▁Hello").unwrap();
    let mut decoder = tokenizer.decoder(true);
    for _ in 0..2 {
        assert_eq!(decoder.push(hello).unwrap(), "Hello");
        assert_eq!(decoder.push(hello).unwrap(), " Hello");
        assert_eq!(decoder.flush(), "");
    }
}

#[test]
fn decoders_are_recognized() {
    let of = |decoder: Value| Decoding::of(Some(&serde_json::from_value(decoder).unwrap()));
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    let strip =
        |start: usize, stop: usize| json!({"type": "Strip", "content": " ", "start": start, "stop": stop});
    let replace = |pattern: Value| json!({"type": "Replace", "pattern": pattern, "content": " "});
    let sequence = |stages: Vec<Value>| json!({"type": "Sequence", "decoders": stages});
    let (fallback, fuse) = (json!({"type": "ByteFallback"}), json!({"type": "Fuse"}));
    assert_eq!(of(byte_level.clone()), Decoding::ByteLevel { strip: None });
    // As the reference library converts GGUF files
    let gguf = vec![
        fallback.clone(),
        fuse.clone(),
        replace(json!({"String": "▁"})),
        byte_level,
        strip(1, 0),
    ];
    assert_eq!(
        of(sequence(gguf)),
        Decoding::ByteLevel {
            strip: Some((' ', 1))
        }
    );
    let window = Decoding::Window {
        byte_fallback: true,
        space: Some('▁'),
    };
    let llama = vec![
        replace(json!({"String": "▁"})),
        fallback.clone(),
        fuse.clone(),
        strip(1, 0),
    ];
    assert_eq!(of(sequence(llama)), window);
    assert_eq!(
        of(sequence(vec![
            fallback,
            fuse.clone(),
            replace(json!({"String": "▁"}))
        ])),
        window
    );
    assert_eq!(of(sequence(vec![fuse.clone(), strip(0, 1)])), Decoding::Whole);
    assert_eq!(
        of(sequence(vec![fuse, replace(json!({"Regex": "a b"}))])),
        Decoding::Whole
    );
}
