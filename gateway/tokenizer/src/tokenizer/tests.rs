use std::path::PathBuf;

use serde_json::json;

use super::*;
use crate::error::TemplateError;
use crate::template::RenderInput;

pub(crate) fn fixture() -> TokenizerFiles {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/byte_level");
    TokenizerFiles::read_dir(&folder).unwrap()
}

/// A SentencePiece vocabulary with byte fallback, as Llama 2 has it.
pub(crate) fn sentencepiece() -> TokenizerFiles {
    let mut vocab = Map::new();
    for token in ["<unk>", "<s>", "</s>"] {
        vocab.insert(token.to_owned(), json!(vocab.len()));
    }
    for byte in 0..=255 {
        vocab.insert(format!("<0x{byte:02X}>"), json!(vocab.len()));
    }
    for token in [
        "▁", "▁Hello", "▁world", "!", "a", "▁▁", "<tool>", "b</w>", "c</w>",
    ] {
        vocab.insert(token.to_owned(), json!(vocab.len()));
    }
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let tokenizer_json = json!({
        "version": "1.0",
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": true, "fuse_unk": true,
                  "vocab": vocab, "merges": []},
    });
    TokenizerFiles {
        tokenizer_json: serde_json::to_vec(&tokenizer_json).unwrap(),
        ..TokenizerFiles::default()
    }
}

/// The fixture with another decoder.
pub(crate) fn with_decoder(mut files: TokenizerFiles, decoder: Value) -> Tokenizer {
    let mut json: Value = serde_json::from_slice(&files.tokenizer_json).unwrap();
    json["decoder"] = decoder;
    files.tokenizer_json = serde_json::to_vec(&json).unwrap();
    Tokenizer::new(files).unwrap()
}

#[test]
fn ids_and_texts_are_those_of_the_reference() {
    let tokenizer = Tokenizer::new(fixture()).unwrap();
    let cases: Value = serde_json::from_str(include_str!("../../tests/golden/byte_level.json")).unwrap();
    for case in cases.as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let ids = tokenizer.encode(text, false).unwrap();
        assert_eq!(json!(ids), case["ids"], "{text:?}");
        assert_eq!(
            json!(tokenizer.encode(text, true).unwrap()),
            case["with_special"],
            "{text:?}"
        );
        // "é" in an added token is no byte of the byte alphabet.
        assert_eq!(
            tokenizer.decode(&ids, false).unwrap(),
            case["decoded"],
            "{text:?}"
        );
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), case["skipped"], "{text:?}");
    }
}

#[test]
fn the_decoder_agrees_with_the_tokenizers_crate_on_any_ids() {
    let tokenizer = Tokenizer::new(fixture()).unwrap();
    let size = tokenizer.vocab_size() as u32;
    for seed in 0..200_u32 {
        let ids: Vec<u32> = (0..40)
            .map(|step| (seed * 7919 + step * step * 104_729) % (size + 3))
            .collect();
        for skip in [true, false] {
            let expected = tokenizer.0.decode_hf(&ids, skip).unwrap();
            assert_eq!(tokenizer.decode(&ids, skip).unwrap(), expected, "{ids:?}");
        }
    }
}

#[test]
fn control_tokens_in_text_are_one_id_each() {
    let tokenizer = Tokenizer::new(fixture()).unwrap();
    for (id, token) in ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        .into_iter()
        .enumerate()
    {
        let id = id as u32;
        assert_eq!(tokenizer.encode(token, false).unwrap(), [id]);
        assert!(
            tokenizer
                .encode(&format!("hello{token} there"), false)
                .unwrap()
                .contains(&id)
        );
        assert_eq!(tokenizer.token_to_id(token), Some(id));
        assert!(tokenizer.is_special(id));
    }
    assert_eq!(tokenizer.token_to_id("<|nothing|>"), None);
}

#[test]
fn a_token_has_the_bytes_it_adds_to_the_text() {
    let tokenizer = Tokenizer::new(fixture()).unwrap();
    let text = " the 日本 🐙<|im_end|>\n<tool_call>";
    let ids = tokenizer.encode(text, false).unwrap();
    let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.token_bytes(id)).collect();
    assert_eq!(String::from_utf8(bytes).unwrap(), text);
    assert!(
        ids.iter()
            .any(|&id| std::str::from_utf8(&tokenizer.token_bytes(id)).is_err())
    );
    assert!(tokenizer.token_bytes(tokenizer.vocab_size() as u32).is_empty());
    assert!(tokenizer.token_bytes(u32::MAX).is_empty());
}

#[test]
fn sentencepiece_tokens_have_bytes_too() {
    let tokenizer = Tokenizer::new(sentencepiece()).unwrap();
    let bytes = |token: &str| tokenizer.token_bytes(tokenizer.token_to_id(token).unwrap());
    assert_eq!(bytes("▁Hello"), b" Hello");
    assert_eq!(bytes("<0xE6>"), [0xe6]);
    assert_eq!(bytes("<tool>"), b"<tool>");
    assert_eq!(bytes("</s>"), b"</s>");
}

#[test]
fn the_vocabulary_counts_added_tokens_and_holes() {
    let tokenizer = Tokenizer::new(fixture()).unwrap();
    let highest = tokenizer.token_to_id("<tool_call>").unwrap();
    assert_eq!(tokenizer.vocab_size(), highest as usize + 1);
}

#[test]
fn end_of_sequence_ids_of_all_files_are_united() {
    let mut files = fixture();
    assert_eq!(Tokenizer::new(files.clone()).unwrap().eos_token_ids(), [2, 0]);
    files.generation_config = None;
    files.config = Some(json!({"text_config": {"eos_token_id": [1]}}));
    assert_eq!(Tokenizer::new(files.clone()).unwrap().eos_token_ids(), [1, 2]);
    files.config = Some(json!({"eos_token_id": null}));
    files.tokenizer_config = Some(json!({"eos_token": "<|endoftext|>"}));
    assert_eq!(Tokenizer::new(files).unwrap().eos_token_ids(), [0]);
}

fn rendered(tokenizer: &Tokenizer) -> Result<String, TemplateError> {
    tokenizer.chat_template().unwrap().render(&RenderInput {
        messages: &json!([{"role": "user", "content": "hi"}]),
        tools: None,
        add_generation_prompt: true,
        continue_final_message: false,
        kwargs: &Map::new(),
    })
}

#[test]
fn the_template_file_goes_before_the_one_in_the_config() {
    let mut files = fixture();
    let expected = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(
        rendered(&Tokenizer::new(files.clone()).unwrap()).unwrap(),
        expected
    );
    files.tokenizer_config =
        Some(json!({"chat_template": "{{ bos_token }}!", "bos_token": {"content": "B"}}));
    assert_eq!(rendered(&Tokenizer::new(files.clone()).unwrap()).unwrap(), "B!");
    files.chat_template = Some("file {{ bos_token }}".to_owned());
    assert_eq!(
        rendered(&Tokenizer::new(files.clone()).unwrap()).unwrap(),
        "file B"
    );
    files.chat_template = None;
    files.tokenizer_config = None;
    assert!(Tokenizer::new(files).unwrap().chat_template().is_none());
}

#[test]
fn broken_files_are_named_with_what_to_do() {
    let mut files = fixture();
    files.tokenizer_json.truncate(1000);
    let error = Tokenizer::new(files).err().unwrap().to_string();
    assert!(
        error.starts_with("tokenizer.json is broken") && error.contains("replace it"),
        "{error}"
    );

    let mut files = fixture();
    for json in [
        r#"{"model": {"type": "Unheard"}}"#,
        "",
        "[]",
        "{}",
        r#"{"model": 5, "decoder": 5}"#,
        "\u{0}",
    ] {
        files.tokenizer_json = json.as_bytes().to_vec();
        let error = Tokenizer::new(files.clone()).err().unwrap().to_string();
        assert!(error.starts_with("tokenizer.json is broken"), "{json}: {error}");
    }

    let mut files = fixture();
    files.chat_template = Some("{% if %}".to_owned());
    let error = Tokenizer::new(files).err().unwrap().to_string();
    assert!(
        error.contains("chat_template.jinja") && error.contains("does not compile"),
        "{error}"
    );
}

#[test]
fn damage_anywhere_in_the_file_is_an_error() {
    let intact: Value = serde_json::from_slice(&fixture().tokenizer_json).unwrap();
    for key in [
        "added_tokens",
        "normalizer",
        "pre_tokenizer",
        "post_processor",
        "decoder",
        "model",
        "version",
    ] {
        for damage in [json!(5), json!({"type": "Unheard"})] {
            let mut json = intact.clone();
            json[key] = damage;
            let tokenizer_json = serde_json::to_vec(&json).unwrap();
            let files = TokenizerFiles {
                tokenizer_json,
                ..TokenizerFiles::default()
            };
            let error = Tokenizer::new(files).err();
            assert!(
                matches!(error, Some(TokenizerError::Broken { .. })),
                "{key}: {}",
                json[key]
            );
        }
    }
}

#[test]
fn truncation_and_padding_left_in_the_file_have_no_effect() {
    let mut files = fixture();
    let mut json: Value = serde_json::from_slice(&files.tokenizer_json).unwrap();
    json["truncation"] =
        json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
    json["padding"] = json!({"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null,
                             "pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>"});
    let plain = Tokenizer::new(files.clone()).unwrap();
    files.tokenizer_json = serde_json::to_vec(&json).unwrap();
    let text = "hello there, hello world";
    assert_eq!(
        Tokenizer::new(files).unwrap().encode(text, false).unwrap(),
        plain.encode(text, false).unwrap()
    );
}

#[test]
fn a_tokenizer_and_its_decoders_move_between_threads() {
    let tokenizer = Tokenizer::new(sentencepiece()).unwrap();
    let mut decoder = tokenizer.decoder(true);
    let id = tokenizer.token_to_id("▁Hello").unwrap();
    let text = std::thread::spawn(move || decoder.push(id).unwrap())
        .join()
        .unwrap();
    assert_eq!(text, "Hello");
    let shared = &tokenizer;
    std::thread::scope(|scope| {
        assert_eq!(
            scope
                .spawn(move || shared.decode(&[id], true).unwrap())
                .join()
                .unwrap(),
            "Hello"
        );
    });
}
