//! The tokenizer bundle that the engine hands out.

use std::collections::BTreeMap;
use std::io::{self, Cursor, Write};

use sha2::{Digest, Sha256};
use smg_engine_client::proto::common::GetTokenizerChunk;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

/// Bytes per message, as the protocol has it.
const CHUNK_BYTES: usize = 256 << 10;

/// A zip archive of entries, in the order given. Names are not checked: bad archives are wanted in tests.
pub fn zip_archive<'a>(entries: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> io::Result<Vec<u8>> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, content) in entries {
        zip.start_file(name, SimpleFileOptions::default())?;
        zip.write_all(content)?;
    }
    Ok(zip.finish()?.into_inner())
}

/// An archive and the digest that is announced for it.
#[derive(Debug, Clone)]
pub(crate) struct Bundle {
    archive: Vec<u8>,
    sha256: String,
}

impl Bundle {
    pub fn of_files(files: &BTreeMap<String, Vec<u8>>) -> io::Result<Self> {
        let archive = zip_archive(
            files
                .iter()
                .map(|(name, content)| (name.as_str(), content.as_slice())),
        )?;
        Ok(Self::of_archive(archive, None))
    }

    pub fn of_archive(archive: Vec<u8>, sha256: Option<String>) -> Self {
        let sha256 = sha256.unwrap_or_else(|| hex::encode(Sha256::digest(&archive)));
        Self { archive, sha256 }
    }

    pub fn chunks(&self) -> Vec<GetTokenizerChunk> {
        let mut chunks: Vec<GetTokenizerChunk> = self
            .archive
            .chunks(CHUNK_BYTES)
            .map(|data| GetTokenizerChunk {
                data: data.to_vec(),
                sha256: String::new(),
            })
            .collect();
        if let Some(last) = chunks.last_mut() {
            last.sha256.clone_from(&self.sha256);
        }
        chunks
    }
}
