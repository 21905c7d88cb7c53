//! A greeting that is in another language each time: a record with its language, 4 bytes, and its
//! text, 1024 bytes.

use rpma::{Peer, PrivateData, Span, Usage};

use super::Outcome;
use super::store::Store;

/// Bytes of a text, with the zeros behind it.
pub(crate) const TEXT: usize = 1024;

const LANGUAGE: usize = 4;
const TEXTS: [&str; 2] = ["Hello world!", "¡Hola Mundo!"];

#[derive(Debug)]
pub(crate) struct Greeting {
    store: Store,
}

impl Greeting {
    /// The greeting of the arguments `[FILE [OFFSET]]`: the one in the file, or a new one.
    pub(crate) fn open(peer: &Peer, arguments: &[String], usage: Usage) -> Outcome<Self> {
        let offset = match arguments.get(1) {
            Some(text) => super::number(text, "OFFSET")?,
            None => 0,
        };
        let file = arguments.first();
        let mut store = Store::open(peer, file, offset, LANGUAGE + TEXT, usage)?;
        let is_new = store.is_new;
        if is_new {
            set(&store, 0)?;
            store.commit()?;
        }
        let greeting = Self { store };
        println!("greeting: {}", greeting.text()?);
        Ok(greeting)
    }

    fn text(&self) -> Outcome<String> {
        let start = self.store.start + LANGUAGE;
        super::text_in(&self.store.region, start..start + TEXT)
    }

    /// The text, as the source of an operation.
    pub(crate) fn span(&self) -> Outcome<Span<'_>> {
        let start = (self.store.start + LANGUAGE) as u64;
        Ok(self.store.region.span(start..start + TEXT as u64)?)
    }

    /// What tells the other side where the text is.
    pub(crate) fn announced(&self) -> Outcome<PrivateData> {
        self.store.announced(LANGUAGE, None)
    }

    /// Goes on to the next language.
    pub(crate) fn translate(&self) -> Outcome {
        let mut language = [0; LANGUAGE];
        self.store.region.load(self.store.start, &mut language)?;
        set(&self.store, u32::from_ne_bytes(language).wrapping_add(1))?;
        println!("translated: {}", self.text()?);
        Ok(())
    }
}

fn set(store: &Store, language: u32) -> Outcome {
    let language = language % 2;
    let mut text = [0; TEXT];
    let words = TEXTS[language as usize].as_bytes();
    text[..words.len()].copy_from_slice(words);
    store.write(LANGUAGE, &text)?;
    store.write(0, &language.to_ne_bytes())
}
