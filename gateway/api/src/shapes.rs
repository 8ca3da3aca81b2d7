//! Values that may be written in more than one JSON form.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{self, Deserialize, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::{Serialize, Serializer};

/// A value, or a list with one value per prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    pub fn into_vec(self) -> Vec<T> {
        match self {
            Self::One(value) => vec![value],
            Self::Many(values) => values,
        }
    }
}

impl<T: Serialize> Serialize for OneOrMany<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::One(value) => value.serialize(serializer),
            Self::Many(values) => values.serialize(serializer),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrManyVisitor(PhantomData))
    }
}

struct OneOrManyVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrManyVisitor<T> {
    type Value = OneOrMany<T>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("one value or a list of them")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Self::Value, E> {
        T::deserialize(value.into_deserializer()).map(OneOrMany::One)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
        T::deserialize(value.into_deserializer()).map(OneOrMany::One)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
        T::deserialize(value.into_deserializer()).map(OneOrMany::One)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Self::Value, E> {
        T::deserialize(value.into_deserializer()).map(OneOrMany::One)
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Self::Value, E> {
        T::deserialize(value.into_deserializer()).map(OneOrMany::One)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(OneOrMany::One)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(seq)).map(OneOrMany::Many)
    }
}

/// What one answer continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

impl Prompt {
    /// What the native endpoints call it.
    pub fn native_field(&self) -> &'static str {
        match self {
            Self::Text(_) => "text",
            Self::Ids(_) => "input_ids",
        }
    }
}

/// A prompt or several, in any of the four forms of `/v1/completions`: a string, a list of strings, a list
/// of token ids, a list of lists of token ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Prompts {
    One(Prompt),
    Many(Vec<Prompt>),
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptsVisitor)
    }
}

struct PromptsVisitor;

impl<'de> Visitor<'de> for PromptsVisitor {
    type Value = Prompts;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a string, a list of strings, a list of token ids or a list of lists of token ids")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Prompts, E> {
        Ok(Prompts::One(Prompt::Text(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Prompts, A::Error> {
        Ok(match seq.next_element::<Element>()? {
            None => Prompts::Many(Vec::new()),
            Some(Element::Id(first)) => Prompts::One(Prompt::Ids(rest(first, &mut seq)?)),
            Some(Element::Text(first)) => {
                Prompts::Many(rest(first, &mut seq)?.into_iter().map(Prompt::Text).collect())
            }
            Some(Element::Ids(first)) => {
                Prompts::Many(rest(first, &mut seq)?.into_iter().map(Prompt::Ids).collect())
            }
        })
    }
}

/// The elements after the first one decided their type.
fn rest<'de, A: SeqAccess<'de>, T: Deserialize<'de>>(first: T, seq: &mut A) -> Result<Vec<T>, A::Error> {
    let mut all = vec![first];
    while let Some(next) = seq.next_element()? {
        all.push(next);
    }
    Ok(all)
}

enum Element {
    Id(u32),
    Text(String),
    Ids(Vec<u32>),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ElementVisitor;
        impl<'de> Visitor<'de> for ElementVisitor {
            type Value = Element;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str(
                    "a string, a token id (a whole number from 0 to 4294967295) or a list of token ids",
                )
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Element, E> {
                u32::try_from(value)
                    .map(Element::Id)
                    .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(value), &self))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Element, E> {
                Ok(Element::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Element, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(seq)).map(Element::Ids)
            }
        }
        deserializer.deserialize_any(ElementVisitor)
    }
}

/// Token ids for one prompt, or one list for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TokenIds {
    One(Vec<u32>),
    Many(Vec<Option<Vec<u32>>>),
}

impl<'de> Deserialize<'de> for TokenIds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TokenIdsVisitor;
        impl<'de> Visitor<'de> for TokenIdsVisitor {
            type Value = TokenIds;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a list of token ids or a list of lists of token ids")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<TokenIds, A::Error> {
                match seq.next_element::<Option<OneOrMany<u32>>>()? {
                    None => Ok(TokenIds::One(Vec::new())),
                    Some(Some(OneOrMany::One(id))) => rest(id, &mut seq).map(TokenIds::One),
                    Some(Some(OneOrMany::Many(ids))) => rest(Some(ids), &mut seq).map(TokenIds::Many),
                    Some(None) => rest(None, &mut seq).map(TokenIds::Many),
                }
            }
        }
        deserializer.deserialize_seq(TokenIdsVisitor)
    }
}
