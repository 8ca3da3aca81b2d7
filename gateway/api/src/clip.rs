//! How much of a client's value a message repeats. Every message that quotes one quotes it through here.

use std::borrow::Cow;

/// Characters of a value that a message repeats.
pub const MAX_QUOTED_CHARS: usize = 100;

/// `text`, or its first [`MAX_QUOTED_CHARS`] characters and how many there are.
pub fn clip(text: &str) -> Cow<'_, str> {
    clip_to(text, MAX_QUOTED_CHARS)
}

/// The same with another bound.
pub(crate) fn clip_to(text: &str, max_chars: usize) -> Cow<'_, str> {
    match text.char_indices().nth(max_chars) {
        None => Cow::Borrowed(text),
        Some((end, _)) => {
            let num_chars = max_chars + text[end..].chars().count();
            Cow::Owned(format!("{}… ({num_chars} characters)", &text[..end]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_stays_whole() {
        for text in ["", "demo", &"é".repeat(MAX_QUOTED_CHARS)] {
            assert!(matches!(clip(text), Cow::Borrowed(same) if same == text));
        }
    }

    #[test]
    fn what_is_long_is_cut_between_characters_and_keeps_its_length() {
        let clipped = clip_to("déjà vu", 2);
        assert_eq!(clipped, "dé… (7 characters)");
        let long = "模".repeat(1 << 20);
        let clipped = clip(&long);
        assert!(clipped.ends_with("模… (1048576 characters)"));
        assert!(clipped.chars().count() < MAX_QUOTED_CHARS + 30);
    }
}
