//! The archive that carries a worker's tokenizer files. It comes over the network, so its digest, its sizes
//! and its names are checked before anything is used.

use std::collections::BTreeMap;
use std::io::{Cursor, Read};

use sha2::{Digest, Sha256};
use zip::ZipArchive;

/// Largest archive, in bytes.
pub(crate) const MAX_ARCHIVE_BYTES: usize = 256 << 20;

/// Largest sum of the unpacked files, in bytes.
const MAX_UNPACKED_BYTES: u64 = 512 << 20;

/// Most files in an archive.
const MAX_FILES: usize = 64;

/// Unpacks an archive into file name → content. `sha256` is the hex digest of the whole archive. Refused with
/// a sentence: a wrong digest, too many or too large files, and any name that is not a plain file name.
pub(crate) fn unpack(archive: &[u8], sha256: &str) -> Result<BTreeMap<String, Vec<u8>>, String> {
    verify(archive, sha256)?;
    let mut zip =
        ZipArchive::new(Cursor::new(archive)).map_err(|error| format!("no zip archive: {error}"))?;
    if zip.len() > MAX_FILES {
        return Err(format!(
            "{} files in the archive, allowed are {MAX_FILES}",
            zip.len()
        ));
    }
    let mut files = BTreeMap::new();
    let mut allowance = MAX_UNPACKED_BYTES;
    for position in 0..zip.len() {
        let entry = zip
            .by_index(position)
            .map_err(|error| format!("entry {position}: {error}"))?;
        let name = entry
            .name()
            .map_err(|error| format!("name of entry {position}: {error}"))?
            .into_owned();
        if entry.is_dir() || entry.is_symlink() || !is_plain_file_name(&name) {
            return Err(format!("entry {name:?} is no plain file at the archive's root"));
        }
        let content = read_bounded(entry, allowance).map_err(|error| format!("entry {name:?}: {error}"))?;
        allowance -= content.len() as u64;
        files.insert(name, content);
    }
    Ok(files)
}

fn verify(archive: &[u8], sha256: &str) -> Result<(), String> {
    if sha256.is_empty() {
        return Err("the last chunk carries no sha256".to_owned());
    }
    let actual = hex::encode(Sha256::digest(archive));
    if actual.eq_ignore_ascii_case(sha256) {
        return Ok(());
    }
    Err(format!(
        "the archive's sha256 is {actual}, announced was {sha256:?}"
    ))
}

/// The declared size of an entry is the sender's word: what counts is what comes out.
fn read_bounded(entry: impl Read, allowance: u64) -> Result<Vec<u8>, String> {
    let mut content = Vec::new();
    entry
        .take(allowance + 1)
        .read_to_end(&mut content)
        .map_err(|error| error.to_string())?;
    if content.len() as u64 > allowance {
        return Err(format!("the unpacked files exceed {MAX_UNPACKED_BYTES} bytes"));
    }
    Ok(content)
}

fn is_plain_file_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', ':', '\0'])
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    use super::*;

    fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, content) in entries {
            zip.start_file(*name, SimpleFileOptions::default()).unwrap();
            zip.write_all(content).unwrap();
        }
        zip.finish().unwrap().into_inner()
    }

    fn unpack_as_announced(archive: &[u8]) -> Result<BTreeMap<String, Vec<u8>>, String> {
        unpack(archive, &hex::encode(Sha256::digest(archive)))
    }

    #[test]
    fn files_come_out_as_they_went_in() {
        let files = unpack_as_announced(&archive(&[("config.json", b"{}"), ("empty", b"")])).unwrap();
        assert_eq!(
            files,
            BTreeMap::from([
                ("config.json".to_owned(), b"{}".to_vec()),
                ("empty".to_owned(), vec![])
            ])
        );
    }

    #[test]
    fn the_digest_covers_the_whole_archive() {
        let mut bytes = archive(&[("config.json", b"{}")]);
        let announced = hex::encode(Sha256::digest(&bytes)).to_uppercase();
        assert!(unpack(&bytes, &announced).is_ok());
        bytes.push(0);
        assert!(unpack(&bytes, &announced).unwrap_err().contains("announced was"));
    }

    #[test]
    fn names_are_plain() {
        for name in ["", ".", "..", "a/b", "/a", "a\\b", "C:a", "a\0b", "../a"] {
            assert!(!is_plain_file_name(name), "{name:?}");
        }
        for name in ["tokenizer.json", "a b", "..a", "käse"] {
            assert!(is_plain_file_name(name), "{name:?}");
        }
    }

    #[test]
    fn what_comes_out_counts_not_what_was_declared() {
        assert_eq!(read_bounded([1u8, 2, 3].as_slice(), 3).unwrap(), [1, 2, 3]);
        assert!(
            read_bounded([1u8, 2, 3, 4].as_slice(), 3)
                .unwrap_err()
                .contains("exceed")
        );
    }

    #[test]
    fn too_many_files_are_refused() {
        let names: Vec<String> = (0..=MAX_FILES).map(|i| format!("f{i}")).collect();
        let entries: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), b"".as_slice())).collect();
        assert!(
            unpack_as_announced(&archive(&entries))
                .unwrap_err()
                .contains("65 files")
        );
    }

    #[test]
    fn something_else_than_an_archive_is_refused() {
        assert!(
            unpack_as_announced(b"<html>")
                .unwrap_err()
                .contains("no zip archive")
        );
    }
}
