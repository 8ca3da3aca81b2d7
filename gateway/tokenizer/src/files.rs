//! The files of a model that this crate reads, from a folder or from a bundle.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::error::TokenizerError;

pub(crate) const TOKENIZER_JSON: &str = "tokenizer.json";
pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
pub(crate) const CONFIG: &str = "config.json";
pub(crate) const GENERATION_CONFIG: &str = "generation_config.json";
pub(crate) const CHAT_TEMPLATE: &str = "chat_template.jinja";

const NAMES: [&str; 5] = [
    TOKENIZER_JSON,
    TOKENIZER_CONFIG,
    CONFIG,
    GENERATION_CONFIG,
    CHAT_TEMPLATE,
];

/// The contents of a model's tokenizer files; only `tokenizer.json` is required.
#[derive(Debug, Clone, Default)]
pub struct TokenizerFiles {
    pub tokenizer_json: Vec<u8>,
    pub tokenizer_config: Option<Value>,
    pub config: Option<Value>,
    pub generation_config: Option<Value>,
    /// Content of `chat_template.jinja`; goes before the template inside `tokenizer_config.json`.
    pub chat_template: Option<String>,
}

impl TokenizerFiles {
    /// Reads the files from a folder. Blocks on the file system.
    pub fn read_dir(path: &Path) -> Result<Self, TokenizerError> {
        let unreadable = |path: &Path, source| TokenizerError::Unreadable {
            path: path.display().to_string(),
            source,
        };
        std::fs::read_dir(path).map_err(|source| unreadable(path, source))?;
        let mut contents = BTreeMap::new();
        for name in NAMES {
            let file = path.join(name);
            match std::fs::read(&file) {
                Ok(bytes) => {
                    contents.insert(name.to_owned(), bytes);
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(unreadable(&file, error)),
            }
        }
        Self::from_named(contents, &path.display().to_string())
    }

    /// Takes the files out of a bundle that maps file names to contents; other names are ignored.
    pub fn from_map(contents: BTreeMap<String, Vec<u8>>) -> Result<Self, TokenizerError> {
        Self::from_named(contents, "the tokenizer bundle")
    }

    fn from_named(mut contents: BTreeMap<String, Vec<u8>>, place: &str) -> Result<Self, TokenizerError> {
        let tokenizer_json = contents
            .remove(TOKENIZER_JSON)
            .ok_or_else(|| TokenizerError::Missing {
                place: place.to_owned(),
            })?;
        let mut json = |name: &str| {
            contents
                .remove(name)
                .map(|bytes| parse_json(name, &bytes))
                .transpose()
        };
        let tokenizer_config = json(TOKENIZER_CONFIG)?;
        let config = json(CONFIG)?;
        let generation_config = json(GENERATION_CONFIG)?;
        let chat_template = contents
            .remove(CHAT_TEMPLATE)
            .map(|bytes| {
                String::from_utf8(bytes).map_err(|error| TokenizerError::Broken {
                    file: CHAT_TEMPLATE.into(),
                    reason: error.to_string(),
                })
            })
            .transpose()?;
        Ok(Self {
            tokenizer_json,
            tokenizer_config,
            config,
            generation_config,
            chat_template,
        })
    }
}

fn parse_json(name: &str, bytes: &[u8]) -> Result<Value, TokenizerError> {
    serde_json::from_slice(bytes).map_err(|error| TokenizerError::Broken {
        file: name.to_owned(),
        reason: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(entries: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
        entries
            .iter()
            .map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec()))
            .collect()
    }

    #[test]
    fn a_bundle_without_tokenizer_json_is_refused_with_what_to_do() {
        let error = TokenizerFiles::from_map(bundle(&[("config.json", "{}")]))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("no tokenizer.json") && error.contains("Convert"),
            "{error}"
        );
    }

    #[test]
    fn a_broken_json_file_is_named() {
        let files = bundle(&[("tokenizer.json", "{}"), ("generation_config.json", "{\"a\":")]);
        let error = TokenizerFiles::from_map(files).unwrap_err().to_string();
        assert!(error.starts_with("generation_config.json is broken"), "{error}");
    }

    #[test]
    fn a_folder_that_does_not_exist_is_named() {
        let error = TokenizerFiles::read_dir(Path::new("no/such/folder"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("no/such/folder"), "{error}");
    }

    #[test]
    fn files_of_other_names_are_ignored() {
        let files = bundle(&[
            ("tokenizer.json", "{}"),
            ("vocab.txt", "x"),
            ("chat_template.jinja", "{{ messages }}"),
            ("config.json", "{\"eos_token_id\": 2}"),
        ]);
        let files = TokenizerFiles::from_map(files).unwrap();
        assert_eq!(files.chat_template.as_deref(), Some("{{ messages }}"));
        assert_eq!(files.config.unwrap()["eos_token_id"], 2);
        assert!(files.tokenizer_config.is_none());
    }
}
