//! A tokenizer whose ids are bytes: id 104 is `h`, whatever stands around it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

pub const EOS: u32 = 256;
pub const TURN_START: u32 = 257;

const TEMPLATE: &str = "{% if tools %}<|start|>tools\n{{ tools | tojson }}<|end|>\n{% endif %}\
    {% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}\
    {% for call in m.tool_calls %}{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}<|end|>\n\
    {% endfor %}\
    {% if add_generation_prompt %}<|start|>assistant\n{% endif %}";

/// The files that a worker hands out.
pub fn files() -> BTreeMap<String, Vec<u8>> {
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let vocab: Map<String, Value> = (0u32..256)
        .map(|byte| (letter(byte).to_string(), json!(byte)))
        .collect();
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [special(EOS, "<|end|>"), special(TURN_START, "<|start|>")],
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": null,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    let config = json!({"eos_token": "<|end|>", "chat_template": TEMPLATE});
    BTreeMap::from([
        ("tokenizer.json".to_owned(), tokenizer.to_string().into_bytes()),
        (
            "tokenizer_config.json".to_owned(),
            config.to_string().into_bytes(),
        ),
    ])
}

/// The character that byte-level vocabularies write for a byte.
fn letter(byte: u32) -> char {
    let printable = |b: &u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let code = if printable(&byte) {
        byte
    } else {
        256 + (0..byte).filter(|b| !printable(b)).count() as u32
    };
    char::from_u32(code).unwrap()
}

/// The ids of a text.
pub fn ids(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}
