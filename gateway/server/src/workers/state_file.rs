//! The file that keeps the workers that were added at run time.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::Given;

const VERSION: u32 = 1;

/// Workers by URL.
pub type Added = BTreeMap<String, Given>;

/// What is wrong with the file.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct StateFileError {
    path: PathBuf,
    why: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    workers: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    url: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default = "priority")]
    priority: u32,
    #[serde(default = "cost")]
    cost: f32,
}

fn priority() -> u32 {
    Given::default().priority
}

fn cost() -> f32 {
    Given::default().cost
}

#[derive(Clone, Debug)]
pub struct StateFile {
    path: PathBuf,
}

// === impl StateFile ===

impl StateFile {
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
        }
    }

    /// None where there is no file yet.
    pub fn read(&self) -> Result<Added, StateFileError> {
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Added::new()),
            Err(error) => return Err(self.fail(format!("cannot be read: {error}"))),
        };
        parse(&text).map_err(|why| {
            self.fail(format!(
                "{why}; correct the file, or move it away and add its workers again"
            ))
        })
    }

    /// The file is the old one or the new one at any moment, never a part of one.
    pub fn write(&self, added: &Added) -> Result<(), StateFileError> {
        let entry = |(url, given): (&String, &Given)| Entry {
            url: url.clone(),
            labels: given.labels.clone(),
            priority: given.priority,
            cost: given.cost,
        };
        let content = Content {
            version: VERSION,
            workers: added.iter().map(entry).collect(),
        };
        let text = serde_json::to_string_pretty(&content).map_err(|error| self.fail(error.to_string()))?;
        self.replace(&text)
            .map_err(|error| self.fail(format!("cannot be written: {error}")))
    }

    fn replace(&self, text: &str) -> std::io::Result<()> {
        let mut beside = self.path.clone().into_os_string();
        beside.push(".new");
        let mut file = File::create(&beside)?;
        file.write_all(text.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        std::fs::rename(&beside, &self.path)
    }

    fn fail(&self, why: String) -> StateFileError {
        StateFileError {
            path: self.path.clone(),
            why,
        }
    }
}

fn parse(text: &str) -> Result<Added, String> {
    let content: Content =
        serde_json::from_str(text).map_err(|error| format!("is no list of workers: {error}"))?;
    if content.version != VERSION {
        return Err(format!(
            "has version {}, this program reads {VERSION}",
            content.version
        ));
    }
    let mut added = Added::new();
    for entry in content.workers {
        let url = entry.url;
        let given = Given {
            labels: entry.labels,
            priority: entry.priority,
            cost: entry.cost,
        };
        smg_config::check_worker_url("url", &url).map_err(|error| error.to_string())?;
        given
            .check()
            .map_err(|wrong| format!("worker `{url}`: {wrong}"))?;
        if added.insert(url.clone(), given).is_some() {
            return Err(format!("has worker `{url}` twice"));
        }
    }
    Ok(added)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let folder = std::env::temp_dir().join(format!("smg-state-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&folder).unwrap();
        let file = StateFile::new(&folder.join("workers.json"));
        assert_eq!(file.read().unwrap(), Added::new());
        let labels = BTreeMap::from([("zone".to_owned(), "b".to_owned())]);
        let given = Given {
            labels,
            priority: 7,
            cost: 0.5,
        };
        let added = Added::from([
            ("grpc://a:1".to_owned(), given),
            ("unix:///run/w".to_owned(), Given::default()),
        ]);
        file.write(&added).unwrap();
        assert_eq!(file.read().unwrap(), added);
        let names: Vec<_> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["workers.json"]);
        std::fs::remove_dir_all(&folder).unwrap();
        let error = file.write(&added).unwrap_err().to_string();
        assert!(error.contains("workers.json: cannot be written: "), "{error}");
    }

    #[test]
    fn a_file_that_is_no_list_of_workers_is_told() {
        for (text, said) in [
            ("", "is no list of workers: EOF"),
            (
                r#"{"version": 2, "workers": []}"#,
                "has version 2, this program reads 1",
            ),
            (
                r#"{"version": 1, "workers": [{"url": "a:1"}]}"#,
                "url must be grpc://HOST:PORT",
            ),
            (
                r#"{"version": 1, "workers": [{"url": "grpc://a:1", "cost": 0}]}"#,
                "worker `grpc://a:1`: cost must be a number from 0.001 to 1000, got 0",
            ),
            (
                r#"{"version": 1, "workers": [{"url": "grpc://a:1"}, {"url": "grpc://a:1"}]}"#,
                "has worker `grpc://a:1` twice",
            ),
        ] {
            let why = parse(text).unwrap_err();
            assert!(why.contains(said), "{why}");
        }
    }
}
