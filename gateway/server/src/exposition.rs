//! Joins Prometheus texts of several processes into one.

use std::fmt::Write;

/// Families in the order of their first appearance; a family's header appears once.
#[derive(Default)]
pub struct Merged {
    families: Vec<Family>,
}

#[derive(Default)]
struct Family {
    name: String,
    headers: Vec<String>,
    samples: Vec<String>,
}

// === impl Merged ===

impl Merged {
    /// Adds a text, each of whose samples gets one more label.
    pub fn add(&mut self, text: &str, label: &str, value: &str) {
        let label = format!("{label}=\"{}\"", escape(value));
        let mut current = String::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if let Some(comment) = line.strip_prefix('#') {
                let mut words = comment.split_whitespace();
                if let (Some("HELP" | "TYPE"), Some(name)) = (words.next(), words.next()) {
                    current = name.to_owned();
                    let family = self.family(name);
                    let kind = &line[..line.find(name).unwrap_or(line.len())];
                    if !family.headers.iter().any(|header| header.starts_with(kind)) {
                        family.headers.push(line.to_owned());
                    }
                }
                continue;
            }
            let Some(sample) = labelled(line, &label) else {
                continue;
            };
            let name = line.split(['{', ' ', '\t']).next().unwrap_or_default();
            // `_bucket`, `_sum` and `_count` belong to the histogram whose header came before.
            let family = if name.starts_with(&current) && !current.is_empty() {
                &current
            } else {
                name
            };
            self.family(family).samples.push(sample);
        }
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        for line in self
            .families
            .iter()
            .flat_map(|family| family.headers.iter().chain(&family.samples))
        {
            text.push_str(line);
            text.push('\n');
        }
        text
    }

    fn family(&mut self, name: &str) -> &mut Family {
        let position = self
            .families
            .iter()
            .position(|family| family.name == name)
            .unwrap_or_else(|| {
                self.families.push(Family {
                    name: name.to_owned(),
                    ..Family::default()
                });
                self.families.len() - 1
            });
        &mut self.families[position]
    }
}

fn labelled(sample: &str, label: &str) -> Option<String> {
    let mut out = String::with_capacity(sample.len() + label.len() + 3);
    if let Some(open) = sample.find('{') {
        let (name, rest) = sample.split_at(open + 1);
        let separator = if rest.starts_with('}') { "" } else { "," };
        write!(out, "{name}{label}{separator}{rest}").ok()?;
    } else {
        let (name, value) = sample.split_once([' ', '\t'])?;
        write!(out, "{name}{{{label}}} {value}").ok()?;
    }
    Some(out)
}

/// The value of a label.
pub fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP a_total Things.\n# TYPE a_total counter\na_total 3\n\
        # TYPE b histogram\nb_bucket{le=\"1\"} 2\nb_sum 0.5\nb_count 2\n";

    #[test]
    fn families_are_joined_under_one_header() {
        let mut merged = Merged::default();
        merged.add(TEXT, "worker_addr", "grpc://one:1");
        merged.add(TEXT, "worker_addr", "grpc://two:2");
        let text = merged.text();
        assert_eq!(text.matches("# TYPE a_total counter").count(), 1);
        assert!(
            text.contains(
                "a_total{worker_addr=\"grpc://one:1\"} 3\na_total{worker_addr=\"grpc://two:2\"} 3\n"
            )
        );
        assert!(text.contains("b_bucket{worker_addr=\"grpc://two:2\",le=\"1\"} 2"));
        assert!(text.find("b_sum{worker_addr=\"grpc://one:1\"}") > text.find("# TYPE b histogram"));
    }
}
